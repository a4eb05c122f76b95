package vmm_test

import (
	"fmt"

	"gpumem/alloc"
	"gpumem/alloc/internal/vmm"
	"gpumem/device/sim"
)

// What is freed stays mapped, and serves the next request of as many pages.
func Example() {
	dev, _ := sim.New(sim.Config{Total: 1 << 30})
	a, _ := vmm.New(dev, vmm.Config{Budget: 768 << 20})
	b, _ := a.Alloc(alloc.Request{Bytes: 3 << 20})
	fmt.Println(b.Size>>20, "MiB,", dev.Counters().Calls, "driver calls")
	_ = a.Free(b)
	again, _ := a.Alloc(alloc.Request{Bytes: 4 << 20})
	fmt.Println(again.Addr == b.Addr, dev.Counters().Calls)
	other, _ := a.Alloc(alloc.Request{Bytes: 5 << 20})
	fmt.Println(other.Addr == b.Addr, dev.Counters().Calls)
	fmt.Println(a.Close())
	// Output:
	// 4 MiB, 4 driver calls
	// true 4
	// false 8
	// <nil>
}
