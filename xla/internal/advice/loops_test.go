package advice

import (
	"maps"
	"strings"
	"testing"

	"gpumem/xla/internal/cost"
	"gpumem/xla/internal/test/remattest"
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

// put are fusions that write into stacks, and one that computes a product.
const put = `put {
  a = f32[4,256]{1,0} parameter(0)
  v = f32[256]{0} parameter(1)
  j = s32[] parameter(2)
  o = s32[] constant(0)
  vs = f32[1,256]{1,0} reshape(v)
  ROOT b = f32[4,256]{1,0} dynamic-update-slice(a, vs, j, o)
}

puts {
  a = f32[4,256]{1,0} parameter(0)
  b = f32[4,256]{1,0} parameter(1)
  v = f32[256]{0} parameter(2)
  w = f32[256]{0} parameter(3)
  j = s32[] parameter(4)
  o = s32[] constant(0)
  vs = f32[1,256]{1,0} reshape(v)
  ws = f32[1,256]{1,0} reshape(w)
  a2 = f32[4,256]{1,0} dynamic-update-slice(a, vs, j, o)
  b2 = f32[4,256]{1,0} dynamic-update-slice(b, ws, j, o)
  ROOT ab = (f32[4,256]{1,0}, f32[4,256]{1,0}) tuple(a2, b2)
}

product {
  v = f32[256]{0} parameter(0)
  w = f32[256]{0} parameter(1)
  m = f32[] dot(v, w), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  ROOT b = f32[256]{0} broadcast(m), dimensions={}
}

`

// narrowed is scan with the stack of h in bfloat16, which the second loop reads as float32.
func narrowed() string {
	first, second, _ := strings.Cut(scan, "less2 {")
	second, entry, _ := strings.Cut(second, "ENTRY")
	state := "f32[256]{0}, f32[4,256]{1,0}, f32[4,256]{1,0}, f32[4,256]{1,0})"
	narrow := strings.NewReplacer(state, "f32[256]{0}, bf16[4,256]{1,0}, f32[4,256]{1,0}, f32[4,256]{1,0})",
		"s = f32", "s = bf16", "s2 = f32", "s2 = bf16", "hs = f32[1,256]{1,0} reshape(h)", "hb = bf16[256]{0} convert(h)\n  hs = bf16[1,256]{1,0} reshape(hb)",
		"s0 = f32[4,256]{1,0} broadcast(nought)", "low = bf16[] constant(0)\n  s0 = bf16[4,256]{1,0} broadcast(low)",
		"s4 = f32[4,256]{1,0} get-tuple-element(w), index=2", "s5 = bf16[4,256]{1,0} get-tuple-element(w), index=2\n  s4 = f32[4,256]{1,0} convert(s5)")
	before, after, _ := strings.Cut(entry, "  start2 =")
	return narrow.Replace(first) + "less2 {" + second + "ENTRY" + narrow.Replace(before) + "  start2 =" + after
}

// TestProductsOfStacks: the product that a stack is made of counts once for each round, and not the one
// that it reads, nor one with batch dimensions.
func TestProductsOfStacks(t *testing.T) {
	const library = `g = f32[256]{0} custom-call(h), custom_call_target="dot"`
	for _, tc := range []struct {
		name, product string
		want          uint64
	}{
		{"of a library", library, 0},
		{"product", "g = f32[256]{0} dot(h, m), lhs_contracting_dims={0}, rhs_contracting_dims={0}", 4 * 256 * 4},
		{"product of a product", "f = f32[256]{0} dot(h, m), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n  g = f32[256]{0} dot(f, m), lhs_contracting_dims={0}, rhs_contracting_dims={0}", 4 * 256 * 4},
		{"with a batch", "g = f32[256]{0} dot(h, m), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={}, rhs_contracting_dims={}", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := "one1 = f32[] constant(1)\n  m = f32[256,256]{1,0} broadcast(one1), dimensions={}\n  "
			if strings.Contains(tc.product, "batch") {
				m = "one1 = f32[] constant(1)\n  m = f32[256]{0} broadcast(one1), dimensions={}\n  "
			}
			text := strings.Replace(scan, library, m+tc.product, 1)
			found, _, err := findLoops(remattest.Parsed(t, text), 1<<20, cost.Rates{}, 0)
			if err != nil || len(found) != 1 {
				t.Fatalf("%d loops, %v", len(found), err)
			}
			if found[0].Products != tc.want {
				t.Errorf("%d bytes of products, want %d", found[0].Products, tc.want)
			}
		})
	}
}

func TestLoops(t *testing.T) {
	const heap, layer = 1 << 20, 256 * 4
	const exp, dot = "while/body/exp", "while/body/dot_general"
	both := func(h, g string) map[string]string {
		return map[string]string{h: "stacked: " + exp, g: "stacked: " + dot}
	}
	for _, tc := range []struct {
		name    string
		edits   []string // of the text: what is there, and what stands there instead
		text    string   // that is not scan
		stacked uint64
		parts   string
		round   uint64
		rooms   map[string]string // if not of s0 and t0
	}{
		{name: "two stacks, and one that is a result", stacked: 2 * 4 * layer, parts: exp + " " + dot, round: layer - layer*5/8},
		{name: "a library reads a slice", edits: []string{"multiply(d, h)", "custom-call(d, h), custom_call_target=\"dot\""}, stacked: 2 * 4 * layer, parts: exp + " " + dot, round: 2*layer - layer*5/8},
		{name: "a fusion with a product reads a slice", edits: []string{"multiply(d, h)", "fusion(d, h), kind=kOutput, calls=product"}, stacked: 2 * 4 * layer, parts: exp + " " + dot, round: 2*layer - layer*5/8},
		{name: "a stack that something else reads", edits: []string{"tuple(dx, y)", "tuple(dx, s4)"}, stacked: 2 * 4 * layer, parts: dot, round: 2*layer - layer*5/8, rooms: map[string]string{"t0": "stacked: " + dot, "u0": "stacked: " + dot}},
		{name: "a stack that is read in a larger type", text: narrowed(), stacked: 2 * 4 * layer, parts: exp + " " + dot, round: layer - layer*5/8},
		{name: "written by a fusion", edits: []string{"dynamic-update-slice(s, hs, i, zero)", "fusion(s, h, i), kind=kLoop, calls=put"}, stacked: 2 * 4 * layer, parts: exp + " " + dot, round: layer - layer*5/8},
		{name: "written by a fusion that runs beside others", edits: []string{"  s2 = f32[4,256]{1,0} dynamic-update-slice(s, hs, i, zero)",
			"  st = ((f32[4,256]{1,0}, f32[256]{0}, s32[]), f32[4,256]{1,0}, u32[]) fusion-start(s, h, i), kind=kLoop, calls=put\n  s2 = f32[4,256]{1,0} fusion-done(st)"}, stacked: 2 * 4 * layer, parts: exp + " " + dot, round: layer - layer*5/8},
		{name: "written by one fusion", edits: []string{"  s2 = f32[4,256]{1,0} dynamic-update-slice(s, hs, i, zero)", "  st = (f32[4,256]{1,0}, f32[4,256]{1,0}) fusion(s, t, h, g, i), kind=kLoop, calls=puts\n  s2 = f32[4,256]{1,0} get-tuple-element(st), index=0",
			"t2 = f32[4,256]{1,0} dynamic-update-slice(t, gs, i, zero)", "t2 = f32[4,256]{1,0} get-tuple-element(st), index=1"}, stacked: 2 * 4 * layer, parts: exp + " " + dot, round: layer - layer*5/8},
		{name: "one operation makes room for both", edits: []string{"  s0 = f32[4,256]{1,0} broadcast(nought), dimensions={}\n  t0 = f32[4,256]{1,0} broadcast(nought), dimensions={}",
			"  room = (f32[4,256]{1,0}, f32[4,256]{1,0}) custom-call(), custom_call_target=\"room\"\n  s0 = f32[4,256]{1,0} get-tuple-element(room), index=0\n  t0 = f32[4,256]{1,0} get-tuple-element(room), index=1"}, stacked: 2 * 4 * layer, parts: exp + " " + dot, round: layer - layer*5/8,
			rooms: map[string]string{"s0": "stacked: " + exp, "t0": "stacked: " + dot, "room": "stacked"}},
		{name: "a loop that runs once", edits: []string{`{"n":"4"}}` + "\n  x4", `{"n":"1"}}` + "\n  x4"}},
		{name: "no loop reads them", edits: []string{"tuple(zero, x4, s4, t4, y)", "tuple(zero, x4, s0, t0, u0)"}},
		// What is carried takes as much as the stack.
		{name: "one stack, of which nothing is saved", edits: []string{"tuple(zero, x4, s4, t4, y)", "tuple(zero, x4, s4, t0, y)"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			text := scan
			if tc.text != "" {
				text = tc.text
			}
			for n := 0; n < len(tc.edits); n += 2 {
				if strings.Count(text, tc.edits[n]) != 1 {
					t.Fatalf("%q is there %d times", tc.edits[n], strings.Count(text, tc.edits[n]))
				}
				text = strings.Replace(text, tc.edits[n], tc.edits[n+1], 1)
			}
			m := remattest.Parsed(t, strings.Replace(text, "less {", put+"less {", 1))
			prices, err := cost.New(m, cost.Rates{})
			if err != nil {
				t.Fatal(err)
			}
			// One run takes as long as eight rounds of the first loop.
			list, rooms, err := findLoops(m, heap, cost.Rates{}, 8*prices.Computation(m.Computation("forward")).Seconds)
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
			if l.Trips != 4 || l.At != "train.py:98" || l.Bytes != tc.stacked || l.Carried != 4*layer || strings.Join(parts, " ") != tc.parts || l.Extra != 50 {
				t.Errorf("%+v; want %d stacked by %s, %d carried, 50 %% more compute", l, tc.stacked, tc.parts, 4*layer)
			}
			if want := heap - tc.stacked + 4*layer + tc.round; l.After != want {
				t.Errorf("%d after; want %d", l.After, want)
			}
			if tc.rooms == nil {
				tc.rooms = both("s0", "t0")
			}
			got := map[string]string{}
			for i, part := range rooms {
				got[i.Name] = part
			}
			if !maps.Equal(got, tc.rooms) {
				t.Errorf("room is made by %v; want %v", got, tc.rooms)
			}
		})
	}
}
