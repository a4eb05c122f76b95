package sim_test

import (
	"fmt"
	"testing"

	"gpumem/device/sim"
)

// BenchmarkAllocFree is one Alloc and one Free while others are live, the
// oldest freed first or the newest: what a replay does millions of times.
func BenchmarkAllocFree(b *testing.B) {
	for _, live := range []int{0, 1000, 100_000} {
		for _, oldest := range []bool{false, true} {
			b.Run(fmt.Sprintf("live=%d/oldest=%v", live, oldest), func(b *testing.B) {
				d := newDevice(b, sim.Config{Total: 1 << 50})
				addrs := make([]uint64, live+1)
				for i := range live {
					r, _ := d.Alloc(1)
					addrs[i] = r.Addr
				}
				b.ReportAllocs()
				at := live
				for b.Loop() {
					r, err := d.Alloc(1)
					if err != nil {
						b.Fatal(err)
					}
					addrs[at] = r.Addr
					if oldest {
						at = (at + 1) % len(addrs)
					}
					if err := d.Free(addrs[at]); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
