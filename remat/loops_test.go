package remat

import (
	"strings"
	"testing"

	"gpumem/hlo"
	"gpumem/hlo/cost"
)

// scan is a loop over four layers, and the loop of its backward pass. The first stacks up h, which
// a fusion computes where it is needed, g, which a library computes, and y, which is a result,
// too.
const scan = `HloModule m, is_scheduled=true

less {
  q = (s32[], f32[256]{0}, f32[4,256]{1,0}, f32[4,256]{1,0}, f32[4,256]{1,0}) parameter(0)
  k = s32[] get-tuple-element(q), index=0
  four = s32[] constant(4)
  ROOT c = pred[] compare(k, four), direction=LT
}

forward {
  p = (s32[], f32[256]{0}, f32[4,256]{1,0}, f32[4,256]{1,0}, f32[4,256]{1,0}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[256]{0} get-tuple-element(p), index=1
  s = f32[4,256]{1,0} get-tuple-element(p), index=2
  t = f32[4,256]{1,0} get-tuple-element(p), index=3
  u = f32[4,256]{1,0} get-tuple-element(p), index=4
  zero = s32[] constant(0)
  one = s32[] constant(1)
  next = s32[] add(i, one)
  h = f32[256]{0} exponential(x), metadata={op_name="jit(f)/jvp()/while/body/exp"}
  g = f32[256]{0} custom-call(h), custom_call_target="dot", metadata={op_name="jit(f)/jvp()/while/body/dot_general"}
  hs = f32[1,256]{1,0} reshape(h)
  gs = f32[1,256]{1,0} reshape(g)
  s2 = f32[4,256]{1,0} dynamic-update-slice(s, hs, i, zero)
  t2 = f32[4,256]{1,0} dynamic-update-slice(t, gs, i, zero)
  u2 = f32[4,256]{1,0} dynamic-update-slice(u, gs, i, zero)
  x2 = f32[256]{0} add(g, x)
  ROOT r = (s32[], f32[256]{0}, f32[4,256]{1,0}, f32[4,256]{1,0}, f32[4,256]{1,0}) tuple(next, x2, s2, t2, u2)
}

less2 {
  q = (s32[], f32[256]{0}, f32[4,256]{1,0}, f32[4,256]{1,0}, f32[4,256]{1,0}) parameter(0)
  k = s32[] get-tuple-element(q), index=0
  four = s32[] constant(4)
  ROOT c = pred[] compare(k, four), direction=LT
}

backward {
  p = (s32[], f32[256]{0}, f32[4,256]{1,0}, f32[4,256]{1,0}, f32[4,256]{1,0}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  d = f32[256]{0} get-tuple-element(p), index=1
  s = f32[4,256]{1,0} get-tuple-element(p), index=2
  t = f32[4,256]{1,0} get-tuple-element(p), index=3
  u = f32[4,256]{1,0} get-tuple-element(p), index=4
  zero = s32[] constant(0)
  one = s32[] constant(1)
  next = s32[] add(i, one)
  hs = f32[1,256]{1,0} dynamic-slice(s, i, zero), dynamic_slice_sizes={1,256}
  gs = f32[1,256]{1,0} dynamic-slice(t, i, zero), dynamic_slice_sizes={1,256}
  h = f32[256]{0} reshape(hs)
  g = f32[256]{0} reshape(gs)
  e = f32[256]{0} multiply(d, h)
  d2 = f32[256]{0} add(e, g)
  ROOT r = (s32[], f32[256]{0}, f32[4,256]{1,0}, f32[4,256]{1,0}, f32[4,256]{1,0}) tuple(next, d2, s, t, u)
}

ENTRY main {
  x = f32[256]{0} parameter(0)
  zero = s32[] constant(0)
  nought = f32[] constant(0)
  s0 = f32[4,256]{1,0} broadcast(nought), dimensions={}
  t0 = f32[4,256]{1,0} broadcast(nought), dimensions={}
  u0 = f32[4,256]{1,0} broadcast(nought), dimensions={}
  start = (s32[], f32[256]{0}, f32[4,256]{1,0}, f32[4,256]{1,0}, f32[4,256]{1,0}) tuple(zero, x, s0, t0, u0)
  w = (s32[], f32[256]{0}, f32[4,256]{1,0}, f32[4,256]{1,0}, f32[4,256]{1,0}) while(start), condition=less, body=forward, metadata={op_name="jit(f)/jvp()/while" source_file="train.py" source_line=98}, backend_config={"known_trip_count":{"n":"4"}}
  x4 = f32[256]{0} get-tuple-element(w), index=1
  s4 = f32[4,256]{1,0} get-tuple-element(w), index=2
  t4 = f32[4,256]{1,0} get-tuple-element(w), index=3
  y = f32[4,256]{1,0} get-tuple-element(w), index=4
  start2 = (s32[], f32[256]{0}, f32[4,256]{1,0}, f32[4,256]{1,0}, f32[4,256]{1,0}) tuple(zero, x4, s4, t4, y)
  v = (s32[], f32[256]{0}, f32[4,256]{1,0}, f32[4,256]{1,0}, f32[4,256]{1,0}) while(start2), condition=less2, body=backward, backend_config={"known_trip_count":{"n":"4"}}
  dx = f32[256]{0} get-tuple-element(v), index=1
  ROOT result = (f32[256]{0}, f32[4,256]{1,0}) tuple(dx, y)
}
`

func TestLoops(t *testing.T) {
	const heap, layer = 1 << 20, 256 * 4
	for _, tc := range []struct {
		name             string
		old, new         string // in the text
		stacked, carried uint64
		parts            string
		round            uint64
	}{
		{name: "two stacks, and one that is a result", stacked: 2 * 4 * layer, carried: 4 * layer, parts: "while/body/exp while/body/dot_general", round: layer - layer*5/8},
		{name: "a library reads a slice", old: "multiply(d, h)", new: "custom-call(d, h), custom_call_target=\"dot\"", stacked: 2 * 4 * layer, carried: 4 * layer, parts: "while/body/exp while/body/dot_general", round: 2*layer - layer*5/8},
		{name: "a stack that something else reads", old: "tuple(dx, y)", new: "tuple(dx, s4)", stacked: 2 * 4 * layer, carried: 4 * layer, parts: "while/body/dot_general", round: 2*layer - layer*5/8},
		{name: "a loop that runs once", old: `{"n":"4"}}` + "\n  x4", new: `{"n":"1"}}` + "\n  x4"},
		{name: "no loop reads them", old: "tuple(zero, x4, s4, t4, y)", new: "tuple(zero, x4, s0, t0, u0)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			text := scan
			if tc.old != "" {
				if text = strings.Replace(scan, tc.old, tc.new, 1); text == scan {
					t.Fatal("nothing is replaced")
				}
			}
			m, err := hlo.ParseString(text)
			if err != nil {
				t.Fatal(err)
			}
			list, _, err := loops(m, heap, cost.Rates{}, 1)
			if err != nil {
				t.Fatal(err)
			}
			if tc.stacked == 0 {
				if len(list) > 0 {
					t.Errorf("%+v; want none", list)
				}
				return
			}
			if len(list) != 1 {
				t.Fatalf("%d loops: %+v", len(list), list)
			}
			l := list[0]
			var parts []string
			for _, h := range l.Stacked {
				parts = append(parts, h.Part)
			}
			if l.Trips != 4 || l.At != "train.py:98" || l.Bytes != tc.stacked || l.Carried != tc.carried || strings.Join(parts, " ") != tc.parts {
				t.Errorf("%+v; want %d stacked by %s, %d carried", l, tc.stacked, tc.parts, tc.carried)
			}
			if want := heap - tc.stacked + tc.carried + tc.round; l.After != want {
				t.Errorf("%d after; want %d", l.After, want)
			}
		})
	}
}
