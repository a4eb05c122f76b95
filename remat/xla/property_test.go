package xla

// Random modules: what the pass makes of them is a module, computes the same,
// and takes what it says.

import (
	"testing"

	"pgregory.net/rapid"

	"gpumem/hlo"
	"gpumem/hlo/verify"
	"gpumem/internal/test/hlotest"
	"gpumem/internal/test/remattest"
	"gpumem/remat/host"
)

func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := remattest.Random(t)
		m, err := hlo.ParseString(text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		size := (*hlo.Shape).Bytes
		o := Options{BlockLimit: rapid.SampledFrom([]int{1, 1, 2, 8}).Draw(t, "block"), MinSize: rapid.SampledFrom([]uint64{0, 0, 2048}).Draw(t, "least"),
			Algorithm: rapid.SampledFrom([]Algorithm{Sweep, PeakFirst}).Draw(t, "algorithm"), Strategies: rapid.SampledFrom([]Strategy{Recompute, Recompute | Compress, Compress, Offload, Recompute | Offload}).Draw(t, "strategies")}
		if o.Strategies&Compress != 0 {
			size, o.Compact = padded, compact
		}
		if o.Strategies&Offload != 0 {
			o.Host = &host.Memory{ToHost: 4096, FromHost: 4096, Seconds: func(i *hlo.Instruction) float64 { return 0.5 }}
		}
		o.Size = size
		bytes := func(s *hlo.Shape) int64 {
			if o.Host != nil && s.Space() == hlo.HostSpace {
				return 0
			}
			n, err := size(s)
			if err != nil {
				t.Fatal(err)
			}
			return int64(n)
		}
		before, err := remattest.ReplayPeak(text, bytes)
		if err != nil {
			t.Fatal(err)
		}
		o.Limit = uint64(float64(before) * rapid.Float64Range(0.2, 1.1).Draw(t, "limit"))
		sum, was := remattest.Meaning(m), m.String()
		r, err := Run(m, o)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if int64(r.Before) != before {
			t.Errorf("%d bytes before, want %d", r.Before, before)
		}
		if err := verify.Module(m); err != nil {
			t.Fatalf("%v\n%s", err, m)
		}
		again, err := hlo.ParseString(m.String())
		if err != nil {
			t.Fatalf("its text: %v\n%s", err, m)
		}
		if err := hlotest.Equal(m, again); err != nil {
			t.Fatalf("its text says something else: %v\n%s", err, m)
		}
		if now := remattest.Meaning(m); now != sum {
			t.Errorf("it computes something else:\n%s", m)
		}
		peak, err := remattest.ReplayPeak(m.String(), bytes)
		if err != nil {
			t.Fatal(err)
		}
		if peak != int64(r.Measured) {
			t.Errorf("it takes %d bytes, the pass says %d\n%s", peak, r.Measured, m)
		}
		if !r.Changed && m.String() != was {
			t.Errorf("not changed, it says:\n%s", m)
		}
		if r.After > o.Limit != warned(r, OverLimit) {
			t.Errorf("%d after, limit %d, warnings %v", r.After, o.Limit, r.Warnings)
		}
		if o.Algorithm == Sweep && r.Before <= o.Limit && r.Chosen > 0 {
			t.Errorf("it fits, and %d were chosen", r.Chosen)
		}
	})
}

// Looking only at what is live changes no choice.
func TestLean(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := remattest.Random(t)
		var o Options
		before, err := remattest.ReplayPeak(text, remattest.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		o.Limit = uint64(float64(before) * rapid.Float64Range(0.2, 1).Draw(t, "limit"))
		var texts [2]string
		for k, full := range []bool{false, true} {
			m, err := hlo.ParseString(text)
			if err != nil {
				t.Fatal(err)
			}
			p, err := newPass(m, o)
			if err != nil {
				t.Fatal(err)
			}
			p.full = full
			if _, err := p.run(); err != nil {
				t.Fatal(err)
			}
			texts[k] = m.String()
		}
		if texts[0] != texts[1] {
			t.Errorf("other choices:\n%s\nand all looked at:\n%s", texts[0], texts[1])
		}
	})
}
