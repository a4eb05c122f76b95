package replay

import (
	"testing"

	"gpumem/device/open"
	"gpumem/policy/frameworks"
	"gpumem/trace"
	"gpumem/trace/formats"
)

// BenchmarkPicture is the pass that looks, without a page's picture and with one,
// and the passes before it that find where to look.
func BenchmarkPicture(b *testing.B) {
	tr, err := formats.Open(b.Context(), "../testdata/bfc/steady_1000.txt.gz", trace.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer tr.Close()
	spec, err := open.Parse("sim:24GiB")
	if err != nil {
		b.Fatal(err)
	}
	p, err := frameworks.Parse("jax")
	if err != nil {
		b.Fatal(err)
	}
	cfg := Config{Device: spec.WithTotal, Total: spec.Sim.Total}
	r := &runner{cfg: &cfg, trace: tr, pool: tr.Pools[0], policy: p, names: &names{}}
	shape, err := r.findShape(b.Context(), 1)
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name string
		run  func() error
	}{
		{"without", func() error { r.shape = nil; _, err := r.observe(b.Context()); return err }},
		{"with", func() error { r.shape = shape; _, err := r.observe(b.Context()); return err }},
		{"before", func() error { _, err := r.findShape(b.Context(), 1); return err }},
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
