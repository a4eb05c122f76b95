package memory

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gpumem/xla/internal/alias"
	"gpumem/xla/internal/hlo"
)

// failer is a test of any kind.
type failer interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

func parse(t failer, text string) *hlo.Module {
	t.Helper()
	m, err := hlo.ParseString(text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return m
}

func analyzeText(t failer, text string) *Analysis {
	t.Helper()
	a, err := AnalyzeModule(parse(t, text))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// listed returns the values as name{index}:start-end, in the order of their numbers.
func listed(a *Analysis) string {
	var b strings.Builder
	for _, v := range a.Values {
		fmt.Fprintf(&b, "%s%s:%d-%d ", v.Instruction.Name, strings.ReplaceAll(strings.Trim(fmt.Sprint(v.Index), "[]"), " ", ","), v.Start, v.End)
	}
	return strings.TrimSpace(b.String())
}

// whole is the loop of XLA's MinimumMemoryForSequenceTest.MultiComputation.
const whole = `HloModule m, is_scheduled=true

cond {
  cond_param = (f32[], f32[]) parameter(0)
  cond_iter = f32[] get-tuple-element(cond_param), index=0
  cond_data = f32[] get-tuple-element(cond_param), index=1
  ROOT cond_lt = pred[] compare(cond_iter, cond_data), direction=LT
}

body {
  ROOT body_param = (f32[], f32[]) parameter(0)
}

ENTRY main {
  iter = f32[] parameter(0)
  data = f32[] parameter(1)
  tuple = (f32[], f32[]) tuple(iter, data)
  ROOT while = (f32[], f32[]) while(tuple), condition=cond, body=body
}
`

// counted is that of SubcomputationAccounting.
const counted = `HloModule m, is_scheduled=true

cond {
  cond_param = f32[4] parameter(0)
  slice = f32[1] slice(cond_param), slice={[0:1]}
  reshape = f32[] reshape(slice)
  zero = f32[] constant(0)
  ROOT compare = pred[] compare(reshape, zero), direction=NE
}

body {
  body_param = f32[4] parameter(0)
  one = f32[4] constant({1, 1, 1, 1})
  ROOT subtract = f32[4] subtract(body_param, one)
}

ENTRY main {
  init = f32[4] constant({1, 1, 1, 1})
  while = f32[4] while(init), condition=cond, body=body
  broadcast = f32[2,4] broadcast(while), dimensions={1}
  matrix = f32[2,4] constant({ { 1, 2, 3, 4 }, { 1, 2, 3, 4 } })
  transpose = f32[2,4] transpose(matrix), dimensions={0,1}
  ROOT add = f32[2,4] add(transpose, broadcast)
}
`

// What XLA's own tests expect (xla/service/heap_simulator/heap_simulator_test.cc, 2026).
func TestPeakOfXLA(t *testing.T) {
	a := analyzeText(t, whole)
	bytes, at, alive := a.Peak()
	if bytes != 25 || a.MinimumMemory() != 25 {
		t.Errorf("%d bytes, %d as XLA counts; want 25: a table of 16, two numbers of 4, one pred", bytes, a.MinimumMemory())
	}
	if at.Name != "cond_lt" {
		t.Errorf("at %s, want cond_lt", at.Name)
	}
	var names []string
	for _, v := range alive {
		names = append(names, fmt.Sprint(v.Instruction.Name, v.Bytes))
	}
	if got := strings.Join(names, " "); got != "tuple16 iter4 data4 cond_lt1" {
		t.Errorf("alive: %s", got)
	}

	// With what the loop does in its body, one more vector is never alive at the most.
	if bytes, _, _ := analyzeText(t, counted).Peak(); bytes != 64 {
		t.Errorf("with the loop: %d bytes, want 64", bytes)
	}
}

// The plain sequences of NoFragmentationStatsHeapTest, as instructions that make
// and free in that order.
func TestPeakOfSequences(t *testing.T) {
	for _, c := range []struct {
		name, body string
		want       uint64
	}{
		{"10 20 30 30", `
  a = u8[10] custom-call(), custom_call_target="x"
  b = u8[20] custom-call(), custom_call_target="x"
  c = u8[30] custom-call(), custom_call_target="x"
  d = u8[30] custom-call(), custom_call_target="x"
  ROOT e = () custom-call(a, b, c, d), custom_call_target="x"`, 90},
		{"interleaved", `
  a = u8[10] custom-call(), custom_call_target="x"
  b = u8[20] custom-call(), custom_call_target="x"
  c = u8[30] custom-call(), custom_call_target="x"
  d = u8[5] custom-call(), custom_call_target="x"
  ROOT e = () custom-call(a), custom_call_target="x"`, 40},
		{"nothing", `
  ROOT e = () tuple()`, 0},
		{"a parameter that is returned", `
  ROOT p = f32[] parameter(0)`, 4},
		{"a constant", `
  ROOT c = f32[] constant(1)`, 0},
		{"an operand's memory is taken over", `
  p = f32[4] parameter(0)
  a = f32[4] negate(p)
  b = f32[4] add(a, p)
  ROOT c = f32[4] multiply(b, b)`, 32},
		{"a copy takes nothing over", `
  p = f32[4] parameter(0)
  a = f32[4] negate(p)
  ROOT b = f32[4] copy(a)`, 48},
		{"neither does another layout", `
  p = f32[2,2]{1,0} parameter(0)
  a = f32[2,2]{1,0} negate(p)
  ROOT b = f32[2,2]{0,1} negate(a)`, 48},
		{"a layout that is left out is the usual one", `
  p = f32[2,2]{1,0} parameter(0)
  a = f32[2,2]{1,0} negate(p)
  ROOT b = f32[2,2] negate(a)`, 32},
		{"another type", `
  p = f32[4] parameter(0)
  a = f32[4] negate(p)
  ROOT b = s32[4] convert(a)`, 48},
		{"one of two results of a sort", `
  p = f32[4] parameter(0)
  a = f32[4] negate(p)
  b = f32[4] exponential(p)
  ROOT s = (f32[4], f32[4]) sort(a, b), dimensions={0}, to_apply=less`, 16 + 16 + 32},
		{"the host's memory does not count", `
  p = f32[4]{0:S(5)} parameter(0)
  ROOT a = f32[4] custom-call(p), custom_call_target="x"`, 16},
		{"a slice into a value", `
  p = f32[8] parameter(0)
  a = f32[8] negate(p)
  u = f32[1] constant({1})
  k = s32[] constant(0)
  ROOT d = f32[8] dynamic-update-slice(a, u, k)`, 64},
	} {
		t.Run(c.name, func(t *testing.T) {
			less := "\nless {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  z = f32[] parameter(2)\n  w = f32[] parameter(3)\n  ROOT l = pred[] compare(x, y), direction=LT\n}\n"
			a := analyzeText(t, "HloModule m, is_scheduled=true\n"+less+"\nENTRY main {"+c.body+"\n}\n")
			bytes, _, alive := a.Peak()
			if bytes != c.want {
				t.Errorf("%d bytes, want %d\n%s", bytes, c.want, listed(a))
			}
			var sum uint64
			for _, v := range alive {
				sum += a.BufferBytes[v.Buffer]
			}
			if sum != bytes {
				t.Errorf("%d bytes are alive, want %d", sum, bytes)
			}
		})
	}
}

// An update in place takes nothing; XLA counts it twice for the step.
func TestMinimumMemoryCountsTwice(t *testing.T) {
	a := analyzeText(t, `HloModule m, is_scheduled=true

ENTRY main {
  p = f32[8] parameter(0)
  a = f32[8] negate(p)
  u = f32[1] constant({1})
  k = s32[] constant(0)
  ROOT d = f32[8] dynamic-update-slice(a, u, k)
}
`)
	if bytes, _, _ := a.Peak(); bytes != 64 || a.MinimumMemory() != 96 {
		t.Errorf("%d bytes, %d as XLA counts; want 64 and 96", bytes, a.MinimumMemory())
	}
	if want := []uint64{32, 64, 64, 64, 64, 64}; !slices.Equal(a.Curve(), want) {
		t.Errorf("curve %v, want %v", a.Curve(), want)
	}
}

// Ranges that XLA's tests expect (xla/hlo/utils/hlo_live_range_test.cc, 2026).
func TestLives(t *testing.T) {
	const head = "HloModule m, is_scheduled=true"
	muladd := `
ENTRY main {
  paramA = f32[] parameter(0)
  paramX = f32[4] parameter(1)
  mul = f32[4] multiply(paramX, paramX)
  paramY = f32[4] parameter(2)
  add = f32[4] add(mul, paramY)
`
	for _, c := range []struct{ name, text, want string }{
		{"Multiply", head + `
ENTRY main {
  paramA = f32[4] parameter(0)
  paramX = f32[4] parameter(1)
  ROOT mul = f32[4] multiply(paramA, paramX)
}`, "paramA:0-3 paramX:0-3 mul:2-3"},
		{"MultiplyAdd", head + strings.Replace(muladd, "  add", "  ROOT add", 1) + "}", "paramA:0-5 paramX:0-5 mul:2-4 paramY:0-5 add:4-5"},
		{"LiveOutBuffers", head + muladd + "  ROOT tuple = (f32[4], f32[4]) tuple(mul, add)\n}", "paramA:0-6 paramX:0-6 mul:2-6 paramY:0-6 add:4-6 tuple:5-6"},
		{"InstructionScheduledAfterRoot", head + muladd + "  ROOT tuple = (f32[4], f32[4]) tuple(mul, add)\n  add2 = f32[4] add(mul, paramY)\n}",
			"paramA:0-7 paramX:0-7 mul:2-7 paramY:0-7 add:4-7 tuple:5-7 add2:6-6"},
		{"AliasedParameter", head + ", input_output_alias={ {}: (0, {}, may-alias) }\n" + `
ENTRY main {
  paramA = f32[4] parameter(0)
  paramX = f32[4] parameter(1)
  mul = f32[4] multiply(paramA, paramX)
  paramY = f32[4] parameter(2)
  ROOT add = f32[4] add(mul, paramY)
}`, "paramA:0-2 paramX:0-5 mul:2-4 paramY:0-5 add:4-5"},
		{"Call", head + `

called_computation {
  param_0 = f32[4096] parameter(0)
  ROOT negate_0 = f32[4096] negate(param_0)
}

ENTRY main {
  a = f32[4096] parameter(0)
  b = f32[4096] negate(a)
  c = f32[4096] call(b), to_apply=called_computation
  d = f32[4096] negate(c)
  ROOT e = f32[4096] add(c, d)
}`, "a:0-7 b:1-3 negate_0:3-6 d:5-6 e:6-7"},
		{"ComputationWithTuple", head + `

ENTRY main {
  paramA = f32[4] parameter(0)
  constant = (f32[], f32[4]) constant((1.0, {2.0, 3.0, 4.0, 5.0}))
  get-tuple-element = f32[4] get-tuple-element(constant), index=1
  ROOT add = f32[4] add(paramA, get-tuple-element)
}`, "paramA:0-4 constant:1-2 constant0:1-1 constant1:1-3 add:3-4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := listed(analyzeText(t, c.text)); got != c.want {
				t.Errorf("%s\nwant %s", got, c.want)
			}
		})
	}
}

// The values of a loop's state follow each other without a gap.
func TestLivesOfWhile(t *testing.T) {
	a := analyzeText(t, `HloModule m, is_scheduled=true

cond {
  cond_param = (f32[2,3], f32[]) parameter(0)
  cond_iter = f32[] get-tuple-element(cond_param), index=1
  cond_limit = f32[] constant(50)
  ROOT cond_lt = pred[] compare(cond_iter, cond_limit), direction=LT
}

body {
  body_param = (f32[2,3], f32[]) parameter(0)
  body_iter = f32[] get-tuple-element(body_param), index=1
  body_data = f32[2,3] get-tuple-element(body_param), index=0
  body_iter_increment = f32[] constant(1)
  body_iter_next = f32[] add(body_iter, body_iter_increment)
  body_data_increment = f32[2,3] constant({ { 1, 2, 3 }, { 4, 5, 6 } })
  body_data_mul = f32[2,3] multiply(body_data, body_data)
  body_data_add = f32[2,3] add(body_data, body_data_increment)
  body_data_next = f32[2,3] add(body_data_add, body_data_mul)
  ROOT body_out = (f32[2,3], f32[]) tuple(body_data_next, body_iter_next)
}

ENTRY main {
  iter = f32[] parameter(1)
  data = f32[2,3] parameter(0)
  tuple = (f32[2,3], f32[]) tuple(data, iter)
  ROOT while = (f32[2,3], f32[]) while(tuple), condition=cond, body=body
}
`)
	at := func(c, name string, index ...int) Value {
		v, ok := a.ValueAt(a.Module.Computation(c).Instruction(name), index...)
		if !ok {
			t.Fatalf("%s has no value at %v", name, index)
		}
		return v
	}
	chain := []Value{at("main", "iter"), at("cond", "cond_iter"), at("body", "body_iter"), at("body", "body_iter_next"), at("main", "while", 1)}
	for k := 1; k < len(chain); k++ {
		if v, w := chain[k-1], chain[k]; v.End != w.Start || v.Buffer != w.Buffer {
			t.Errorf("%s:%d-%d in buffer %d, then %s:%d-%d in %d", v.Instruction.Name, v.Start, v.End, v.Buffer, w.Instruction.Name, w.Start, w.End, w.Buffer)
		}
	}
	var together []string
	for _, v := range a.members[chain[0].Buffer] {
		together = append(together, a.Values[v].Instruction.Name)
	}
	if got := strings.Join(together, " "); got != "iter cond_param body_param body_iter_next while" {
		t.Errorf("in one buffer: %s", got)
	}
	// The data, two vectors that the body makes of it, and the iteration. The state's
	// table is dead until the body makes a new one.
	if bytes, at, _ := a.Peak(); bytes != 24*3+4 || at.Name != "body_data_add" {
		t.Errorf("%d bytes at %s, want %d at body_data_add", bytes, at.Name, 24*3+4)
	}
}

func TestLivesOfAsync(t *testing.T) {
	a := analyzeText(t, `HloModule AsyncCall, is_scheduled=true

called_computation {
  param_0 = f32[4096] parameter(0)
  param_1 = f32[4096] parameter(1)
  negate_2 = f32[4096] negate(param_0)
  negate_3 = f32[4096] negate(param_1)
  ROOT result.1 = f32[4096] add(negate_2, negate_3)
}

async_wrapped {
  async_param = f32[4096] parameter(0)
  async_param.1 = f32[4096] parameter(1)
  ROOT call = f32[4096] call(async_param, async_param.1), to_apply=called_computation
}

ENTRY main {
  a = f32[4096] parameter(0)
  b = f32[4096] parameter(1)
  negate_0 = f32[4096] negate(a)
  negate_1 = f32[4096] negate(b)
  async-start = ((f32[4096], f32[4096]), f32[4096], u32[]) async-start(negate_0, negate_1), calls=async_wrapped
  add_0 = f32[4096] add(negate_0, negate_1)
  async-done = f32[4096] async-done(async-start), calls=async_wrapped
  ROOT add_1 = f32[4096] add(add_0, async-done)
}
`)
	want := "a:0-16 b:0-16 negate_0:2-14 negate_1:3-14 negate_2:0-14 negate_3:0-14 result.1:0-15 " +
		"async-start:12-14 async-start0:12-14 async-start2:12-14 add_0:13-15 add_1:15-16"
	if got := listed(a); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// What an asynchronous operation runs is walked where its operands are all there.
func TestScheduleOfLateAsync(t *testing.T) {
	const callee = `HloModule m, is_scheduled=true

called {
  param_0 = f32[4096] parameter(0)
  ROOT negate_2 = f32[4096] negate(param_0)
}

wrapped {
  async_param = f32[4096] parameter(0)
  ROOT call = f32[4096] call(async_param), to_apply=called
}

ENTRY main {
  a = f32[4096] parameter(0)
  negate_0 = f32[4096] negate(a)
  async-start = ((), (), s32[]) async-start(), calls=wrapped
  negate_1 = f32[4096] negate(a)
`
	for _, c := range []struct{ name, rest, want string }{
		{"at the update", `
  async-update = ((f32[4096]), f32[4096], s32[]) async-update(async-start, negate_0), calls=wrapped
  async-done = f32[4096] async-done(async-update), calls=wrapped
  ROOT add_1 = f32[4096] add(negate_1, async-done)
}`, "a negate_0 async-start negate_1 async_param param_0 negate_2 call async-update async-done add_1"},
		{"at the end", `
  async-update = ((f32[4096]), (), s32[]) async-update(async-start, negate_0), calls=wrapped
  async-done = f32[4096] async-done(async-update), calls=wrapped
  ROOT add_1 = f32[4096] add(async-done, async-done)
}`, "a negate_0 async-start negate_1 async-update async_param param_0 negate_2 call async-done add_1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := analyzeText(t, callee+c.rest)
			var names []string
			for _, i := range a.Schedule {
				names = append(names, i.Name)
			}
			if got := strings.Join(names, " "); got != c.want {
				t.Errorf("%s\nwant %s", got, c.want)
			}
		})
	}
}

// A computation that is called twice is walked twice.
func TestCalledTwice(t *testing.T) {
	a := analyzeText(t, `HloModule m

f {
  x = f32[4] parameter(0)
  ROOT y = f32[4] custom-call(x), custom_call_target="x"
}

ENTRY main {
  p = f32[4] parameter(0)
  a = f32[4] call(p), to_apply=f
  b = f32[4] call(a), to_apply=f
  ROOT c = f32[4] call(b), to_apply=f
}
`)
	if got, want := listed(a), "p:0-10 y:2-5 y:5-8 y:8-10"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if bytes, _, _ := a.Peak(); bytes != 48 {
		t.Errorf("%d bytes, want 48", bytes)
	}
	y := a.Module.Computation("f").Instruction("y")
	v, _ := a.ValueAt(y)
	where := []string{v.Instruction.Name}
	for n := range a.flow.Nodes() {
		if i := a.flow.Position(alias.Node(n), 0).Instruction; a.flow.Parts(alias.Node(n))[0] == int32(v.ID) && i != v.Instruction {
			where = append(where, i.Name)
		}
	}
	if got := strings.Join(where, " "); got != "y a x" {
		t.Errorf("the first y is at %s, want y a x", got)
	}
	if _, ok := a.ValueAt(y, 0); ok {
		t.Error("an array has a part 0")
	}
}

// What the first walk made is no operand of the second, even where the
// instruction is one.
func TestCalledTwiceWithItsOwn(t *testing.T) {
	a := analyzeText(t, `HloModule m, is_scheduled=true

f {
  x = f32[4] parameter(0)
  b = f32[4] bitcast(x)
  ROOT n = f32[4] custom-call(x), custom_call_target="x"
  u = f32[4] add(b, n)
  s = f32[] custom-call(u), custom_call_target="x"
}

ENTRY main {
  p = f32[4] parameter(0)
  a = f32[4] call(p), to_apply=f
  c = f32[4] call(a), to_apply=f
  ROOT r = f32[] custom-call(c), custom_call_target="x"
}
`)
	if bytes, _, _ := a.Peak(); bytes != 64 {
		t.Errorf("%d bytes, want 64: the parameter, what each call returns, and u", bytes)
	}
}

func TestErrors(t *testing.T) {
	late := parse(t, "HloModule m\n\nENTRY main {\n  a = f32[] parameter(0)\n  b = f32[] negate(a)\n  ROOT c = f32[] negate(b)\n}\n")
	e := late.Entry
	e.Instructions[1], e.Instructions[2] = e.Instructions[2], e.Instructions[1]
	for _, c := range []struct {
		name, want string
		m          *hlo.Module
	}{
		{"no entry", "no entry", &hlo.Module{}},
		{"order", "operand b comes later", late},
		{"no size", "line 4: p in main: parameter: hlo: a shape with a dimension without bound", parse(t, "HloModule m\n\nENTRY main {\n  ROOT p = f32[?] parameter(0)\n}\n")},
		{"too large together", "2^64-1", parse(t, "HloModule m\n\nENTRY main {\n  p = u8[9000000000000000000] parameter(0)\n  q = u8[9000000000000000000] parameter(1)\n  ROOT r = u8[9000000000000000000] parameter(2)\n}\n")},
		{"an alias of nothing", "no output [1]", parse(t, "HloModule m, input_output_alias={ {1}: (0, {}, may-alias) }\n\nENTRY main {\n  ROOT p = f32[] parameter(0)\n}\n")},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := AnalyzeModule(c.m); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// A module that calls itself ends with an error.
func TestCallsItself(t *testing.T) {
	m := parse(t, "HloModule m\n\nf {\n  x = f32[] parameter(0)\n  ROOT y = f32[] negate(x)\n}\n\nENTRY main {\n  p = f32[] parameter(0)\n  ROOT c = f32[] call(p), to_apply=f\n}\n")
	c := m.Entry.Instruction("c")
	c.Attributes[0].Calls[0] = m.Entry
	if _, err := AnalyzeModule(m); err == nil || !strings.Contains(err.Error(), "call itself") {
		t.Errorf("%v, want an error that the module calls itself", err)
	}
}
