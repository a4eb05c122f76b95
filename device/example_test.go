// The runnable example of package device.
package device_test

import (
	"errors"
	"fmt"

	"gpumem/device"
	"gpumem/device/sim"
)

// largest is what a device can grant in one piece, in steps of 1 GiB.
func largest(d device.Device) (uint64, error) {
	free, _, err := d.MemInfo()
	if err != nil {
		return 0, err
	}
	for n := free &^ (1<<30 - 1); n > 0; n -= 1 << 30 {
		got, err := d.Alloc(n)
		if err == nil {
			return got.Bytes, d.Free(got.Addr)
		}
		if !errors.Is(err, device.ErrOutOfMemory) {
			return 0, err
		}
	}
	return 0, nil
}

func Example() {
	d, err := sim.New(sim.Config{Total: 80 << 30, Used: 10 << 30})
	if err != nil {
		fmt.Println(err)
		return
	}
	n, err := largest(d)
	fmt.Println(n>>30, "GiB,", err)

	_, err = d.Alloc(80 << 30)
	fmt.Println(err)
	// Output:
	// 70 GiB, <nil>
	// cuMemAlloc of 85899345920 bytes on sim:80GiB: CUDA_ERROR_OUT_OF_MEMORY: out of memory
}
