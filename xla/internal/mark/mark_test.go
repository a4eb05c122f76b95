package mark

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpumem/xla/internal/test/hlointerp"
	"gpumem/xla/internal/test/hlotest"
	"gpumem/xla/internal/test/remattest"
	"gpumem/xla/internal/verify"
)

func TestMark(t *testing.T) {
	tests := []struct {
		name, pattern string
		save          Policy
		names         bool
		want          Marking // without the computation
	}{
		{"one layer", "layer_1", SaveNothing, true, Marking{Region: 3, Late: 3}},
		{"all layers are one region", `layer_\d`, SaveNothing, true, Marking{Region: 12, Late: 12}},
		{"by the instruction's name", "^layer_1_", SaveNothing, false, Marking{Region: 3, Late: 3}},
		{"everything is saved", "layer_1", saveEverything, true, Marking{Region: 3, Saved: 3}},
		{"one value is saved", "layer_1", saveNames(regexp.MustCompile("_s$")), true, Marking{Region: 3, Saved: 1, Late: 2}},
		{"no dot to save", "layer_1", SaveDots, true, Marking{Region: 3, Late: 3}},
		{"the loss", "loss", SaveNothing, true, Marking{Region: 1, Late: 1}},
		{"nobody uses it late", "residual", SaveNothing, true, Marking{Region: 4}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before, m := remattest.Parsed(t, remattest.Layers(4, tt.names)), remattest.Parsed(t, remattest.Layers(4, tt.names))
			done, err := Mark(m, regexp.MustCompile(tt.pattern), tt.save)
			if err != nil || len(done) != 1 {
				t.Fatal(done, err)
			}
			got := done[0]
			if got.Region != tt.want.Region || got.Saved != tt.want.Saved || got.Late != tt.want.Late || (got.Recomputed > 0) != (tt.want.Late > 0) {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
			if n := m.Instructions() - before.Instructions(); n != got.Recomputed {
				t.Errorf("%d instructions more, and %d told", n, got.Recomputed)
			}
			after := remattest.Written(t, m)
			remattest.Same(t, before, after)
			if tt.want.Late == 0 {
				if err := hlotest.Equal(before, after); err != nil {
					t.Error(err)
				}
				return
			}
			// No late user has an original any more, and all clones hang on a barrier.
			text := m.String()
			if n := strings.Count(text, " opt-barrier("); n != 1 {
				t.Errorf("%d barriers\n%s", n, text)
			}
			if tt.names && !strings.Contains(text, "rematted_computation/jit(step)") {
				t.Errorf("no mark in op_name\n%s", text)
			}
		})
	}
	t.Run("nothing is found", func(t *testing.T) {
		m := remattest.Parsed(t, remattest.Layers(2, true))
		if done, err := Mark(m, regexp.MustCompile("layer_9"), SaveNothing); done != nil || err != nil {
			t.Error(done, err)
		}
	})
}

// TestMarkSavesMemory: marking each layer by itself takes the peak from all
// layers' values to a layer's.
func TestMarkSavesMemory(t *testing.T) {
	m := remattest.Parsed(t, remattest.Layers(12, true))
	before := remattest.TempPeak(t, m)
	for k := range 12 {
		if _, err := Mark(m, regexp.MustCompile(fmt.Sprintf(`layer_%d\b|layer_%[1]d\)`, k)), SaveNothing); err != nil {
			t.Fatal(err)
		}
	}
	after := remattest.TempPeak(t, remattest.Written(t, m))
	if after > before/2 {
		t.Errorf("%d bytes before, and %d after", before, after)
	}
}

// TestMarkRandom: whatever is marked in whatever graph, and whatever is saved, the
// results are the same and the text reads again.
func TestMarkRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b strings.Builder
		b.WriteString("HloModule r, is_scheduled=true\n\nENTRY e {\n  v0 = f32[8] parameter(0)\n  v1 = f32[8] constant({1, 2, 3, 4, 5, 6, 7, 8})\n")
		names := []string{"v0", "v1"}
		for n := range rapid.IntRange(1, 40).Draw(t, "instructions") {
			pick := func() string { return rapid.SampledFrom(names).Draw(t, "operand") }
			name := fmt.Sprintf("%s%d", rapid.SampledFrom([]string{"v", "mark_a", "mark_b", "keep_mark"}).Draw(t, "name"), n+2)
			meta := ""
			if rapid.Bool().Draw(t, "backward") {
				meta = `, metadata={op_name="jit(f)/transpose(jvp(g))/op"}`
			}
			switch rapid.IntRange(0, 3).Draw(t, "kind") {
			case 0:
				fmt.Fprintf(&b, "  %s = f32[8] negate(%s)%s\n", name, pick(), meta)
			case 1:
				fmt.Fprintf(&b, "  %s = f32[8] add(%s, %s)%s\n", name, pick(), pick(), meta)
			case 2:
				x := pick()
				fmt.Fprintf(&b, "  t%s = (f32[8], f32[8]) tuple(%s, %s)\n  %[1]s = f32[8] get-tuple-element(t%[1]s), index=1%[4]s\n", name, x, pick(), meta)
			default:
				fmt.Fprintf(&b, "  %s = f32[8] multiply(%s, %s)%s\n", name, pick(), pick(), meta)
			}
			names = append(names, name)
		}
		fmt.Fprintf(&b, "  ROOT r = (f32[8], f32[8]) tuple(%s, %s)\n}\n", names[len(names)-1], rapid.SampledFrom(names).Draw(t, "root"))
		before, m := remattest.Parsed(t, b.String()), remattest.Parsed(t, b.String())
		for range rapid.IntRange(1, 3).Draw(t, "marks") {
			pattern := rapid.SampledFrom([]string{"mark", "mark_a", "mark_b", "^v"}).Draw(t, "pattern")
			save := rapid.SampledFrom([]Policy{SaveNothing, SaveDots, saveNames(regexp.MustCompile("keep"))}).Draw(t, "save")
			if _, err := Mark(m, regexp.MustCompile(pattern), save); err != nil {
				t.Fatal(err)
			}
		}
		if err := verify.Module(m); err != nil {
			t.Fatalf("%v\n%s", err, m)
		}
		after := remattest.Parsed(t, m.String())
		args, err := hlointerp.Arguments(before, 1)
		if err != nil {
			t.Fatal(err)
		}
		x, err := hlointerp.Run(before, args, hlointerp.Options{})
		if err != nil {
			t.Fatal(err)
		}
		y, err := hlointerp.Run(after, args, hlointerp.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if !hlointerp.Equal(x, y) {
			t.Errorf("the results differ\n%s", m)
		}
	})
}

// TestMarkedRegions are those of a dump that JAX has marked.
func TestMarkedRegions(t *testing.T) {
	m := remattest.Parsed(t, `HloModule m
ENTRY e {
  p = f32[8] parameter(0)
  a = f32[8] sine(p), metadata={op_name="jit(f)/jvp(checkpoint)/sin"}
  b = f32[8] opt-barrier(p), metadata={op_name="jit(f)/transpose(jvp(checkpoint))/remat2"}
  c = f32[8] sine(b), metadata={op_name="jit(f)/transpose(jvp(checkpoint))/rematted_computation/sin"}
  ROOT r = f32[8] add(a, c)
}
`)
	got := fmt.Sprint(Regions(m))
	want := fmt.Sprint([]Region{{"jit(f)/transpose(jvp(checkpoint))", 2, 1, 1}, {"jit(f)/jvp(checkpoint)", 1, 0, 0}})
	if got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
