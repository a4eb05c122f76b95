package remattest

// Random modules that write in place, as compiled modules do.

import (
	"fmt"
	"strings"

	"pgregory.net/rapid"
)

// InPlace returns the text of a random scheduled module with donated parameters, updates in
// place, fusions that end in one, and loops whose state is updated in place. No value is read
// after its memory was overwritten, as in a module that was compiled.
func InPlace(t *rapid.T) string {
	const array = "f32[1024]{0}"
	var lines, computations strings.Builder
	n := 0
	add := func(shape, format string, a ...any) string {
		n++
		fmt.Fprintf(&lines, "  v%d = %s %s\n", n, shape, fmt.Sprintf(format, a...))
		return fmt.Sprint("v", n)
	}
	// readable are all arrays that are still there; donated are the places of two of them.
	readable := []string{"q0", "q1"}
	pick := func() int { return rapid.IntRange(0, len(readable)-1).Draw(t, "which") }
	any := func() string { return readable[pick()] }
	row := func() string { return add("f32[16]{0}", "slice(%s), slice={[%d:%d]}", any(), 16, 32) }
	for range rapid.IntRange(5, 40).Draw(t, "steps") {
		switch op := rapid.IntRange(0, 9).Draw(t, "op"); op {
		default:
			readable = append(readable, add(array, "%s(%s)", []string{"negate", "sine", "cosine", "tanh"}[op%4], any()))
		case 5, 6:
			readable = append(readable, add(array, "add(%s, %s)", any(), any()))
		case 7:
			r, k := row(), pick()
			readable[k] = add(array, "dynamic-update-slice(%s, %s, at)", readable[k], r)
		case 8:
			r, k := row(), pick()
			name := fmt.Sprint("update", n)
			fmt.Fprintf(&computations, `%s {
  x = f32[1024]{0} parameter(0)
  y = f32[16]{0} parameter(1)
  i = s32[] parameter(2)
  m = f32[16]{0} negate(y)
  ROOT d = f32[1024]{0} dynamic-update-slice(x, m, i)
}
`, name)
			readable[k] = add(array, "fusion(%s, %s, at), kind=kLoop, calls=%s", readable[k], r, name)
		case 9:
			k := pick()
			l := pick()
			if k == l {
				continue
			}
			name := fmt.Sprint(n)
			fmt.Fprintf(&computations, `less%[1]s {
  t = (s32[], f32[1024]{0}, f32[1024]{0}) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  n = s32[] constant(3)
  ROOT lt = pred[] compare(i, n), direction=LT
}
body%[1]s {
  t = (s32[], f32[1024]{0}, f32[1024]{0}) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  a = f32[1024]{0} get-tuple-element(t), index=1
  b = f32[1024]{0} get-tuple-element(t), index=2
  w = f32[1024]{0} sine(a)
  u = f32[1024]{0} cosine(w)
  s = f32[1024]{0} sine(u)
  r = f32[16]{0} slice(s), slice={[0:16]}
  d = f32[1024]{0} dynamic-update-slice(a, r, i)
  c = f32[1024]{0} cosine(s)
  e = f32[1024]{0} multiply(c, s)
  f = f32[1024]{0} multiply(e, u)
  g = f32[1024]{0} multiply(f, w)
  h = f32[1024]{0} add(b, g)
  one = s32[] constant(1)
  j = s32[] add(i, one)
  ROOT o = (s32[], f32[1024]{0}, f32[1024]{0}) tuple(j, d, h)
}
`, name)
			const state = "(s32[], f32[1024]{0}, f32[1024]{0})"
			zero := add("s32[]", "copy(at)")
			init := add(state, "tuple(%s, %s, %s)", zero, readable[k], readable[l])
			loop := add(state, "while(%s), condition=less%s, body=body%s", init, name, name)
			readable[k] = add(array, "get-tuple-element(%s), index=1", loop)
			readable[l] = add(array, "get-tuple-element(%s), index=2", loop)
		}
	}
	// Any two may lie where the parameters did, if these are not read later: they are the last.
	out := []string{readable[0], readable[1]}
	for range rapid.IntRange(1, 2).Draw(t, "results") {
		out = append(out, add(array, "negate(%s)", any()))
	}
	shapes := strings.Repeat(", "+array, len(out))[2:]
	return "HloModule m, is_scheduled=true, input_output_alias={ {0}: (0, {}, must-alias), {1}: (1, {}, may-alias) }\n" + computations.String() +
		"ENTRY e {\n  q0 = f32[1024]{0} parameter(0)\n  q1 = f32[1024]{0} parameter(1)\n  at = s32[] constant(2)\n" + lines.String() +
		fmt.Sprintf("  ROOT o = (%s) tuple(%s)\n}\n", shapes, strings.Join(out, ", "))
}

// Overwritten is a module whose first output takes the place of its parameter: XLA's pass reads
// that again later.
const Overwritten = `HloModule m, is_scheduled=true, input_output_alias={ {0}: (0, {}, must-alias) }

ENTRY e {
  p = f32[64,64] parameter(0)
  zero = s32[] constant(0)
  a = f32[64,64] exponential(p)
  row = f32[1,64] slice(a), slice={[0:1],[0:64]}
  b = f32[64,64] sine(a)
  upd = f32[1,64] add(row, row)
  dus = f32[64,64] dynamic-update-slice(p, upd, zero, zero)
  x2 = f32[64,64] exponential(b)
  x3 = f32[64,64] multiply(x2, x2)
  x4 = f32[64,64] multiply(x3, x2)
  x5 = f32[64,64] multiply(x4, b)
  y = f32[64,64] multiply(x5, a)
  ROOT r = (f32[64,64], f32[64,64]) tuple(dus, y)
}
`
