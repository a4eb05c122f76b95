package pytorch_test

import (
	"testing"

	"gpumem/alloc"
	"gpumem/alloc/internal/pytorch"
	"gpumem/device/sim"
)

// BenchmarkReplay is a whole trace on a fresh pool per iteration, without a lock.
// ns/event is the figure.
func BenchmarkReplay(b *testing.B) {
	for _, tc := range []struct {
		trace string
		total uint64
	}{
		{"bfc/train_lifo", 24 << 30}, {"bfc/steady_1000", 16 << 30}, {"bfc/loguniform_200k", 32 << 30},
		{"peers/mltrain", 32 << 30}, {"bfc/uniform_1m", 24 << 30}, {"bfc/pressure_oom", 8 << 30},
	} {
		ops := readTrace(b, tc.trace)
		blocks := make([]alloc.Block, len(ops))
		for _, way := range []struct {
			name string
			cfg  pytorch.Config
		}{
			{"default", pytorch.Config{}},
			{"2.11", pytorch.Config{Tie: pytorch.ByAddress}},
			{"max_split", pytorch.Config{MaxSplit: 128 << 20}},
			{"expandable", pytorch.Config{Expandable: true}},
		} {
			b.Run(tc.trace+"/"+way.name, func(b *testing.B) {
				n := 0
				for b.Loop() {
					b.StopTimer()
					dev, err := sim.New(sim.Config{Total: tc.total})
					if err != nil {
						b.Fatal(err)
					}
					a, err := pytorch.New(dev, way.cfg)
					if err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
					for i := range ops {
						o := &ops[i]
						if !o.free {
							blocks[o.block], _ = a.Alloc(alloc.Request{Bytes: o.bytes})
						} else if o.block >= 0 {
							_ = a.Free(blocks[o.block])
						}
					}
					n += len(ops)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/event")
			})
		}
	}
}
