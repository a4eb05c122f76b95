// The runnable example of package sim.
package sim_test

import (
	"errors"
	"fmt"

	"gpumem/device"
	"gpumem/device/sim"
)

func ExampleNew() {
	d, err := sim.New(sim.Config{Total: 24 << 30, Display: 1 << 30, Name: "desktop"})
	if err != nil {
		fmt.Println(err)
		return
	}
	r, err := d.Alloc(3 << 20) // rounded up to a multiple of 2 MiB
	fmt.Printf("%d MiB at %#x, %v\n", r.Bytes>>20, r.Addr, err)

	_, err = d.Alloc(23 << 30) // all but what was just granted
	fmt.Println(errors.Is(err, device.ErrOutOfMemory), err)

	fmt.Println(d.Free(r.Addr))
	fmt.Printf("%+v\n", d.Counters())
	// Output:
	// 4 MiB at 0x7f0000000000, <nil>
	// true cuMemAlloc of 24696061952 bytes on desktop: CUDA_ERROR_OUT_OF_MEMORY: out of memory
	// <nil>
	// {Calls:3 Time:329µs}
}
