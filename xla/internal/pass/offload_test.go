package pass

import (
	"maps"
	"strings"
	"testing"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/host"
	"gpumem/xla/internal/memory"
)

// host takes half a second for each tanh and add of 1024, and a second for
// 4 KiB to or from it.
var hostMemory = &host.Memory{ToHost: 4 * kib, FromHost: 4 * kib, Seconds: func(i *hlo.Instruction) float64 {
	if i.Opcode == hlo.Add || i.Opcode == "tanh" {
		return 0.5
	}
	return 0
}}

// fromHost says whether an instruction is what name was, brought back from the host.
func fromHost(i *hlo.Instruction, name string) bool {
	for _, want := range []struct {
		op    hlo.Opcode
		space uint64
	}{{hlo.CopyDone, 0}, {hlo.CopyStart, 0}, {hlo.CopyDone, hlo.HostSpace}, {hlo.CopyStart, hlo.HostSpace}} {
		shape := i.Shape
		if i.Opcode == hlo.CopyStart {
			shape = shape.Elements[0]
		}
		if i.Opcode != want.op || shape.Space() != want.space {
			return false
		}
		i = i.Operands[0]
	}
	return i.Name == name
}

func TestOffload(t *testing.T) {
	text := func(view string, last string) string {
		return head + `ENTRY e {
  p0 = f32[1024]{0} parameter(0)
  p1 = f32[1024]{0} parameter(1)
  r3 = f32[1024]{0} add(p0, p1)
` + view + `  r4 = f32[1024]{0} tanh(r3)
  r5 = f32[1024]{0} tanh(r4)
  r6 = f32[1024]{0} tanh(r5)
  r7 = f32[1024]{0} add(r6, r6)
  r8 = f32[1024]{0} add(r7, r5)
  r9 = f32[1024]{0} add(r8, r4)
  r10 = f32[1024]{0} add(r9, ` + last + `)
  ROOT r11 = f32[1024]{0} tanh(r10)
}
`
	}
	t.Run("24 two values", func(t *testing.T) {
		m := parse(t, text("", "r3"))
		r := apply(t, m, Options{Limit: 10 * kib, offloadOnly: true, Host: hostMemory})
		if !r.changed || r.Added != 8 || len(m.Entry.Instructions) != 19 {
			t.Errorf("%+v\n%s", r, m)
		}
		if o := at(t, m.Entry, "r10").Operands; o[0].Name != "r9" || !fromHost(o[1], "r3") {
			t.Errorf("r10 uses %s\n%s", o[1].Name, m)
		}
		if o := at(t, m.Entry, "r9").Operands; o[0].Name != "r8" || !fromHost(o[1], "r4") {
			t.Errorf("r9 uses %s\n%s", o[1].Name, m)
		}
		for user, o := range map[string]string{"r4": "r3", "r5": "r4", "r8": "r7", "r11": "r10"} {
			if at(t, m.Entry, user).Operands[0].Name != o {
				t.Errorf("%s uses %s", user, at(t, m.Entry, user).Operands[0].Name)
			}
		}
		if last := m.Entry.Instructions[len(m.Entry.Instructions)-1]; last.Name != "r11" {
			t.Errorf("the last is %s", last.Name)
		}
	})
	t.Run("25 not through a bitcast", func(t *testing.T) {
		m := parse(t, text("  v = f32[1024]{0} bitcast(r3)\n", "v"))
		r := apply(t, m, Options{Limit: 10 * kib, offloadOnly: true, Host: hostMemory})
		if !r.changed || r.Added != 4 {
			t.Errorf("%+v\n%s", r, m)
		}
		if o := at(t, m.Entry, "r10").Operands; o[1].Opcode != hlo.Bitcast || o[1].Operands[0].Name != "r3" {
			t.Errorf("r10 uses %s", o[1].Name)
		}
		if o := at(t, m.Entry, "r9").Operands; !fromHost(o[1], "r4") {
			t.Errorf("r9 uses %s\n%s", o[1].Name, m)
		}
	})
	t.Run("no time", func(t *testing.T) {
		m := parse(t, text("", "r3"))
		slow := *hostMemory
		slow.ToHost = 1
		if r := apply(t, m, Options{Limit: 10 * kib, offloadOnly: true, Host: &slow}); r.changed {
			t.Errorf("%+v", r)
		}
	})
	t.Run("no host", func(t *testing.T) {
		for _, h := range []*host.Memory{{}, {ToHost: 1, FromHost: 1}, {ToHost: 1, Seconds: hostMemory.Seconds}} {
			if _, err := Run(parse(t, text("", "r3")), Options{offloadOnly: true, Host: h}); err != host.ErrNoSpeed {
				t.Errorf("%+v: error %v", h, err)
			}
		}
	})
}

// nested is three calls deep; the innermost holds chain. large is the size of what it computes.
func nested(chain string) string {
	return head + "deep {" + chain + `}
call {
  p = f32[1024]{0} parameter(0)
  q = f32[1024]{0} parameter(1)
  k = f32[1024]{0} call(p, q), to_apply=deep
  ROOT n = f32[1024]{0} negate(k)
}
twice {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  bx = f32[1024]{0} broadcast(x), dimensions={}
  by = f32[1024]{0} broadcast(y), dimensions={}
  k = f32[1024]{0} call(bx, by), to_apply=call
  ROOT m = f32[1024]{0} multiply(k, k)
}
ENTRY e {
  p = f32[] parameter(0)
  q = f32[] parameter(1)
  k = f32[1024]{0} call(p, q), to_apply=twice
  ROOT n = f32[1024]{0} negate(k)
}
`
}

const chainOne = `
  c8 = f32[] constant(8)
  u8 = f32[1024]{0} broadcast(c8), dimensions={}
  p = f32[1024]{0} parameter(0)
  q = f32[1024]{0} parameter(1)
  pq = f32[1024]{0} add(p, q)
  c1 = f32[] constant(1)
  big = f32[16384]{0} broadcast(c1), dimensions={}
  t1 = f32[16384]{0} tanh(big)
  t2 = f32[16384]{0} tanh(t1)
  t3 = f32[16384]{0} tanh(t2)
  t4 = f32[16384]{0} tanh(t3)
  s = f32[1024]{0} slice(t4), slice={[0:1024]}
  r1 = f32[1024]{0} add(pq, s)
  r3 = f32[1024]{0} add(u8, r1)
  x8 = f32[1024]{0} broadcast(c8), dimensions={}
  xpq = f32[1024]{0} add(x8, pq)
  ROOT r = f32[1024]{0} add(r3, xpq)
`

// 30: Which instructions are cloned, in calls of calls.
func TestNestedCalls(t *testing.T) {
	m := parse(t, nested(chainOne))
	r := apply(t, m, Options{Limit: 14 * kib})
	clones := map[string]int{}
	for _, c := range m.Computations {
		for _, i := range c.Instructions {
			if base, _, ok := strings.Cut(i.Name, ".remat"); ok {
				clones[base]++
			}
		}
	}
	want := map[string]int{"x8": 1, "u8": 1, "pq": 2, "bx": 1, "by": 1}
	if !r.changed || !maps.Equal(clones, want) {
		t.Errorf("%+v: clones %v, want %v", r, clones, want)
	}
}

// Of two values at the same cost the first in the list is moved.
func TestOffloadOfEqualCostsTakesTheFirst(t *testing.T) {
	m := parse(t, head+`ENTRY e {
  p = f32[1024]{0} parameter(0)
  first = f32[1024]{0} add(p, p)
  second = f32[1024]{0} add(first, p)
  t1 = f32[1024]{0} tanh(second)
  t2 = f32[1024]{0} tanh(t1)
  t3 = f32[1024]{0} tanh(t2)
  t4 = f32[1024]{0} tanh(t3)
  t5 = f32[1024]{0} tanh(t4)
  s = f32[1024]{0} add(t5, second)
  r = f32[1024]{0} add(s, first)
  ROOT q = f32[1024]{0} tanh(r)
}
`)
	tr, err := newTracker(&pass{o: Options{Host: hostMemory, offloadOnly: true}, meter: memory.NewMeter(memory.Options{}), effects: hlo.Effects{}}, m.Entry)
	if err != nil {
		t.Fatal(err)
	}
	for k := tr.first; tr.items[k].i.Name != "t4"; k = tr.items[k].next {
		tr.begin(k)
		tr.end()
	}
	best := tr.pick(8 * kib)
	if best.item == none || !best.offload || tr.items[best.item].i.Name != "first" {
		t.Errorf("%+v", best)
	}
	for _, name := range []string{"first", "second"} {
		if cost, ok := tr.offloadCost(tr.item(m.Entry.Instruction(name)), 8*kib); cost != 2 || !ok {
			t.Errorf("%s: %d, %v", name, cost, ok)
		}
	}
}
