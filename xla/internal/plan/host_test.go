package plan

import (
	"slices"
	"strings"
	"testing"

	"gpumem/xla/internal/cost"
	"gpumem/xla/internal/host"
	"gpumem/xla/internal/test/remattest"
)

// TestBestHost: with the host no plan is worse than without, and what a plan says holds.
func TestBestHost(t *testing.T) {
	for _, n := range []int{2, 5, 9} {
		m := remattest.Parsed(t, remattest.Layers(n, false))
		was := remattest.TempPeak(t, m)
		for _, rate := range []float32{1e9, 4e10, 1e15} {
			for part := 1.0; part > 0; part -= .25 {
				limit := uint64(part * float64(was))
				without, err := bestPlan(m, limit, cost.Rates{})
				if err != nil {
					t.Fatal(err)
				}
				h := &host.Memory{ToHost: rate, FromHost: rate}
				p, err := bestFor(m, limit, Options{Host: h})
				if err != nil {
					t.Fatal(err)
				}
				if without.betterThan(p, limit) {
					t.Errorf("%d layers at %v, %v bytes/s: %d bytes in %v s by %s, and without the host %d in %v", n, part, rate, p.Peak, p.Seconds, p.By, without.Peak, without.Seconds)
				}
				remattest.Same(t, m, p.Module)
				// A replay counts the result, too.
				if got, err := remattest.ReplayPeak(p.Module.String(), remattest.DeviceBytes); err != nil || uint64(got) != p.Peak+1024 {
					t.Errorf("%d bytes, %v; told are %d", got, err, p.Peak)
				}
				if strings.Contains(p.By, "host") != (p.Host.Values > 0) {
					t.Errorf("by %s, with %+v", p.By, p.Host)
				}
			}
		}
	}
}

// TestBestHostReal: on real modules the host saves computing, and what the plan says
// holds.
func TestBestHostReal(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: -short")
	}
	const file = "../../../shared/data/hlo/rocm_vit.train_step.hlo.gz"
	if !slices.Contains(remattest.Real(t), file) {
		t.Skip(file + " is not there")
	}
	m := remattest.Read(t, file)
	limit := remattest.TempPeak(t, m) / 10 * 6
	h := &host.Memory{ToHost: 50e9, FromHost: 50e9}
	with, err := bestFor(m, limit, Options{Host: h})
	if err != nil {
		t.Fatal(err)
	}
	without, err := bestPlan(m, limit, cost.Rates{})
	if err != nil {
		t.Fatal(err)
	}
	before, err := Seconds(m, cost.Rates{})
	if err != nil {
		t.Fatal(err)
	}
	if !with.Meets(limit) || with.Seconds-before > .7*(without.Seconds-before) {
		t.Errorf("%d bytes of %d, %.4f s; %.4f without the host, %.4f as given", with.Peak, limit, with.Seconds, without.Seconds, before)
	}
	if remattest.Meaning(m) != remattest.Meaning(with.Module) {
		t.Error("it computes something else")
	}
}
