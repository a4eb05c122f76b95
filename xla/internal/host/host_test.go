package host

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/memory"
	"gpumem/xla/internal/test/hlotest"
	"gpumem/xla/internal/test/remattest"
	"gpumem/xla/internal/verify"
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
func copiesFit(m *hlo.Module, h *Memory, given map[string]bool) error {
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

// TestMoveToHostProperties: random modules compute the same, take what is told, no more than
// before, and all copies fit beside the rest.
func TestMoveToHostProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := remattest.Random(t)
		m, err := hlo.ParseString(text)
		if err != nil {
			t.Fatal(err)
		}
		before, err := remattest.ReplayPeak(text, remattest.DeviceBytes)
		if err != nil {
			t.Fatal(err)
		}
		h := &Memory{Seconds: remattest.BySize}
		h.ToHost = float32(rapid.SampledFrom([]float64{1, 100, 1e4, 1e6}).Draw(t, "to"))
		h.FromHost = float32(rapid.SampledFrom([]float64{1, 100, 1e4, 1e6}).Draw(t, "from"))
		limit := uint64(float64(before) * rapid.Float64Range(0, 1.1).Draw(t, "limit"))
		sum, given := remattest.Meaning(m), namesIn(m)
		moved, err := Move(m, limit, h)
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
		r := Copies(m)
		if moved != (r.Values > 0) {
			t.Fatalf("moved %v, and there is %+v", moved, r)
		}
		peak, err := remattest.ReplayPeak(m.String(), remattest.DeviceBytes)
		if err != nil {
			t.Fatal(err)
		}
		if most := before + underWay*int64(r.Values+r.Reloads); peak > most {
			t.Fatalf("%d bytes, and %d before\n%s", peak, before, m)
		}
		p, _, err := memory.TempPeak(m, memory.Options{HostFree: true})
		result := remattest.ResultBytes(m)
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
			h := &Memory{ToHost: tt.rate, FromHost: tt.rate, Seconds: second}
			if _, err := Move(m, tt.limit, h); err != nil {
				t.Fatal(err)
			}
			r := Copies(m)
			peak, _, err := memory.TempPeak(m, memory.Options{HostFree: true})
			if err != nil {
				t.Fatal(err)
			}
			if r.Values != tt.values || peak != tt.peak {
				t.Errorf("%+v, %d bytes; want %d values and %d bytes", r, peak, tt.values, tt.peak)
			}
			if err := copiesFit(m, h, namesIn(was)); err != nil {
				t.Error(err)
			}
			remattest.Same(t, was, m)
		})
	}
	for _, h := range []*Memory{nil, {}, {ToHost: 1, FromHost: 1}, {ToHost: 1, Seconds: second}, {ToHost: 1, FromHost: float32(math.NaN()), Seconds: second}} {
		m := remattest.Parsed(t, remattest.Layers(2, false))
		if _, err := Move(m, 0, h); err != ErrNoSpeed {
			t.Errorf("%+v: %v", h, err)
		}
	}
}

func TestSpace(t *testing.T) {
	for text, want := range map[string]string{
		"f32[2,3]":                  "f32[2,3]{1,0:S(5)}",
		"f32[]":                     "f32[]{:S(5)}",
		"f32[2,3]{0,1}":             "f32[2,3]{0,1:S(5)}",
		"f32[2,3]{1,0:S(1)}":        "f32[2,3]{1,0:S(5)}",
		"s4[8]{0:T(8)E(4)}":         "s4[8]{0:T(8)E(4)S(5)}",
		"f32[8]{0:T(8)S(3)SC(0:1)}": "f32[8]{0:T(8)S(5)SC(0:1)}",
	} {
		s, err := hlotest.ParseShape(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := Space(s).String(); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}
