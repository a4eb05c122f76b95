package gap

import (
	"strings"
	"testing"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/legal"
	"gpumem/xla/internal/test/remattest"
)

// chain computes from c what is worth recomputing.
const chain = `  x1 = f32[64,64] exponential(c)
  x2 = f32[64,64] exponential(x1)
  x3 = f32[64,64] multiply(x2, x2)
  x4 = f32[64,64] multiply(x3, x1)
  x5 = f32[64,64] multiply(x4, x2)
`

const fused = `wide {
  q = f32[64,64] parameter(0)
  ROOT s = f32[64,64] sine(q)
}
`

const called = `ENTRY e {
  p = f32[64,64] parameter(0)
  c = f32[64,64] call(p), to_apply=callee
` + chain + `  ROOT r = f32[64,64] multiply(x5, c)
}
`

// TestPlansAreLegal has modules whose plans were not: those of a planner without deadlines, or
// that looks at an instruction and not at what it calls. again is what a plan may recompute.
func TestPlansAreLegal(t *testing.T) {
	for _, c := range []struct{ name, again, text string }{
		{"donated parameter", "", remattest.Overwritten},
		{"state of a loop", "", `HloModule m, is_scheduled=true

cond {
  t = (s32[], f32[64,64]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  n = s32[] constant(10)
  ROOT lt = pred[] compare(i, n), direction=LT
}

body {
  t = (s32[], f32[64,64]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  one = s32[] constant(1)
  j = s32[] add(i, one)
  zero = s32[] constant(0)
  x = f32[64,64] get-tuple-element(t), index=1
  a = f32[64,64] exponential(x)
  b = f32[64,64] sine(a)
  c1 = f32[64,64] exponential(b)
  c2 = f32[64,64] multiply(c1, c1)
  c3 = f32[64,64] multiply(c2, c1)
  red = f32[64,64] multiply(c3, b)
  row0 = f32[1,64] slice(red), slice={[0:1],[0:64]}
  dus = f32[64,64] dynamic-update-slice(x, row0, zero, zero)
  y = f32[64,64] multiply(red, a)
  row = f32[1,64] slice(y), slice={[0:1],[0:64]}
  dus2 = f32[64,64] dynamic-update-slice(dus, row, j, zero)
  ROOT r = (s32[], f32[64,64]) tuple(j, dus2)
}

ENTRY e {
  p0 = f32[64,64] parameter(0)
  z = s32[] constant(0)
  init = (s32[], f32[64,64]) tuple(z, p0)
  w = (s32[], f32[64,64]) while(init), condition=cond, body=body
  ROOT g = f32[64,64] get-tuple-element(w), index=1
}
`},
		{"collective in a call", "", `HloModule m, is_scheduled=true

callee {
  p = f32[64,64] parameter(0)
  st = ((f32[64,64]), f32[64,64]) all-to-all-start(p), replica_groups={{0,1}}, dimensions={0}
  ROOT d = f32[64,64] all-to-all-done(st)
}

` + called},
		{"loop in a call", "", `HloModule m, is_scheduled=true

cond {
  t = (s32[], f32[64,64]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  n = s32[] constant(1000)
  ROOT lt = pred[] compare(i, n), direction=LT
}

body {
  t = (s32[], f32[64,64]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  one = s32[] constant(1)
  j = s32[] add(i, one)
  x = f32[64,64] get-tuple-element(t), index=1
  y = f32[64,64] sine(x)
  ROOT r = (s32[], f32[64,64]) tuple(j, y)
}

callee {
  p = f32[64,64] parameter(0)
  z = s32[] constant(0)
  init = (s32[], f32[64,64]) tuple(z, p)
  w = (s32[], f32[64,64]) while(init), condition=cond, body=body
  ROOT g = f32[64,64] get-tuple-element(w), index=1
}

` + called},
		{"custom call in a call", "", `HloModule m, is_scheduled=true

callee {
  p = f32[64,64] parameter(0)
  ROOT cc = f32[64,64] custom-call(p), custom_call_target="my_kernel"
}

` + called},
		{"fusion in a call", "c.remat", "HloModule m, is_scheduled=true\n\n" + fused + `
callee {
  p = f32[64,64] parameter(0)
  ROOT f = f32[64,64] fusion(p), kind=kLoop, calls=wide
}

` + called},
		{"fusion", "c.remat", "HloModule m, is_scheduled=true\n\n" + fused + strings.Replace(called, "call(p), to_apply=callee", "fusion(p), kind=kLoop, calls=wide", 1)},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := remattest.Parsed(t, c.text)
			changed, again := false, false
			for percent := uint64(10); percent < 100; percent += 10 {
				after := m.Clone()
				if _, err := Run(after, Options{Limit: remattest.TempPeak(t, m) / 100 * percent, Seconds: func(*hlo.Instruction) float64 { return 1 }}); err != nil {
					t.Fatal(err)
				}
				changed = changed || after.String() != m.String()
				again = again || strings.Contains(after.String(), c.again)
				if err := (legal.Options{}).Check(m, after); err != nil {
					t.Errorf("%d %%: %v\n%s", percent, err, after)
				}
			}
			if !changed || !again {
				t.Errorf("changed %t, %s recomputed %t: the test tries nothing", changed, c.again, again)
			}
		})
	}
}
