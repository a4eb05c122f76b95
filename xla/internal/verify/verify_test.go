package verify

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/test/hlotest"
)

var scalar = &hlo.Shape{Type: "f32"}

// sum is a module of one computation: p0 + p1, times p0.
func sum() (*hlo.Module, *hlo.Computation) {
	m := &hlo.Module{Name: "sum"}
	c := m.NewComputation("main")
	m.Entry = c
	p0 := m.NewInstruction("p0", hlo.Parameter, scalar)
	p1 := m.NewInstruction("p1", hlo.Parameter, scalar)
	p1.Parameter = 1
	add := m.NewInstruction("add", hlo.Add, scalar, p0, p1)
	mul := m.NewInstruction("mul", hlo.Multiply, scalar, add, p0)
	c.Insert(0, p0, p1, add, mul)
	c.Root = mul
	return m, c
}

func TestVerifyGraph(t *testing.T) {
	for _, test := range []struct {
		name  string
		spoil func(m *hlo.Module, c *hlo.Computation)
		want  string // empty: it holds
	}{
		{"as made", func(m *hlo.Module, c *hlo.Computation) {}, ""},
		{"no entry", func(m *hlo.Module, c *hlo.Computation) { m.Entry = nil }, "no entry"},
		{"entry elsewhere", func(m *hlo.Module, c *hlo.Computation) { m.Entry = &hlo.Computation{Module: m} }, "no entry"},
		{"nil computation", func(m *hlo.Module, c *hlo.Computation) { m.Computations = append(m.Computations, nil) }, "a computation is nil"},
		{"other module's computation", func(m *hlo.Module, c *hlo.Computation) { c.Module = &hlo.Module{} }, "another module"},
		{"two computations of a name", func(m *hlo.Module, c *hlo.Computation) { m.NewComputation("main") }, "a second one"},
		{"two instructions of a name", func(m *hlo.Module, c *hlo.Computation) { c.Instructions[2].Name = "p0" }, "second instruction of this name"},
		{"nil instruction", func(m *hlo.Module, c *hlo.Computation) { c.Instructions[1] = nil }, "an instruction is nil"},
		{"no shape", func(m *hlo.Module, c *hlo.Computation) { c.Instructions[2].Shape = nil }, "add in main: it has no shape"},
		{"ID twice", func(m *hlo.Module, c *hlo.Computation) { c.Instructions[2].ID = 0 }, "ID 0 is not its own"},
		{"ID out of range", func(m *hlo.Module, c *hlo.Computation) { c.Instructions[2].ID = 99 }, "ID 99"},
		{"twice in the list", func(m *hlo.Module, c *hlo.Computation) { c.Instructions = append(c.Instructions, c.Root) }, "second instruction|is not its own"},
		{"other parent", func(m *hlo.Module, c *hlo.Computation) { c.Instructions[2].Parent = nil }, "its parent is another"},
		{"no root", func(m *hlo.Module, c *hlo.Computation) { c.Root = nil }, "the root is not in it"},
		{"root left out", func(m *hlo.Module, c *hlo.Computation) { c.Instructions = c.Instructions[:3] }, "the root is not in it"},
		{"parameter missing", func(m *hlo.Module, c *hlo.Computation) { c.Instructions[1].Parameter = 2 }, "parameter 1 is missing"},
		{"parameter twice", func(m *hlo.Module, c *hlo.Computation) { c.Instructions[1].Parameter = 0 }, "there twice"},
		{"parameter below 0", func(m *hlo.Module, c *hlo.Computation) { c.Instructions[1].Parameter = -1 }, "out of range"},
		{"parameter far out", func(m *hlo.Module, c *hlo.Computation) { c.Instructions[1].Parameter = 1 << 40 }, "out of range"},
		{"operand left out", func(m *hlo.Module, c *hlo.Computation) { c.Reorder(slices.Delete(slices.Clone(c.Instructions), 1, 2)) }, "operand p1 is not in this"},
		{"operand nil", func(m *hlo.Module, c *hlo.Computation) { c.Instructions[2].Operands[0] = nil }, "operand nil"},
		{"user missing", func(m *hlo.Module, c *hlo.Computation) { c.Instructions[0].Users = c.Instructions[0].Users[:1] }, "user mul is not among"},
		{"user twice", func(m *hlo.Module, c *hlo.Computation) {
			p := c.Instructions[1]
			p.Users = append(p.Users, p.Users[0])
		}, "p1 in main: user add does not use it, or is listed twice"},
		{"user that is none", func(m *hlo.Module, c *hlo.Computation) {
			p := c.Instructions[1]
			p.Users = append(p.Users, c.Root)
		}, "user mul does not use it"},
		{"control predecessor left out", func(m *hlo.Module, c *hlo.Computation) { c.Root.AddAfter(&hlo.Instruction{Name: "x"}) }, "control predecessor x"},
		{"order, not scheduled", func(m *hlo.Module, c *hlo.Computation) { slices.Reverse(c.Instructions) }, ""},
		{"order, scheduled", func(m *hlo.Module, c *hlo.Computation) { slices.Reverse(c.Instructions); m.Scheduled = true }, "it stands before add, which it needs"},
		{"control order, scheduled", func(m *hlo.Module, c *hlo.Computation) { c.Instructions[0].AddAfter(c.Root); m.Scheduled = true }, "before mul"},
		{"cycle", func(m *hlo.Module, c *hlo.Computation) { c.Instructions[2].SetOperand(1, c.Root) }, "a cycle"},
		{"control cycle", func(m *hlo.Module, c *hlo.Computation) { c.Instructions[0].AddAfter(c.Root) }, "a cycle"},
		{"uses itself", func(m *hlo.Module, c *hlo.Computation) { c.Root.SetOperand(1, c.Root) }, "before mul, which it needs"},
		{"calls itself", func(m *hlo.Module, c *hlo.Computation) {
			c.Root.Attributes = []hlo.Attribute{{Key: "to_apply", Calls: []*hlo.Computation{c}}}
		}, "recursion"},
		{"calls in a ring", func(m *hlo.Module, c *hlo.Computation) {
			d := m.NewComputation("d")
			d.Insert(0, m.NewInstruction("x", "custom-call", scalar))
			d.Root = d.Instructions[0]
			d.Root.Attributes = []hlo.Attribute{{Key: "calls", Calls: []*hlo.Computation{c}}}
			c.Root.Attributes = []hlo.Attribute{{Key: "calls", Calls: []*hlo.Computation{d}}}
		}, "recursion"},
		{"calls outside", func(m *hlo.Module, c *hlo.Computation) {
			c.Root.Attributes = []hlo.Attribute{{Key: "to_apply", Calls: []*hlo.Computation{{Name: "x"}}}}
		}, "not in the module"},
		{"alias", func(m *hlo.Module, c *hlo.Computation) { m.Aliases = []hlo.Alias{{Parameter: 1}} }, ""},
		{"alias of no output", func(m *hlo.Module, c *hlo.Computation) { m.Aliases = []hlo.Alias{{Output: []int{0}}} }, "no such output"},
		{"alias of no parameter", func(m *hlo.Module, c *hlo.Computation) { m.Aliases = []hlo.Alias{{Parameter: 2}} }, "no such parameter"},
		{"alias of no element", func(m *hlo.Module, c *hlo.Computation) { m.Aliases = []hlo.Alias{{Index: []int{3}}} }, "no such element"},
		{"alias of another size", func(m *hlo.Module, c *hlo.Computation) {
			m.Aliases = []hlo.Alias{{Parameter: 2}}
			p := m.NewInstruction("p2", hlo.Parameter, &hlo.Shape{Type: "f32", Dims: []int64{2}})
			p.Parameter = 2
			c.Insert(0, p)
		}, "they have 4 and 8 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, c := sum()
			test.spoil(m, c)
			err := Module(m)
			if test.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var v *Error
			if !errors.As(err, &v) {
				t.Fatalf("got %v, want an error with %q", err, test.want)
			}
			found := false
			for _, want := range strings.Split(test.want, "|") {
				found = found || strings.Contains(err.Error(), want)
			}
			if !found || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %q, want %q", err, test.want)
			}
		})
	}
}

// Modules of real programs are all right.
func TestVerifyRealModules(t *testing.T) {
	for name, text := range hlotest.Texts(t) {
		m, err := hlo.ParseString(text)
		if err == nil {
			err = Module(m)
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Whatever the methods of edit.go do to a graph, users and operands stay in step.
func TestVerifyAfterEdits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, c := sum()
		at := func(label string) *hlo.Instruction {
			return c.Instructions[rapid.IntRange(0, len(c.Instructions)-1).Draw(t, label)]
		}
		for range rapid.IntRange(0, 30).Draw(t, "edits") {
			i := at("instruction")
			switch rapid.IntRange(0, 4).Draw(t, "edit") {
			case 0:
				o := m.NewInstruction("new", hlo.Add, scalar, at("a"), at("b"))
				c.Insert(len(c.Instructions), o)
			case 1:
				// Only an instruction that stands before keeps the graph free of cycles.
				if n := slices.Index(c.Instructions, i); len(i.Operands) > 0 && n > 0 {
					i.SetOperand(rapid.IntRange(0, 1).Draw(t, "n"), c.Instructions[rapid.IntRange(0, n-1).Draw(t, "to")])
				}
			case 2:
				if n := slices.Index(c.Instructions, i); n > 0 {
					i.ReplaceUses(c.Instructions[rapid.IntRange(0, n-1).Draw(t, "by")], nil)
				}
			case 3:
				if len(i.Users) == 0 && i.Opcode != hlo.Parameter && i != c.Root {
					c.Remove(i)
				}
			case 4:
				d := i.Clone("copied")
				if i.Opcode != hlo.Parameter {
					c.Insert(len(c.Instructions), d)
				}
			}
		}
		m.Scheduled = rapid.Bool().Draw(t, "scheduled")
		if err := Module(m); err != nil {
			t.Fatal(err)
		}
	})
}
