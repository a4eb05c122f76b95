package memory

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/test/hlotest"
)

func TestTempCurve(t *testing.T) {
	twice := "f {\n" + conc + `}
ENTRY e {
  i = s32[] parameter(0)
  p = f32[1] parameter(1)
  a = f32[1] negate(p)
  ROOT b = f32[1] conditional(i, a, a), branch_computations={f, f}
}`
	for _, test := range []struct {
		name, text string
		o          Options
		curve      []uint64
		alive      string
	}{
		{"one computation", "ENTRY e {\n" + conc + "}", Options{}, []uint64{0, 4, 4100, 8192, 16384, 12292, 8200, 4100}, "c1:8192 b:4096 n:4096"},
		{"a call", "f {\n" + conc + "}\nENTRY e {\n  p = f32[1] parameter(0)\n  a = f32[1] negate(p)\n  b = f32[1] call(a), to_apply=f\n  ROOT c = f32[1] add(a, b)\n}",
			Options{}, []uint64{0, 4, 16<<10 + 8, 8}, "c1:8192 b:4096 n:4096 a:4 b:4"},
		{"the same twice at once", twice, Options{}, []uint64{0, 0, 4, 32<<10 + 4}, "c1:8192x2 b:4096x2 n:4096x2 a:4"},
		{"what nothing uses", "ENTRY e {\n  p = f32[4] parameter(0)\n  a = f32[8] broadcast(p), dimensions={}\n  ROOT b = f32[4] negate(p)\n}", Options{}, []uint64{0, 32, 0}, "a:32"},
		{"nothing at all", "ENTRY e {\n  ROOT p = f32[4] parameter(0)\n}", Options{}, []uint64{0}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := module(t, test.text)
			curve, err := NewMeter(test.o).Curve(m.Entry)
			if err != nil || !slices.Equal(curve, test.curve) {
				t.Errorf("%v, %v; want %v", curve, err, test.curve)
			}
			alive, err := NewMeter(test.o).Alive(m.Entry)
			var words []string
			for _, x := range alive {
				w := fmt.Sprintf("%s:%d", x.Instruction.Name, x.Bytes)
				if x.Copies > 1 {
					w += fmt.Sprintf("x%d", x.Copies)
				}
				words = append(words, w)
			}
			if got := strings.Join(words, " "); err != nil || got != test.alive {
				t.Errorf("%s, %v; want %s", got, err, test.alive)
			}
		})
	}
}

// sameAsPeak: the curve's largest is TempPeak's, first at its instruction, and what lives
// there adds up to it.
func sameAsPeak(t interface{ Fatalf(string, ...any) }, m *hlo.Module) {
	bytes, at, err := TempPeak(m, Options{})
	if err != nil {
		t.Fatalf("%v", err)
	}
	curve, err := NewMeter(Options{}).Curve(m.Entry)
	if err != nil {
		t.Fatalf("%v", err)
	}
	if top := slices.Max(curve); top != bytes || bytes > 0 && m.Entry.Instructions[slices.Index(curve, top)] != at {
		t.Fatalf("the curve's top is %d; the peak %d at %s", top, bytes, at.Name)
	}
	alive, err := NewMeter(Options{}).Alive(m.Entry)
	if err != nil {
		t.Fatalf("%v", err)
	}
	var sum uint64
	for _, x := range alive {
		sum += x.Bytes * x.Copies
	}
	if sum != bytes {
		t.Fatalf("%d bytes live at the peak of %d", sum, bytes)
	}
	ranges, err := NewMeter(Options{}).Ranges(m.Entry)
	if err != nil {
		t.Fatalf("%v", err)
	}
	sums := make([]uint64, len(curve)+1)
	for _, x := range ranges {
		sums[x.First] += x.Bytes
		sums[x.Last+1] -= x.Bytes
	}
	for k := range curve {
		if k > 0 {
			sums[k] += sums[k-1]
		}
		if sums[k] != curve[k] {
			t.Fatalf("ranges add up to %d bytes at place %d, and the curve has %d", sums[k], k, curve[k])
		}
	}
}

func TestTempCurveTop(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := hlotest.DrawModule(t)
		m, err := hlo.ParseString(text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		sameAsPeak(t, m)
	})
}

func TestTempCurveOfRealModules(t *testing.T) {
	for _, name := range []string{"rocm_vit.train_step", "xla_mixtral_8x7b_bf16_1x8", "xla_nv_maxtext_1n1g_jit_train_step_before_optimization", "xla_diffrax.b380012920"} {
		sameAsPeak(t, hlotest.Module(t, name))
	}
}

func TestTempCurveErrors(t *testing.T) {
	m := module(t, "ENTRY e {\n  ROOT p = f32[4] parameter(0)\n}")
	m.Entry = nil
	if _, err := NewMeter(Options{}).Curve(m.Entry); err == nil {
		t.Error("a module without entry has a curve")
	}
	if _, err := NewMeter(Options{}).Alive(m.Entry); err == nil {
		t.Error("a module without entry has values")
	}
}
