package legal_test

import (
	"strings"
	"testing"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/legal"
	"gpumem/xla/internal/test/remattest"
)

// given has one of everything that the checker looks at.
const given = `HloModule m, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }

sum {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] add(x, y)
}

double {
  q = f32[64]{0} parameter(0)
  ROOT d = f32[64]{0} add(q, q)
}

noise {
  q = f32[64]{0} parameter(0)
  low = f32[] constant(0)
  high = f32[] constant(1)
  r = f32[64]{0} rng(low, high), distribution=rng_uniform
  ROOT d = f32[64]{0} add(q, r)
}

exchange {
  q = f32[64]{0} parameter(0)
  st = ((f32[64]{0}), f32[64]{0}) all-to-all-start(q), replica_groups={{0,1}}, dimensions={0}
  ROOT d = f32[64]{0} all-to-all-done(st)
}

less {
  t = (s32[], f32[64]{0}) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  n = s32[] constant(3)
  ROOT lt = pred[] compare(i, n), direction=LT
}

body {
  t = (s32[], f32[64]{0}) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  one = s32[] constant(1)
  v = f32[64]{0} get-tuple-element(t), index=1
  w = f32[64]{0} sine(v)
  u = f32[64]{0} cosine(v)
  j = s32[] add(i, one)
  x = f32[64]{0} add(w, u)
  ROOT r = (s32[], f32[64]{0}) tuple(j, x)
}

ENTRY e {
  p = f32[64]{0} parameter(0)
  k = f32[64]{0} parameter(1)
  zero = s32[] constant(0)
  half = f32[] constant(.5)
  a = f32[64]{0} exponential(p)
  b = f32[64]{0} fusion(a), kind=kLoop, calls=double
  c = f32[64]{0} call(b), to_apply=noise
  d = f32[64]{0} call(c), to_apply=exchange
  ar = f32[64]{0} all-reduce(d), channel_id=1, replica_groups={{0,1}}, to_apply=sum
  ag = f32[64]{0} all-to-all(ar), channel_id=2, replica_groups={{0,1}}, dimensions={0}
  row = f32[1]{0} slice(b), slice={[0:1]}
  dus = f32[64]{0} dynamic-update-slice(p, row, zero)
  f = f32[64]{0} sine(b), sharding={replicated}
  cc = f32[64]{0} custom-call(f), custom_call_target="kernel"
  fx = f32[64]{0} custom-call(f), custom_call_target="print", custom_call_has_side_effect=true
  fy = f32[64]{0} custom-call(f), custom_call_target="write", custom_call_has_side_effect=true
  g = f32[64]{0} negate(cc), control-predecessors={fx}
  gs = f32[1]{0} slice(g), slice={[2:3]}
  h = f32[64]{0} bitcast(g)
  init = (s32[], f32[64]{0}) tuple(zero, h)
  loop = (s32[], f32[64]{0}) while(init), condition=less, body=body
  l = f32[64]{0} get-tuple-element(loop), index=1
  ml = f32[64]{0} multiply(l, f)
  o = f32[64]{0} add(ml, ag)
  z = f32[64]{0} add(o, a)
  y = f32[64]{0} add(z, fy)
  ROOT r = (f32[64]{0}, f32[64]{0}) tuple(dus, y)
}
`

// edit replaces parts of a text, which must be there once.
func edit(t *testing.T, text string, pairs ...string) *hlo.Module {
	t.Helper()
	for n := 0; n < len(pairs); n += 2 {
		if strings.Count(text, pairs[n]) != 1 {
			t.Fatalf("%q is there %d times", pairs[n], strings.Count(text, pairs[n]))
		}
		text = strings.Replace(text, pairs[n], pairs[n+1], 1)
	}
	return remattest.Parsed(t, text)
}

// line puts a line before another.
func before(at, line string) []string {
	return []string{"\n  " + at + " = ", "\n  " + line + "\n  " + at + " = "}
}

func TestLegalChangesPass(t *testing.T) {
	for name, pairs := range map[string][]string{
		"nothing": nil,
		"recomputed": append(before("z", "a.remat = f32[64]{0} fusion(k), kind=kLoop, calls=double.2"), "\nENTRY", "\ndouble.2 {\n  q = f32[64]{0} parameter(0)\n  ROOT d = f32[64]{0} add(q, q)\n}\n\nENTRY",
			"fusion(a), kind", "fusion(k), kind", "add(o, a)", "add(o, a.remat)"),
		"through a barrier": append(before("ml", "bt = (f32[64]{0}) tuple(b)\n  bb = (f32[64]{0}) opt-barrier(bt)\n  bg = f32[64]{0} get-tuple-element(bb), index=0\n  f.remat = f32[64]{0} sine(bg), sharding={replicated}"),
			"multiply(l, f)", "multiply(l, f.remat)"),
		"through a bitcast": append(before("init", "g.remat = f32[64]{0} bitcast(h)"), "tuple(zero, h)", "tuple(zero, g.remat)"),
		"dead code goes":    {"\n  ag = f32[64]{0} all-to-all(ar), channel_id=2, replica_groups={{0,1}}, dimensions={0}", "", "add(ml, ag)", "add(ml, ar)"},
		"to the host and back": append(append(before("dus", "out = (f32[64]{0:S(5)}, f32[64]{0}, u32[]) copy-start(a)\n  away = f32[64]{0:S(5)} copy-done(out)"),
			before("z", "in = (f32[64]{0}, f32[64]{0:S(5)}, u32[]) copy-start(away)\n  back = f32[64]{0} copy-done(in)")...), "add(o, a)", "add(o, back)"),
		"in the body of a loop": {"  x = f32[64]{0} add(w, u)", "  w.remat = f32[64]{0} sine(v)\n  x = f32[64]{0} add(w.remat, u)"},
		"metadata":              {"calls=double", `calls=double, metadata={op_name="x"}`},
	} {
		t.Run(name, func(t *testing.T) {
			was := given
			switch name { // changes of what is given
			case "recomputed":
				was = strings.NewReplacer("fusion(a), kind", "fusion(k), kind", "add(o, a)", "add(o, b)").Replace(given)
			case "dead code goes":
				was = strings.Replace(given, "add(ml, ag)", "add(ml, ar)", 1)
			}
			if err := (legal.Options{}).Check(remattest.Parsed(t, was), edit(t, given, pairs...)); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestFaultsAreFound plants one fault each.
func TestFaultsAreFound(t *testing.T) {
	for _, c := range []struct {
		name  string
		want  string
		pairs []string
	}{
		// What is computed.
		{"another operation", "e: it is no instruction", []string{"f32[64]{0} sine(b)", "f32[64]{0} cosine(b)"}},
		{"another operand", "operand 0 is k", []string{"slice(b)", "slice(k)"}},
		{"swapped operands", "operand 0 is f", []string{"multiply(l, f)", "multiply(f, l)"}},
		{"another attribute", "other attributes", []string{"slice={[0:1]}", "slice={[1:2]}"}},
		{"another constant", "another value", []string{"n = s32[] constant(3)", "n = s32[] constant(4)"}},
		{"another layout", "another shape or layout", []string{"f = f32[64]{0} sine", "f = f32[64]{0:S(1)} sine"}},
		{"another sharding", "other attributes", []string{"sharding={replicated}", "sharding={maximal device=0}"}},
		{"another result", "operand 1 is z", []string{"tuple(dus, y)", "tuple(dus, z)"}},
		{"another element", "operand 0 is l", []string{"l = f32[64]{0} get-tuple-element(loop), index=1", "l = f32[64]{0} get-tuple-element(init), index=1"}},
		{"a new instruction", "no instruction of the given module", before("f", "extra = f32[64]{0} tanh(b)")},
		{"a fused computation that differs", "fusion with another", []string{"ROOT d = f32[64]{0} add(q, q)", "ROOT d = f32[64]{0} multiply(q, q)"}},
		{"a loop's body that differs", "x in body: it is no instruction", []string{"x = f32[64]{0} add(w, u)", "x = f32[64]{0} subtract(w, u)"}},
		{"a clone of something else", "operand 0 is a", append(before("ml", "f.remat = f32[64]{0} sine(a), sharding={replicated}"), "multiply(l, f)", "multiply(l, f.remat)")},
		// How often, and in which order.
		{"an effect twice", "an effect, and", before("g", "fx.2 = f32[64]{0} custom-call(f), custom_call_target=\"print\", custom_call_has_side_effect=true")},
		{"an effect not at all", "runs less often", []string{"\n  fy = f32[64]{0} custom-call(f), custom_call_target=\"write\", custom_call_has_side_effect=true", "", "add(z, fy)", "add(z, cc)"}},
		{"effects in another order", "effect", []string{"\n  fx = f32[64]{0} custom-call(f), custom_call_target=\"print\", custom_call_has_side_effect=true", "", "\n  g = ", "\n  fx = f32[64]{0} custom-call(f), custom_call_target=\"print\", custom_call_has_side_effect=true\n  g = "}},
		{"a call with random numbers twice", "an effect, and", append(before("row", "c.2 = f32[64]{0} call(b), to_apply=noise.2"), clone("noise")...)},
		{"a collective twice", "more often", before("row", "ar.2 = f32[64]{0} all-reduce(d), channel_id=3, replica_groups={{0,1}}, to_apply=sum")},
		{"a call with a collective twice", "more often", append(before("row", "d.2 = f32[64]{0} call(c), to_apply=exchange.2"), clone("exchange")...)},
		{"a loop twice", "more often", append(append(before("ml", "loop.2 = (s32[], f32[64]{0}) while(init), condition=less.2, body=body.2"), clone("less")...), clone("body")...)},
		{"a custom call twice", "more often", before("g", "cc.2 = f32[64]{0} custom-call(f), custom_call_target=\"kernel\"")},
		{"a control dependency gone", "no longer waits for fx", []string{", control-predecessors={fx}", ""}},
		{"another channel", "channel_id 1", []string{"channel_id=2", "channel_id=1"}},
		// What owns what.
		{"one fused computation for two", "needs a clone of that, too", before("row", "b.2 = f32[64]{0} fusion(a), kind=kLoop, calls=double")},
		{"a start without end", "0 instructions end", before("dus", "out = (f32[64]{0:S(5)}, f32[64]{0}, u32[]) copy-start(a)")},
		{"a copy to nowhere", "copies to the host and back", before("dus", "out = (f32[64]{0:S(1)}, f32[64]{0}, u32[]) copy-start(a)\n  away = f32[64]{0:S(1)} copy-done(out)")},
		// What is overwritten.
		{"a donated parameter", "whose memory dus has overwritten", append(before("z", "a.remat = f32[64]{0} exponential(p)"), "add(o, a)", "add(o, a.remat)")},
		{"what a loop begins with", "whose memory loop has overwritten", before("ml", "gs.remat = f32[1]{0} slice(g), slice={[2:3]}")},
		{"the state of a loop", "whose memory x has overwritten", []string{"  ROOT r = (s32[], f32[64]{0}) tuple(j, x)", "  w.remat = f32[64]{0} sine(v)\n  x.remat = f32[64]{0} add(w.remat, u)\n  ROOT r = (s32[], f32[64]{0}) tuple(j, x)"}},
		{"an update twice", "whose memory dus has overwritten", append(before("f", "dus.remat = f32[64]{0} dynamic-update-slice(p, row, zero)"), "tuple(dus, y)", "tuple(dus.remat, y)")},
		{"a copy that ends late", "whose memory dus has overwritten", append(before("dus", "out = (f32[64]{0:S(5)}, f32[64]{0}, u32[]) copy-start(p)"), before("f", "away = f32[64]{0:S(5)} copy-done(out)")...)},
		// The module.
		{"not scheduled", "is_scheduled", []string{"is_scheduled=true, ", ""}},
		{"another alias", "input_output_alias", []string{"may-alias", "must-alias"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := legal.Options{}.Check(remattest.Parsed(t, given), edit(t, given, c.pairs...))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// clone is an edit that adds a copy of a computation, with .2 behind its name.
func clone(name string) []string {
	from := strings.Index(given, "\n"+name+" {")
	to := from + strings.Index(given[from:], "\n}\n") + 3
	text := given[from:to]
	return []string{text, text + strings.Replace(text, name+" {", name+".2 {", 1)}
}

func TestOptionsAllowMore(t *testing.T) {
	for name, pairs := range map[string][]string{
		"a collective":    before("row", "ar.2 = f32[64]{0} all-reduce(d), channel_id=3, replica_groups={{0,1}}, to_apply=sum"),
		"a call with one": append(before("row", "d.2 = f32[64]{0} call(c), to_apply=exchange.2"), clone("exchange")...),
		"a custom call":   before("g", "cc.2 = f32[64]{0} custom-call(f), custom_call_target=\"kernel\""),
		"a loop":          append(append(before("ml", "g.2 = f32[64]{0} negate(cc)\n  zero.2 = s32[] constant(0)\n  init.2 = (s32[], f32[64]{0}) tuple(zero.2, g.2)\n  w.2 = (s32[], f32[64]{0}) while(init.2), condition=less.2, body=body.2"), clone("less")...), clone("body")...),
	} {
		t.Run(name, func(t *testing.T) {
			after := edit(t, given, pairs...)
			if err := (legal.Options{}).Check(remattest.Parsed(t, given), after); err == nil {
				t.Error("allowed without options")
			}
			if err := (legal.Options{Collectives: true, Loops: true}).Check(remattest.Parsed(t, given), after); err != nil {
				t.Error(err)
			}
		})
	}
}
