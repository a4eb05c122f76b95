package legal_test

import (
	"strings"
	"testing"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/legal"
	"gpumem/xla/internal/test/remattest"
)

// A fault is a change of a small program that is not legal.
type fault struct {
	name, want string
	// text are the computations, and behind a line of dashes the entry without its parameters p,
	// k and i. Lines that begin with - are those of the given module alone, with + those of the
	// planned one. A text with an ENTRY has that in full, and may have the module's first line.
	text string
	o    legal.Options
	// known says that the given module has a fault, too, which is not held against the plan.
	known bool
	// of is the text of testdata/loops that the case changes, and unproven says that the results may be the same.
	of       string
	unproven bool
}

// module returns the given module of a fault, or the planned one.
func (f fault) module(t *testing.T, planned bool) *hlo.Module {
	t.Helper()
	kept, cut := "-", "+"
	if planned {
		kept, cut = cut, kept
	}
	var b strings.Builder
	if !strings.Contains(f.text, "HloModule") {
		b.WriteString("HloModule m, is_scheduled=true\n")
	}
	if !strings.Contains(f.text, "\n---\n") && !strings.Contains(f.text, "ENTRY") {
		f.text = "\n---\n" + f.text
	}
	for line := range strings.Lines(f.text) {
		switch {
		case line == "---\n":
			b.WriteString("ENTRY e {\n  p = f32[8]{0} parameter(0)\n  k = f32[8]{0} parameter(1)\n  i = s32[] parameter(2)\n")
		case strings.HasPrefix(line, kept):
			b.WriteString(" " + line[1:])
		case !strings.HasPrefix(line, cut):
			b.WriteString(line)
		}
	}
	if !strings.Contains(f.text, "ENTRY") {
		b.WriteString("}\n")
	}
	return remattest.Parsed(t, b.String())
}

// toHost lets a value of 32 bytes wait on the host, under another name.
func toHost(name, of string) string {
	return strings.NewReplacer("NAME", name, "OF", of).Replace(`  NAME.out = (f32[8]{0:S(5)}, f32[8]{0}, u32[]) copy-start(OF)
  NAME.away = f32[8]{0:S(5)} copy-done(NAME.out)
  NAME.in = (f32[8]{0}, f32[8]{0:S(5)}, u32[]) copy-start(NAME.away)
  NAME = f32[8]{0} copy-done(NAME.in)
`)
}

// minus makes lines those of the given module alone.
func minus(lines string) string {
	return "-" + strings.TrimSuffix(strings.ReplaceAll(lines, "\n ", "\n-"), "-")[1:]
}

var faults = []fault{
	// What is computed.
	{name: "a dimension that is no longer dynamic", want: "a in e: it has another shape", text: `
- a = f32[<=8]{0} custom-call(p), custom_call_target="make"
+ a = f32[8]{0} custom-call(p), custom_call_target="make"
  b = f32[8]{0} custom-call(a), custom_call_target="read"
  ROOT r = (f32[8]{0}, f32[8]{0}) tuple(p, b)
`},
	{name: "another constant whose value is left out", want: "operand 1 is c", text: `
  c = f32[8]{0} constant({...})
  d = f32[8]{0} constant({...})
  a = f32[8]{0} add(p, c)
- b = f32[8]{0} add(k, d)
+ b = f32[8]{0} add(k, c)
  ROOT r = (f32[8]{0}, f32[8]{0}) tuple(a, b)
`},
	{name: "the channel of a send", want: "s in e: what has an effect has other attributes", text: `
  t = token[] after-all()
- s = (f32[8]{0}, u32[], token[]) send(k, t), channel_id=5
+ s = (f32[8]{0}, u32[], token[]) send(k, t), channel_id=6
- sd = token[] send-done(s), channel_id=5
+ sd = token[] send-done(s), channel_id=6
  ROOT a = f32[8]{0} negate(p)
`},
	// How often, and in which order.
	{name: "what a removed predecessor waited for", want: "b in e: it no longer waits for print", text: `
  print = f32[8]{0} custom-call(k), custom_call_target="print", custom_call_has_side_effect=true
- a = f32[8]{0} sine(k), control-predecessors={print}
- b = f32[8]{0} negate(p), control-predecessors={a}
+ b = f32[8]{0} negate(p)
  ROOT r = (f32[8]{0}, f32[8]{0}) tuple(k, b)
`},
	{name: "collectives in another order", want: "a in e: a collective, or one that it calls: it runs in another order", text: `
sum {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] add(x, y)
}
---
- a = f32[8]{0} all-reduce(p), channel_id=1, replica_groups={{0,1}}, to_apply=sum
  b = f32[8]{0} all-reduce(k), channel_id=2, replica_groups={{0,1}}, to_apply=sum
+ a = f32[8]{0} all-reduce(p), channel_id=1, replica_groups={{0,1}}, to_apply=sum
  ROOT r = (f32[8]{0}, f32[8]{0}) tuple(a, b)
`},
	{name: "an outfeed twice", want: "it has an effect, and runs once more", text: `
  t = token[] after-all()
  o = token[] outfeed(k, t), outfeed_shape=f32[8]{0}
+ o.2 = token[] outfeed(k, t), outfeed_shape=f32[8]{0}
  ROOT a = f32[8]{0} negate(p)
`},
	// What owns what.
	{name: "a start with two ends", want: "a.in in e: 2 instructions end what it starts", text: `
  s = f32[8]{0} sine(k)
` + strings.ReplaceAll(minus(toHost("a", "s")), "- ", "+ ") + `+ a.2 = f32[8]{0} copy-done(a.in)
- ROOT r = f32[8]{0} add(s, s)
+ ROOT r = f32[8]{0} add(a, a.2)
`},
	{name: "one computation for two calls", want: "needs a clone of that, too", text: `
fn {
  q = f32[8]{0} parameter(0)
  ROOT s = f32[8]{0} sine(q)
}
---
  c = f32[8]{0} call(k), to_apply=fn
+ c.2 = f32[8]{0} call(k), to_apply=fn
- ROOT r = f32[8]{0} add(c, c)
+ ROOT r = f32[8]{0} add(c, c.2)
`},
	{name: "one computation for two loops", o: legal.Options{Loops: true}, want: "needs a clone of that, too", text: `
less {
  q = (f32[8]{0}) parameter(0)
  ROOT c = pred[] constant(false)
}
body {
  ROOT q = (f32[8]{0}) parameter(0)
}
---
  s = (f32[8]{0}) tuple(k)
  c = (f32[8]{0}) while(s), condition=less, body=body
+ c.2 = (f32[8]{0}) while(s), condition=less, body=body
  ROOT a = f32[8]{0} get-tuple-element(c), index=0
`},
	{name: "one computation for two conditionals", o: legal.Options{Loops: true}, want: "needs a clone of that, too", text: `
left {
  q = f32[8]{0} parameter(0)
  ROOT s = f32[8]{0} sine(q)
}
right {
  q = f32[8]{0} parameter(0)
  ROOT s = f32[8]{0} tanh(q)
}
---
  c = f32[8]{0} conditional(i, k, k), branch_computations={left, right}
+ c.2 = f32[8]{0} conditional(i, k, k), branch_computations={left, right}
- ROOT r = f32[8]{0} add(c, c)
+ ROOT r = f32[8]{0} add(c, c.2)
`},
	{name: "one computation for two fusions inside of one", want: "b in outer: it calls inner, as a does", text: `
inner {
  q = f32[8]{0} parameter(0)
  ROOT s = f32[8]{0} sine(q)
}
-inner.2 {
- q = f32[8]{0} parameter(0)
- ROOT s = f32[8]{0} sine(q)
-}
outer {
  q = f32[8]{0} parameter(0)
  a = f32[8]{0} fusion(q), kind=kLoop, calls=inner
- b = f32[8]{0} fusion(q), kind=kLoop, calls=inner.2
+ b = f32[8]{0} fusion(q), kind=kLoop, calls=inner
  ROOT s = f32[8]{0} add(a, b)
}
---
  ROOT a = f32[8]{0} fusion(k), kind=kLoop, calls=outer
`},
	// What is overwritten.
	{name: "a result that was overwritten", want: "r in e: the result reads x, whose memory d has overwritten", text: `
  x = f32[8]{0} sine(k)
- y = f32[8]{0} sine(k)
  u = f32[1]{0} slice(k), slice={[0:1]}
  d = f32[8]{0} dynamic-update-slice(x, u, i)
- ROOT r = (f32[8]{0}, f32[8]{0}) tuple(y, d)
+ ROOT r = (f32[8]{0}, f32[8]{0}) tuple(x, d)
`},
	{name: "an operation that writes where it reads", want: "d in body: it writes where it reads q", text: `
less {
  q = (f32[8]{0}) parameter(0)
  ROOT c = pred[] constant(false)
}
body {
  q = (f32[8]{0}) parameter(0)
  v = f32[8]{0} get-tuple-element(q), index=0
` + minus(toHost("w", "v")) + `- d = f32[8]{0} reverse(w), dimensions={0}
+ d = f32[8]{0} reverse(v), dimensions={0}
  ROOT r = (f32[8]{0}) tuple(d)
}
---
  x = f32[8]{0} sine(k)
  s = (f32[8]{0}) tuple(x)
  c = (f32[8]{0}) while(s), condition=less, body=body
  ROOT a = f32[8]{0} get-tuple-element(c), index=0
`},
	{name: "a condition that writes its parameter", want: "d in less: it writes to memory of a constant, or of a parameter", text: `
less {
  q = (f32[8]{0}) parameter(0)
  v = f32[8]{0} get-tuple-element(q), index=0
` + minus(toHost("w", "v")) + `  u = f32[1]{0} slice(v), slice={[0:1]}
  n = s32[] constant(3)
- d = f32[8]{0} dynamic-update-slice(w, u, n)
+ d = f32[8]{0} dynamic-update-slice(v, u, n)
  e = f32[1]{0} slice(d), slice={[2:3]}
  f = f32[] reshape(e)
  z = f32[] constant(0)
  ROOT c = pred[] compare(f, z), direction=LT
}
body {
  q = (f32[8]{0}) parameter(0)
  v = f32[8]{0} get-tuple-element(q), index=0
  w = f32[8]{0} sine(v)
  ROOT r = (f32[8]{0}) tuple(w)
}
---
  x = f32[8]{0} sine(k)
  s = (f32[8]{0}) tuple(x)
  c = (f32[8]{0}) while(s), condition=less, body=body
  ROOT a = f32[8]{0} get-tuple-element(c), index=0
`},
	{name: "two updates in one fusion", want: "y.remat in e: it reads x, whose memory w has overwritten", text: `
two {
  q = f32[8]{0} parameter(0)
  j = s32[] parameter(1)
  u = f32[1]{0} slice(q), slice={[0:1]}
  d = f32[8]{0} dynamic-update-slice(q, u, j)
  ROOT d2 = f32[8]{0} dynamic-update-slice(d, u, j)
}
---
  x = f32[8]{0} sine(k)
  y = f32[8]{0} tanh(x)
  w = f32[8]{0} fusion(x, i), kind=kLoop, calls=two
- z = f32[8]{0} add(y, y)
+ y.remat = f32[8]{0} tanh(x)
+ z = f32[8]{0} add(y.remat, y)
  ROOT r = (f32[8]{0}, f32[8]{0}) tuple(w, z)
`},
	{name: "a collective-permute in place", want: "y.remat in e: it reads x, whose memory w has overwritten", text: `
  x = f32[8]{0} sine(k)
  y = f32[8]{0} tanh(x)
  o = (s32[]) tuple(i)
  w = f32[8]{0} collective-permute(k, x, o, o), channel_id=1, source_target_pairs={{0,1}}, slice_sizes={{4}}
- z = f32[8]{0} add(y, y)
+ y.remat = f32[8]{0} tanh(x)
+ z = f32[8]{0} add(y.remat, y)
  ROOT r = (f32[8]{0}, f32[8]{0}) tuple(w, z)
`},
	{name: "branches that hand on different values", want: "z.remat in e: it reads y, whose memory c has overwritten", known: true, text: `
left {
  ROOT q = f32[8]{0} parameter(0)
}
right {
  ROOT q = f32[8]{0} parameter(0)
}
---
  x = f32[8]{0} sine(k)
  y = f32[8]{0} tanh(k)
  z = f32[8]{0} negate(y)
  c = f32[8]{0} conditional(i, x, y), branch_computations={left, right}
+ z.remat = f32[8]{0} negate(y)
- ROOT r = (f32[8]{0}, f32[8]{0}) tuple(c, z)
+ ROOT r = (f32[8]{0}, f32[8]{0}) tuple(c, z.remat)
`},
}

// TestFaultsOfSmallProgramsAreFound plants one fault in each.
func TestFaultsOfSmallProgramsAreFound(t *testing.T) {
	for _, c := range faults {
		t.Run(c.name, c.check)
	}
}

// check fails unless the planned module has the problem that is wanted, and the given one none.
func (f fault) check(t *testing.T) {
	given := f.module(t, false)
	if problem := legal.Overwritten(given); problem != "" && !f.known {
		t.Fatal("the given module: ", problem)
	}
	if err := f.o.Check(given, f.module(t, false)); err != nil {
		t.Fatal("nothing is changed: ", err)
	}
	f.judge(t, given, f.module(t, true))
}

// judge fails unless the checker finds in the planned module what is wanted.
func (f fault) judge(t *testing.T, given, planned *hlo.Module) {
	t.Helper()
	switch err := f.o.Check(given, planned); {
	case f.want == "" && err != nil:
		t.Errorf("%v, want a legal plan", err)
	case f.want != "" && (err == nil || !strings.Contains(err.Error(), f.want)):
		t.Errorf("%v, want %q", err, f.want)
	}
}
