package hlo_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	. "gpumem/xla/internal/hlo"
	"gpumem/xla/internal/test/hlotest"
)

// parsed is the module of a text that has no errors.
func parsed(t testing.TB, text string) *Module {
	t.Helper()
	m, err := ParseString(text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return m
}

// names are the names of instructions.
func names(list []*Instruction) []string {
	var all []string
	for _, i := range list {
		all = append(all, i.Name)
	}
	return all
}

// entry is the module of one computation with these lines, whose last one is its root.
func entry(lines string) string {
	return "HloModule test\n\nENTRY main {\n" + lines + "\n}\n"
}

// texts are what parsers of HLO stumble over, and what a text prints as if that is not
// the text itself.
var texts = []struct{ name, text, want string }{
	{"plain", `HloModule m

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT sum = f32[] add(x, y)
}

ENTRY main {
  p = f32[8]{0} parameter(0)
  zero = f32[] constant(0)
  ROOT total = f32[] reduce(p, zero), dimensions={0}, to_apply=add
}

`, ""},
	{"of today, with percent and signatures", `HloModule m, is_scheduled=true, entry_computation_layout={(f32[8]{0})->f32[8]{0}}

ENTRY %main (p.1: f32[8]) -> f32[8] {
  %p.1 = f32[8]{0} parameter(0)
  ROOT %neg = f32[8]{0} negate(%p.1), metadata={op_name="jit(f)/neg" source_file="a.py" source_line=3}
}

`, ""},
	{"of 2020, with operand shapes", `HloModule m

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %add = f32[8]{0} add(f32[8]{0} %p, f32[8]{0} %p)
}

`, ""},
	{"a body behind a shape is no layout",
		"HloModule m ENTRY f (x: f32[3]) -> f32[3] { ROOT x = f32[3] parameter(0) }",
		"HloModule m\n\nENTRY f (x: f32[3]) -> f32[3] {\n  ROOT x = f32[3] parameter(0)\n}\n\n"},
	{"neither ENTRY nor ROOT",
		"a { p = f32[] parameter(0) }\nb { q = f32[] parameter(0)\n r = f32[] negate(q) }",
		"HloModule module_b\n\na {\n  ROOT p = f32[] parameter(0)\n}\n\nENTRY b {\n  q = f32[] parameter(0)\n  ROOT r = f32[] negate(q)\n}\n\n"},
	{"ENTRY and ROOT in the middle",
		"ENTRY a { ROOT p = f32[] parameter(0) n = f32[] negate(p) }\nb { q = f32[] parameter(0) }",
		"HloModule module_a\n\nENTRY a {\n  ROOT p = f32[] parameter(0)\n  n = f32[] negate(p)\n}\n\nb {\n  ROOT q = f32[] parameter(0)\n}\n\n"},
	{"comments and braces in strings", `HloModule m // a comment, {with braces
/* and
another } */
ENTRY main { // here
  p = f32[/*dims*/2] /**/ parameter(0), metadata={op_name="a{,}->b \"c\" /* no comment */"} // ) }
  ROOT n = f32[2] negate(p /*index=0*/), sharding={/*x, */replicated}, metadata={op_name='it\'s "x" }'}
} // main
`, `HloModule m

ENTRY main {
  p = f32[2] parameter(0), metadata={op_name="a{,}->b \"c\" /* no comment */"}
  ROOT n = f32[2] negate(p), sharding={/*x, */replicated}, metadata={op_name='it\'s "x" }'}
}

`},
	{"values with blanks, arrows and commas", entry(`  p = f32[4,4]{1,0} parameter(0), sharding={devices=[2,4]<=[8] last_tile_dim_replicate}
  a = f32[4,4]{1,0} all-reduce(p), replica_groups=mesh['a'=2,'b'=4] {a,b}, channel_id=1
  b = f32[4,4]{1,0} all-reduce(a), replica_groups=@mesh<a=2,b=4> {b}, x=1
  c = f32[4,4]{1,0} all-reduce(b), replica_groups=[2,4]<=[4,2]T(1,0), y=-1.5e+3
  d = f32[4,4]{1,0} convolution(c, p), window={size=3x3 pad=0_1x-1_2}, dim_labels=b01f_01io->b01f, padding=0_1_2x3_4
  ROOT e = f32[4,4]{1,0} slice(d), slice={[0:4:1], [0:4]}, flag`+"=true") + "\n", ""},
	{"backend_config as string and as JSON", entry(`  p = f32[] parameter(0), backend_config="{\"a\":[1,2}"
  q = f32[] negate(p), backend_config={"a":{"b":"}"},"c":[1,2],"d":"it's ("}, metadata={op_name="x"}
  ROOT r = f32[] negate(q), frontend_attributes={a="b,}",c={"d":"'"}}, backend_config={attn = 32 : i64, s = "x<"}`) + "\n", ""},
	{"constants", entry(`  a = s32[] constant(-3)
  b = f32[] constant(nan(0x7fc00001))
  c = f32[2,2]{1,0} constant({ { 1, 2 }, { -inf, nan } })
  d = (f32[], s32[2]{0}) constant((1, {2, 3}))
  e = c64[] constant((1, -2))
  f = f32[1000]{0} constant({...})
  g = s32[2]{0} constant({/*i0=0*/
   1,
   2 })
  ROOT h = pred[0]{0} constant({})`) + "\n", ""},
	{"shapes", entry(`  a = (f32[], (s32[2]{0}, ()), token[]) parameter(0)
  b = f32[<=10,?,3]{2,1,0} parameter(1)
  c = bf16[8,128]{1,0:T(8,128)(2,1)E(4)S(5)} parameter(2)
  d = f32[]{:T(128)} parameter(3)
  e = b(f32[8]{0:S(3)}) parameter(4)
  f = f32[8]{0:P(f32[8]{0:T(2)})S(1)} parameter(5)
  g = opaque[] parameter(6)
  ROOT h = f8e4m3fn[0,4]{1,0} parameter(7)`) + "\n", ""},
	{"names with dots, dashes and words of the language", `HloModule a-b.c

%ROOT {
  %ENTRY = f32[] parameter(0)
  ROOT %ROOT = f32[] negate(%ENTRY)
}

ENTRY %main_spmd.clone-1.remat {
  %params__a____b__.1-x_ = f32[] parameter(0)
  ROOT %f32 = f32[] call(%params__a____b__.1-x_), to_apply=%ROOT
}

`, ""},
	{"async forms", `HloModule m

inner {
  ROOT p = f32[2]{0} parameter(0)
}, execution_thread="host"

ENTRY main {
  p = f32[2]{0} parameter(0)
  s = ((f32[2]{0}), f32[2]{0}, s32[]) call-start(p), async_execution_thread="host", to_apply=inner
  u = ((f32[2]{0}), f32[2]{0}, s32[]) call-update(s)
  d = f32[2]{0} call-done(u)
  c = (f32[2]{0}, f32[2]{0}, u32[]) copy-start(d)
  ROOT e = f32[2]{0} copy-done(c)
}

`, ""},
	{"control predecessors", entry(`  p = f32[] parameter(0)
  a = f32[] negate(p), control-predecessors={p}
  ROOT b = f32[] add(p, p), sharding={manual}, control-predecessors={p, a}, metadata={op_name="x"}, backend_config="y"`) + "\n", ""},
	{"control predecessors behind metadata", entry(`  p = f32[] parameter(0)
  ROOT a = f32[] negate(p), metadata={op_name="x"}, control-predecessors={p, p}`),
		entry(`  p = f32[] parameter(0)
  ROOT a = f32[] negate(p), control-predecessors={p}, metadata={op_name="x"}`) + "\n"},
	{"lists of computations", `HloModule m

a {
  ROOT p = f32[] parameter(0)
}

b {
  ROOT p = f32[] parameter(0)
}

ENTRY main {
  i = s32[] parameter(0)
  x = f32[] parameter(1)
  c = f32[] conditional(i, x, x), branch_computations={a, b}, metadata={op_name="x"}
  d = f32[] custom-call(c), custom_call_target="f", called_computations={a}
  e = f32[] custom-call(d), custom_call_target="f", called_computations={}
  ROOT f = f32[] fusion(e), kind=kLoop, calls=b
}

`, ""},
	{"inline computations", `HloModule m
ENTRY main {
  p = f32[8] parameter(0)
  z = f32[] constant(0)
  a = f32[] reduce(p, z), dimensions={0}, to_apply={ x = f32[] parameter(0) y = f32[] parameter(1) ROOT s = f32[] add(x, y) }, metadata={op_name="x"}
  i = s32[] constant(1)
  ROOT b = f32[] conditional(i, a, a), branch_computations={ { ROOT p = f32[] parameter(0) }, {p = f32[] parameter(0) ROOT n = f32[] negate(p)} }
}
a.to_apply { ROOT p = f32[] parameter(0) }
`, `HloModule m

a.to_apply.1 {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] add(x, y)
}

b.branch_computations {
  ROOT p = f32[] parameter(0)
}

b.branch_computations.1 {
  p = f32[] parameter(0)
  ROOT n = f32[] negate(p)
}

ENTRY main {
  p = f32[8] parameter(0)
  z = f32[] constant(0)
  a = f32[] reduce(p, z), dimensions={0}, to_apply=a.to_apply.1, metadata={op_name="x"}
  i = s32[] constant(1)
  ROOT b = f32[] conditional(i, a, a), branch_computations={b.branch_computations, b.branch_computations.1}
}

a.to_apply {
  ROOT p = f32[] parameter(0)
}

`},
	{"nested instructions", entry(`  p = f32[] parameter(0)
  ROOT a = f32[] add(f32[] multiply(p, negate(p)), f32[] exponential(p))`),
		entry(`  p = f32[] parameter(0)
  negate.anon = f32[] negate(p)
  multiply.anon = f32[] multiply(p, negate.anon)
  exponential.anon = f32[] exponential(p)
  ROOT a = f32[] add(multiply.anon, exponential.anon)`) + "\n"},
	{"names that are taken", entry(`  p = f32[] parameter(0)
  a = f32[] add(negate(p), negate(p))
  ROOT negate.anon.1 = f32[] negate(a)`),
		entry(`  p = f32[] parameter(0)
  negate.anon = f32[] negate(p)
  negate.anon.2 = f32[] negate(p)
  a = f32[] add(negate.anon, negate.anon.2)
  ROOT negate.anon.1 = f32[] negate(a)`) + "\n"},
	{"elements of tuples", entry(`  p = (f32[], (s32[], f32[2])) parameter(0)
  a = f32[] add(p#0, p#0)
  b = f32[2] negate(p#1#1)
  d = f32[] negate(p#0)
  ROOT c = (s32[], f32[2]) tuple(p#1#0, f32[2] p#1#1)`),
		`HloModule test

ENTRY main {
  p = (f32[], (s32[], f32[2])) parameter(0)
  p_0 = f32[] get-tuple-element((f32[], (s32[], f32[2])) p), index=0
  a = f32[] add(f32[] p_0, f32[] p_0)
  p_1 = (s32[], f32[2]) get-tuple-element((f32[], (s32[], f32[2])) p), index=1
  p_1_1 = f32[2] get-tuple-element((s32[], f32[2]) p_1), index=1
  b = f32[2] negate(f32[2] p_1_1)
  d = f32[] negate(f32[] p_0)
  p_1_0 = s32[] get-tuple-element((s32[], f32[2]) p_1), index=0
  ROOT c = (s32[], f32[2]) tuple(s32[] p_1_0, f32[2] p_1_1)
}

`},
	{"elements of tuples whose names are taken", entry(`  p = (f32[]) parameter(0)
  a = f32[] add(p#0, p#0)
  p_0 = f32[] parameter(1)
  ROOT p_0.1 = f32[] add(a, p_0)`),
		entry(`  p = (f32[]) parameter(0)
  p_0.2 = f32[] get-tuple-element(p), index=0
  a = f32[] add(p_0.2, p_0.2)
  p_0 = f32[] parameter(1)
  ROOT p_0.1 = f32[] add(a, p_0)`) + "\n"},
	{"shapes left out", `HloModule test

inner { ROOT p = f32[2]{0} parameter(0) }
ENTRY main {
  p = f32[2]{0} parameter(0)
  a = add(p, p)
  b = compare(a, p), direction=LT
  c = select(b, a, p)
  d = tuple(c, b)
  e = get-tuple-element(d), index=1
  f = opt-barrier(d)
  g = call(p), to_apply=inner
  h = conditional(b, p, p), branch_computations={inner, inner}
  i = after-all()
  j = is-finite(h)
  k = get-dimension-size(h), dimensions={0}
  l = copy(k)
  ROOT m = clamp(p, g, p)
}
`, `HloModule test

inner {
  ROOT p = f32[2]{0} parameter(0)
}

ENTRY main {
  p = f32[2]{0} parameter(0)
  a = f32[2]{0} add(p, p)
  b = pred[2]{0} compare(a, p), direction=LT
  c = f32[2]{0} select(b, a, p)
  d = (f32[2]{0}, pred[2]{0}) tuple(c, b)
  e = pred[2]{0} get-tuple-element(d), index=1
  f = (f32[2]{0}, pred[2]{0}) opt-barrier(d)
  g = f32[2]{0} call(p), to_apply=inner
  h = f32[2]{0} conditional(b, p, p), branch_computations={inner, inner}
  i = token[] after-all()
  j = pred[2]{0} is-finite(h)
  k = s32[] get-dimension-size(h), dimensions={0}
  l = s32[] copy(k)
  ROOT m = f32[2]{0} clamp(p, g, p)
}

`},
	{"aliases", `HloModule m, alias_passthrough_params=true, input_output_alias={ {0}: (2, {}, may-alias), {1,0}: (0, {1}, must-alias), {}: (1, {}) }, x=1
ENTRY main { ROOT p = f32[] parameter(0) }`,
		`HloModule m, alias_passthrough_params=true, input_output_alias={ {0}: (2, {}, may-alias), {1,0}: (0, {1}, must-alias), {}: (1, {}, may-alias) }, x=1

ENTRY main {
  ROOT p = f32[] parameter(0)
}

`},
	{"tables", `HloModule m

FileNames
1 "a \"b\".py"

FunctionNames
1 "<module>"

FileLocations
1 {file_name_id=1 function_name_id=1 line=1 end_line=1 column=0 end_column=3}

StackFrames
1 {file_location_id=1}


ENTRY main {
  ROOT p = f32[] parameter(0)
}

`, ""},
	{"opcodes and attributes of tomorrow", entry(`  p = f32[] parameter(0), new={a, [b], (c)}
  ROOT q = f32[] frobnicate(p, p), how=very_well, select={1}`) + "\n", ""},
	{"more than five", entry(`  p = f32[] parameter(0)
  ROOT q = (f32[], f32[], f32[], f32[], f32[], /*index=5*/f32[]) tuple(p, p, p, p, p, /*index=5*/p)`) + "\n", ""},
	{"Windows line ends and tabs", "HloModule m\r\n\r\nENTRY a {\r\n\tp = f32[2]\t{0}\tparameter( 0 ) , x = 1\r\n}\r\n",
		"HloModule m\n\nENTRY a {\n  ROOT p = f32[2]{0} parameter(0), x=1\n}\n\n"},
}

func TestParse(t *testing.T) {
	for _, c := range texts {
		t.Run(c.name, func(t *testing.T) {
			want := c.want
			if want == "" {
				want = c.text
			}
			m := parsed(t, c.text)
			if got := m.String(); got != want {
				t.Errorf("printed:\n%s\nexpected:\n%s", got, want)
			}
			again := parsed(t, m.String())
			if err := hlotest.Equal(m, again); err != nil {
				t.Errorf("parsed again: %v", err)
			}
			if again.Style != m.Style {
				t.Errorf("style %+v, then %+v", m.Style, again.Style)
			}
			linked(t, m)
		})
	}
}

// linked checks users, parents, IDs and lines against the operands.
func linked(t testing.TB, m *Module) {
	t.Helper()
	ids := map[int]bool{}
	for _, c := range m.Computations {
		users := map[*Instruction][]*Instruction{}
		for _, i := range c.Instructions {
			for _, o := range i.Operands {
				if !slices.Contains(users[o], i) {
					users[o] = append(users[o], i)
				}
			}
		}
		for _, i := range c.Instructions {
			if !slices.Equal(users[i], i.Users) {
				t.Errorf("%s: users %v, expected %v", i.Name, names(i.Users), names(users[i]))
			}
			if i.Parent != c || c.Module != m || ids[i.ID] || i.ID < 0 || i.ID >= m.IDs() {
				t.Errorf("%s: parent %v, ID %d of %d", i.Name, i.Parent, i.ID, m.IDs())
			}
			ids[i.ID] = true
		}
		if !slices.Contains(c.Instructions, c.Root) {
			t.Errorf("%s: the root is elsewhere", c.Name)
		}
	}
	if !slices.Contains(m.Computations, m.Entry) {
		t.Error("the entry is elsewhere")
	}
}

func TestParseFields(t *testing.T) {
	m := parsed(t, `HloModule m, is_scheduled=true, input_output_alias={ {1}: (3, {0,2}, must-alias) }, num_partitions=8

inner { ROOT p = f32[] parameter(0) }, execution_thread="main"
ENTRY %main (x: f32[]) -> f32[] {
  %x = f32[] parameter(0)

  %y = f32[] call(f32[] %x), to_apply=inner,
      metadata={op_name="a"}
  ROOT %z = f32[] negate(f32[] %y), control-predecessors={%x},   frontend_attributes={ a="b" } // end
}`)
	if want := (Style{Percent: true, OperandShapes: true, Signatures: true}); m.Style != want {
		t.Errorf("style %+v", m.Style)
	}
	if want := []Alias{{Output: []int{1}, Parameter: 3, Index: []int{0, 2}, Must: true}}; !reflect.DeepEqual(m.Aliases, want) {
		t.Errorf("aliases %+v", m.Aliases)
	}
	if n, ok := m.Attribute("num_partitions"); !m.Scheduled || n != "8" || !ok {
		t.Errorf("scheduled %v, num_partitions %q", m.Scheduled, n)
	}
	if m.Computation("inner").Thread != "" || m.Computation("main") != m.Entry {
		t.Error("the thread or the entry")
	}
	y, z := m.Entry.Instruction("y"), m.Entry.Instruction("z")
	if y.Call("to_apply") != m.Computation("inner") || y.Line != 7 || z.Line != 9 || m.Entry.Root != z {
		t.Errorf("y %+v, z %+v", y, z)
	}
	if len(z.After) != 1 || z.After[0].Name != "x" || len(z.Attributes) != 1 {
		t.Errorf("z runs after %v, attributes %v", names(z.After), z.Attributes)
	}
	if v, _ := z.Attribute("frontend_attributes"); v != `{ a="b" }` {
		t.Errorf("frontend_attributes %q", v)
	}
	if x := m.Entry.Parameters()[0]; x.Literal != "0" || x.Shape != y.Shape {
		t.Errorf("parameter %+v", x)
	}
}

// What only people write, and XLA's parser takes.
func TestParseByHand(t *testing.T) {
	const body = "{\n  p = f32[2] parameter(0)\n  n = negate(p)\n  ROOT c = f32[2] custom-call(n), custom_call_target=\"f\"%s\n}\n"
	for name, text := range map[string]string{
		"a colon behind the module's name":  "HloModule m:\n\nENTRY e " + fmt.Sprintf(body, ""),
		"attributes behind that":            "HloModule m:, is_scheduled=true\n\nENTRY e " + fmt.Sprintf(body, ""),
		"no colon behind a parameter":       "HloModule m\n\nENTRY e (p f32[2]) -> f32[2] " + fmt.Sprintf(body, ""),
		"a literal":                         "HloModule m\n\nENTRY e " + fmt.Sprintf(body, ", literal=f32[] 0.1"),
		"a literal of an array, and behind": "HloModule m\n\nENTRY e " + fmt.Sprintf(body, ", literal=f32[2]{0} {1, 2}, metadata={op_name=\"a\"}"),
	} {
		m, err := ParseString(text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if again, err := ParseString(m.String()); err != nil || again.String() != m.String() {
			t.Errorf("%s: printed and read again: %v\n%s", name, err, m)
		}
	}
}
