package remat

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"gpumem/hlo/cost"
	"gpumem/internal/test/remattest"
	"gpumem/remat/legal"
)

// overwritten is a module whose first output takes the place of its parameter: XLA's pass reads
// that again later.
const overwritten = `HloModule m, is_scheduled=true, input_output_alias={ {0}: (0, {}, must-alias) }

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

// TestIllegalPlansAreDropped: XLA's plan is not returned where it is wrong, and the answer says
// why.
func TestIllegalPlansAreDropped(t *testing.T) {
	m := remattest.Parsed(t, overwritten)
	for _, algorithm := range Algorithms {
		for percent := 10.; percent < 100; percent += 20 {
			a, err := Run(context.Background(), m, Request{Algorithm: algorithm, Limit: Percent(percent), Rates: cost.Rates{Bytes: 3e12, Flops: 4e14}, Frontier: 20})
			if err != nil {
				t.Fatal(err)
			}
			if err := legal.Check(a.Given, a.Module); err != nil || !a.Legal {
				t.Errorf("%s, %v %%: legal %t: %v", algorithm, percent, a.Legal, err)
			}
			if text := strings.Join(a.Warnings, "\n"); algorithm == "xla" && (!strings.Contains(text, "XLA's plan was dropped: not legal: a.remat") || !strings.Contains(text, "it reads p, whose memory dus has overwritten")) {
				t.Errorf("%v %%: warnings %q", percent, a.Warnings)
			}
		}
	}
	_, err := Run(context.Background(), m, Request{Algorithm: "off", Marks: []*regexp.Regexp{regexp.MustCompile("^a$|^b$")}, Limit: Percent(50)})
	if err == nil || !strings.Contains(err.Error(), "not legal") {
		t.Errorf("marks of a scheduled module: %v", err)
	}
}
