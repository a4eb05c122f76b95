package alias

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gpumem/xla/internal/hlo"
)

func parse(t testing.TB, text string) *hlo.Module {
	t.Helper()
	m, err := hlo.ParseString(text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return m
}

func analyze(t testing.TB, text string) *Flow {
	t.Helper()
	f, err := Analyze(parse(t, text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

const fusions = `HloModule m

reducer {
  r0 = f32[] parameter(0)
  r1 = f32[] parameter(1)
  ROOT r2 = f32[] add(r0, r1)
}

through {
  p0 = f32[4] parameter(0)
  p1 = f32[4] parameter(1)
  n = f32[4] negate(p0)
  r = f32[] constant(0)
  red = f32[] reduce(p1, r), dimensions={0}, to_apply=reducer
  b = f32[4] broadcast(red), dimensions={}
  ROOT s = f32[4] add(n, b)
}

several {
  p0 = f32[4] parameter(0)
  n = f32[4] negate(p0)
  e = f32[4] exponential(p0)
  ROOT t = (f32[4], f32[4]) tuple(n, e)
}

product {
  p0 = f32[4,4] parameter(0)
  p1 = f32[4,4] parameter(1)
  d = f32[4,4] dot(p0, p0), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT s = f32[4,4] add(d, p1)
}

update {
  p0 = f32[8] parameter(0)
  p1 = f32[1] parameter(1)
  p2 = s32[] parameter(2)
  b = f32[8] bitcast(p0)
  ROOT u = f32[8] dynamic-update-slice(b, p1, p2)
}

updates {
  p0 = (f32[8], f32[4]) parameter(0)
  p1 = f32[1] parameter(1)
  p2 = s32[] parameter(2)
  g = f32[8] get-tuple-element(p0), index=0
  u = f32[8] dynamic-update-slice(g, p1, p2)
  h = f32[4] get-tuple-element(p0), index=1
  n = f32[4] negate(h)
  ROOT t = (f32[4], f32[8]) tuple(n, u)
}

outer {
  q0 = f32[8] parameter(0)
  q1 = f32[1] parameter(1)
  q2 = s32[] parameter(2)
  f = f32[8] fusion(q0, q1, q2), kind=kLoop, calls=update
  ROOT u = f32[8] dynamic-update-slice(f, q1, q2)
}

ENTRY main {
  a = f32[4] parameter(0)
  b = f32[4,4] parameter(1)
  c = f32[8] parameter(2)
  d = f32[1] parameter(3)
  k = s32[] parameter(4)
  x = f32[4] parameter(5)
  loop = f32[4] fusion(a, x), kind=kLoop, calls=through
  custom = f32[4] fusion(a, x), kind=kCustom, calls=through
  multi = (f32[4], f32[4]) fusion(a), kind=kLoop, calls=several
  output = f32[4,4] fusion(b, b), kind=kOutput, calls=product
  y = f32[4,4] negate(b)
  output2 = f32[4,4] fusion(b, y), kind=kOutput, calls=product
  inplace = f32[8] fusion(c, d, k), kind=kLoop, calls=update
  ct = (f32[8], f32[4]) tuple(c, a)
  tables = (f32[4], f32[8]) fusion(ct, d, k), kind=kLoop, calls=updates
  nested = f32[8] fusion(c, d, k), kind=kLoop, calls=outer
  given = (f32[4], f32[8]) custom-call(ct), custom_call_target="x", output_to_operand_aliasing={{0}: (0, {1})}
  ready = f32[4] all-reduce-start(a), to_apply=reducer
  own = f32[4] all-reduce-start(a), to_apply=reducer, backend_config={"collective_backend_config":{"backend":"NVSHMEM"}}
  both = (f32[4], f32[4]) all-reduce-start(a, x), to_apply=reducer
  sel = f32[4] select(a, a, x)
  upd = f32[8] dynamic-update-slice(c, d, k)
  same = f32[4] add(a, x)
  lt = f32[4] custom-call(a), custom_call_target="__cublas$lt$matmul"
  ROOT end = () tuple()
}
`

func TestInPlace(t *testing.T) {
	m := parse(t, fusions)
	pairs := inPlace{}
	for name, want := range map[string]string{
		"loop":    "[]",
		"inplace": "[{0 [] []}]",
		"tables":  "[{0 [0] [1]}]",
		"nested":  "[{0 [] []}]",
		"given":   "[{0 [1] [0]}]",
		"ready":   "[{0 [] []}]",
		"own":     "[]",
		"both":    "[{0 [] [0]} {1 [] [1]}]",
		"upd":     "[{0 [] []}]",
		"same":    "[]",
	} {
		list, err := pairs.of(m.Entry.Instruction(name))
		if got := fmt.Sprint(list); got != want || err != nil {
			t.Errorf("%s: %s, %v; want %s", name, got, err, want)
		}
	}
}

func TestMayShare(t *testing.T) {
	m := parse(t, fusions)
	s := newSharing()
	for _, c := range []struct {
		operand, user string
		index         []int
		want          bool
	}{
		{"a", "loop", nil, true},
		{"x", "loop", nil, false}, // it is reduced
		{"a", "custom", nil, true},
		{"x", "custom", nil, false},
		{"a", "multi", []int{0}, true},
		{"a", "multi", []int{1}, true},
		{"b", "output", nil, false}, // the product reads it
		{"y", "output2", nil, true},
		{"b", "output2", nil, false},
		{"c", "upd", nil, true},
		{"a", "sel", nil, true},
		{"x", "same", nil, true},
		{"b", "same", nil, false}, // no operand
		{"a", "lt", nil, false},
	} {
		t.Run(c.operand+" "+c.user, func(t *testing.T) {
			o, u := m.Entry.Instruction(c.operand), m.Entry.Instruction(c.user)
			if got := s.may(o, nil, u, c.index); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

func TestElementwiseMap(t *testing.T) {
	m := parse(t, `HloModule m

f {
  ROOT p = f32[] parameter(0)
}

ENTRY main {
  a = f32[2,3] parameter(0)
  b = f32[2,3] map(a), dimensions={0,1}, to_apply=f
  c = u32[2,3] bitcast-convert(a)
  ROOT d = u8[2,3,4] bitcast-convert(a)
}
`)
	s := newSharing()
	for name, want := range map[string]bool{"b": true, "c": true, "d": false} {
		if got := s.elementwise(m.Entry.Instruction(name), 0); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// Loops whose state is handed around without change make no values.
func TestLoopsThatChangeNothing(t *testing.T) {
	text := func(root string) string {
		return `HloModule m

inner_cond {
  c = (f32[4], f32[4]) parameter(0)
  ROOT t = pred[] constant(true)
}

inner {
  p = (f32[4], f32[4]) parameter(0)
  x = f32[4] get-tuple-element(p), index=0
  y = f32[4] get-tuple-element(p), index=1
  ROOT r = (f32[4], f32[4]) tuple(` + root + `)
}

cond {
  c = (f32[4], f32[4]) parameter(0)
  ROOT t = pred[] constant(true)
}

body {
  p = (f32[4], f32[4]) parameter(0)
  ROOT w = (f32[4], f32[4]) while(p), condition=inner_cond, body=inner
}

ENTRY main {
  a = f32[4] parameter(0)
  b = f32[4] parameter(1)
  t = (f32[4], f32[4]) tuple(a, ` + "SECOND" + `)
  ROOT w = (f32[4], f32[4]) while(t), condition=cond, body=body
}
`
	}
	for _, c := range []struct{ name, root, second, want string }{
		{"handed through", "x, y", "b", "a b"},
		{"exchanged", "y, x", "b", "w w"},
		{"exchanged, but equal", "y, x", "a", "a a"},
		{"one twice", "x, x", "b", "a w"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := analyze(t, strings.Replace(text(c.root), "SECOND", c.second, 1))
			w := f.Module.Entry.Instruction("w")
			var got []string
			for k := range 2 {
				v, _ := f.At(w, k)
				got = append(got, f.Values[v].Instruction.Name)
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("%v, want %s", got, c.want)
			}
		})
	}
}

// What begins and ends collectives hands on their operands.
func TestCollectives(t *testing.T) {
	f := analyze(t, `HloModule m, is_scheduled=true

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT z = f32[] add(x, y)
}

ENTRY main {
  p = f32[4] parameter(0)
  q = f32[2] parameter(1)
  ag = (f32[4], f32[8]) all-gather-start(p), dimensions={0}
  agd = f32[8] all-gather-done(ag)
  ags = ((f32[4], f32[2]), (f32[8], f32[4])) all-gather-start(p, q), dimensions={0}
  agsd = (f32[8], f32[4]) all-gather-done(ags)
  ar = f32[4] all-reduce-start(p), to_apply=add
  ard = f32[4] all-reduce-done(ar)
  art = ((f32[4]), f32[4]) all-reduce-start(p), to_apply=add, output_to_operand_aliasing={{1}: (0, {})}
  artd = f32[4] all-reduce-done(art)
  cp = (f32[4], f32[4], u32[]) collective-permute-start(p), source_target_pairs={{0,1}}
  cpd = f32[4] collective-permute-done(cp)
  cs = (f32[4], f32[4], u32[]) copy-start(p)
  csd = f32[4] copy-done(cs)
  tok = token[] after-all()
  s = (f32[4], u32[], token[]) send(p, tok), channel_id=1
  sd = token[] send-done(s), channel_id=1
  r = (f32[4], u32[], token[]) recv(tok), channel_id=2
  rd = (f32[4], token[]) recv-done(r), channel_id=2
  rs = ((f32[4]), f32[2], u32[]) reduce-scatter-start(p), dimensions={0}, to_apply=add
  rsd = f32[2] reduce-scatter-done(rs)
  ROOT end = () tuple()
}
`)
	at := func(name string, index ...int) string {
		v, ok := f.At(f.Module.Entry.Instruction(name), index...)
		if !ok {
			return "none"
		}
		return fmt.Sprint(f.Values[v].Instruction.Name, f.Values[v].Index)
	}
	for _, c := range []struct{ got, want string }{
		{at("ag", 0), "p[]"}, {at("agd"), "ag[1]"},
		{at("ags", 0, 1), "q[]"}, {at("agsd"), "agsd[]"}, {at("agsd", 1), "ags[1 1]"},
		{at("ard"), "ar[]"}, {at("art", 0, 0), "p[]"}, {at("artd"), "art[1]"},
		{at("cp", 0), "p[]"}, {at("cpd"), "cp[1]"},
		{at("cs", 1), "p[]"}, {at("csd"), "cs[0]"},
		{at("s", 0), "p[]"}, {at("sd"), "sd[]"},
		{at("rd", 0), "r[0]"}, {at("rd", 1), "rd[1]"},
		{at("rs", 0, 0), "p[]"}, {at("rs", 1), "rs[1]"}, {at("rsd"), "rs[1]"},
	} {
		if c.got != c.want {
			t.Errorf("%s, want %s", c.got, c.want)
		}
	}
	p, _ := f.At(f.Module.Entry.Instruction("p"))
	ar, _ := f.At(f.Module.Entry.Instruction("ar"))
	buffers, err := f.Buffers()
	if err != nil || !slices.ContainsFunc(buffers, func(b []int32) bool { return slices.Contains(b, p) && slices.Contains(b, ar) }) {
		t.Error("all-reduce-start is not in place")
	}
}

func FuzzOutputAliases(f *testing.F) {
	for _, s := range []string{"{{0}: (1, {}), {1}: (0, {2})}", "{{}: (0, {})}", "{ {1}: (1, {}, must-alias) }", "{}", "{{0}: (", "{{0}:(-1,{})}", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		m, err := hlo.ParseString("HloModule m\nENTRY e {\n  p = f32[4] parameter(0)\n  ROOT n = f32[4] negate(p)\n}")
		if err != nil {
			t.Fatal(err)
		}
		i := m.Entry.Instruction("n")
		i.Attributes = []hlo.Attribute{{Key: "output_to_operand_aliasing", Value: text}}
		list, err := outputAliases(i)
		if err != nil {
			if len(list) > 0 {
				t.Errorf("%v with %v", list, err)
			}
			return
		}
		for _, x := range list {
			if x.operand < 0 {
				t.Errorf("operand %d", x.operand)
			}
		}
		// As an async start or a fusion: no panic.
		i.Opcode = hlo.Fusion
		_, _ = AnalyzeComputation(m.Entry)
		i.Opcode = hlo.AsyncStart
		_, _ = AnalyzeComputation(m.Entry)
	})
}

func TestOutputAliases(t *testing.T) {
	m := parse(t, "HloModule m\nENTRY e {\n  p = f32[4] parameter(0)\n  ROOT n = f32[4] negate(p)\n}")
	i := m.Entry.Instruction("n")
	for text, want := range map[string]string{
		"{{0}: (1, {}), {1,2}: (0, {2})}": "[{1 [] [0]} {0 [2] [1 2]}]",
		"{{}: (0, {}, must-alias)}":       "[{0 [] []}]",
		"{}":                              "[]",
		"{{0}: (a, {})}":                  "error",
		"{{0}: (0, {x})}":                 "error",
		"{{y}: (0, {})}":                  "error",
		"{0: (0, {})}":                    "error",
		"{{0}: (0, {}":                    "error",
		"{{0}":                            "error",
		"":                                "error",
	} {
		i.Attributes = []hlo.Attribute{{Key: "output_to_operand_aliasing", Value: text}}
		list, err := outputAliases(i)
		got := fmt.Sprint(list)
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// A line of 20 bytes may have a result of thousands of parts.
func TestTooManyPartsAreRefused(t *testing.T) {
	defer func(was int) { maxValues = was }(maxValues)
	maxValues = 1000
	tuple := "(" + strings.Repeat("f32[64]{0}, ", 99) + "f32[64]{0})"
	text := "HloModule m\n\nENTRY e {\n  p = " + tuple + " parameter(0)\n"
	for k := range 9 {
		text += fmt.Sprintf("  c%d = %s custom-call(p), custom_call_target=\"x\"\n", k, tuple)
	}
	text += "}\n"
	m := parse(t, text)
	const want = "with it, the results have more than 2^24 parts, or define more than 2^22 values"
	if _, err := AnalyzeComputation(m.Entry); err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("the pass's model: %v", err)
	}
	if _, err := Analyze(m); err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("the values: %v", err)
	}
}
