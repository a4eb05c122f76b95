package pass

// Where clones and copies stand.

import (
	"slices"
	"strings"
	"testing"

	"gpumem/xla/internal/hlo"
)

// What has to run after an instruction has to run after its clone, too.
func TestControlSuccessors(t *testing.T) {
	text := func(early, late string) string {
		return head + `ENTRY e {
  q = f32[1]{0} parameter(0)
  p = f32[] reshape(q)
  k = f32[] negate(p)
  b = f32[1024]{0} broadcast(p), dimensions={}, control-predecessors={k}
  n = f32[1024]{0} negate(b)
` + early + `  c1 = f32[2048]{0} concatenate(n, n), dimensions={0}
  s1 = f32[1]{0} slice(c1), slice={[0:1]}
` + late + `  c2 = f32[1025]{0} concatenate(b, s1), dimensions={0}
  s2 = f32[1]{0} slice(c2), slice={[0:1]}
  ROOT o = (f32[1]{0}, f32[1]{0}) tuple(s2, w)
}
`
	}
	wait := "  w = f32[1]{0} negate(q), control-predecessors={b}\n"
	m := parse(t, text("", wait))
	apply(t, m, Options{Limit: 14 * kib})
	end(t, m.Entry, "c1", "s1", "b.remat", "w", "c2", "s2", "o")
	if w, b := at(t, m.Entry, "w"), at(t, m.Entry, "b.remat"); !slices.Contains(w.After, b) || !slices.Contains(b.After, at(t, m.Entry, "k")) {
		t.Errorf("w runs after %v, b.remat after %v", w.After, b.After)
	}
	// Once it has run, there is no way back.
	m = parse(t, text(wait, ""))
	if r := apply(t, m, Options{Limit: 14 * kib}); r.Chosen != 0 {
		t.Errorf("%+v", r)
	}
}

// Elements of elements are not computed again.
func TestNestedTuples(t *testing.T) {
	m := parse(t, head+`f {
  x = f32[] parameter(0)
  b = f32[1024]{0} broadcast(x), dimensions={}
  i = (f32[1024]{0}) tuple(b)
  ROOT o = ((f32[1024]{0}), f32[1024]{0}) tuple(i, b)
}
ENTRY e {
  p = f32[] parameter(0)
  f = ((f32[1024]{0}), f32[1024]{0}) fusion(p), kind=kLoop, calls=f
  n = f32[1024]{0} broadcast(p), dimensions={}
  c = f32[2048]{0} concatenate(n, n), dimensions={0}
  s = f32[1024]{0} slice(c), slice={[0:1024]}
  g = (f32[1024]{0}) get-tuple-element(f), index=0
  h = f32[1024]{0} get-tuple-element(g), index=0
  k = f32[1024]{0} get-tuple-element(f), index=1
  a = f32[1024]{0} add(s, h)
  ROOT z = f32[1024]{0} add(a, k)
}
`)
	if apply(t, m, Options{}); m.Entry.Instruction("f.remat") != nil {
		t.Errorf("f is recomputed: %v", order(m.Entry))
	}
}

// A clone stands before the next user of its operand, so that the operand need not live longer.
func TestOperandUsers(t *testing.T) {
	m := parse(t, head+`ENTRY e {
  p = f32[] parameter(0)
  s = f32[] negate(p)
  b = f32[1024]{0} broadcast(s), dimensions={}
  n = f32[1024]{0} negate(b)
  c = f32[2048]{0} concatenate(n, n), dimensions={0}
  d = f32[1]{0} slice(c), slice={[0:1]}
  u = f32[] exponential(s)
  v = f32[1]{0} reshape(u)
  e = f32[1025]{0} concatenate(b, d), dimensions={0}
  r = f32[1]{0} slice(e), slice={[0:1]}
  ROOT o = (f32[1]{0}, f32[1]{0}) tuple(r, v)
}
`)
	apply(t, m, Options{Limit: 14 * kib})
	end(t, m.Entry, "c", "d", "b.remat", "u", "v", "e", "r", "o")
}

// The copies to the host and back get the time that they take.
func TestOffloadPlaces(t *testing.T) {
	text := head + `ENTRY e {
  p = f32[1024]{0} parameter(0)
  v = f32[1024]{0} negate(p)
` + strings.Join([]string{
		"  t1 = f32[1024]{0} tanh(p)", "  t2 = f32[1024]{0} tanh(t1)", "  t3 = f32[1024]{0} tanh(t2)", "  t4 = f32[1024]{0} tanh(t3)",
		"  t5 = f32[1024]{0} tanh(t4)", "  t6 = f32[1024]{0} tanh(t5)", "  t7 = f32[1024]{0} tanh(t6)", "  t8 = f32[1024]{0} tanh(t7)",
	}, "\n") + `
  ROOT z = f32[1024]{0} subtract(t8, v)
}
`
	for _, test := range []struct {
		to, from float32 // seconds
		want     string
	}{
		{1, 1.5, "p v copy-start t1 t2 copy-done t3 t4 t5 copy-start.1 t6 t7 t8 copy-done.1 z"},
		{0.5, 0.5, "p v copy-start t1 copy-done t2 t3 t4 t5 t6 t7 copy-start.1 t8 copy-done.1 z"},
		{2, 2, "p v copy-start t1 t2 t3 t4 copy-done copy-start.1 t5 t6 t7 t8 copy-done.1 z"},
	} {
		m := parse(t, text)
		h := *hostMemory
		h.ToHost, h.FromHost = 4096/test.to, 4096/test.from
		r := apply(t, m, Options{Limit: 15 * kib, offloadOnly: true, Host: &h})
		if got := strings.Join(order(m.Entry), " "); got != test.want || r.Added != 4 {
			t.Errorf("%v and %v seconds: %s\nwant %s", test.to, test.from, got, test.want)
		}
	}
	// One second more than there is.
	m := parse(t, text)
	h := *hostMemory
	h.ToHost, h.FromHost = 4096/2.5, 4096/2.5
	if r := apply(t, m, Options{Limit: 15 * kib, offloadOnly: true, Host: &h}); r.changed {
		t.Errorf("%v", order(m.Entry))
	}
	if v := at(t, m.Entry, "v"); v.Opcode != hlo.Opcode("negate") {
		t.Error(v.Opcode)
	}
}

// A value that nothing has used so far moves at no cost, so that it goes before a larger one
// that has to run twice.
func TestMovesGoFirst(t *testing.T) {
	m := parse(t, head+`ENTRY e {
  p = f32[] parameter(0)
  a = f32[4096]{0} broadcast(p), dimensions={}
  u = f32[1]{0} slice(a), slice={[0:1]}
  b = f32[1024]{0} broadcast(p), dimensions={}
  c = f32[2048]{0} broadcast(p), dimensions={}
  d = f32[1]{0} slice(c), slice={[0:1]}
  x = f32[1024]{0} multiply(b, b)
  y = f32[1]{0} slice(x), slice={[0:1]}
  z = f32[1]{0} slice(a), slice={[4:5]}
  ROOT o = (f32[1]{0}, f32[1]{0}, f32[1]{0}, f32[1]{0}) tuple(u, d, y, z)
}
`)
	r := apply(t, m, Options{Limit: 27 * kib})
	end(t, m.Entry, "a", "u", "c", "d", "b.remat", "x", "y", "z", "o")
	if r.Chosen != 1 || r.Added != 0 {
		t.Errorf("%+v", r)
	}
}
