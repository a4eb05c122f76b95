package pass

// The unit tests of XLA's pass, with modules of the same shapes, sizes and order
// (hlo_rematerialization_test.cc, 2026), as far as they are about what the pass does on
// GPUs. The numbers in the names are those of the list that the port was checked against.

import (
	"slices"
	"strings"
	"testing"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/memory"
	"gpumem/xla/internal/test/remattest"
	"gpumem/xla/internal/verify"
)

// A pattern of two users far apart: 16 KiB at the first concatenation, 12 KiB
// if the broadcast is computed again for the second.
const twoUsers = `
  p = f32[1]{0} parameter(0)
  r = f32[] reshape(p)
  b = f32[1024]{0} broadcast(r), dimensions={}
  n = f32[1024]{0} negate(b)
  c1 = f32[2048]{0} concatenate(n, n), dimensions={0}
  s1 = f32[1]{0} slice(c1), slice={[0:1]}
  c2 = f32[1025]{0} concatenate(b, s1), dimensions={0}
  ROOT s2 = f32[1]{0} slice(c2), slice={[0:1]}
`

// aroundWhile has a while between the users.
func aroundWhile(cond, body string) string {
	return `
  p = f32[1]{0} parameter(0)
  r = f32[] reshape(p)
  b = f32[1024]{0} broadcast(r), dimensions={}
  s = f32[1]{0} slice(b), slice={[0:1]}
  w = f32[1]{0} while(s), condition=` + cond + `, body=` + body + `
  c = f32[1025]{0} concatenate(b, w), dimensions={0}
  ROOT s2 = f32[1]{0} slice(c), slice={[0:1]}
`
}

func always(name string) string {
	return name + ` {
  q = f32[1]{0} parameter(0)
  ROOT t = pred[] constant(true)
}
`
}

// threeCalls uses a broadcast before, between and after calls of 8 KiB.
const threeCalls = `HloModule m, is_scheduled=true
callee {
  q = f32[1024]{0} parameter(0)
  k = f32[2048]{0} concatenate(q, q), dimensions={0}
  ROOT s = f32[1024]{0} slice(k), slice={[0:1024]}
}
ENTRY e {
  p = f32[] parameter(0)
  b = f32[1024]{0} broadcast(p), dimensions={}
  a1 = f32[1024]{0} add(b, b)
  k1 = f32[1024]{0} call(a1), to_apply=callee
  a2 = f32[1024]{0} add(b, k1)
  k2 = f32[1024]{0} call(a2), to_apply=callee
  a3 = f32[1024]{0} add(b, k2)
  k3 = f32[1024]{0} call(a3), to_apply=callee
  ROOT a4 = f32[1024]{0} add(b, k3)
}
`

// pair is a loop fusion with two results.
const pair = `pair {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  bx = f32[1024]{0} broadcast(x), dimensions={}
  by = f32[1024]{0} broadcast(y), dimensions={}
  a = f32[1024]{0} add(bx, by)
  m = f32[1024]{0} multiply(bx, by)
  ROOT o = (f32[1024]{0}, f32[1024]{0}) tuple(a, m)
}
`

const head = `HloModule m, is_scheduled=true
`

// entry of the tests of fusions with two results, up to the second use.
const pairEntry = `ENTRY e {
  p0 = f32[] parameter(0)
  p1 = f32[] parameter(1)
  f = (f32[1024]{0}, f32[1024]{0}) fusion(p0, p1), kind=kLoop, calls=pair
  g0 = f32[1024]{0} get-tuple-element(f), index=0
  a = f32[1024]{0} add(g0, g0)
  b = f32[1024]{0} broadcast(p0), dimensions={}
  m = f32[1024]{0} multiply(a, b)
  g1 = f32[1024]{0} get-tuple-element(f), index=1
`

func parse(t *testing.T, text string) *hlo.Module {
	t.Helper()
	m, err := hlo.ParseString(text)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// An outcome is a Result as XLA counts, with the entry's result.
type outcome struct {
	Result
	changed bool
}

// apply runs the pass, with a limit as XLA has it, and checks what holds for every run: the
// module is valid, its text reads again, and its peak is that of the independent model.
func apply(t *testing.T, m *hlo.Module, o Options) outcome {
	t.Helper()
	was := m.String()
	output := remattest.ResultBytes(m)
	o.Limit -= min(o.Limit, uint64(output))
	r, err := Run(m, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := verify.Module(m); err != nil {
		t.Fatalf("afterwards: %v\n%s", err, m)
	}
	size := remattest.Bytes
	if o.Host != nil {
		size = remattest.DeviceBytes
	}
	peak, err := remattest.ReplayPeak(m.String(), size)
	if err != nil {
		t.Fatalf("reading it again: %v\n%s", err, m)
	}
	now, _, err := memory.TempPeak(m, memory.Options{HostFree: o.Host != nil})
	if want := int64(now) + output; err != nil || peak != want {
		t.Errorf("the model's peak is %d bytes, want %d (%v)\n%s", peak, want, err, m)
	}
	for _, c := range m.Computations {
		for _, i := range c.Instructions {
			if i.Line == 0 && !strings.Contains(i.Name, ".remat") && !strings.HasPrefix(i.Name, "copy-") && !strings.Contains(c.Name, ".clone") {
				t.Errorf("new instruction %s is not named .remat", i.Name)
			}
		}
	}
	r.Before += uint64(output)
	r.After += uint64(output)
	return outcome{*r, m.String() != was}
}

func at(t *testing.T, c *hlo.Computation, name string) *hlo.Instruction {
	t.Helper()
	i := c.Instruction(name)
	if i == nil {
		t.Fatalf("no %s in %s: %v", name, c.Name, order(c))
	}
	return i
}

func order(c *hlo.Computation) []string {
	var names []string
	for _, i := range c.Instructions {
		names = append(names, i.Name)
	}
	return names
}

// end checks the names at the end of a computation.
func end(t *testing.T, c *hlo.Computation, want ...string) {
	t.Helper()
	names := order(c)
	if len(names) < len(want) || !slices.Equal(names[len(names)-len(want):], want) {
		t.Errorf("%s ends in %v, want %v", c.Name, names, want)
	}
}

func count(c *hlo.Computation, op hlo.Opcode) (n int) {
	for _, i := range c.Instructions {
		if i.Opcode == op {
			n++
		}
	}
	return n
}

func sizes(m *hlo.Module, names ...string) (n []int) {
	for _, name := range names {
		n = append(n, len(m.Computation(name).Instructions))
	}
	return n
}

const kib = 1 << 10

func TestXLA(t *testing.T) {
	rng := head + `ENTRY e {
  p = f32[] parameter(0)
  r = f32[1024]{0} rng(p, p), distribution=rng_uniform
  t = f32[1024]{0} tanh(r)
  x = f32[1024]{0} exponential(r)
  a0 = f32[1024]{0} add(r, t)
  x0 = f32[1024]{0} add(x, a0)
  a1 = f32[1024]{0} add(r, x0)
  t1 = f32[1024]{0} add(t, a1)
  ROOT a2 = f32[1024]{0} add(r, t1)
}
`
	copies := head + `ENTRY e {
  p = f32[1024]{0} parameter(0)
  c = f32[1024]{0} copy(p)
  a1 = f32[1024]{0} negate(c)
  b1 = f32[1024]{0} negate(c)
  a2 = f32[1024]{0} negate(a1)
  b2 = f32[1024]{0} negate(b1)
  ROOT o = (f32[1024]{0}, f32[1024]{0}) tuple(a2, b2)
}
`
	bitcasts := func(gather string) string {
		return head + `ENTRY e {
  p = f32[1]{0} parameter(0)
  r = f32[] reshape(p)
` + gather + `
  v = f32[1024]{0} bitcast(b)
  n = f32[1024,1]{1,0} negate(b)
  c1 = f32[2048,1]{1,0} concatenate(n, n), dimensions={0}
  s1 = f32[1,1]{1,0} slice(c1), slice={[0:1], [0:1]}
  v1 = f32[1]{0} bitcast(s1)
  c2 = f32[1025]{0} concatenate(v, v1), dimensions={0}
  ROOT s2 = f32[1]{0} slice(c2), slice={[0:1]}
}
`
	}
	indirect := func(index string) string {
		return head + `callee {
  q = f32[1024]{0} parameter(0)
  k = f32[2048]{0} concatenate(q, q), dimensions={0}
  ROOT s = f32[1024]{0} slice(k), slice={[0:1024]}
}
ENTRY e {
  p = f32[] parameter(0)
  b = f32[1024]{0} broadcast(p), dimensions={}
  a1 = f32[1024]{0} add(b, b)
  k = f32[1024]{0} call(a1), to_apply=callee
  a2 = f32[1024]{0} add(b, k)
  o = (f32[1024]{0}, f32[1024]{0}) tuple(b, a2)
  g = f32[1024]{0} get-tuple-element(o), index=` + index + `
  ROOT n = f32[1024]{0} negate(g)
}
`
	}
	plusOne := `plus {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT z = f32[] add(x, y)
}
`
	three := `three {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  z = f32[] parameter(2)
  bx = f32[16384]{0} broadcast(x), dimensions={}
  by = f32[16384]{0} broadcast(y), dimensions={}
  bz = f32[16384]{0} broadcast(z), dimensions={}
  ROOT o = (f32[16384]{0}, f32[16384]{0}, f32[16384]{0}) tuple(bx, by, bz)
}
`
	threeEntry := func(last string) string {
		return `ENTRY e {
  p0 = f32[] parameter(0)
  p1 = f32[] parameter(1)
  p2 = f32[] parameter(2)
  t = (f32[16384]{0}, f32[16384]{0}, f32[16384]{0}) fusion(p0, p1, p2), kind=kLoop, calls=three
  g0 = f32[16384]{0} get-tuple-element(t), index=0
  g1 = f32[16384]{0} get-tuple-element(t), index=1
  a = f32[16384]{0} add(g0, g1)
  b = f32[16384]{0} broadcast(p0), dimensions={}
  m = f32[16384]{0} add(a, b)
  c0 = f32[] constant(0)
  d = f32[] reduce(m, c0), dimensions={0}, to_apply=plus
` + last + `
  ROOT o = (f32[], f32[16384]{0}) tuple(d, f)
}
`
	}
	checkThree := func(t *testing.T, m *hlo.Module, r outcome) {
		if r.Before <= 270*kib || r.After > 270*kib {
			t.Errorf("%d bytes before, %d after", r.Before, r.After)
		}
		f := at(t, m.Entry, "f")
		for _, o := range f.Operands {
			if o.Name != "t.remat" {
				t.Errorf("f has operand %s", o.Name)
			}
		}
		if g := at(t, m.Entry, "g0"); g.Operands[0].Name != "t" {
			t.Errorf("g0 has operand %s", g.Operands[0].Name)
		}
		end(t, m.Entry, "t.remat", "f", "o")
	}

	tests := []struct {
		name    string
		text    string
		o       Options
		changed bool
		check   func(t *testing.T, m *hlo.Module, r outcome)
	}{
		{"2 one computation", head + "ENTRY e {" + twoUsers + "}\n", Options{Limit: 14 * kib}, true,
			func(t *testing.T, m *hlo.Module, r outcome) {
				end(t, m.Entry, "b.remat", "c2", "s2")
				if m.Entry.Root.Name != "s2" || at(t, m.Entry, "c2").Operands[0].Name != "b.remat" {
					t.Errorf("root %s, c2 of %s", m.Entry.Root.Name, at(t, m.Entry, "c2").Operands[0].Name)
				}
				// The result of 4 bytes counts.
				if r.Before != 16*kib+4 || r.After != 12*kib+4+4 || r.Chosen != 1 || r.Added != 1 {
					t.Errorf("%+v", r)
				}
			}},
		{"4 fits", head + "ENTRY e {" + twoUsers + "}\n", Options{Limit: 20 * kib}, false,
			func(t *testing.T, m *hlo.Module, r outcome) {
				if len(m.Entry.Instructions) != 8 || r.After != r.Before {
					t.Errorf("%d instructions, %+v", len(m.Entry.Instructions), r)
				}
			}},
		{"5 around a while", head + always("cond") + "body {" + twoUsers + "}\nENTRY e {" + aroundWhile("cond", "body") + "}\n", Options{Limit: 17 * kib}, true,
			func(t *testing.T, m *hlo.Module, r outcome) {
				if n := sizes(m, "e", "body"); !slices.Equal(n, []int{8, 8}) {
					t.Errorf("instructions %v", n)
				}
			}},
		{"6 around and in a while", head + always("cond") + "body {" + twoUsers + "}\nENTRY e {" + aroundWhile("cond", "body") + "}\n", Options{Limit: 15 * kib}, true,
			func(t *testing.T, m *hlo.Module, r outcome) {
				if n := sizes(m, "e", "body"); !slices.Equal(n, []int{9, 9}) || r.After > 15*kib {
					t.Errorf("instructions %v: %v %v", n, order(m.Entry), order(m.Computation("body")))
				}
			}},
		{"7 nested", head + always("cond") + always("cond2") + "inner {" + twoUsers + "}\nmiddle {" + aroundWhile("cond", "inner") + "}\nENTRY e {" + aroundWhile("cond2", "middle") + "}\n", Options{Limit: 13 * kib}, true,
			func(t *testing.T, m *hlo.Module, r outcome) {
				if n := sizes(m, "e", "middle", "inner"); !slices.Equal(n, []int{9, 9, 9}) {
					t.Errorf("instructions %v", n)
				}
			}},
		{"8 rng", rng, Options{Limit: 16 * kib}, true,
			func(t *testing.T, m *hlo.Module, r outcome) {
				if n := count(m.Entry, hlo.Rng); n != 1 || len(m.Entry.Instructions) <= 9 {
					t.Errorf("%d rng in %v", n, order(m.Entry))
				}
			}},
		{"9 several times", threeCalls, Options{Limit: 22 * kib}, true,
			func(t *testing.T, m *hlo.Module, r outcome) {
				if count(m.Entry, hlo.Broadcast) != 4 || len(m.Entry.Instructions) != 12 {
					t.Errorf("%v", order(m.Entry))
				}
				seen := map[*hlo.Instruction]bool{}
				for _, name := range []string{"a1", "a2", "a3", "a4"} {
					b := at(t, m.Entry, name).Operands[0]
					if b.Opcode != hlo.Broadcast || b.Operands[0].Name != "p" || seen[b] {
						t.Errorf("%s uses %s", name, b.Name)
					}
					seen[b] = true
				}
				if r.Before != 24*kib || r.After != 20*kib {
					t.Errorf("%d before, %d after", r.Before, r.After)
				}
			}},
		{"10 copy", copies, Options{Limit: kib}, true,
			func(t *testing.T, m *hlo.Module, r outcome) {
				if n := count(m.Entry, hlo.Copy); n != 1 || r.After <= kib {
					t.Errorf("%d copies, %+v", n, r)
				}
			}},
		{"11 through a bitcast", bitcasts("  b = f32[1024,1]{1,0} broadcast(r), dimensions={}"), Options{Limit: 14 * kib}, true,
			func(t *testing.T, m *hlo.Module, r outcome) { end(t, m.Entry, "b.remat", "bitcast.remat", "c2", "s2") }},
		{"12 through bitcasts, without end", head + `ENTRY e {
  p = f32[1]{0} parameter(0)
  r = f32[] reshape(p)
  b1 = f32[1024,1]{1,0} broadcast(r), dimensions={}
  v1 = f32[1024]{0} bitcast(b1)
  b2 = f32[1024,1]{1,0} broadcast(r), dimensions={}
  v2 = f32[1024]{0} bitcast(b2)
  ROOT a = f32[1024]{0} add(v1, v2)
}
`, Options{Limit: kib}, true,
			func(t *testing.T, m *hlo.Module, r outcome) {
				for _, o := range at(t, m.Entry, "a").Operands {
					if o.Opcode != hlo.Bitcast || o.Operands[0].Opcode != hlo.Broadcast {
						t.Errorf("a uses %s of %s", o.Opcode, o.Operands[0].Opcode)
					}
				}
			}},
		// The fusion is left with one result, and is no tuple any more.
		{"13 a result of two", head + pair + pairEntry + "  ROOT z = f32[1024]{0} add(m, g1)\n}\n", Options{Limit: 11 * kib}, true,
			func(t *testing.T, m *hlo.Module, r outcome) {
				o := at(t, m.Entry, "z").Operands
				if o[0].Name != "m" || o[1].Name != "f.remat" || o[1].Opcode != hlo.Fusion {
					t.Errorf("z uses %s and %s\n%s", o[0].Name, o[1].Name, m)
				}
			}},
		{"14 both results", head + pair + pairEntry + "  g2 = f32[1024]{0} get-tuple-element(f), index=0\n  y = f32[1024]{0} add(m, g1)\n  ROOT z = f32[1024]{0} multiply(y, g2)\n}\n", Options{Limit: 11 * kib}, true,
			func(t *testing.T, m *hlo.Module, r outcome) {
				a, b := at(t, m.Entry, "y").Operands[1], at(t, m.Entry, "z").Operands[1]
				if a.Opcode != hlo.GetTupleElement || b.Opcode != hlo.GetTupleElement || a.Operands[0] != b.Operands[0] || a.Operands[0].Name != "f.remat" {
					t.Errorf("y uses %s, z uses %s\n%s", a.Name, b.Name, m)
				}
			}},
		{"15 results through bitcasts", head + pair + pairEntry + `  v0 = f32[1024,1]{0,1} bitcast(m)
  v1 = f32[1024,1]{0,1} bitcast(g1)
  ROOT z = f32[1024,1]{0,1} add(v0, v1)
}
`, Options{Limit: 11 * kib}, true,
			func(t *testing.T, m *hlo.Module, r outcome) {
				o := at(t, m.Entry, "z").Operands
				if o[1].Opcode != hlo.Bitcast || o[1].Operands[0].Name != "f.remat" || o[0].Operands[0].Name != "m" {
					t.Errorf("z uses %s\n%s", o[1].Name, m)
				}
			}},
		{"16 through a tuple", head + pair + `ENTRY e {
  p0 = f32[] parameter(0)
  p1 = f32[] parameter(1)
  f = (f32[1024]{0}, f32[1024]{0}) fusion(p0, p1), kind=kLoop, calls=pair
  g0 = f32[1024]{0} get-tuple-element(f), index=0
  g1 = f32[1024]{0} get-tuple-element(f), index=1
  a = f32[1024]{0} add(g0, g1)
  b = f32[1024]{0} broadcast(p0), dimensions={}
  m = f32[1024]{0} multiply(a, b)
  o = (f32[1024]{0}, f32[1024]{0}) tuple(g0, a)
  v = f32[1024,1]{0,1} bitcast(m)
  g = f32[1024]{0} get-tuple-element(o), index=0
  ROOT z = f32[1024]{0} add(g, a)
}
`, Options{Limit: 11 * kib}, true,
			func(t *testing.T, m *hlo.Module, r outcome) {
				if o := at(t, m.Entry, "z").Operands; o[0].Opcode != hlo.Fusion || o[0].Name == "f" || o[1].Opcode != hlo.Add {
					t.Errorf("z uses %s\n%s", o[0].Name, m)
				}
			}},
		{"17 channel", bitcasts(`  s = f32[256,1]{1,0} broadcast(r), dimensions={}
  b = f32[1024,1]{1,0} all-gather(s), dimensions={0}, channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true`), Options{Limit: 14 * kib}, true,
			func(t *testing.T, m *hlo.Module, r outcome) {
				one, _ := at(t, m.Entry, "b").Attribute("channel_id")
				two, _ := at(t, m.Entry, "b.remat").Attribute("channel_id")
				if one != "1" || two != "2" {
					t.Errorf("channels %s and %s", one, two)
				}
			}},
		{"18 a fusion of the tuple", head + pair + plusOne + `sum {
  q = (f32[1024]{0}, f32[1024]{0}) parameter(0)
  q0 = f32[1024]{0} get-tuple-element(q), index=0
  q1 = f32[1024]{0} get-tuple-element(q), index=1
  ROOT a = f32[1024]{0} add(q0, q1)
}
ENTRY e {
  p0 = f32[] parameter(0)
  p1 = f32[] parameter(1)
  f = (f32[1024]{0}, f32[1024]{0}) fusion(p0, p1), kind=kLoop, calls=pair
  g0 = f32[1024]{0} get-tuple-element(f), index=0
  g1 = f32[1024]{0} get-tuple-element(f), index=1
  a0 = f32[1024]{0} add(g0, g1)
  b = f32[1024]{0} broadcast(p0), dimensions={}
  a1 = f32[1024]{0} add(a0, b)
  c = f32[] constant(0)
  d = f32[] reduce(a1, c), dimensions={0}, to_apply=plus
  h = f32[1024]{0} fusion(f), kind=kLoop, calls=sum
  ROOT o = (f32[], f32[1024]{0}) tuple(d, h)
}
`, Options{Limit: 11 * kib}, true,
			func(t *testing.T, m *hlo.Module, r outcome) {
				if o := at(t, m.Entry, "h").Operands[0]; o.Name != "f.remat" {
					t.Errorf("h uses %s\n%s", o.Name, m)
				}
			}},
		{"19 clones of computations", head + `inner {
  q = f32[1024]{0} parameter(0)
  ROOT n = f32[1024]{0} negate(q)
}
` + strings.Replace(strings.Replace(pair, "tuple(a, m)", "tuple(a, k)", 1), "  ROOT", "  k = f32[1024]{0} custom-call(m), custom_call_target=\"some\", called_computations={inner}\n  ROOT", 1) +
			pairEntry + "  g2 = f32[1024]{0} get-tuple-element(f), index=0\n  y = f32[1024]{0} add(m, g1)\n  ROOT z = f32[1024]{0} multiply(y, g2)\n}\n", Options{Limit: 11 * kib}, true,
			func(t *testing.T, m *hlo.Module, r outcome) {
				// The first fusion has lost its second result, and so its custom call.
				f, clone := at(t, m.Entry, "f").Call("calls"), at(t, m.Entry, "f.remat").Call("calls")
				if f == clone || !slices.Contains(m.Computations, clone) || len(clone.Instructions) != 8 || count(clone, hlo.CustomCall) != 1 {
					t.Errorf("fusions call %s and %s\n%s", f.Name, clone.Name, m)
				}
				for _, i := range clone.Instructions {
					for _, c := range i.Called() {
						if !slices.Contains(m.Computations, c) || len(c.Instructions) != 2 {
							t.Errorf("%s is not there", c.Name)
						}
					}
				}
			}},
		{"26 indirect use of another", indirect("1"), Options{Limit: 22 * kib}, true,
			func(t *testing.T, m *hlo.Module, r outcome) {
				if len(m.Entry.Instructions) != 9 {
					t.Errorf("%v", order(m.Entry))
				}
			}},
		{"26 indirect use", indirect("0"), Options{Limit: 22 * kib}, true,
			func(t *testing.T, m *hlo.Module, r outcome) {
				if len(m.Entry.Instructions) != 3 {
					t.Errorf("%v", order(m.Entry))
				}
			}},
		{"27 dead code to the end", head + `greater {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT z = f32[] maximum(x, y)
}
f1 {
  x = f32[3,9] parameter(0)
  i = s32[] parameter(1)
  o = s32[] constant(0)
  d = f32[1,9] dynamic-slice(x, i, o), dynamic_slice_sizes={1,9}
  v = f32[9] bitcast(d)
  n = f32[] constant(-inf)
  ROOT r = f32[] reduce(v, n), dimensions={0}, to_apply=greater
}
f2 {
  x = f32[] parameter(0)
  y = f32[] constant(1)
  q = f32[] divide(y, x)
  v = f32[1] bitcast(q)
  ROOT o = (f32[1], f32[]) tuple(v, y)
}
ENTRY e {
  i = s32[] parameter(1)
  x = f32[3,9] parameter(0)
  c = f32[] fusion(x, i), kind=kInput, calls=f1
  d = (f32[1], f32[]) fusion(c), kind=kLoop, calls=f2
  ROOT r = f32[] get-tuple-element(d), index=1
}
`, Options{Limit: 1}, true,
			func(t *testing.T, m *hlo.Module, r outcome) {
				if again, err := hlo.RemoveDead(m); again || err != nil {
					t.Errorf("there was more: %v, %v", again, err)
				}
				if n := order(m.Entry); !slices.Equal(n, []string{"i", "x", "d"}) {
					t.Errorf("%v", n)
				}
			}},
		{"an operand twice", head + three + plusOne + `use {
  u = (f32[16384]{0}, f32[16384]{0}, f32[16384]{0}) parameter(0)
  v = (f32[16384]{0}, f32[16384]{0}, f32[16384]{0}) parameter(1)
  g = f32[16384]{0} get-tuple-element(u), index=0
  h = f32[16384]{0} get-tuple-element(v), index=1
  ROOT a = f32[16384]{0} add(g, h)
}
` + threeEntry("  f = f32[16384]{0} fusion(t, t), kind=kLoop, calls=use"), Options{Limit: 270 * kib}, true, checkThree},
		{"a fusion that returns its operand", head + three + plusOne + `use {
  u = (f32[16384]{0}, f32[16384]{0}, f32[16384]{0}) parameter(0)
  ROOT g = f32[16384]{0} get-tuple-element(u), index=0
}
` + threeEntry("  f = f32[16384]{0} fusion(t), kind=kLoop, calls=use"), Options{Limit: 270 * kib}, true, checkThree},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := parse(t, test.text)
			r := apply(t, m, test.o)
			if r.changed != test.changed {
				t.Errorf("changed %v", r.changed)
			}
			if test.check != nil {
				test.check(t, m, r)
			}
		})
	}
}
