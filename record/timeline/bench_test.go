package timeline

import (
	"testing"

	"gpumem/record/internal/test/replaytest"
	"gpumem/record/replay"
)

// BenchmarkPage is the pass with hooks, without a page and with one, and the passes
// before it that choose the snapshots.
func BenchmarkPage(b *testing.B) {
	tr := replaytest.File(b, "..", "..", "testdata", "bfc", "steady_1000.txt.gz")
	plain := replaytest.Config(b, "sim:24GiB", "jax")
	plain.Untimed = true
	outlined := func() (*outline, error) {
		return newOutline(b.Context(), tr, tr.Pools[0], newTexts(tr), 1, nil)
	}
	o, err := outlined()
	if err != nil {
		b.Fatal(err)
	}
	sampled := plain
	sampled.Hooks = []func(*replay.Pass) replay.Hook{func(p *replay.Pass) replay.Hook { return o.sample(p).hook() }}
	for _, c := range []struct {
		name string
		run  func() error
	}{
		{"without", func() error { _, err := replay.Run(b.Context(), tr, plain); return err }},
		{"with", func() error { _, err := replay.Run(b.Context(), tr, sampled); return err }},
		{"before", func() error { _, err := outlined(); return err }},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				if err := c.run(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(tr.Events), "ns/event")
		})
	}
}
