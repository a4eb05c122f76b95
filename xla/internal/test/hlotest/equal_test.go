package hlotest

import (
	"strings"
	"testing"

	"gpumem/xla/internal/hlo"
)

func parsed(t *testing.T, text string) *hlo.Module {
	t.Helper()
	m, err := hlo.ParseString(text)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestEqual(t *testing.T) {
	const text = `HloModule m, is_scheduled=true, input_output_alias={ {}: (0, {}, may-alias) }, replica_count=2

FileNames
1 "a.py"

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] add(x, y)
}

mul {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] multiply(x, y)
}, execution_thread="t"

ENTRY main {
  p = f32[8]{0} parameter(0)
  z = f32[] constant(0)
  r = f32[] reduce(p, z), dimensions={0}, to_apply=add
  c = s32[] constant(1)
  ROOT w = f32[] conditional(c, r, z), branch_computations={add, mul}, control-predecessors={r}, metadata={op_name="w"}
  n = f32[] negate(z)
}
`
	same := func() *hlo.Module { return parsed(t, text) }
	if err := Equal(same(), same()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, want string }{
		{"HloModule m", "HloModule n", "the module's name: m and n"},
		{"is_scheduled=true", "is_scheduled=false", "is_scheduled: true and false"},
		{`"a.py"`, `"b.py"`, "the tables of files and stack frames differ"},
		{"may-alias", "must-alias", "alias 0: {[] 0 [] false} and {[] 0 [] true}"},
		{"{}: (0, {}, may-alias)", "", "the number of aliases: 1 and 0"},
		{"replica_count=2", "replica_count=3", "the module: attribute replica_count: 2 and 3"},
		{"replica_count=2", "num_partitions=2", "the module: the key of attribute 0: replica_count and num_partitions"},
		{", replica_count=2", "", "the module: the second has no attribute replica_count"},
		{"replica_count=2", "replica_count=2, a=1", "the module: the first has no attribute a"},
		{`thread="t"`, `thread="u"`, "computation mul: the thread: t and u"},
		{"ENTRY main", "ENTRY niam", "the name of a computation: main and niam"},
		{"ENTRY main {", "more { ROOT p = f32[] parameter(0) } ENTRY main {", "the name of a computation: main and more"},
		{"  n = f32[] negate(z)\n}\n", "  n = f32[] negate(z)\n}\nmore { ROOT p = f32[] parameter(0) }", "the number of computations: 3 and 4"},
		{"  n = f32[] negate(z)\n", "", "computation main: the number of instructions: 6 and 5"},
		{"n = f32[] negate(z)", "o = f32[] negate(z)", "computation main: the name of instruction 5: n and o"},
		{"negate(z)", "floor(z)", "n in main: the opcode: negate and floor"},
		{"n = f32[] negate", "n = f32[]{:T(2)} negate", "n in main: the shape: f32[] and f32[]{:T(2)}"},
		{"negate(z)", "negate(r)", "n in main: the operands: [z] and [r]"},
		{"negate(z)", "negate(z, z)", "n in main: the operands: [z] and [z z]"},
		{"constant(1)", "constant(2)", "c in main: the value: 1 and 2"},
		{"control-predecessors={r}, ", "", "w in main: the control predecessors: [r] and []"},
		{"branch_computations={add, mul}", "branch_computations={mul, add}", "w in main: attribute branch_computations: [add mul] and [mul add]"},
		{"to_apply=add", "to_apply=mul", "r in main: attribute to_apply: add and mul"},
		{"to_apply=add", "to_apply={add}", "r in main: attribute to_apply: add and [add]"},
		{`op_name="w"`, `op_name="` + strings.Repeat("w", 100) + `"`, `w in main: attribute metadata differs from byte 0 on: "{op_name=\"w\"}" and "{op_name=\"` + strings.Repeat("w", 40) + `"...`},
		{"  n = f32[] negate(z)", "  n = f32[] negate(z), x=1", "n in main: the first has no attribute x"},
		{"ROOT w", "w", "computation main: the root: [w] and [n]"},
	} {
		other := strings.Replace(text, c.old, c.new, 1)
		if other == text {
			t.Fatalf("%q is not in the text", c.old)
		}
		err := Equal(same(), parsed(t, other))
		if err == nil || err.Error() != c.want {
			t.Errorf("%q for %q: %v, expected %s", c.new, c.old, err, c.want)
		}
	}
	other := same()
	other.Entry = other.Computations[0]
	if err := Equal(same(), other); err == nil || err.Error() != "the entry: main and add" {
		t.Error(err)
	}
	other = same()
	other.Entry.Instructions[0].Parameter = 3
	if err := Equal(same(), other); err == nil || err.Error() != "p in main: the parameter's number: 0 and 3" {
		t.Error(err)
	}
	other.Entry.Root = nil
	other.Entry.Instructions[0].Parameter = 0
	if err := Equal(same(), other); err == nil || err.Error() != "computation main: the root: [w] and [none]" {
		t.Error(err)
	}
}

func TestShapeEqual(t *testing.T) {
	all := []string{"f32[]", "f32[2]", "f32[3]", "f32[2]{0}", "f32[2]{0:S(5)}", "b(f32[2]{0})", "f32[<=2]", "f32[?]", "s32[2]", "()", "(f32[2])", "(f32[2], f32[2])", "((f32[2]))", "token[]"}
	for _, x := range all {
		for _, y := range all {
			a, b := Shape(t, x), Shape(t, y)
			if EqualShapes(a, b) != (x == y) {
				t.Errorf("%s and %s: %v", x, y, EqualShapes(a, b))
			}
		}
	}
	var none *hlo.Shape
	if EqualShapes(none, Shape(t, "f32[]")) || EqualShapes(Shape(t, "f32[]"), none) || !EqualShapes(none, none) {
		t.Error("no shape")
	}
}
