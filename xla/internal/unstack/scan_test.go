package unstack_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/legal"
	"gpumem/xla/internal/load"
	"gpumem/xla/internal/test/remattest"
	"gpumem/xla/internal/unstack"
)

// layers is a forward loop that stacks up x, as xs, and tanh(x), as ts, of three layers, and a
// backward loop that reads both.
const layers = `HloModule m, is_scheduled=true

save {
  s = f32[3,64]{1,0} parameter(0)
  v = f32[64]{0} parameter(1)
  i = s32[] parameter(2)
  u = f32[1,64]{1,0} bitcast(v)
  zero = s32[] constant(0)
  ROOT d = f32[3,64]{1,0} dynamic-update-slice(s, u, i, zero)
}

save_tanh {
  s = f32[3,64]{1,0} parameter(0)
  v = f32[64]{0} parameter(1)
  i = s32[] parameter(2)
  y = f32[64]{0} tanh(v)
  u = f32[1,64]{1,0} bitcast(y)
  zero = s32[] constant(0)
  ROOT d = f32[3,64]{1,0} dynamic-update-slice(s, u, i, zero)
}

forward {
  p = (s32[], f32[64]{0}, f32[3,64]{1,0}, f32[3,64]{1,0}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[64]{0} get-tuple-element(p), index=1
  xs = f32[3,64]{1,0} get-tuple-element(p), index=2
  ts = f32[3,64]{1,0} get-tuple-element(p), index=3
  xs1 = f32[3,64]{1,0} fusion(xs, x, i), kind=kLoop, calls=save
  ts1 = f32[3,64]{1,0} fusion(ts, x, i), kind=kLoop, calls=save_tanh
  x1 = f32[64]{0} sine(x)
  one = s32[] constant(1)
  i1 = s32[] add(i, one)
  ROOT r = (s32[], f32[64]{0}, f32[3,64]{1,0}, f32[3,64]{1,0}) tuple(i1, x1, xs1, ts1)
}

forward_less {
  p = (s32[], f32[64]{0}, f32[3,64]{1,0}, f32[3,64]{1,0}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(3)
  ROOT less = pred[] compare(i, n), direction=LT
}

both {
  xs = f32[3,64]{1,0} parameter(0)
  ts = f32[3,64]{1,0} parameter(1)
  g = f32[64]{0} parameter(2)
  j = s32[] parameter(3)
  last = s32[] constant(2)
  at = s32[] subtract(last, j)
  zero = s32[] constant(0)
  x = f32[1,64]{1,0} dynamic-slice(xs, at, zero), dynamic_slice_sizes={1,64}
  t = f32[1,64]{1,0} dynamic-slice(ts, at, zero), dynamic_slice_sizes={1,64}
  xt = f32[1,64]{1,0} multiply(x, t)
  b = f32[64]{0} bitcast(xt)
  ROOT m = f32[64]{0} multiply(b, g)
}

backward {
  p = (s32[], f32[64]{0}, f32[3,64]{1,0}, f32[3,64]{1,0}) parameter(0)
  j = s32[] get-tuple-element(p), index=0
  g = f32[64]{0} get-tuple-element(p), index=1
  xs = f32[3,64]{1,0} get-tuple-element(p), index=2
  ts = f32[3,64]{1,0} get-tuple-element(p), index=3
  g1 = f32[64]{0} fusion(xs, ts, g, j), kind=kLoop, calls=both
  one = s32[] constant(1)
  j1 = s32[] add(j, one)
  ROOT r = (s32[], f32[64]{0}, f32[3,64]{1,0}, f32[3,64]{1,0}) tuple(j1, g1, xs, ts)
}

backward_less {
  p = (s32[], f32[64]{0}, f32[3,64]{1,0}, f32[3,64]{1,0}) parameter(0)
  j = s32[] get-tuple-element(p), index=0
  n = s32[] constant(3)
  ROOT less = pred[] compare(j, n), direction=LT
}

ENTRY e {
  p = f32[64]{0} parameter(0)
  zero = s32[] constant(0)
  i = s32[] copy(zero)
  j = s32[] copy(zero)
  x = f32[64]{0} copy(p)
  nothing = f32[] constant(0)
  xs = f32[3,64]{1,0} broadcast(nothing), dimensions={}
  ts = f32[3,64]{1,0} broadcast(nothing), dimensions={}
  a = (s32[], f32[64]{0}, f32[3,64]{1,0}, f32[3,64]{1,0}) tuple(i, x, xs, ts)
  f = (s32[], f32[64]{0}, f32[3,64]{1,0}, f32[3,64]{1,0}) while(a), condition=forward_less, body=forward, backend_config={"known_trip_count":{"n":"3"}}
  y = f32[64]{0} get-tuple-element(f), index=1
  g = f32[64]{0} cosine(y)
  fxs = f32[3,64]{1,0} get-tuple-element(f), index=2
  fts = f32[3,64]{1,0} get-tuple-element(f), index=3
  b = (s32[], f32[64]{0}, f32[3,64]{1,0}, f32[3,64]{1,0}) tuple(j, g, fxs, fts)
  w = (s32[], f32[64]{0}, f32[3,64]{1,0}, f32[3,64]{1,0}) while(b), condition=backward_less, body=backward, backend_config={"known_trip_count":{"n":"3"}}
  ROOT r = f32[64]{0} get-tuple-element(w), index=1
}
`

// ExampleDrop drops the stack of tanh(x): the backward loop computes it again from x.
func ExampleDrop() {
	m, err := hlo.ParseString(layers)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, p := range unstack.Find(m) {
		for _, s := range p.Stacks {
			list, _, ok := p.Needs([]*unstack.Stack{s}, false)
			fmt.Println(p.Key(s), s.Bytes, len(list), ok)
		}
	}
	if _, err := unstack.Drop(m, []string{"forward/ts1"}, false); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(m.Entry.Instruction("f").Shape)
	for _, i := range m.Computation("backward").Instructions {
		if i.Opcode == hlo.Fusion {
			fmt.Println(i.Name)
		}
	}
	// Output:
	// forward/xs1 768 0 false
	// forward/ts1 768 1 true
	// (s32[], f32[64]{0}, f32[3,64]{1,0})
	// x.remat
	// ts1.remat
	// g1
}

// without returns the text of layers without ts.
func without(t *testing.T) (*hlo.Module, string) {
	m := remattest.Parsed(t, layers)
	after := m.Clone()
	if _, err := unstack.Drop(after, []string{"forward/ts1"}, false); err != nil {
		t.Fatal(err)
	}
	remattest.Same(t, m, after)
	return m, after.String()
}

// TestWrongValueIsRefused: each change of a legal plan makes the backward loop compute another
// value, and the checker says so.
func TestWrongValueIsRefused(t *testing.T) {
	m, right := without(t)
	if err := (legal.Options{}).Check(m, remattest.Parsed(t, right)); err != nil {
		t.Fatalf("%v\n%s", err, right)
	}
	for _, c := range []struct{ name, old, new string }{
		{"the slot of another round", "constant = s32[] constant(2)", "constant = s32[] constant(1)"},
		{"another operation", "y = f32[64]{0} tanh(v)", "y = f32[64]{0} sine(v)"},
		{"another operand", "ts1.remat = f32[64]{0} fusion(x.remat)", "ts1.remat = f32[64]{0} fusion(g)"},
		{"the slot in the given order", "subtract = s32[] subtract(constant, param_1)", "subtract = s32[] add(param_1, zero)"},
		{"what is stacked up is another value", "xs1 = f32[3,64]{1,0} fusion(xs, x, i)", "xs1 = f32[3,64]{1,0} fusion(xs, x1, i)"},
		{"not all slots are written", "n = s32[] constant(3)", "n = s32[] constant(2)"},
		{"the rounds begin later", "i = s32[] copy(zero)\n", "i = s32[] copy(two)\n"},
		{"another element begins the loop", "tuple(j, g, fxs)", "tuple(j, y, fxs)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			changed := strings.Replace(right, c.old, c.new, 1)
			changed = strings.Replace(changed, "  subtract = s32[] add(param_1, zero)", "  zero = s32[] constant(0)\n  subtract = s32[] add(param_1, zero)", 1)
			changed = strings.Replace(changed, "  i = s32[] copy(two)", "  two = s32[] constant(2)\n  i = s32[] copy(two)", 1)
			changed = strings.Replace(changed, "  xs1 = f32[3,64]{1,0} fusion(xs, x1, i), kind=kLoop, calls=save\n  x1 = f32[64]{0} sine(x)\n", "  x1 = f32[64]{0} sine(x)\n  xs1 = f32[3,64]{1,0} fusion(xs, x1, i), kind=kLoop, calls=save\n", 1)
			if changed == right {
				t.Fatalf("%q is not in\n%s", c.old, right)
			}
			// It may be in the forward body, too: there it is another fault.
			if err := (legal.Options{}).Check(m, remattest.Parsed(t, changed)); err == nil {
				t.Errorf("passes:\n%s", changed)
			}
		})
	}
}

// TestSharedMemoryIsRefused: a plan must not begin two elements of a loop's state in the same memory if
// a round writes there.
func TestSharedMemoryIsRefused(t *testing.T) {
	m, plan := without(t)
	ahead, behind, _ := strings.Cut(plan, "backward {")
	const state, more = "(s32[], f32[64]{0}, f32[3,64]{1,0})", "(s32[], f32[64]{0}, f32[3,64]{1,0}, f32[64]{0})"
	bodies, entry, _ := strings.Cut(behind, "ENTRY")
	for c, legally := range map[string]bool{"p": true, "g": false} {
		b := strings.NewReplacer(state, more, "tuple(j1, g1, xs)", "tuple(j1, g1, xs, c)", "  j = s32[] get-tuple-element(p), index=0\n  g =", "  c = f32[64]{0} get-tuple-element(p), index=3\n  j = s32[] get-tuple-element(p), index=0\n  g =").Replace(bodies)
		e := strings.NewReplacer("b = "+state, "b = "+more, "w = "+state, "w = "+more, "tuple(j, g, fxs)", "tuple(j, g, fxs, "+c+")").Replace(entry)
		text := ahead + "backward {" + b + "ENTRY" + e
		if err := (legal.Options{}).Check(m, remattest.Parsed(t, text)); (err == nil) != legally {
			t.Errorf("with %s: %v\n%s", c, err, text)
		}
	}
}

// TestNoStackIsRefused: of a module in which ts only looks like a stack of tanh(x) there is no plan
// without it.
func TestNoStackIsRefused(t *testing.T) {
	_, plan := without(t)
	for _, c := range []struct{ name, old, new string }{
		{"a slot is written twice, as the last index is clamped", "  u = f32[1,64]{1,0} bitcast(y)\n  zero = s32[] constant(0)\n  ROOT d = f32[3,64]{1,0} dynamic-update-slice(s, u, i, zero)", "  u = f32[1,64]{1,0} bitcast(y)\n  zero = s32[] constant(0)\n  one = s32[] constant(1)\n  k = s32[] add(i, one)\n  ROOT d = f32[3,64]{1,0} dynamic-update-slice(s, u, k, zero)"},
		{"each round begins with other slots", "ts1 = f32[3,64]{1,0} fusion(ts, x, i)", "ts1 = f32[3,64]{1,0} fusion(xs, x, i)"},
		{"other slots are read", "t = f32[1,64]{1,0} dynamic-slice(ts, at, zero)", "t = f32[1,64]{1,0} dynamic-slice(ts, j, zero)"},
		{"what the stack begins with is read", "t = f32[1,64]{1,0} dynamic-slice(ts, at, zero)", "t = f32[1,64]{1,0} dynamic-slice(ts, zero, zero)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := strings.Replace(layers, c.old, c.new, 1)
			if strings.Contains(c.name, "clamped") { // and read so
				text = strings.Replace(text, "  t = f32[1,64]{1,0} dynamic-slice(ts, at, zero)", "  one = s32[] constant(1)\n  above = s32[] add(at, one)\n  t = f32[1,64]{1,0} dynamic-slice(ts, above, zero)", 1)
			}
			if text == layers {
				t.Fatal("nothing was changed")
			}
			if err := (legal.Options{}).Check(remattest.Parsed(t, text), remattest.Parsed(t, plan)); err == nil {
				t.Errorf("passes:\n%s", text)
			}
		})
	}
}

// TestStaysStacked: stacks that are not only slots for the backward loop stay.
func TestStaysStacked(t *testing.T) {
	for _, c := range []struct{ name, old, new string }{
		{"the program returns it", "ROOT r = f32[64]{0} get-tuple-element(w), index=1", "z = f32[64]{0} get-tuple-element(w), index=1\n  ROOT r = (f32[64]{0}, f32[3,64]{1,0}) tuple(z, fts)"},
		{"the rounds are others", `{"n":"3"}`, `{"n":"2"}`},
		{"two rounds write one slot", "zero = s32[] constant(0)\n  ROOT d = f32[3,64]{1,0} dynamic-update-slice(s, u, i, zero)\n}\n\nforward", "zero = s32[] constant(0)\n  ROOT d = f32[3,64]{1,0} dynamic-update-slice(s, u, zero, zero)\n}\n\nforward"},
		{"it is read as a whole", "at = s32[] subtract(last, j)", "all = f32[3,64]{1,0} negate(ts)\n  at = s32[] subtract(last, j)"},
		{"the forward body reads it", "x1 = f32[64]{0} sine(x)", "old = f32[3,64]{1,0} negate(ts)\n  x1 = f32[64]{0} sine(x)"},
		{"it is computed from random bits", "y = f32[64]{0} tanh(v)", "low = f32[] constant(0)\n  y = f32[64]{0} rng(low, low), distribution=rng_uniform"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := strings.Replace(layers, c.old, c.new, 1)
			if text == layers {
				t.Fatal("nothing was changed")
			}
			for _, p := range unstack.Find(remattest.Parsed(t, text)) {
				for _, s := range p.Stacks {
					if _, _, ok := p.Needs([]*unstack.Stack{s}, false); ok && p.Key(s) == "forward/ts1" {
						t.Error("ts can be dropped")
					}
				}
			}
		})
	}
}

// TestCompiled drops the stacks of a module as JAX compiled it, with what the loop hands from
// round to round stacked up for it, and writes the module again. testdata/scan.pb is, of JAX 0.12.0.1:
//
//	def loss(w, x):
//	    return (jax.lax.scan(lambda x, w: (jnp.tanh(x @ w) * 2 + jnp.cos(x), None), x, w)[0] ** 2).sum()
//	jax.jit(jax.grad(loss)).lower(f32[4,16,16], f32[8,16])
func TestCompiled(t *testing.T) {
	original, err := os.ReadFile("testdata/scan.pb")
	if err != nil {
		t.Fatal(err)
	}
	m, err := load.Module(t.Context(), "testdata/scan.pb")
	if err != nil {
		t.Fatal(err)
	}
	for _, carry := range []bool{false, true} {
		dropped := 0
		for _, p := range unstack.Find(m) {
			var drop []*unstack.Stack
			var keys []string
			for _, s := range p.Stacks {
				if _, _, ok := p.Needs(append(drop[:len(drop):len(drop)], s), carry); ok {
					drop, keys = append(drop, s), append(keys, p.Key(s))
				}
			}
			dropped += len(drop)
			after := m.Clone()
			if _, err := unstack.Drop(after, keys, carry); err != nil {
				t.Fatal(err)
			}
			after = remattest.Parsed(t, after.String())
			if err := (legal.Options{}).Check(m, after); err != nil {
				t.Errorf("carry %v: %v", carry, err)
			}
			remattest.Same(t, m, after)
			b, err := load.Rewrite(original, after)
			if err != nil {
				t.Fatal(err)
			}
			again, _, err := load.Decode(b, nil)
			if err != nil {
				t.Fatal(err)
			}
			remattest.Same(t, m, again)
		}
		if dropped == 0 {
			t.Errorf("carry %v: nothing was dropped", carry)
		}
		t.Logf("carry %v: %d stacks dropped", carry, dropped)
	}
}
