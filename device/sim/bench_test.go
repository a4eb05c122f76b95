package sim_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"gpumem/device"
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

// BenchmarkPoolAllocFree is one AllocAsync and one FreeAsync while others are
// live, of sizes from 512 B on, as many of each power of two; a random one is
// freed. The program never waits, as a replay.
func BenchmarkPoolAllocFree(b *testing.B) {
	for _, streams := range []int{1, 4} {
		for _, live := range []int{10, 1000, 10_000} {
			for _, most := range []uint64{16 << 10, 1 << 20} {
				b.Run(fmt.Sprintf("streams=%d/live=%d/most=%dKiB", streams, live, most>>10), func(b *testing.B) {
					d := newDevice(b, sim.Config{Total: 1 << 50})
					p := must[device.Pool](b)(d.DefaultPool())
					s := make([]device.Stream, streams)
					for i := 1; i < streams; i++ {
						s[i] = must[device.Stream](b)(d.StreamCreate())
					}
					r := rand.New(rand.NewPCG(1, 1))
					blocks := make([]uint64, live)
					alloc := func(i int) {
						n := min(512<<r.IntN(12), most)
						blocks[i] = must[device.Range](b)(d.AllocAsync(p, n-r.Uint64N(n/2), s[i%streams])).Addr
					}
					for i := range blocks {
						alloc(i)
					}
					b.ReportAllocs()
					for b.Loop() {
						i := r.IntN(live)
						ok(b, d.FreeAsync(blocks[i], s[i%streams]))
						alloc(i)
					}
				})
			}
		}
	}
}
