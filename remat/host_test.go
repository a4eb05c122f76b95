package remat

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpumem/hlo"
	"gpumem/hlo/cost"
	"gpumem/hlo/memory"
	"gpumem/hlo/verify"
	"gpumem/internal/test/hlotest"
	"gpumem/internal/test/remattest"
)

// TestLink compares the free times of a link with a search over all ends.
func TestLink(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l link
		free := func(from, to float64) bool {
			for _, s := range l {
				if s.from < to && from < s.to {
					return false
				}
			}
			return true
		}
		for range rapid.IntRange(1, 30).Draw(t, "copies") {
			at, long := float64(rapid.IntRange(0, 40).Draw(t, "at")), float64(rapid.IntRange(1, 5).Draw(t, "long"))
			want := at // it begins there, or where another ends
			for !free(want, want+long) {
				want++
			}
			if got := l.early(at, long); got != want {
				t.Fatalf("from %v on, %v long: at %v, want %v; busy %v", at, long, got, want, l)
			}
			end := at + float64(rapid.IntRange(0, 20).Draw(t, "later"))
			last := end - long
			for last >= at && !free(last, last+long) {
				last--
			}
			got, ok := l.late(at, end, long)
			if ok != (last >= at) || ok && got != last {
				t.Fatalf("between %v and %v, %v long: at %v, %v, want %v; busy %v", at, end, long, got, ok, last, l)
			}
			if ok && rapid.Bool().Draw(t, "late") {
				want = last
			}
			l.take(span{want, want + long})
		}
		for k := 1; k < len(l); k++ {
			if l[k-1].to > l[k].from {
				t.Fatalf("two at once: %v", l)
			}
		}
	})
}

// copiesFit runs the list with a clock: what was there before takes its seconds, copies
// queue for the link in their direction. It gives an error if one is not over
// where its end stands.
func copiesFit(m *hlo.Module, h *HostMemory, given map[string]bool) error {
	var clock float64
	free := map[bool]float64{} // by whether it goes to the host
	over := map[*hlo.Instruction]float64{}
	for _, i := range m.Entry.Instructions {
		switch {
		case given[i.Name]:
			clock += h.Seconds(i)
		case i.Opcode == hlo.CopyStart:
			out := i.Shape.Elements[0].Space() == hlo.HostSpace
			rate := h.FromHost
			if out {
				rate = h.ToHost
			}
			n, err := i.Shape.Elements[0].Bytes()
			if err != nil {
				return err
			}
			free[out] = max(free[out], clock) + copySeconds + float64(n)/float64(rate)
			over[i] = free[out]
		case i.Opcode == hlo.CopyDone:
			if end := over[i.Operands[0]]; end > clock*(1+1e-9)+1e-12 {
				return fmt.Errorf("%s: over at %v, and it is %v", i.Name, end, clock)
			}
		default:
			return fmt.Errorf("%s is no copy", i.Name)
		}
	}
	return nil
}

func namesIn(m *hlo.Module) map[string]bool {
	names := map[string]bool{}
	for _, i := range m.Entry.Instructions {
		names[i.Name] = true
	}
	return names
}

func hostBytes(s *hlo.Shape) int64 {
	if s.Space() == hlo.HostSpace {
		return 0
	}
	return remattest.Bytes(s)
}

// TestMoveToHostProperties: random modules compute the same, take what is told, no more than
// before, and all copies fit beside the rest.
func TestMoveToHostProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := remattest.Random(t)
		m, err := hlo.ParseString(text)
		if err != nil {
			t.Fatal(err)
		}
		before, err := remattest.ReplayPeak(text, hostBytes)
		if err != nil {
			t.Fatal(err)
		}
		h := &HostMemory{Seconds: remattest.BySize}
		h.ToHost = float32(rapid.SampledFrom([]float64{1, 100, 1e4, 1e6}).Draw(t, "to"))
		h.FromHost = float32(rapid.SampledFrom([]float64{1, 100, 1e4, 1e6}).Draw(t, "from"))
		limit := uint64(float64(before) * rapid.Float64Range(0, 1.1).Draw(t, "limit"))
		sum, given := remattest.Meaning(m), namesIn(m)
		r, err := MoveToHost(m, limit, h)
		if err != nil {
			t.Fatal(err)
		}
		again, err := hlo.ParseString(m.String())
		if err != nil {
			t.Fatalf("%v\n%s", err, m)
		}
		if err := verify.Module(again); err != nil {
			t.Fatalf("%v\n%s", err, m)
		}
		if err := hlotest.Equal(m, again); err != nil {
			t.Fatalf("its text says something else: %v", err)
		}
		if remattest.Meaning(m) != sum {
			t.Fatalf("it computes something else:\n%s", m)
		}
		if err := copiesFit(m, h, given); err != nil {
			t.Fatalf("%v\n%s", err, m)
		}
		if got := onHost(m); got != *r {
			t.Fatalf("%+v are told, and there is %+v", *r, got)
		}
		peak, err := remattest.ReplayPeak(m.String(), hostBytes)
		if err != nil {
			t.Fatal(err)
		}
		if most := before + underWay*int64(r.Values+r.Reloads); peak > most {
			t.Fatalf("%d bytes, and %d before\n%s", peak, before, m)
		}
		p, _, err := memory.TempPeak(m, memory.Options{HostFree: true})
		result, _ := memory.ResultBytes(m, nil)
		if err != nil || int64(p)+result != peak {
			t.Fatalf("%d bytes, %v; a replay has %d", p, err, peak)
		}
		if before <= int64(limit) && r.Values > 0 {
			t.Fatalf("it fits, and %d values went", r.Values)
		}
	})
}

// TestMoveToHost: a forward and a backward pass over a link that has time for all, for
// some, and for none.
func TestMoveToHost(t *testing.T) {
	second := func(i *hlo.Instruction) float64 {
		if i.Opcode == hlo.Parameter {
			return 0
		}
		return 1
	}
	for _, tt := range []struct {
		name   string
		rate   float32 // bytes a second; each value has 1024 and each instruction takes a second
		limit  uint64
		values int
		peak   uint64
	}{
		{"room as it is", 1e6, 64 << 10, 0, 29 << 10},
		{"a fast link", 1e6, 8 << 10, 21, 8 << 10},
		{"a slow link", 1024, 8 << 10, 21, 8<<10 + 5*underWay},
		{"a very slow link", 50, 8 << 10, 1, 28 << 10},
		{"none", 1, 8 << 10, 0, 29 << 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			was := remattest.Parsed(t, remattest.Layers(9, false))
			m := remattest.Parsed(t, remattest.Layers(9, false))
			h := &HostMemory{ToHost: tt.rate, FromHost: tt.rate, Seconds: second}
			r, err := MoveToHost(m, tt.limit, h)
			if err != nil {
				t.Fatal(err)
			}
			peak, _, err := memory.TempPeak(m, memory.Options{HostFree: true})
			if err != nil {
				t.Fatal(err)
			}
			if r.Values != tt.values || peak != tt.peak {
				t.Errorf("%+v, %d bytes; want %d values and %d bytes", *r, peak, tt.values, tt.peak)
			}
			if err := copiesFit(m, h, namesIn(was)); err != nil {
				t.Error(err)
			}
			remattest.Same(t, was, m)
		})
	}
	for _, h := range []*HostMemory{nil, {}, {ToHost: 1, FromHost: 1}, {ToHost: 1, Seconds: second}, {ToHost: 1, FromHost: float32(math.NaN()), Seconds: second}} {
		m := remattest.Parsed(t, remattest.Layers(2, false))
		if _, err := MoveToHost(m, 0, h); err != ErrNoHost {
			t.Errorf("%+v: %v", h, err)
		}
	}
}

// TestBestHost: with the host no plan is worse than without, and what a plan says holds.
func TestBestHost(t *testing.T) {
	for _, n := range []int{2, 5, 9} {
		m := remattest.Parsed(t, remattest.Layers(n, false))
		was := remattest.TempPeak(t, m)
		for _, rate := range []float32{1e9, 4e10, 1e15} {
			for part := 1.0; part > 0; part -= .25 {
				limit := uint64(part * float64(was))
				without, err := Best(m, limit, cost.Rates{})
				if err != nil {
					t.Fatal(err)
				}
				h := &HostMemory{ToHost: rate, FromHost: rate}
				p, err := BestFor(m, limit, cost.Rates{}, BestOptions{Host: h})
				if err != nil {
					t.Fatal(err)
				}
				if without.betterThan(p, limit) {
					t.Errorf("%d layers at %v, %v bytes/s: %d bytes in %v s by %s, and without the host %d in %v", n, part, rate, p.Peak, p.Seconds, p.By, without.Peak, without.Seconds)
				}
				remattest.Same(t, m, p.Module)
				// A replay counts the result, too.
				if got, err := remattest.ReplayPeak(p.Module.String(), hostBytes); err != nil || uint64(got) != p.Peak+1024 {
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
	const file = "../../shared/data/hlo/rocm_vit.train_step.hlo.gz"
	if !slices.Contains(remattest.Real(t), file) {
		t.Skip(file + " is not there")
	}
	m := remattest.Read(t, file)
	limit := remattest.TempPeak(t, m) / 10 * 6
	h := &HostMemory{ToHost: 50e9, FromHost: 50e9}
	with, err := BestFor(m, limit, cost.Rates{}, BestOptions{Host: h})
	if err != nil {
		t.Fatal(err)
	}
	without, err := Best(m, limit, cost.Rates{})
	if err != nil {
		t.Fatal(err)
	}
	before, err := Seconds(m, cost.Rates{})
	if err != nil {
		t.Fatal(err)
	}
	if !with.meets(limit) || with.Seconds-before > .7*(without.Seconds-before) {
		t.Errorf("%d bytes of %d, %.4f s; %.4f without the host, %.4f as given", with.Peak, limit, with.Seconds, without.Seconds, before)
	}
	if remattest.Meaning(m) != remattest.Meaning(with.Module) {
		t.Error("it computes something else")
	}
}
