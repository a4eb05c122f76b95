package hlo_test

import (
	"testing"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/verify"
)

func TestRemoveBarriers(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"an array", "  a = f32[4] negate(p)\n  o = f32[4] opt-barrier(a)\n  ROOT r = f32[4] add(o, a)\n",
			"  a = f32[4] negate(p)\n  ROOT r = f32[4] add(a, a)\n"},
		{"a tuple", "  a = f32[4] negate(p)\n  t = (f32[4], f32[4]) tuple(a, p)\n  o = (f32[4], f32[4]) opt-barrier(t)\n  x = f32[4] get-tuple-element(o), index=0\n  y = f32[4] get-tuple-element(o), index=1\n  ROOT r = f32[4] add(x, y)\n",
			"  a = f32[4] negate(p)\n  ROOT r = f32[4] add(a, p)\n"},
		{"a tuple that is read elsewhere", "  a = f32[4] negate(p)\n  t = (f32[4]) tuple(a)\n  o = (f32[4]) opt-barrier(t)\n  x = f32[4] get-tuple-element(o), index=0\n  y = f32[4] get-tuple-element(t), index=0\n  ROOT r = f32[4] add(x, y)\n",
			"  a = f32[4] negate(p)\n  t = (f32[4]) tuple(a)\n  y = f32[4] get-tuple-element(t), index=0\n  ROOT r = f32[4] add(a, y)\n"},
		{"the result", "  a = f32[4] negate(p)\n  ROOT o = f32[4] opt-barrier(a)\n", "  ROOT a = f32[4] negate(p)\n"},
		{"two in a row", "  o = f32[4] opt-barrier(p)\n  q = f32[4] opt-barrier(o)\n  ROOT r = f32[4] negate(q)\n", "  ROOT r = f32[4] negate(p)\n"},
		{"one that others wait for", "  o = f32[4] opt-barrier(p)\n  a = f32[4] negate(p), control-predecessors={o}\n  ROOT r = f32[4] add(o, a)\n",
			"  o = f32[4] opt-barrier(p)\n  a = f32[4] negate(p), control-predecessors={o}\n  ROOT r = f32[4] add(o, a)\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			parse := func(text string) *hlo.Module {
				m, err := hlo.ParseString("HloModule m, is_scheduled=true\n\nENTRY e {\n  p = f32[4] parameter(0)\n" + text + "}\n")
				if err != nil {
					t.Fatal(err)
				}
				return m
			}
			m := parse(tt.text)
			hlo.RemoveBarriers(m)
			if err := verify.Module(m); err != nil {
				t.Fatal(err)
			}
			if got, want := m.String(), parse(tt.want).String(); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			if again := hlo.RemoveBarriers(m); tt.name != "one that others wait for" && again != 0 {
				t.Errorf("%d are left", again)
			}
		})
	}
}
