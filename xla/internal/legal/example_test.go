package legal_test

import (
	"fmt"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/legal"
)

// The plan recomputes a value of a donated parameter after its memory was overwritten.
func ExampleOptions_Check() {
	const head = `HloModule m, is_scheduled=true, input_output_alias={ {0}: (0, {}, must-alias) }

ENTRY e {
  p = f32[4] parameter(0)
  zero = s32[] constant(0)
  a = f32[4] exponential(p)
  u = f32[1] slice(a), slice={[0:1]}
  d = f32[4] dynamic-update-slice(p, u, zero)
`
	before, err := hlo.ParseString(head + `  s = f32[4] sine(a)
  ROOT r = (f32[4], f32[4]) tuple(d, s)
}`)
	if err != nil {
		fmt.Println(err)
		return
	}
	after, err := hlo.ParseString(head + `  a.remat = f32[4] exponential(p)
  s = f32[4] sine(a.remat)
  ROOT r = (f32[4], f32[4]) tuple(d, s)
}`)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(legal.Options{}.Check(before, before))
	fmt.Println(legal.Options{}.Check(before, after))
	// Output:
	// <nil>
	// not legal: a.remat in e: it reads p, whose memory d has overwritten
}
