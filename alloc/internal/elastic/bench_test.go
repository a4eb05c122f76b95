package elastic_test

import (
	"testing"

	"gpumem/alloc"
	"gpumem/alloc/internal/bfc"
	"gpumem/alloc/internal/elastic"
	"gpumem/device/sim"
)

// BenchmarkReplay is a whole trace on a fresh pool per iteration, without a
// lock, beside bfc. ns/event is the figure; it has the simulated device's share
// in it, which "again" leaves out: there the trace is run once before.
func BenchmarkReplay(b *testing.B) {
	for _, name := range []string{"bfc/train_lifo", "bfc/steady_1000", "bfc/loguniform_200k", "peers/mltrain", "bfc/uniform_1m"} {
		tr := readTrace(b, name)
		blocks := make([]alloc.Block, tr.blocks)
		last := make([]int, tr.blocks) // the operation that is the last on a block
		for i, op := range tr.ops {
			last[op.Block] = i
		}
		for _, way := range []struct {
			name  string
			again bool
			open  func(*sim.Device) (alloc.Allocator, error)
		}{
			{"elastic", false, func(d *sim.Device) (alloc.Allocator, error) { return elastic.New(d, elastic.Config{}) }},
			{"elastic again", true, func(d *sim.Device) (alloc.Allocator, error) { return elastic.New(d, elastic.Config{}) }},
			{"bfc", false, func(d *sim.Device) (alloc.Allocator, error) { return bfc.New(d, bfc.Config{Limit: 32 << 30}) }},
			{"bfc again", true, func(d *sim.Device) (alloc.Allocator, error) { return bfc.New(d, bfc.Config{Limit: 32 << 30}) }},
		} {
			b.Run(name+"/"+way.name, func(b *testing.B) {
				n := 0
				for b.Loop() {
					b.StopTimer()
					a, err := way.open(newSim(b, 160<<9))
					if err != nil {
						b.Fatal(err)
					}
					run := func() {
						for i := range tr.ops {
							if op := &tr.ops[i]; op.Free {
								_ = a.Free(blocks[op.Block])
							} else {
								blocks[op.Block], _ = a.Alloc(alloc.Request{Bytes: op.Bytes})
							}
						}
					}
					if way.again {
						run()
						for i, op := range tr.ops {
							if last[op.Block] == i && !op.Free {
								_ = a.Free(blocks[op.Block])
							}
						}
					}
					b.StartTimer()
					run()
					n += len(tr.ops)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/event")
			})
		}
	}
}
