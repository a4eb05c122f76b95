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
	fmt.Println(d.Counters().Calls, "calls")
	// Output:
	// 4 MiB at 0x7f0000000000, <nil>
	// true cuMemAlloc of 24696061952 bytes on desktop: CUDA_ERROR_OUT_OF_MEMORY: out of memory
	// <nil>
	// 3 calls
}

// A reservation is filled page by page; what is behind an address can be taken
// away, kept, and put somewhere else.
func ExampleDevice_MemMap() {
	d, err := sim.New(sim.Config{Total: 24 << 30})
	if err != nil {
		fmt.Println(err)
		return
	}
	page := d.Info().Page
	addr, err := d.AddressReserve(1<<40, 0) // more than there is memory
	if err != nil {
		fmt.Println(err)
		return
	}
	h, err := d.MemCreate(page)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(d.MemMap(addr, page, h), d.MemSetAccess(addr, page))
	fmt.Println(d.Write(addr, []byte("weights")))

	there := addr + 100*page
	fmt.Println(d.MemUnmap(addr, page), d.MemMap(there, page, h), d.MemSetAccess(there, page))
	p := make([]byte, 7)
	fmt.Println(d.Read(there, p), string(p))
	fmt.Println(d.Read(addr, p))
	// Output:
	// <nil> <nil>
	// <nil>
	// <nil> <nil> <nil>
	// <nil> weights
	// cuMemcpyDtoH of 7 bytes on sim:24GiB: CUDA_ERROR_INVALID_VALUE: invalid argument
}
