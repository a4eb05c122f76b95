package remat

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"gpumem/hlo"
	"gpumem/hlo/memory"
	"gpumem/hlo/verify"
	"gpumem/internal/test/hlotest"
	"gpumem/internal/test/remattest"
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

func TestRecomputable(t *testing.T) {
	const text = head + `random {
  q = f32[8] parameter(0)
  z = f32[] constant(0)
  r = f32[8] rng(z, z), distribution=rng_uniform
  ROOT a = f32[8] add(q, r)
}
called {
  q = f32[8] parameter(0)
  k = f32[8] custom-call(q), custom_call_target="x"
  ROOT a = f32[8] add(q, k)
}
effect {
  q = f32[8] parameter(0)
  ROOT k = f32[8] custom-call(q), custom_call_target="x", custom_call_has_side_effect=true
}
plus {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT z = f32[] add(x, y)
}
always {
  q = f32[8] parameter(0)
  ROOT y = pred[] constant(true)
}
ENTRY e {
  p = f32[8] parameter(0)
  m = f32[4,2]{1,0} parameter(1)
  state = u64[2] parameter(2)
  k = token[] after-all()
  zero = f32[] constant(0)
  no.constant = f32[8] constant({1,2,3,4,5,6,7,8})
  yes.add = f32[8] add(p, p)
  yes.reshape = f32[4,2] reshape(p)
  no.copy = f32[8]{0} copy(p)
  no.copy2 = f32[4,2] copy(m)
  yes.copy = f32[4,2]{0,1} copy(m)
  no.rng = f32[8] rng(zero, zero), distribution=rng_uniform
  yes.bits = (u64[2], u32[8]) rng-bit-generator(state), algorithm=rng_threefry
  no.state = u64[1] rng-get-and-update-state(), delta=1
  no.call = f32[8] call(p), to_apply=called
  no.while = f32[8] while(p), condition=always, body=called
  no.custom = f32[8] custom-call(p), custom_call_target="x"
  yes.fusion = f32[8] fusion(p), kind=kLoop, calls=called
  no.fusion = f32[8] fusion(p), kind=kLoop, calls=random
  no.fusion2 = f32[8] fusion(p), kind=kLoop, calls=effect
  yes.gather = f32[16] all-gather(p), dimensions={0}, channel_id=1, replica_groups={{0,1}}
  no.gather = f32[16] all-gather(p), dimensions={0}, channel_id=2, replica_groups={{0,1}}, constrain_layout=true
  yes.reduce = f32[8] all-reduce(p), to_apply=plus, channel_id=3
  yes.scatter = f32[4] reduce-scatter(p), dimensions={0}, to_apply=plus, replica_groups={{0,1}}
  yes.permute = f32[8] collective-permute(p), channel_id=4, source_target_pairs={{0,1}}
  no.send = (f32[8], u32[], token[]) send(p, k), channel_id=5
  no.senddone = token[] send-done(no.send), channel_id=5
  no.infeed = (f32[8], token[]) infeed(k)
  no.outfeed = token[] outfeed(p, k)
  yes.barrier = f32[8] opt-barrier(p)
  no.start = (f32[8], f32[8]) collective-permute-start(p), source_target_pairs={{0,1}}
  no.ata = ((f32[8]), f32[8], s32[]) all-to-all-start(p), constrain_layout=true, replica_groups={{0,1}}
  no.atadone = f32[8] all-to-all-done(no.ata)
  yes.atb = ((f32[8]), f32[8], s32[]) all-to-all-start(p), replica_groups={{0,1}}
  yes.atbdone = f32[8] all-to-all-done(yes.atb)
  yes.arstart = f32[8] all-reduce-start(p), to_apply=plus
  no.ardone = f32[8] all-reduce-done(yes.arstart)
  ROOT yes.root = f32[8] negate(p)
}
`
	m := parse(t, text)
	effects := map[*hlo.Computation]bool{}
	for _, i := range m.Entry.Instructions {
		want, rest, _ := strings.Cut(i.Name, ".")
		if rest == "" {
			continue
		}
		if got := recomputable(i, effects); got != (want == "yes") {
			t.Errorf("%s: %v", i.Name, got)
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

func TestRemoveDead(t *testing.T) {
	tests := []struct {
		name, text string
		changed    bool
		want       string // of the entry
		more       string // other computations
	}{
		{"nothing", "ENTRY e {\n  p = f32[] parameter(0)\n  ROOT n = f32[] negate(p)\n}\n", false, "p n", ""},
		{"a chain, not the parameter", "ENTRY e {\n  p = f32[] parameter(0)\n  q = f32[] parameter(1)\n  a = f32[] negate(q)\n  b = f32[] negate(a)\n  ROOT n = f32[] negate(p)\n}\n", true, "p q n", ""},
		{"what others wait for stays, and what waits", "ENTRY e {\n  p = f32[] parameter(0)\n  a = f32[] negate(p)\n  b = f32[] negate(p), control-predecessors={a}\n  ROOT n = f32[] negate(p)\n}\n", false, "p a b n", ""},
		{"effects stay", "ENTRY e {\n  p = f32[] parameter(0)\n  a = f32[] custom-call(p), custom_call_target=\"x\", custom_call_has_side_effect=true\n  b = f32[] custom-call(p), custom_call_target=\"x\"\n  ROOT n = f32[] negate(p)\n}\n", true, "p a n", ""},
		{"an annotation stays", "ENTRY e {\n  p = f32[] parameter(0)\n  a = f32[] custom-call(p), custom_call_target=\"Sharding\", sharding={replicated}\n  ROOT n = f32[] negate(p)\n}\n", false, "p a n", ""},
		{"computations", "f {\n  ROOT q = f32[] parameter(0)\n}\ng {\n  ROOT q = f32[] parameter(0)\n}\nENTRY e {\n  p = f32[] parameter(0)\n  a = f32[] call(p), to_apply=g\n  ROOT n = f32[] call(p), to_apply=f\n}\n", true, "p n", "f:q"},
		{"outputs and parameters of a fusion", `f {
  q = f32[] parameter(0)
  r = f32[] parameter(1)
  s = f32[] parameter(2)
  a = f32[] negate(q)
  b = f32[] negate(r)
  c = f32[] negate(s)
  ROOT o = (f32[], f32[], f32[]) tuple(a, b, c)
}
ENTRY e {
  p = f32[] parameter(0)
  u = f32[] negate(p)
  f = (f32[], f32[], f32[]) fusion(p, u, p), kind=kLoop, calls=f
  g = f32[] get-tuple-element(f), index=0
  h = f32[] get-tuple-element(f), index=2
  ROOT n = f32[] add(g, h)
}
`, true, "p f g h n", "f:q s a c o"},
		{"all outputs but one", `f {
  q = f32[] parameter(0)
  a = f32[] negate(q)
  ROOT o = (f32[], f32[]) tuple(q, a)
}
ENTRY e {
  p = f32[] parameter(0)
  f = (f32[], f32[]) fusion(p), kind=kLoop, calls=f
  g = f32[] get-tuple-element(f), index=1
  h = f32[] negate(p), control-predecessors={g}
  ROOT n = f32[] add(g, h)
}
`, true, "p f h n", "f:q a"},
		{"a fusion in place keeps its outputs", `f {
  q = f32[] parameter(0)
  a = f32[] negate(q)
  ROOT o = (f32[], f32[]) tuple(q, a)
}
ENTRY e {
  p = f32[] parameter(0)
  f = (f32[], f32[]) fusion(p), kind=kLoop, calls=f, output_to_operand_aliasing={{0}: (0, {})}
  ROOT g = f32[] get-tuple-element(f), index=1
}
`, false, "p f g", "f:q a o"},
		{"the last element is the result", `f {
  q = f32[] parameter(0)
  a = f32[] negate(q)
  ROOT o = (f32[], f32[]) tuple(q, a)
}
ENTRY e {
  p = f32[] parameter(0)
  f = (f32[], f32[]) fusion(p), kind=kLoop, calls=f
  ROOT g = f32[] get-tuple-element(f), index=1
}
`, true, "p f", "f:q a"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := parse(t, head+test.text)
			sum := remattest.Meaning(m)
			changed, err := removeDead(m, map[*hlo.Computation]bool{})
			if err != nil {
				t.Fatal(err)
			}
			if err := verify.Module(m); err != nil {
				t.Fatalf("%v\n%s", err, m)
			}
			var more []string
			for _, c := range m.Computations {
				if c != m.Entry {
					more = append(more, c.Name+":"+strings.Join(order(c), " "))
				}
			}
			got := strings.Join(order(m.Entry), " ")
			if changed != test.changed || got != test.want || strings.Join(more, " ") != test.more {
				t.Errorf("%v: %s; %s\n%s", changed, got, more, m)
			}
			if remattest.Meaning(m) != sum {
				t.Errorf("it computes something else\n%s", m)
			}
		})
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
	if _, err := XLA(m, Options{Size: func(*hlo.Shape) (uint64, error) { return 0, bad }}); !errors.Is(err, bad) {
		t.Errorf("without sizes: %v", err)
	}
	if _, err := XLA(m, Options{Async: map[*hlo.Computation]int64{m.Entry: math.MaxInt64}}); !errors.Is(err, hlo.ErrTooLarge) {
		t.Errorf("too many devices: %v", err)
	}
	if m.String() != was {
		t.Error("an error has changed the module")
	}
	if _, err := XLA(m, Options{Limit: 14 * kib, Strategies: Compress, Compact: func(*hlo.Shape) (*hlo.Shape, error) { return nil, bad }}); !errors.Is(err, bad) {
		t.Errorf("without compact shapes: %v", err)
	}
	broken := parse(t, text)
	broken.Entry.Root = nil
	if _, err := XLA(broken, Options{}); err == nil {
		t.Error("a module without result")
	}
	// The largest limit there is means none, and bounds of any size end.
	if r, err := XLA(m, Options{Limit: math.MaxUint64, BlockLimit: math.MaxInt, BlockFactor: math.MaxInt}); err != nil || r.Changed {
		t.Errorf("%+v, %v", r, err)
	}
	for _, a := range []Algorithm{Sweep, PeakFirst} {
		if r, err := XLA(parse(t, text), Options{Algorithm: a, BlockLimit: math.MaxInt, BlockFactor: math.MaxInt}); err != nil || !r.Changed {
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
