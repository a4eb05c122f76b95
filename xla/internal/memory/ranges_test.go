package memory

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/test/hlotest"
)

// rangesAddUp: at each step the ranges add up to the curve, and those that live at the peak
// are the values that Peak names.
func rangesAddUp(t interface{ Fatalf(string, ...any) }, m *hlo.Module) {
	a, err := AnalyzeModule(m)
	if err != nil {
		t.Fatalf("%v", err)
	}
	sums := make([]uint64, len(a.Curve())+1)
	var alive []int
	parameters := uint64(0)
	for _, r := range a.Ranges() {
		bytes := a.BufferBytes[r.Buffer]
		if r.Last < r.First && bytes > 0 {
			t.Fatalf("%s lives from %d to %d", a.Values[r.Value].Instruction.Name, r.First, r.Last)
		}
		sums[r.First] += bytes
		sums[r.Last+1] -= bytes
		if r.First <= a.peakStep && a.peakStep <= r.Last {
			alive = append(alive, r.Value)
			if r.Parameter {
				parameters += bytes
			}
		}
	}
	for k, want := range a.Curve() {
		if k > 0 {
			sums[k] += sums[k-1]
		}
		if sums[k] != want {
			t.Fatalf("ranges add up to %d bytes at step %d, and the curve has %d", sums[k], k, want)
		}
	}
	var want []int
	_, _, values := a.Peak()
	for _, v := range values {
		want = append(want, v.ID)
	}
	slices.Sort(alive)
	slices.Sort(want)
	if !slices.Equal(alive, want) {
		t.Fatalf("at the peak live the values %v, want %v", alive, want)
	}
}

func TestRangesAddUpToTheCurve(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := hlotest.DrawModule(t)
		m, err := hlo.ParseString(text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		rangesAddUp(t, m)
	})
}

func TestRangesOfRealModules(t *testing.T) {
	for _, name := range []string{"rocm_alphafold3", "rocm_mlp_mixer.train_step", "xla_nv_maxtext_1n1g_jit_train_step_before_optimization", "xla_diffrax.b380012920"} {
		t.Run(name, func(t *testing.T) { rangesAddUp(t, hlotest.Module(t, name)) })
	}
}

func ExampleAnalysis_Ranges() {
	m, err := hlo.ParseString(`HloModule m
ENTRY e {
  p = f32[4] parameter(0)
  n = f32[4] negate(p)
  t = (f32[4], f32[4]) tuple(p, n)
  g = f32[4] get-tuple-element(t), index=1
  ROOT s = f32[4] add(g, g)
}`)
	if err != nil {
		fmt.Println(err)
		return
	}
	a, err := AnalyzeModule(m)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, r := range a.Ranges() {
		fmt.Println(a.Values[r.Value].Instruction.Name, a.BufferBytes[r.Buffer], r.First, r.Last, r.Parameter, r.Result)
	}
	// Output:
	// p 16 0 5 true false
	// n 16 1 4 false false
	// t 16 2 3 false false
	// s 16 4 5 false true
}
