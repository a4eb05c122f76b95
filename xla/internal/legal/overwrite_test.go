package legal_test

import (
	"strings"
	"testing"

	"gpumem/xla/internal/legal"
	"gpumem/xla/internal/test/remattest"
)

// TestReadersStayBeforeWriters: LATE stands for what reads x at first before it is overwritten, and
// in the plan again after that.
func TestReadersStayBeforeWriters(t *testing.T) {
	const update = `update {
  q = f32[8]{0} parameter(0)
  i = s32[] parameter(1)
  r = f32[1]{0} slice(q), slice={[0:1]}
  ROOT d = f32[8]{0} dynamic-update-slice(q, r, i)
}
`
	const branches = `left {
  q = (f32[8]{0}, s32[]) parameter(0)
  v = f32[8]{0} get-tuple-element(q), index=0
  i = s32[] get-tuple-element(q), index=1
  r = f32[1]{0} slice(v), slice={[0:1]}
  ROOT d = f32[8]{0} dynamic-update-slice(v, r, i)
}
right {
  q = (f32[8]{0}, s32[]) parameter(0)
  v = f32[8]{0} get-tuple-element(q), index=0
  ROOT n = f32[8]{0} negate(v)
}
`
	for _, c := range []struct{ name, computations, writer string }{
		{"call", update, "w = f32[8]{0} call(x, i), to_apply=update"},
		{"fusion", update, "w = f32[8]{0} fusion(x, i), kind=kLoop, calls=update"},
		{"fusion in a fusion", update + strings.Replace(update, "update {", "inner {", 1) + "outer {\n  q = f32[8]{0} parameter(0)\n  i = s32[] parameter(1)\n  ROOT f = f32[8]{0} fusion(q, i), kind=kLoop, calls=inner\n}\n", "w = f32[8]{0} fusion(x, i), kind=kLoop, calls=outer"},
		{"conditional", branches, "pair = (f32[8]{0}, s32[]) tuple(x, i)\n  w = f32[8]{0} conditional(i, pair, pair), branch_computations={left, right}"},
		{"custom call", "", "w = f32[8]{0} custom-call(x), custom_call_target=\"k\", output_to_operand_aliasing={{}: (0, {})}"},
		{"scatter", "pick {\n  a = f32[] parameter(0)\n  ROOT b = f32[] parameter(1)\n}\n", "ix = s32[1]{0} reshape(i)\n  one = f32[1]{0} slice(x), slice={[0:1]}\n  w = f32[8]{0} scatter(x, ix, one), update_window_dims={0}, inserted_window_dims={}, scatter_dims_to_operand_dims={0}, index_vector_dim=0, to_apply=pick"},
		{"all-reduce-start", "sum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT s = f32[] add(a, b)\n}\n", "st = f32[8]{0} all-reduce-start(x), replica_groups={{0}}, to_apply=sum\n  w = f32[8]{0} all-reduce-done(st)"},
		{"async call", update, "st = ((f32[8]{0}, s32[]), f32[8]{0}, u32[]) async-start(x, i), calls=update\n  w = f32[8]{0} async-done(st)"},
		{"output of a donated parameter", "", "w = f32[8]{0} cosine(keep)"},
		{"through a bitcast and a tuple", "", "b = f32[8]{0} bitcast(x)\n  pair = (f32[8]{0}, s32[]) tuple(b, i)\n  g = f32[8]{0} get-tuple-element(pair), index=0\n  u = f32[1]{0} slice(keep), slice={[0:1]}\n  w = f32[8]{0} dynamic-update-slice(g, u, i)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			make, aliases := "x = f32[8]{0} sine(p)", ""
			if strings.HasPrefix(c.name, "output") {
				make, aliases = "x = f32[8]{0} bitcast(p)", ", input_output_alias={ {0}: (0, {}, may-alias) }"
			}
			text := func(late string) string {
				return "HloModule m, is_scheduled=true" + aliases + "\n" + c.computations + `ENTRY e {
  p = f32[8]{0} parameter(0)
  i = s32[] parameter(1)
  keep = f32[8]{0} parameter(2)
  ` + make + `
  y = f32[8]{0} tanh(x)
  ` + c.writer + "\n" + late + `
  ROOT r = (f32[8]{0}, f32[8]{0}) tuple(w, z)
}
`
			}
			before := remattest.Parsed(t, text("  z = f32[8]{0} add(y, y)"))
			if problem := legal.Overwritten(before); problem != "" {
				t.Fatal(problem)
			}
			after := remattest.Parsed(t, text("  y.remat = f32[8]{0} tanh(x)\n  z = f32[8]{0} add(y.remat, y)"))
			err := legal.Options{Collectives: true}.Check(before, after)
			if err == nil || !strings.Contains(err.Error(), "y.remat in e: it reads") {
				t.Errorf("%v", err)
			}
			// Before the writer the clone is right.
			early := strings.Replace(text("  z = f32[8]{0} add(y.remat, y)"), "  y = f32[8]{0} tanh(x)\n", "  y = f32[8]{0} tanh(x)\n  y.remat = f32[8]{0} tanh(x)\n", 1)
			if err := (legal.Options{Collectives: true}).Check(before, remattest.Parsed(t, early)); err != nil {
				t.Errorf("before the writer: %v", err)
			}
		})
	}
}
