package bfc_test

import (
	"testing"

	"gpumem/alloc"
	"gpumem/alloc/internal/bfc"
	"gpumem/device/sim"
	"gpumem/internal/test/golden"
)

// benchOps replays ops once and returns. Blocks are kept in a slice by number,
// so that what is timed is the allocator and a slot store.
func benchOps(a *bfc.Allocator, ops []golden.Op, blocks []alloc.Block, byAddr bool) {
	for i := range ops {
		op := &ops[i]
		if op.Free {
			b := blocks[op.Block]
			if byAddr {
				_ = a.FreeAddr(b.Addr)
			} else {
				_ = a.Free(b)
			}
			continue
		}
		blocks[op.Block], _ = a.Alloc(alloc.Request{Bytes: op.Bytes})
	}
}

// BenchmarkReplay is a whole trace on a fresh pool per iteration, without a
// lock: classic by block and by address, and partitioned as JAX's default was
// in 0.11 and is since 0.12.
// ns/event is the figure. With the lock: the benchmark of that name in the root
// package.
func BenchmarkReplay(b *testing.B) {
	for _, tc := range []struct {
		trace string
		limit uint64
	}{
		{"bfc/train_lifo", 24 << 30}, {"bfc/steady_1000", 16 << 30}, {"bfc/loguniform_200k", 16 << 30},
		{"peers/mltrain", 32 << 30}, {"bfc/uniform_1m", 6 << 30}, {"bfc/pressure_oom", 8 << 30},
		{"bfc/adversarial_frag", 4 << 30}, {"peers/adv_bin", 1 << 30},
	} {
		ops, err := golden.Trace(tc.trace)
		if err != nil {
			b.Fatal(err)
		}
		blocks := make([]alloc.Block, len(ops))
		for _, way := range []struct {
			name                     string
			byAddr, spatial, topDown bool
		}{{name: "block"}, {name: "addr", byAddr: true}, {name: "spatial", spatial: true}, {name: "topdown", spatial: true, topDown: true}} {
			b.Run(tc.trace+"/"+way.name, func(b *testing.B) {
				n := 0
				for b.Loop() {
					b.StopTimer()
					dev, _ := sim.New(sim.Config{Total: 160 << 30})
					a, err := bfc.New(dev, bfc.Config{Limit: tc.limit, Spatial: way.spatial, TopDown: way.topDown})
					if err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
					benchOps(a, ops, blocks, way.byAddr)
					n += len(ops)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/event")
			})
		}
	}
}
