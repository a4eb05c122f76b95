package opname

import (
	"strings"
	"testing"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/test/remattest"
)

// TestParts: a scope is a word of op_name wherever it stands.
func TestParts(t *testing.T) {
	for name, want := range map[string]string{
		"jit(step)/jit(main)/layer_3/tanh":               "layer_3",
		"jit(step)/jvp(h/3)/dot_general":                 "h 3",
		"jit(step)/transpose(jvp(encoder/layer_0))/dot":  "encoder layer_0",
		"jit(step)/transpose(jvp(encoder))/layer_0/dot":  "encoder layer_0",
		"jit(step)/rematted_computation/h/3/f(x/y)/tanh": "h 3 f(x/y)",
		"jit(step)/jvp(h/3/dot":                          "", // cut
		"tanh":                                           "",
	} {
		i := &hlo.Instruction{Attributes: []hlo.Attribute{{Key: "metadata", Value: "{op_name=\"" + name + "\"}"}}}
		if got := strings.Join(wordsOf(i), " "); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// TestLayersInOrder: fused computations stand in front of the entry, in any order.
func TestLayersInOrder(t *testing.T) {
	var b strings.Builder
	b.WriteString("HloModule m\n\nENTRY main {\n  v0 = f32[] parameter(0)\n")
	for n, name := range []string{"block_10/a", "block_2/a", "block_9/layer_1", "h/3/x_1", "h/2/x_1"} {
		b.WriteString("  v" + string(rune('1'+n)) + " = f32[] negate(v0), metadata={op_name=\"jit(f)/jvp(net)/" + name + "/neg\"}\n")
	}
	b.WriteString("  ROOT r = (f32[], f32[], f32[], f32[], f32[]) tuple(v1, v2, v3, v4, v5)\n}\n")
	var got []string
	for _, l := range Layers(remattest.Parsed(t, b.String())) {
		got = append(got, l.Name)
		got = append(got, l.Patterns...)
	}
	want := `block_ (^|[/(])block_2([/)]|$) (^|[/(])block_9([/)]|$) (^|[/(])block_10([/)]|$) h/ (^|[/(])h/2([/)]|$) (^|[/(])h/3([/)]|$)`
	if s := strings.Join(got, " "); s != want {
		t.Errorf("%s; want %s", s, want)
	}
}
