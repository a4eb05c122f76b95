package async_test

import (
	"fmt"

	"gpumem/alloc"
	"gpumem/alloc/internal/async"
	"gpumem/device/sim"
)

func Example() {
	dev, _ := sim.New(sim.Config{Total: 8 << 30})
	// JAX's cuda_async: three quarters of the device are taken and kept.
	a, _ := async.New(dev, async.Config{Reserve: 6 << 30, Preallocate: 6 << 30})
	fmt.Println(a.Name(), a.Stats().PoolBytes)

	b, _ := a.Alloc(alloc.Request{Bytes: 1000})
	s := a.Stats()
	fmt.Println(b.Size, s.BytesInUse, s.PoolBytes>>20)

	fmt.Println(a.Free(b))
	released, _ := a.Trim(0)
	fmt.Println(released>>20, a.Stats().PoolBytes>>20)
	fmt.Println(a.Close())
	// Output:
	// gpu_async_0 0
	// 1000 1000 6144
	// <nil>
	// 6144 0
	// <nil>
}
