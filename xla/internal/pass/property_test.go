package pass

// Random modules: what the pass makes of them is a module, computes the same,
// and takes what it says.

import (
	"testing"

	"pgregory.net/rapid"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/host"
	"gpumem/xla/internal/memory"
	"gpumem/xla/internal/test/hlotest"
	"gpumem/xla/internal/test/remattest"
	"gpumem/xla/internal/verify"
)

func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := remattest.Random(t)
		m, err := hlo.ParseString(text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		var o Options
		bytes := remattest.Bytes
		if rapid.Bool().Draw(t, "host") {
			o.Host = &host.Memory{ToHost: 4096, FromHost: 4096, Seconds: func(i *hlo.Instruction) float64 { return 0.5 }}
			o.offloadOnly, bytes = rapid.Bool().Draw(t, "offload only"), remattest.DeviceBytes
		}
		before, err := remattest.ReplayPeak(text, bytes)
		if err != nil {
			t.Fatal(err)
		}
		output := remattest.ResultBytes(m)
		before -= output
		o.Limit = uint64(float64(before) * rapid.Float64Range(0.2, 1.1).Draw(t, "limit"))
		sum := remattest.Meaning(m)
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
		now, _, err := memory.TempPeak(m, memory.Options{HostFree: o.Host != nil})
		if err != nil || peak-output != int64(now) {
			t.Errorf("it takes %d bytes, measured %d, %v\n%s", peak-output, now, err, m)
		}
		if r.Before <= o.Limit && r.Chosen > 0 {
			t.Errorf("it fits, and %d were chosen", r.Chosen)
		}
	})
}

// TestSweepModel: the pass makes the choices of the independent model, and puts clones where
// that puts them.
func TestSweepModel(t *testing.T) {
	chosen := 0
	rapid.Check(t, func(t *rapid.T) {
		text := remattest.Random(t)
		before, err := remattest.ReplayPeak(text, remattest.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		limit := uint64(float64(before) * rapid.Float64Range(0.1, 1).Draw(t, "limit"))
		m, want := remattest.Parsed(t, text), remattest.Parsed(t, text)
		r, err := Run(m, Options{Limit: limit})
		if err != nil {
			t.Fatal(err)
		}
		chosen += r.Chosen
		remattest.Sweep(want, int64(limit))
		if _, err := hlo.RemoveDead(want); err != nil {
			t.Fatal(err)
		}
		if got, want := remattest.Outline(m), remattest.Outline(want); got != want {
			t.Errorf("limit %d of %d:\n%s\nbecame\n%s\nthe model has\n%s", limit, before, text, got, want)
		}
	})
	if chosen == 0 {
		t.Error("no module needed recomputing")
	}
}
