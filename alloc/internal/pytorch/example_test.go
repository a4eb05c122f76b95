package pytorch_test

import (
	"fmt"

	"gpumem/alloc"
	"gpumem/alloc/internal/pytorch"
	"gpumem/device/sim"
)

// A request of 3,000,000 bytes takes a segment of 20 MiB, whose rest serves the next one.
// What is freed stays in the pool until Trim, torch.cuda.empty_cache.
func Example() {
	dev, _ := sim.New(sim.Config{Total: 1 << 30})
	a, _ := pytorch.New(dev, pytorch.Config{})
	b, _ := a.Alloc(alloc.Request{Bytes: 3_000_000})
	c, _ := a.Alloc(alloc.Request{Bytes: 5_000_000})
	fmt.Println(b.Size, c.Addr-b.Addr, a.Stats().PoolBytes)
	a.Free(b)
	a.Free(c)
	fmt.Println(a.Stats().PoolBytes)
	fmt.Println(a.Trim(0))
	// Output:
	// 3000320 3000320 20971520
	// 20971520
	// 20971520 <nil>
}
