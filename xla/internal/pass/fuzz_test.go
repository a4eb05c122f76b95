package pass

import (
	"testing"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/test/hlotest"
	"gpumem/xla/internal/verify"
)

// Whatever reads as a module and verifies, the pass takes or refuses, and what it
// makes of it is a module that reads again.
func FuzzXLA(f *testing.F) {
	for _, text := range []string{head + "ENTRY e {" + twoUsers + "}\n", threeCalls, nested(chainOne),
		head + pair + pairEntry + "  ROOT z = f32[1024]{0} add(m, g1)\n}\n",
		head + always("cond") + "body {" + twoUsers + "}\nENTRY e {" + aroundWhile("cond", "body") + "}\n"} {
		f.Add(text, uint64(12*kib), false)
		f.Add(text, uint64(0), false)
		f.Add(text, uint64(8*kib), true)
	}
	f.Fuzz(func(t *testing.T, text string, limit uint64, offload bool) {
		if len(text) > 1<<14 {
			return
		}
		m, err := hlo.ParseString(text)
		if err == nil {
			err = verify.Module(m)
		}
		if err != nil {
			return
		}
		o := Options{Limit: limit}
		if offload {
			o.Host = hostMemory
		}
		if _, err := Run(m, o); err != nil {
			return
		}
		if err := verify.Module(m); err != nil {
			t.Fatalf("%v\n%s\nbecame\n%s", err, text, m)
		}
		again, err := hlo.ParseString(m.String())
		if err == nil {
			err = hlotest.Equal(again, m.Clone())
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, m)
		}
	})
}
