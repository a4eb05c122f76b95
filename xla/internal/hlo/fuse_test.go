package hlo_test

import (
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpumem/xla/internal/gap"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/test/remattest"
)

func TestFuse(t *testing.T) {
	m := remattest.Parsed(t, remattest.Layers(4, true))
	n, err := hlo.Fuse(m)
	if err != nil || n == 0 {
		t.Fatal(n, err)
	}
	after := remattest.Written(t, m)
	if got := strings.Count(after.String(), " fusion("); got != n {
		t.Errorf("%d fusions, and %d are told", got, n)
	}
	before := remattest.Parsed(t, remattest.Layers(4, true))
	remattest.Same(t, before, after)
	if was, now := remattest.TempPeak(t, before), remattest.TempPeak(t, after); now > was {
		t.Errorf("%d bytes before, and %d after", was, now)
	}
}

// TestFuseRandom: the results are the same to the bit, also after a plan on what
// was fused.
func TestFuseRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := remattest.Random(t)
		if rapid.Bool().Draw(t, "training") {
			text = remattest.Layers(rapid.IntRange(1, 6).Draw(t, "layers"), true)
		}
		m, err := hlo.ParseString(text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := hlo.Fuse(m); err != nil {
			t.Fatal(err)
		}
		if rapid.Bool().Draw(t, "plan") {
			if _, err := gap.Run(m, gap.Options{Limit: uint64(rapid.IntRange(0, 20_000).Draw(t, "limit")), Seconds: remattest.BySize}); err != nil {
				t.Fatal(err)
			}
		}
		sameResults(t, text, m)
	})
}

func TestFuseReal(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: real modules take seconds; run without -short")
	}
	for _, file := range remattest.Real(t) {
		name := strings.TrimSuffix(filepath.Base(file), ".hlo.gz")
		t.Run(name, func(t *testing.T) {
			m := remattest.Read(t, file)
			was, n := remattest.TempPeak(t, m), m.Instructions()
			made, err := hlo.Fuse(m)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d fusions, %d instructions of %d in the entry; peak %.3f of what it was", made, len(m.Entry.Instructions), n, float64(remattest.TempPeak(t, remattest.Written(t, m)))/float64(was))
		})
	}
}

// TestFuseShared: a value that only fusions use is computed in each of them, unless they would
// read more for it than it has.
func TestFuseShared(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       string // the opcodes of the entry without parameters
	}{
		{"softmax: the exponential in the sum and in the quotient", `
  p = f32[8,64] parameter(0)
  zero = f32[] constant(0)
  e = f32[8,64] exponential(p)
  s = f32[8] reduce(e, zero), dimensions={1}, to_apply=add
  b = f32[8,64] broadcast(s), dimensions={0}
  ROOT d = f32[8,64] divide(e, b)`, "fusion fusion"},
		{"a sum of two that two fusions use", `
  p = f32[8,64] parameter(0)
  q = f32[8,64] parameter(1)
  zero = f32[] constant(0)
  e = f32[8,64] add(p, q)
  s = f32[8] reduce(e, zero), dimensions={1}, to_apply=add
  b = f32[8,64] broadcast(s), dimensions={0}
  ROOT d = f32[8,64] divide(e, b)`, "add fusion fusion"},
		{"a product needs it whole", `
  p = f32[8,64] parameter(0)
  w = f32[64,64] parameter(1)
  e = f32[8,64] exponential(p)
  d = f32[8,64] dot(e, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  n = f32[8,64] negate(e)
  ROOT s = f32[8,64] add(d, n)`, "exponential dot fusion"},
		{"halves", `
  p = f32[8,64] parameter(0)
  w = f32[64,64] parameter(1)
  d = f32[8,64] dot(p, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  a = f32[8,32] slice(d), slice={[0:8], [0:32]}
  b = f32[8,32] slice(d), slice={[0:8], [32:64]}
  t = f32[8,32] tanh(a)
  ROOT s = f32[8,32] multiply(t, b)`, "dot fusion"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := "HloModule m\n\nadd {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  ROOT s = f32[] add(x, y)\n}\n\nENTRY e {" + c.text + "\n}\n"
			m := remattest.Parsed(t, text)
			if _, err := hlo.Fuse(m); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, i := range m.Entry.Instructions {
				if i.Opcode != hlo.Parameter {
					got = append(got, string(i.Opcode))
				}
			}
			if s := strings.Join(got, " "); s != c.want {
				t.Errorf("%s, want %s\n%s", s, c.want, m)
			}
			sameResults(t, text, m)
		})
	}
}
