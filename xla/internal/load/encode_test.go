package load

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/test/hlotest"
)

// asText is a module as a planner gets it, and as it reads from its text.
func asText(t testing.TB, b []byte) *hlo.Module {
	t.Helper()
	m, err := read(b)
	if err == nil {
		m, err = hlo.ParseString(m.String())
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// sorted is a message with its fields in the order of their numbers, and those of the first of
// the numbers by content, whose fields are sorted in the same way.
func sorted(b []byte, in ...protowire.Number) []byte {
	var all []field
	_ = walk(b, func(x field) error {
		if len(in) > 0 && x.n == in[0] {
			x.bytes = sorted(x.bytes, in[1:]...)
		}
		all = append(all, x)
		return nil
	})
	slices.SortStableFunc(all, func(a, b field) int {
		if a.n == b.n && len(in) > 0 && a.n == in[0] {
			return bytes.Compare(a.bytes, b.bytes)
		}
		return int(a.n - b.n)
	})
	var to []byte
	for _, x := range all {
		to = appendField(to, x)
	}
	return to
}

// What is not changed is written as it was, to the byte, if perhaps in another order.
func TestRewriteUnchanged(t *testing.T) {
	for _, name := range pairs(t) {
		t.Run(filepath.Base(name), func(t *testing.T) {
			b := contents(t, name+".pb")
			d, err := decode(b, nil)
			if err != nil {
				t.Fatal(err)
			}
			got, err := Rewrite(b, asText(t, b))
			if err != nil {
				t.Fatal(err)
			}
			canonical := func(b []byte) []byte { return sorted(b, moduleComputations, computationInstructions) }
			if want := canonical(d.raw); !bytes.Equal(canonical(got), want) {
				t.Errorf("%d bytes, other than the %d of the original", len(got), len(d.raw))
			}
		})
	}
}

// cloneSome has the last user of every third instruction read a clone that stands right
// before it, as a planner does. It returns how many.
func cloneSome(m *hlo.Module) (n int) {
	effects := hlo.Effects{}
	for _, c := range slices.Clone(m.Computations) {
		for k, i := range slices.Clone(c.Instructions) {
			if k%3 > 0 || len(i.Users) == 0 || !effects.Repeatable(i) || i.Opcode == hlo.While || i.Opcode == hlo.AsyncStart {
				continue
			}
			u := i.Users[len(i.Users)-1]
			clone := i.CloneOwning(i.Name + ".remat")
			c.Insert(slices.Index(c.Instructions, u), clone)
			for at, o := range u.Operands {
				if o == i {
					u.SetOperand(at, clone)
				}
			}
			n++
		}
	}
	return n
}

// equalButNames compares a module that was written with the one that was to be: instructions may
// have a number behind their names, and computations another order.
func equalButNames(got, want *hlo.Module) error {
	byName := func(a, b *hlo.Computation) int { return strings.Compare(a.Name, b.Name) }
	want = want.Clone()
	for _, m := range []*hlo.Module{got, want} {
		slices.SortFunc(m.Computations, byName)
	}
	for n := range min(len(got.Computations), len(want.Computations)) {
		list := want.Computations[n].Instructions
		for k, i := range got.Computations[n].Instructions {
			if k < len(list) && strings.HasPrefix(i.Name, list[k].Name+".") {
				i.Name = list[k].Name
			}
		}
	}
	return hlotest.Equal(got, want)
}

func TestRewriteClones(t *testing.T) {
	cloned := 0
	for _, name := range pairs(t) {
		t.Run(filepath.Base(name), func(t *testing.T) {
			b := contents(t, name+".pb")
			m := asText(t, b)
			cloned += cloneSome(m)
			got, err := Rewrite(b, m)
			if err != nil {
				t.Fatal(err)
			}
			again := asText(t, got)
			if err := equalButNames(asText(t, got), m); err != nil {
				t.Error(err)
			}
			names, ids := map[string]bool{}, map[int64]bool{}
			d, _ := decode(got, nil)
			for _, c := range d.computations {
				for _, i := range c.list {
					if names[i.i.Name] || ids[i.id] && i.id>>32 != 0 {
						t.Errorf("%s, id %d, is there twice", i.i.Name, i.id)
					}
					names[i.i.Name], ids[i.id] = true, true
				}
			}
			// A module that was written can be written again.
			if _, err := Rewrite(got, again); err != nil {
				t.Error(err)
			}
		})
	}
	if cloned < 100 {
		t.Errorf("%d instructions are cloned", cloned)
	}
}

func TestRewriteRefuses(t *testing.T) {
	b := contents(t, "testdata/loop-0.12.0.1.opt.pb")
	first := func(m *hlo.Module) *hlo.Instruction {
		i := m.Entry.Root.Operands[0]
		for i.Opcode == hlo.Parameter || i.Opcode == hlo.GetTupleElement {
			i = m.Entry.Instructions[slices.Index(m.Entry.Instructions, i)+1]
		}
		return i
	}
	for _, test := range []struct {
		name string
		edit func(m *hlo.Module)
		want string
	}{
		{"an opcode that is nowhere", func(m *hlo.Module) { first(m).Opcode = "erf" }, "is a clone of no instruction"},
		{"another attribute", func(m *hlo.Module) {
			i := first(m)
			i.Attributes = append(i.Attributes, hlo.Attribute{Key: "channel_id", Value: "7"})
		}, "reads back otherwise"},
		{"another entry", func(m *hlo.Module) { m.Entry.Name = "other" }, "computation other is none of the original's"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := asText(t, b)
			test.edit(m)
			if _, err := Rewrite(b, m); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v; want %q", err, test.want)
			}
		})
	}
	if _, err := Rewrite([]byte("HloModule m"), asText(t, b)); err == nil {
		t.Error("a text is rewritten")
	}
}

// A planner's order is that of execution, also where the original has none.
func TestRewriteSchedules(t *testing.T) {
	b := contents(t, "testdata/train-0.4.13.opt.pb")
	m := asText(t, b)
	if m.Scheduled {
		t.Fatal("the module has a schedule")
	}
	m.Scheduled = true
	m.Attributes = append([]hlo.Attribute{{Key: "is_scheduled", Value: "true"}}, m.Attributes...)
	got, err := Rewrite(b, m)
	if err != nil {
		t.Fatal(err)
	}
	if again := asText(t, got); again.String() != m.String() {
		t.Errorf("%s\nwant\n%s", again, m)
	}
}

// What a planner adds beside clones: tuples, elements of them, barriers.
func TestRewriteNew(t *testing.T) {
	b := contents(t, "testdata/loop-0.12.0.1.opt.pb")
	m := asText(t, b)
	var i *hlo.Instruction
	for _, x := range m.Entry.Instructions {
		if len(x.Users) > 0 && x.Shape.IsArray() {
			i = x
			break
		}
	}
	users := slices.Clone(i.Users)
	shape := &hlo.Shape{Type: hlo.Tuple, Elements: []*hlo.Shape{i.Shape, i.Shape}}
	tuple := m.NewInstruction("remat_tuple", hlo.TupleOp, shape, i, i)
	barrier := m.NewInstruction("remat_barrier", hlo.OptBarrier, shape, tuple)
	element := m.NewInstruction("remat_gte", hlo.GetTupleElement, i.Shape, barrier)
	element.Attributes = []hlo.Attribute{{Key: "index", Value: "1"}}
	m.Entry.Insert(slices.Index(m.Entry.Instructions, i)+1, tuple, barrier, element)
	for _, u := range users {
		for n, o := range u.Operands {
			if o == i {
				u.SetOperand(n, element)
			}
		}
	}
	got, err := Rewrite(b, m)
	if err != nil {
		t.Fatal(err)
	}
	if text := asText(t, got).String(); !strings.Contains(text, "opt-barrier") {
		t.Error("no barrier in", text)
	}
}

// A fusion loses outputs that nothing reads, and the operands that only these need. What
// computations take and return, which has no text, is that of their instructions.
func TestRewriteFusionsWithLess(t *testing.T) {
	b := contents(t, "testdata/outputs-0.12.0.1.pb")
	for _, test := range []struct{ name, element, parameter, want string }{
		{"one output less", "first", "x", "(f32[8]{0}, f32[4]{0}) f32[8]{0} f32[4]{0}"},
		{"one output left", "left", "y", "f32[4]{0} f32[4]{0}"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := asText(t, b)
			named := map[string]*hlo.Instruction{}
			for _, i := range m.Entry.Instructions {
				named[i.Name] = i
			}
			fusion := named[test.element].Operands[0]
			named[test.element].ReplaceUses(named[test.parameter], nil)
			if _, err := hlo.RemoveDead(m); err != nil {
				t.Fatal(err)
			}
			got, err := Rewrite(b, m)
			if err != nil {
				t.Fatal(err)
			}
			d, err := decode(got, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range d.computations {
				if c.c.Name != fusion.Called()[0].Name {
					continue
				}
				d.fields(c.raw).messages(computationProgramShape, func(f *fields) {
					var shapes []string
					add := func(s *hlo.Shape) { shapes = append(shapes, s.String()) }
					f.shapes(programResult, add)
					f.shapes(programParameters, add)
					if got := strings.Join(shapes, " "); got != test.want {
						t.Errorf("it returns and takes %s; want %s", got, test.want)
					}
				})
			}
		})
	}
}
