package memory

import (
	"strings"
	"testing"

	"gpumem/xla/internal/hlo"
)

// Modules that do not fit together are refused with the instruction's name, even
// if they were not verified.
func TestMalformed(t *testing.T) {
	const head = `HloModule m

f {
  ROOT x = f32[4] parameter(0)
}

two {
  x = f32[4] parameter(0)
  ROOT y = f32[4] parameter(1)
}

pair {
  ROOT x = (f32[4], f32[4]) parameter(0)
}

cond {
  x = f32[4] parameter(0)
  ROOT y = pred[] constant(true)
}

ENTRY main {
  p = f32[4] parameter(0)
  t = (f32[4], f32[4]) tuple(p, p)
  w = pred[] constant(true)
`
	for _, c := range []struct{ line, want string }{
		{"g = f32[4] get-tuple-element(t), index=2", "index=2 of a tuple of 2"},
		{"g = f32[4] get-tuple-element(t), index=x", "expected the number of an element"},
		{"g = (f32[4]) get-tuple-element(t), index=0", "other parts"},
		{"g = (f32[4]) tuple(p, p)", "2 operands for 1 elements"},
		{"g = f32[4] bitcast(t)", "other parts"},
		{"g = f32[4] bitcast()", "at least 1"},
		{"g = f32[4] copy(t)", "other parts"},
		{"g = (f32[4], f32[4]) call(p), to_apply=f", "returns something else"},
		{"g = f32[4] call(p, p), to_apply=f", "1 parameters for 2 operands"},
		{"g = f32[4] call(t), to_apply=f", "does not fit parameter 0"},
		{"g = f32[4] while(p), condition=cond, body=pair", "expected a condition"},
		{"g = f32[4] while(p), condition=pair, body=f", "expected one parameter"},
		{"g = f32[4] while(), condition=cond, body=f", "at least 1"},
		{"g = f32[4] conditional(w, p, p), true_computation=f, false_computation=pair", "returns something else"},
		{"g = f32[4] conditional(w, p), true_computation=f, false_computation=f", "2 branches and 2 operands"},
		{"g = f32[4] conditional(w, p, t), true_computation=f, false_computation=f", "does not fit parameter 0"},
		{"g = f32[4] copy-start(p)", "does not have the parts"},
		{"g = f32[4] copy-done(p)", "does not have the parts"},
		{"g = f32[4] all-gather-start(p, p), dimensions={0}", "does not begin with its operands"},
		{"g = f32[4] all-gather-done(p)", "no element 1"},
		{"g = f32[4] async-start(p), calls=f", "of the shape"},
		{"g = ((), f32[4], u32[]) async-start(p), calls=f", "begin with its operands"},
		{"g = (((f32[4])), f32[4], u32[]) async-start(p), calls=f", "other parts"},
		{"g = f32[4] async-done(), calls=f", "expected the start"},
		{"g = f32[4] async-done(p), calls=f", "no element 1"},
		{"g = f32[8] custom-call(p), custom_call_target=\"x\", output_to_operand_aliasing={{}: (1, {})}", "operand 1, which it does not have"},
		{"g = f32[8] custom-call(p), custom_call_target=\"x\", output_to_operand_aliasing={{0}: (0, {})}", "no such part"},
		{"g = f32[8] custom-call(p), custom_call_target=\"x\", output_to_operand_aliasing={0}", "output_to_operand_aliasing"},
		{"g = f32[8] dynamic-update-slice()", "operand 0, which it does not have"},
	} {
		t.Run(c.line, func(t *testing.T) {
			m, err := hlo.ParseString(head + "  " + c.line + "\n  ROOT r = () tuple()\n}\n")
			if err != nil {
				t.Fatal(err)
			}
			_, err = AnalyzeModule(m)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "g in main") {
				t.Errorf("%v, want %q of g in main", err, c.want)
			}
		})
	}
}
