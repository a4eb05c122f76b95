package pass

import (
	"errors"
	"math"
	"slices"
	"testing"

	"gpumem/xla/internal/hlo"
)

func TestNames(t *testing.T) {
	m := parse(t, head+"ENTRY e {\n  a = f32[] parameter(0)\n  b.1 = f32[] negate(a)\n  b.3 = f32[] negate(b.1)\n  c.remat = f32[] negate(b.3)\n  ROOT d.0 = f32[] negate(c.remat)\n}\n")
	n := newNames(m)
	for _, name := range []struct{ ask, want string }{
		{"a", "a.1"}, {"a", "a.2"}, {"b", "b"}, {"b", "b.2"}, {"b", "b.4"}, {"b.1", "b.5"}, {"c.remat", "c.remat.1"},
		{"c.remat2", "c.remat2"}, {"gte.remat", "gte.remat"}, {"gte.remat", "gte.remat.1"}, {"d", "d.1"}, {"x.", "x."}, {".7", ".7"},
	} {
		if got := n.free(name.ask); got != name.want {
			t.Errorf("%s: %s, want %s", name.ask, got, name.want)
		}
	}
	for name, want := range map[string]string{
		"add": "add.remat", "add.1": "add.1.remat", "add.remat": "add.remat2", "add.remat2": "add.remat3", "add.remat.1": "add.remat.1.remat", "add.rematx": "add.rematx.remat",
	} {
		if got := cloneName(name); got != want {
			t.Errorf("a clone of %s: %s, want %s", name, got, want)
		}
	}
}

// Positions are not unique, and a clone stands before the first of several all the same.
func TestList(t *testing.T) {
	m := parse(t, head+"ENTRY e {"+twoUsers+"}\n")
	l := newList(m.Entry)
	put := func(name string, before ...string) {
		i := m.NewInstruction(name, "negate", m.Entry.Root.Shape, m.Entry.Instructions[0])
		i.Parent = m.Entry
		k := l.add(i)
		var items []int32
		for _, b := range before {
			for j := range l.items {
				if l.items[j].i.Name == b {
					items = append(items, int32(j))
				}
			}
		}
		l.insertBeforeFirst(k, items)
	}
	put("x", "c2", "s1")
	put("y", "s1")
	put("z", "c2", "y", "s1")
	put("first", "p")
	var names []string
	for _, i := range l.order() {
		names = append(names, i.Name)
	}
	want := []string{"first", "p", "r", "b", "n", "c1", "x", "z", "y", "s1", "c2", "s2"}
	if !slices.Equal(names, want) {
		t.Errorf("%v; want %v", names, want)
	}
}

func TestXLAErrors(t *testing.T) {
	text := head + "ENTRY e {" + twoUsers + "}\n"
	m := parse(t, text)
	was := m.String()
	if r, err := Run(m, Options{Limit: math.MaxUint64}); err != nil || r.Chosen != 0 || m.String() != was {
		t.Errorf("without limit: %+v, %v", r, err)
	}
	m.Entry.Root = nil
	if _, err := Run(m, Options{}); err == nil {
		t.Error("a module without result is planned for")
	}
	m = parse(t, head+"ENTRY e {\n  p = f32[] parameter(0)\n  b = f32[<=4611686018427387904] broadcast(p), dimensions={}\n  ROOT r = f32[] custom-call(b), custom_call_target=\"f\"\n}\n")
	if _, err := Run(m, Options{}); !errors.Is(err, hlo.ErrTooLarge) {
		t.Errorf("a value without size: %v", err)
	}
}
