package hlo_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	. "gpumem/xla/internal/hlo"
	"gpumem/xla/internal/test/hlotest"
)

// cloned says where a copy of the module differs from what its text is read as, shapes
// and lines aside, or is not a copy that may be changed by itself.
func cloned(m *Module) error {
	text := m.String()
	c := m.Clone()
	if got := c.String(); got != text {
		return fmt.Errorf("printed as\n%s\nthe copy as\n%s", text, got)
	}
	again, err := ParseString(text)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, text)
	}
	if err := hlotest.Equal(c, again); err != nil {
		return fmt.Errorf("%w\n%s", err, text)
	}
	if c.IDs() != again.IDs() || c.Style != m.Style {
		return fmt.Errorf("%d IDs in the style %v, expected %d in %v", c.IDs(), c.Style, again.IDs(), m.Style)
	}
	for n, d := range c.Computations {
		if d.Module != c {
			return fmt.Errorf("computation %s is another module's", d.Name)
		}
		for k, i := range d.Instructions {
			want := again.Computations[n].Instructions[k]
			switch {
			case i.ID != want.ID || i.Parent != d:
				return fmt.Errorf("%s in %s: ID %d, expected %d", i.Name, i.Parent.Name, i.ID, want.ID)
			case !slices.Equal(names(i.Users), names(want.Users)):
				return fmt.Errorf("%s: users %v, expected %v", i.Name, names(i.Users), names(want.Users))
			}
			for _, list := range [][]*Instruction{i.Operands, i.Users, i.After} {
				if cap(list) != len(list) {
					return fmt.Errorf("%s: lists have room for others' entries", i.Name)
				}
				for _, o := range list {
					if o.Parent != d {
						return fmt.Errorf("%s: %s is another computation's", i.Name, o.Name)
					}
				}
			}
			for _, a := range i.Attributes {
				for _, callee := range a.Calls {
					if callee.Module != c {
						return fmt.Errorf("%s: %s calls another module's %s", i.Name, a.Key, callee.Name)
					}
				}
			}
			// All that may be changed in place.
			i.Name, i.Opcode, i.Literal = "other", "other", "other"
			for n := range i.Attributes {
				a := &i.Attributes[n]
				a.Key = "other"
				for k := range a.Calls {
					a.Calls[k] = nil
				}
			}
			clear(i.Operands)
			clear(i.Users)
			clear(i.After)
		}
		clear(d.Instructions)
	}
	clear(c.Computations)
	clear(c.Attributes)
	clear(c.Aliases)
	if m.String() != text {
		return fmt.Errorf("a change of the copy made\n%s\nof\n%s", m, text)
	}
	return nil
}

func TestCloneModule(t *testing.T) {
	for _, c := range texts {
		t.Run(c.name, func(t *testing.T) {
			// As it is printed: IDs of what stood inside others are in another order.
			if err := cloned(parsed(t, parsed(t, c.text).String())); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestCloneReal(t *testing.T) {
	for name, text := range hlotest.Texts(t) {
		t.Run(name, func(t *testing.T) {
			if err := cloned(parsed(t, text)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestCloneGenerated(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := generated().Draw(t, "module")
		// Computations may stand anywhere, and users are in the order of edits.
		m.Computations = rapid.Permutation(m.Computations).Draw(t, "computations")
		if len(m.Entry.Instructions) > 1 {
			i := rapid.SampledFrom(m.Entry.Instructions[1:]).Draw(t, "instruction")
			if len(i.Operands) > 0 {
				n := rapid.IntRange(0, len(i.Operands)-1).Draw(t, "operand")
				old := i.Operands[n]
				i.SetOperand(n, m.Entry.Instructions[0])
				i.SetOperand(n, old)
			}
		}
		if err := cloned(m); err != nil {
			t.Fatal(err)
		}
	})
}

func BenchmarkClone(b *testing.B) {
	var modules []*Module
	size := 0
	for _, text := range hlotest.Texts(b) {
		modules = append(modules, parsed(b, text))
		size += len(text)
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		for _, m := range modules {
			m.Clone()
		}
	}
}
