package memory

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"gpumem/xla/internal/hlo"
)

func module(t testing.TB, text string) *hlo.Module {
	t.Helper()
	m, err := hlo.ParseString("HloModule m, is_scheduled=true\n" + text)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// show writes the buffers of the entry: "definer{index} size <- user.operand ..." and what they are.
func show(t *testing.T, m *hlo.Module) string {
	t.Helper()
	b, err := NewMeter(Options{}).Buffers(m.Entry)
	if err != nil {
		t.Fatal(err)
	}
	var s strings.Builder
	name := func(k int32) string { return m.Entry.Instructions[k].Name }
	for _, x := range b.List {
		fmt.Fprintf(&s, "%s%v %d", name(x.Definer), x.Index, x.Bytes)
		for _, u := range x.Uses {
			fmt.Fprintf(&s, " %s.%d", name(u.User), u.Operand)
			if u.Index >= 0 {
				fmt.Fprintf(&s, "[%d]", u.Index)
			}
		}
		if x.Users != len(x.Uses) {
			fmt.Fprintf(&s, " users=%d", x.Users)
		}
		if x.LiveOut {
			s.WriteString(" live-out")
		}
		if x.Indirect {
			s.WriteString(" indirect")
		}
		s.WriteByte('\n')
	}
	return s.String()
}

func TestAnalyze(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"arrays", `ENTRY e {
  p = f32[4] parameter(0)
  c = f32[4] constant({1,2,3,4})
  a = f32[4] add(p, c)
  ROOT b = f32[4] multiply(a, a)
}`, "p[] 16 a.0\nc[] 16 a.1\na[] 16 b.0 b.1 users=1\nb[] 16 live-out\n"},
		{"tuple and elements", `ENTRY e {
  p = f32[4] parameter(0)
  n = f32[2] slice(p), slice={[0:2]}
  o = (f32[4], f32[2]) tuple(p, n)
  g = f32[2] get-tuple-element(o), index=1
  v = f32[1,2] bitcast(g)
  ROOT z = f32[1,2] negate(v)
}`, "p[] 16 n.0 o.0\nn[] 8 o.1 v.0 z.0\no[] 16 g.0\nz[] 8 live-out\n"},
		{"a part twice in a tuple", `ENTRY e {
  p = f32[4] parameter(0)
  n = f32[4] negate(p)
  o = (f32[4], f32[4]) tuple(n, n)
  ROOT k = f32[4] custom-call(o), custom_call_target="x"
}`, "p[] 16 n.0\nn[] 16 o.0 o.1 k.0 users=2 indirect\no[] 16 k.0\nk[] 16 live-out\n"},
		{"elements of a parameter, nested", `ENTRY e {
  p = (f32[4], (f32[2], f32[1])) parameter(0)
  g = (f32[2], f32[1]) get-tuple-element(p), index=1
  h = f32[1] get-tuple-element(g), index=1
  ROOT n = f32[1] negate(h)
}`, "p[] 16 g.0\np[0] 16\np[1] 16 h.0[1]\np[1 0] 8\np[1 1] 4 n.0\nn[] 4 live-out\n"},
		{"a barrier and a copy of a tuple", `ENTRY e {
  p = f32[4] parameter(0)
  o = (f32[4]) tuple(p)
  b = (f32[4]) opt-barrier(o)
  ROOT c = (f32[4]) copy(b)
}`, "p[] 16 o.0 b.0 c.0 live-out indirect\no[] 8 b.0 c.0 indirect\nc[] 8 live-out\n"},
		{"a while has its operand's", `cond {
  q = (f32[4], s32[]) parameter(0)
  ROOT t = pred[] constant(true)
}
body {
  ROOT q = (f32[4], s32[]) parameter(0)
}
ENTRY e {
  p = f32[4] parameter(0)
  i = s32[] constant(0)
  o = (f32[4], s32[]) tuple(p, i)
  w = (f32[4], s32[]) while(o), condition=cond, body=body
  g = f32[4] get-tuple-element(w), index=0
  ROOT n = f32[4] negate(g)
}`, "p[] 16 o.0 w.0 n.0[0] indirect\ni[] 4 o.1 w.0 indirect\no[] 16 w.0 g.0 indirect\nn[] 16 live-out\n"},
		{"asynchronous call", `callee {
  q = f32[4] parameter(0)
  ROOT n = f32[4] negate(q)
}
ENTRY e {
  p = f32[4] parameter(0)
  s = ((f32[4]), f32[4], s32[]) call-start(p), to_apply=callee
  u = ((f32[4]), f32[4], s32[]) call-update(s)
  d = f32[4] call-done(u)
  ROOT n = f32[4] negate(d)
}`, "p[] 16 s.0 u.0 d.0 indirect\ns[] 24 u.0\ns[0] 8 u.0[0] d.0[0] indirect\ns[1] 16 u.0[1] d.0[1] n.0[1] indirect\ns[2] 4 u.0[2]\nu[] 24 d.0\nu[2] 4 d.0[2]\nn[] 16 live-out\n"},
		{"asynchronous copy", `ENTRY e {
  p = f32[4] parameter(0)
  s = (f32[4]{0:S(5)}, f32[4]{0}, u32[]) copy-start(p)
  d = f32[4]{0:S(5)} copy-done(s)
  ROOT n = f32[4] negate(d)
}`, "p[] 16 s.0 d.0 indirect\ns[] 24 d.0\ns[0] 16 d.0[0] n.0[0] indirect\ns[2] 4 d.0[2]\nn[] 16 live-out\n"},
		{"send and receive", `ENTRY e {
  p = f32[4] parameter(0)
  k = token[] after-all()
  s = (f32[4], u32[], token[]) send(p, k), channel_id=1
  sd = token[] send-done(s), channel_id=1
  r = (f32[4], u32[], token[]) recv(k), channel_id=2
  rd = (f32[4], token[]) recv-done(r), channel_id=2
  ROOT g = f32[4] get-tuple-element(rd), index=0
}`, "p[] 16 s.0 sd.0 indirect\nk[] 0 s.1 r.0\ns[] 24 sd.0\ns[1] 4 sd.0[1]\ns[2] 0 sd.0[2]\nsd[] 0\nr[] 24 rd.0\nr[0] 16 rd.0[0] live-out\nr[1] 4 rd.0[1]\nr[2] 0 rd.0[2]\nrd[] 16 g.0\nrd[1] 0\n"},
		{"a fusion in place, a custom call not", `f {
  q = f32[4] parameter(0)
  r = f32[4] parameter(1)
  a = f32[4] add(q, r)
  ROOT o = (f32[4], f32[4]) tuple(a, r)
}
ENTRY e {
  p = f32[4] parameter(0)
  n = f32[4] negate(p)
  f = (f32[4], f32[4]) fusion(p, n), kind=kLoop, calls=f, output_to_operand_aliasing={{1}: (1, {})}
  k = (f32[4], f32[4]) custom-call(p, n), custom_call_target="x", output_to_operand_aliasing={{1}: (1, {})}
  g = f32[4] get-tuple-element(f), index=1
  h = f32[4] get-tuple-element(k), index=1
  ROOT z = f32[4] add(g, h)
}`, "p[] 16 n.0 f.0 k.0\nn[] 16 f.1 k.1 z.0\nf[] 16 g.0\nf[0] 16\nk[] 16 h.0\nk[0] 16\nk[1] 16 z.1[1]\nz[] 16 live-out\n"},
		{"a loop fusion uses what it reads", `inner {
  q = (f32[4], f32[4]) parameter(0)
  g = f32[4] get-tuple-element(q), index=1
  ROOT n = f32[4] negate(g)
}
outer {
  q = (f32[4], f32[4]) parameter(0)
  r = f32[4] parameter(1)
  ROOT f = f32[4] fusion(q), kind=kLoop, calls=inner
}
ENTRY e {
  p = f32[4] parameter(0)
  a = f32[4] negate(p)
  b = f32[4] negate(p)
  o = (f32[4], f32[4]) tuple(a, b)
  f = f32[4] fusion(o, p), kind=kLoop, calls=outer
  k = f32[4] fusion(o), kind=kInput, calls=inner
  ROOT z = f32[4] add(f, k)
}`, "p[] 16 a.0 b.0\na[] 16 o.0 k.0 indirect\nb[] 16 o.1 f.0 k.0 indirect\no[] 16 f.0 k.0\nf[] 16 z.0\nk[] 16 z.1\nz[] 16 live-out\n"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := show(t, module(t, test.text)); got != test.want {
				t.Errorf("got\n%swant\n%s", got, test.want)
			}
		})
	}
}

func TestOutputs(t *testing.T) {
	m := module(t, `ENTRY e {
  p = f32[4] parameter(0)
  o = (f32[4], f32[4]) tuple(p, p)
  ROOT g = f32[4] get-tuple-element(o), index=1
}`)
	b, err := NewMeter(Options{}).Buffers(m.Entry)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(b.Outputs, b.Defined, b.Used); got != "[[0] [1 0] [0]] [[0] [1] []] [[] [0] [1]]" {
		t.Error(got)
	}
}

func TestAnalyzeErrors(t *testing.T) {
	big := &hlo.Shape{Type: "f32", Dims: []int64{1 << 58}}
	tests := []struct {
		name   string
		change func(m *hlo.Module)
		want   string
	}{
		{"too large", func(m *hlo.Module) { m.Entry.Instruction("n").Shape = big }, "line 4: n in e: hlo: a shape of more than"},
		{"no shape", func(m *hlo.Module) { m.Entry.Instruction("n").Shape = nil }, "line 4: n in e: negate: it has no shape"},
		{"order", func(m *hlo.Module) {
			l := m.Entry.Instructions
			l[0], l[1] = l[1], l[0]
		}, "line 4: n in e: negate: operand p comes later"},
		{"element", func(m *hlo.Module) { m.Entry.Instruction("g").Attributes[0].Value = "2" }, "line 6: g in e: get-tuple-element: index=2 of a tuple of 2"},
		{"index", func(m *hlo.Module) { m.Entry.Instruction("g").Attributes[0].Value = "x" }, "attribute index=x: expected the number of an element"},
		{"tuple", func(m *hlo.Module) { m.Entry.Instruction("o").Shape = big }, "line 5: o in e: tuple: 2 operands for 0 elements"},
		{"bitcast", func(m *hlo.Module) { m.Entry.Instruction("v").Shape = m.Entry.Instruction("o").Shape }, "line 7: v in e: bitcast: its shape has other parts than what it forwards"},
		{"no operand", func(m *hlo.Module) { m.Entry.Instruction("v").Detach() }, "line 7: v in e: bitcast: has 0 operands, expected at least 1"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := module(t, `ENTRY e {
  p = f32[4] parameter(0)
  n = f32[4] negate(p)
  o = (f32[4], f32[4]) tuple(p, n)
  g = f32[4] get-tuple-element(o), index=1
  ROOT v = f32[2,2] bitcast(g)
}`)
			test.change(m)
			_, err := NewMeter(Options{}).Buffers(m.Entry)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %s", err, test.want)
			}
		})
	}
	bad := module(t, "ENTRY e {\n  p = f32[?] parameter(0)\n  ROOT n = f32[?] negate(p)\n}")
	if _, err := NewMeter(Options{}).Buffers(bad.Entry); !errors.Is(err, hlo.ErrUnbounded) {
		t.Errorf("without bound: %v", err)
	}
}
