package hlo_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	. "gpumem/xla/internal/hlo"
	"gpumem/xla/internal/test/hlotest"
)

// edited is a module with what the edits below need, and its entry.
func edited(t testing.TB) (*Module, *Computation) {
	m := parsed(t, `HloModule m

inner {
  p = f32[] parameter(0)
  ROOT n = f32[] negate(p)
}

outer {
  p = f32[] parameter(0)
  a = f32[] call(p), to_apply=inner
  b = f32[] map(a), to_apply=inner
  ROOT c = f32[] add(a, b), control-predecessors={p}
}, execution_thread="t"

ENTRY main {
  p = f32[] parameter(0)
  q = f32[] negate(p)
  r = f32[] add(q, q)
  s = f32[] multiply(q, p), control-predecessors={r}, metadata={op_name="s"}
  t = f32[] call(s), to_apply=outer
  ROOT u = (f32[], f32[]) tuple(q, t)
}
`)
	return m, m.Entry
}

// same checks what a computation prints as.
func same(t *testing.T, c *Computation, want string) {
	t.Helper()
	var got []string
	for _, i := range c.Instructions {
		got = append(got, strings.TrimSpace(Text(i)))
		// Edits append users; linked wants them in the order of the list.
		slices.SortFunc(i.Users, func(a, b *Instruction) int {
			return slices.Index(c.Instructions, a) - slices.Index(c.Instructions, b)
		})
	}
	if g := strings.Join(got, "\n"); g != want {
		t.Errorf("got\n%s\nexpected\n%s", g, want)
	}
	linked(t, c.Module)
}

func TestInsert(t *testing.T) {
	m, c := edited(t)
	p, q := c.Instruction("p"), c.Instruction("q")
	one := m.NewInstruction("q", "floor", q.Shape, q)
	two := m.NewInstruction("new", Add, q.Shape, one, one)
	c.Insert(2, one, two)
	two.SetOperand(1, p)
	same(t, c, `p = f32[] parameter(0)
q = f32[] negate(p)
q.1 = f32[] floor(q)
new = f32[] add(q.1, p)
r = f32[] add(q, q)
s = f32[] multiply(q, p), control-predecessors={r}, metadata={op_name="s"}
t = f32[] call(s), to_apply=outer
ROOT u = (f32[], f32[]) tuple(q, t)`)
}

func TestReplaceUses(t *testing.T) {
	_, c := edited(t)
	q, p := c.Instruction("q"), c.Instruction("p")
	q.ReplaceUses(p, func(user *Instruction) bool { return user.Name == "u" })
	if got := names(q.Users); !slices.Equal(got, []string{"u"}) {
		t.Errorf("users of q: %v", got)
	}
	if got := names(p.Users); !slices.Equal(got, []string{"q", "s", "r"}) {
		t.Errorf("users of p: %v", got)
	}
	// The root is replaced without keep alone, and a copy keeps its operand.
	u := c.Root
	copied := c.Module.NewInstruction("v", Copy, u.Shape, u)
	c.Insert(len(c.Instructions), copied)
	u.ReplaceUses(copied, func(*Instruction) bool { return false })
	if c.Root != u {
		t.Error("keep left the root alone before")
	}
	u.ReplaceUses(copied, nil)
	if c.Root != copied || copied.Operands[0] != u || len(u.Users) != 1 {
		t.Errorf("root %s of %v", c.Root.Name, names(copied.Operands))
	}
}

func TestSetOperand(t *testing.T) {
	_, c := edited(t)
	p, q, r, s := c.Instruction("p"), c.Instruction("q"), c.Instruction("r"), c.Instruction("s")
	r.SetOperand(0, q) // as it was
	r.SetOperand(0, p)
	if got := names(q.Users); !slices.Equal(got, []string{"r", "s", "u"}) {
		t.Errorf("one of two uses is left: %v", got)
	}
	r.SetOperand(1, p)
	if got := names(q.Users); !slices.Equal(got, []string{"s", "u"}) {
		t.Errorf("no use is left: %v", got)
	}
	if got := names(p.Users); !slices.Equal(got, []string{"q", "s", "r"}) {
		t.Errorf("twice, listed once: %v", got)
	}
	s.Detach()
	if len(s.Operands) != 0 || slices.Contains(p.Users, s) || slices.Contains(q.Users, s) {
		t.Error("detached")
	}
}

func TestRemove(t *testing.T) {
	_, c := edited(t)
	r, p := c.Instruction("r"), c.Instruction("p")
	r.AddAfter(p)
	r.AddAfter(p)
	c.Remove(r)
	same(t, c, `p = f32[] parameter(0)
q = f32[] negate(p)
s = f32[] multiply(q, p), control-predecessors={p}, metadata={op_name="s"}
t = f32[] call(s), to_apply=outer
ROOT u = (f32[], f32[]) tuple(q, t)`)
	if r.Parent != nil {
		t.Error("it still has a parent")
	}
}

func TestReorder(t *testing.T) {
	m, c := edited(t)
	list := slices.Clone(c.Instructions)
	list[2], list[3] = list[3], list[2]
	list[2].After = nil
	s := list[2].Clone("s")
	list = append(list, s, m.NewInstruction("s.3", Constant, s.Shape), m.NewInstruction("s", Constant, s.Shape))
	c.Reorder(list)
	same(t, c, `p = f32[] parameter(0)
q = f32[] negate(p)
s = f32[] multiply(q, p), metadata={op_name="s"}
r = f32[] add(q, q)
t = f32[] call(s), to_apply=outer
ROOT u = (f32[], f32[]) tuple(q, t)
s.1 = f32[] multiply(q, p), metadata={op_name="s"}
s.3 = f32[] constant()
s.2 = f32[] constant()`)
}

func TestClone(t *testing.T) {
	_, c := edited(t)
	s := c.Instruction("s")
	d := s.Clone("s.remat")
	c.Insert(4, d, c.Instruction("t").Clone("t"))
	d.Attributes[0].Value = "{}"
	d.After = append(d.After, c.Instruction("p"))
	same(t, c, `p = f32[] parameter(0)
q = f32[] negate(p)
r = f32[] add(q, q)
s = f32[] multiply(q, p), control-predecessors={r}, metadata={op_name="s"}
s.remat = f32[] multiply(q, p), control-predecessors={r, p}, metadata={}
t.1 = f32[] call(s), to_apply=outer
t = f32[] call(s), to_apply=outer
ROOT u = (f32[], f32[]) tuple(q, t)`)
}

func TestCloneComputation(t *testing.T) {
	m, c := edited(t)
	outer := m.Computation("outer")
	copied := outer.Clone(".clone", nil)
	var got []string
	for _, c := range m.Computations {
		got = append(got, c.Name)
	}
	if want := "inner inner.clone outer outer.clone main"; strings.Join(got, " ") != want {
		t.Errorf("%v, expected %s", got, want)
	}
	if copied.Thread != "t" || copied.Root.Name != "c" {
		t.Errorf("%+v", copied)
	}
	same(t, copied, `p = f32[] parameter(0)
a = f32[] call(p), to_apply=inner.clone
b = f32[] map(a), to_apply=inner.clone
ROOT c = f32[] add(a, b), control-predecessors={p}`)
	same(t, outer, `p = f32[] parameter(0)
a = f32[] call(p), to_apply=inner
b = f32[] map(a), to_apply=inner
ROOT c = f32[] add(a, b), control-predecessors={p}`)
	c.Instruction("t").Attributes[0].Calls[0] = copied
	if err := hlotest.Equal(m, parsed(t, m.String())); err != nil {
		t.Error(err)
	}
	// Names never collide, whatever the suffix.
	for range 3 {
		outer.Clone("", nil)
	}
	seen := map[string]bool{}
	for _, c := range m.Computations {
		if seen[c.Name] {
			t.Errorf("twice %s", c.Name)
		}
		seen[c.Name] = true
	}
}

func TestNewComputation(t *testing.T) {
	m := &Module{Name: "m"}
	first := m.NewComputation("a")
	m.Entry = first
	second := m.NewComputation("b")
	if len(m.Computations) != 2 || m.Computations[0] != second || second.Module != m {
		t.Error("a new computation stands before the entry")
	}
	m.Entry = second
	if m.NewComputation("c"); m.Computations[2].Name != "c" {
		t.Error("or at the end, where the entry is not the last")
	}
}

// After any row of edits the users are those that the operands say.
func TestEditsLinked(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m, c := edited(t)
		for n := range rapid.IntRange(1, 20).Draw(rt, "edits") {
			some := func(what string) *Instruction { return rapid.SampledFrom(c.Instructions).Draw(rt, what) }
			i, o := some("instruction"), some("operand")
			switch edit := rapid.IntRange(0, 4).Draw(rt, "edit"); edit {
			case 0:
				c.Insert(len(c.Instructions), m.NewInstruction("x", Add, i.Shape, i, o, i))
			case 1:
				if len(i.Operands) > 0 && i != o {
					i.SetOperand(rapid.IntRange(0, len(i.Operands)-1).Draw(rt, "which"), o)
				}
			case 2:
				i.ReplaceUses(o, nil)
			case 3:
				if len(i.Users) == 0 && c.Root != i {
					c.Remove(i)
				}
			case 4:
				c.Insert(len(c.Instructions), i.Clone(fmt.Sprint("y", n)))
			}
			for _, i := range c.Instructions {
				for _, o := range c.Instructions {
					uses, used := slices.Contains(i.Operands, o), 0
					for _, u := range o.Users {
						if u == i {
							used++
						}
					}
					if uses != (used == 1) || used > 1 {
						rt.Fatalf("%s has operands %v, %s has users %v", i.Name, names(i.Operands), o.Name, names(o.Users))
					}
				}
			}
		}
	})
}
