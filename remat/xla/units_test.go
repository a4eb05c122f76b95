package xla

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"gpumem/hlo"
	"gpumem/hlo/memory"
	"gpumem/internal/test/hlotest"
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

func TestSameShape(t *testing.T) {
	shape := func(text string) *hlo.Shape {
		s, err := hlotest.ParseShape(text)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, x := range []struct {
		a, b string
		same bool
	}{
		{"f32[2,3]", "f32[2,3]{1,0}", true}, {"f32[2,3]{0,1}", "f32[2,3]", false}, {"f32[2]", "f32[3]", false},
		{"f32[2]", "s32[2]", false}, {"(f32[2], f32[3])", "(f32[2]{0}, f32[3])", true}, {"(f32[2])", "f32[2]", false}, {"f32[<=2]", "f32[2]", false},
		{"f32[2]{0:S(5)}", "f32[2]{0}", false}, {"token[]", "token[]", true},
	} {
		if got := sameShape(shape(x.a), shape(x.b)); got != x.same {
			t.Errorf("%s and %s: %v", x.a, x.b, got)
		}
	}
}

// Positions are not unique, and a clone stands before the first of several all the same.
func TestList(t *testing.T) {
	m := parse(t, head+"ENTRY e {"+twoUsers+"}\n")
	l := newList(m.Entry)
	l.promote(func(int32) bool { return true })
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
	var names, express []string
	for _, i := range l.order() {
		names = append(names, i.Name)
	}
	for k := l.firstExpress; k != none; k = l.items[k].nextExpress {
		express = append(express, l.items[k].i.Name)
	}
	want := []string{"first", "p", "r", "b", "n", "c1", "x", "z", "y", "s1", "c2", "s2"}
	if !slices.Equal(names, want) || !slices.Equal(express, want) {
		t.Errorf("%v, %v; want %v", names, express, want)
	}
}

// A step says what was chosen, and what that freed.
func TestSteps(t *testing.T) {
	m := parse(t, threeCalls)
	var steps []string
	apply(t, m, Options{Limit: 22 * kib, OnStep: func(s Step) {
		steps = append(steps, fmt.Sprint(s.At.Name, " ", s.Chosen[0].Name, " ", s.Added, " ", s.Before-s.After, " ", s.Strategy == Recompute))
	}})
	want := []string{"k1 b 1 4096 true", "k2 b.remat 1 4096 true", "k3 b.remat2 1 4096 true"}
	if !slices.Equal(steps, want) {
		t.Errorf("%v, want %v", steps, want)
	}
}

// Blocks of several instructions are of use where single ones are not.
func TestBlocks(t *testing.T) {
	text := head + `ENTRY e {
  s = f32[] parameter(0)
  a = f32[1024]{0} broadcast(s), dimensions={}
  b = f32[1024]{0} negate(a)
  c = f32[1024]{0} negate(b)
  x = f32[4096]{0} broadcast(s), dimensions={}
  y = f32[1024]{0} slice(x), slice={[0:1024]}
  d = f32[1024]{0} add(c, y)
  ROOT r = f32[] custom-call(d), custom_call_target="x"
}
`
	for limit, want := range map[int]int{1: 0, 2: 0, 4: 3} {
		m := parse(t, text)
		// To compute c again, b has to stay or to be computed again, and so on.
		r := apply(t, m, Options{Limit: 21 * kib, BlockLimit: limit, BlockFactor: 10})
		if r.Chosen != want {
			t.Errorf("blocks of %d: %d chosen\n%s", limit, r.Chosen, m)
		}
		if want > 0 && (r.After > 21*kib || r.LargestBlock < 3) {
			t.Errorf("blocks of %d: %+v", limit, r)
		}
	}
}

func TestXLAErrors(t *testing.T) {
	text := head + "ENTRY e {" + twoUsers + "}\n"
	bad := errors.New("no size")
	m := parse(t, text)
	was := m.String()
	if _, err := Run(m, Options{Size: func(*hlo.Shape) (uint64, error) { return 0, bad }}); !errors.Is(err, bad) {
		t.Errorf("without sizes: %v", err)
	}
	if _, err := Run(m, Options{Async: map[*hlo.Computation]int64{m.Entry: math.MaxInt64}}); !errors.Is(err, hlo.ErrTooLarge) {
		t.Errorf("too many devices: %v", err)
	}
	if m.String() != was {
		t.Error("an error has changed the module")
	}
	if _, err := Run(m, Options{Limit: 14 * kib, Strategies: Compress, Compact: func(*hlo.Shape) (*hlo.Shape, error) { return nil, bad }}); !errors.Is(err, bad) {
		t.Errorf("without compact shapes: %v", err)
	}
	broken := parse(t, text)
	broken.Entry.Root = nil
	if _, err := Run(broken, Options{}); err == nil {
		t.Error("a module without result")
	}
	// The largest limit there is means none, and bounds of any size end.
	if r, err := Run(m, Options{Limit: math.MaxUint64, BlockLimit: math.MaxInt, BlockFactor: math.MaxInt}); err != nil || r.Changed {
		t.Errorf("%+v, %v", r, err)
	}
	for _, a := range []Algorithm{Sweep, PeakFirst} {
		if r, err := Run(parse(t, text), Options{Algorithm: a, BlockLimit: math.MaxInt, BlockFactor: math.MaxInt}); err != nil || !r.Changed {
			t.Errorf("%+v, %v", r, err)
		}
	}
}

// What runs on threads that are not to be changed is not.
func TestOtherThreads(t *testing.T) {
	text := head + "f {" + twoUsers + "}, execution_thread=\"host\"\ng {" + twoUsers + `}
ENTRY e {
  p = f32[1]{0} parameter(0)
  s = ((f32[1]{0}), f32[1]{0}, s32[]) call-start(p), to_apply=f, async_execution_thread="host"
  d = f32[1]{0} call-done(s)
  ROOT k = f32[1]{0} call(d), to_apply=g
}
`
	for _, test := range []struct {
		threads []string
		want    []int
	}{{nil, []int{9, 9}}, {[]string{memory.MainThread}, []int{8, 9}}, {[]string{memory.MainThread, "host"}, []int{9, 9}}} {
		m := parse(t, text)
		apply(t, m, Options{Limit: 13 * kib, Threads: test.threads})
		if got := sizes(m, "f", "g"); !slices.Equal(got, test.want) {
			t.Errorf("threads %v: %v instructions, want %v", test.threads, got, test.want)
		}
	}
}
