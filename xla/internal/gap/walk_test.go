package gap

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/memory"
	"gpumem/xla/internal/test/remattest"
)

// planned returns a planner for the entry of a module in which each instruction takes a
// second.
func planned(t *testing.T, body string, limit int64) *planner {
	t.Helper()
	m := remattest.Parsed(t, "HloModule m, is_scheduled=true\n\nENTRY e {"+body+"\n}\n")
	p := newModulePlan(Options{Seconds: func(*hlo.Instruction) float64 { return 1 }})
	g, err := p.newPlanner(m.Entry, limit)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// named returns the number of what an instruction defines.
func (g *planner) named(name string) int32 {
	return int32(slices.IndexFunc(g.values, func(v value) bool { return g.c.Instructions[v.definer].Name == name }))
}

// kib is the profile in KiB.
func (g *planner) kib() string {
	var b []string
	for _, n := range g.profile.bytes() {
		b = append(b, fmt.Sprint(float64(n)/1024))
	}
	return strings.Join(b, " ")
}

// example is the module at the head of planner.go.
const example = `
  p = f32[256] parameter(0)
  a = f32[256] multiply(p, p)
  s = f32[256] sine(a)
  b = f32[512] concatenate(s, s), dimensions={0}
  c = f32[256] slice(b), slice={[0:256]}
  d = f32[256] add(c, s)
  ROOT r = f32[256] negate(d)`

// The figures in the comments of this package.
func TestExampleOfThePackage(t *testing.T) {
	g := planned(t, example, 3<<10)
	if got := g.kib(); got != "0 0 0 1 1 2 1 3 3 4 2 3 1 1" {
		t.Errorf("live: %s", got)
	}
	// Slots 7, 8 and 11 have as much as the limit, which is not over it.
	if n, at := g.profile.total(), g.overIn(9, 9); n != 1 || at != 1 {
		t.Errorf("over the limit: %d, in slot 9 %d", n, at)
	}
	s := g.named("s")
	score, k := g.score(s, 0, 1)
	if score < 511.9 || score > 512 || !slices.Equal(k.again, []int32{g.named("a"), s}) || len(k.longer) > 0 || k.bytes != 1<<10 || k.lost != 0 {
		t.Errorf("score %v, closure %+v", score, k)
	}
	for id := range g.values {
		for use := range g.values[id].segments[0].uses {
			if score, _ := g.score(int32(id), 0, int32(use)); score > 0 && int32(id) != s {
				t.Errorf("%s is worth %v", g.c.Instructions[g.values[id].definer].Name, score)
			}
		}
	}
	g.run()
	if got := g.kib(); got != "0 0 0 1 1 2 1 3 2 3 3 3 1 1" {
		t.Errorf("live with the split: %s", got)
	}
	if got := fmt.Sprint(g.values[s].segments); got != "[{5 [{7 1}] true} {10 [{11 1}] false}]" {
		t.Errorf("s: %s", got)
	}
	if p := g.phases[10]; len(p.values) != 2 || p.bytes != 1<<10 {
		t.Errorf("phase %+v", p)
	}
	if added := g.build(); added != 2 {
		t.Errorf("%d added", added)
	}
	var names []string
	for _, i := range g.c.Instructions {
		names = append(names, i.Name)
	}
	if got := strings.Join(names, " "); got != "p a s b c a.remat s.remat d r" {
		t.Error(got)
	}
}

// A definition whose first use is late moves there. It is not paid for twice, and what it
// read in its old place may die earlier.
func TestDefinitionMoves(t *testing.T) {
	g := planned(t, `
  p = f32[256] parameter(0)
  a = f32[256] multiply(p, p)
  v = f32[256] sine(a)
  b = f32[512] concatenate(p, p), dimensions={0}
  c = f32[256] slice(b), slice={[0:256]}
  d = f32[256] add(c, v)
  ROOT r = f32[256] negate(d)`, 3<<10)
	v := g.named("v")
	if from, to, at, ok := g.gap(v, 0, 0); from != 5 || to != 9 || at != 10 || !ok {
		t.Errorf("gap %d to %d, at %d, %v", from, to, at, ok)
	}
	if score, _ := g.score(v, 0, 0); score < 1023.9 || score > 1024 {
		t.Errorf("score %v: of a and v, 2 s, the second of v's old place is saved", score)
	}
	g.run()
	if got := fmt.Sprint(g.values[v].moved, g.values[v].segments, g.values[g.named("a")].segments); got != "true [{5 [] true} {10 [{11 1}] false}] [{3 [] true} {10 [{10 1}] false}]" {
		t.Error(got)
	}
	if q := g.quality(); q.seconds != 1 {
		t.Errorf("%v s for a alone", q.seconds)
	}
	// Before its new place there is nothing that could live on.
	if k := g.closureOf(g.named("d"), 8); k != nil && slices.Contains(k.again, v) {
		t.Errorf("a closure with what moved behind it: %+v", k)
	}
	reader := &closure{g: g, at: 8}
	g.closures++
	if reader.need(v, true); !reader.failed {
		t.Error("what moved to slot 10 is needed in slot 8, and that does not fail")
	}
}

// Gaps begin behind a use, or with a definition that is used late enough.
func TestGaps(t *testing.T) {
	g := planned(t, `
  p = f32[256] parameter(0)
  next = f32[256] negate(p)
  late = f32[256] sine(next)
  x = f32[256] cosine(p)
  r1 = f32[256] add(late, x)
  y = f32[256] negate(r1)
  ROOT r2 = f32[256] add(y, late)`, 0)
	for _, c := range []struct {
		name         string
		use          int32
		from, to, at int32
		ok           bool
	}{
		{"next", 0, 3, 3, 4, false}, // it would stand in the same place
		{"late", 0, 5, 7, 8, true},
		{"late", 1, 10, 11, 12, true},
		{"x", 0, 7, 7, 8, false},
	} {
		from, to, at, ok := g.gap(g.named(c.name), 0, c.use)
		if from != c.from || to != c.to || at != c.at || ok != c.ok {
			t.Errorf("%s, use %d: %d to %d, at %d, %v", c.name, c.use, from, to, at, ok)
		}
	}
}

// Bytes that operands add where they live on count in each slot once, and with what is
// recomputed in the last one.
func TestHarmOfLivingOn(t *testing.T) {
	// x and y cannot be recomputed. x dies in slot 7 and y in slot 9.
	const body = `
  p = f32[256] parameter(0)
  x = f32[256] custom-call(p), custom_call_target="x"
  y = f32[512] custom-call(x), custom_call_target="x"
  s = f32[256] custom-call(x, y), custom_call_target="x"
  z = f32[256] custom-call(y, s), custom_call_target="x"
  u = f32[256] negate(z)
  ROOT r = f32[256] add(u, s)`
	for _, c := range []struct {
		limit int64
		want  float64
	}{
		// All slots are over: x alone in 8 and 9, with y in 10 and 11, and both in 12.
		{0, 2*1 + 2*3 + 3},
		// Slot 8 has y and s, 9 z besides: 3 and 4. Slots 10 to 12 have s with z, with z and
		// u, and with u: 2, 3 and 2.
		{5 << 10, 0 + 3},
		{6 << 10, 0},
	} {
		g := planned(t, body, c.limit)
		s := g.named("s")
		g.values[s].operands = []int32{g.named("x"), g.named("y")}
		if got := g.kib(); got != "0 0 0 1 1 3 3 4 3 4 2 3 2 2" {
			t.Fatal(got)
		}
		k := g.closureOf(s, 12)
		if len(k.longer) != 2 || k.room != 3<<10 || k.lost != c.want*1024 {
			t.Errorf("limit %d: lost %v KiB, want %v; %+v", c.limit, k.lost/1024, c.want, k)
		}
	}
}

// What computing values one after the other takes at once, beside those that stay.
func TestSequence(t *testing.T) {
	g := &planner{left: make([]int32, 4), values: []value{
		{size: 1}, {size: 2, operands: []int32{0}}, {size: 4, operands: []int32{1, 0}}, {size: 8, inside: 100},
	}}
	for _, c := range []struct {
		order, stay []int32
		want        int64
	}{
		{[]int32{0}, nil, 1},
		{[]int32{0}, []int32{0}, 0},
		{[]int32{0, 1}, []int32{1}, 1},
		{[]int32{0, 1, 2}, nil, 7},
		{[]int32{0, 1, 2}, []int32{2}, 3},
		{[]int32{1, 2}, nil, 6},
		{[]int32{0, 3}, nil, 108}, // what nothing reads is dead before the next one
		{[]int32{0, 3}, []int32{0}, 108},
	} {
		if got := g.sequence(c.order, func(id int32) bool { return slices.Contains(c.stay, id) }); got != c.want {
			t.Errorf("%v, of which %v stay: %d, want %d", c.order, c.stay, got, c.want)
		}
	}
}

func TestQuality(t *testing.T) {
	g := &planner{limit: 10, profile: profile{more: make([]int64, 1), slots: []int64{10, 12, 15, 9, 15, 11}}, values: []value{
		{seconds: 2, moved: true, segments: make([]segment, 3)}, {seconds: 1, segments: make([]segment, 2)}, {seconds: 4, segments: make([]segment, 1)},
	}}
	if got := g.quality(); got != (quality{beyond: 5, slots: 2, seconds: 3}) {
		t.Errorf("%+v", got)
	}
	list := []quality{{0, 0, 1}, {0, 0, 2}, {4, 1, 0}, {4, 2, 0}, {5, 1, 0}} // the best first
	for n, q := range list {
		for k, r := range list {
			if got := q.noWorse(r); got != (n <= k) {
				t.Errorf("%+v no worse than %+v: %v", q, r, got)
			}
		}
	}
}

// Stretches that begin and end at the borders of blocks, and beside them.
func TestProfileAtBorders(t *testing.T) {
	const n = 3*profileBlock + 5
	ends := []int{0, 1, 62, 63, 64, 65, 126, 127, 128, 129, 190, 191, 192, n - 2, n - 1}
	r := rand.New(rand.NewPCG(1, 2))
	p, plain := newProfile(n), make([]int64, n)
	for _, from := range ends {
		for _, to := range ends {
			bytes := int64(r.IntN(7) - 3)
			p.add(from, to, bytes)
			for slot := from; slot <= to; slot++ {
				plain[slot] += bytes
			}
			if !slices.Equal(p.bytes(), plain) {
				t.Fatalf("%d to %d: %v", from, to, p.bytes())
			}
			for b := range p.top {
				if block := plain[b*profileBlock : min((b+1)*profileBlock, n)]; p.top[b] != slices.Max(block) || p.bottom[b] != slices.Min(block) {
					t.Fatalf("%d to %d: block %d from %d to %d", from, to, b, p.bottom[b], p.top[b])
				}
			}
			above := int64(0)
			for slot := from; slot <= to; slot++ {
				if plain[slot] > bytes {
					above++
				}
			}
			if got := p.above(from, to, bytes, n); got != above {
				t.Fatalf("%d to %d above %d: %d, want %d", from, to, bytes, got, above)
			}
		}
	}
}

// The root has no users and stays all the same, as a bitcast too.
func TestRootBitcastStays(t *testing.T) {
	g := planned(t, strings.Replace(example, "ROOT r = f32[256] negate(d)", "e = f32[256] negate(d)\n  ROOT r = f32[16,16] bitcast(e)", 1), 3<<10)
	g.run()
	if g.build() != 2 || g.c.Root.Name != "r" || !slices.Contains(g.c.Instructions, g.c.Root) || len(g.c.Root.Operands) != 1 {
		t.Error(g.c.Module)
	}
}

// What callees may take: what the caller leaves at the call, less what others called there
// take, and the least of several calls.
func TestAllowances(t *testing.T) {
	const f = `f {
  q = f32[256] parameter(0)
  x = f32[512] concatenate(q, q), dimensions={0}
  ROOT y = f32[256] slice(x), slice={[0:256]}
}
g {
  q = f32[256] parameter(0)
  x = f32[1024] concatenate(q, q, q, q), dimensions={0}
  ROOT y = f32[256] slice(x), slice={[0:256]}
}
`
	// f takes 2 KiB and g 4. At once, at k, there is the result of 1 KiB besides; at l that
	// and two more values.
	m := remattest.Parsed(t, "HloModule m, is_scheduled=true\n\n"+f+`ENTRY e {
  i = s32[] parameter(0)
  p = f32[256] parameter(1)
  k = f32[256] conditional(i, p, p), branch_computations={f, g}
  a = f32[256] negate(p)
  l = f32[256] call(a), to_apply=f
  b = f32[256] add(k, l)
  ROOT r = f32[256] add(a, b)
}
`)
	for _, c := range []struct {
		limit int64
		want  string
	}{
		{7 << 10, ""},
		{6 << 10, "f 1024 g 3072"},
		{4 << 10, "f 0 g 1024"},
		{1 << 10, "f 0 g 0"},
		{1, "f 0 g 0"},
	} {
		p := newModulePlan(Options{Seconds: func(*hlo.Instruction) float64 { return 1 }})
		g, err := p.newPlanner(m.Entry, c.limit)
		if err != nil {
			t.Fatal(err)
		}
		list, allowed := p.allowances(g)
		var got []string
		for _, callee := range list {
			got = append(got, fmt.Sprint(callee.Name, " ", allowed[callee]))
		}
		if got := strings.Join(got, " "); got != c.want {
			t.Errorf("limit %d: %s, want %s; %v", c.limit, got, c.want, g.profile.bytes())
		}
	}
	// Two calls of f alone, of which the second leaves less.
	m = remattest.Parsed(t, "HloModule m, is_scheduled=true\n\n"+f[:strings.Index(f, "g {")]+`ENTRY e {
  p = f32[256] parameter(0)
  k = f32[256] call(p), to_apply=f
  l = f32[256] call(k), to_apply=f
  ROOT r = f32[256] add(k, l)
}
`)
	p := newModulePlan(Options{Seconds: func(*hlo.Instruction) float64 { return 1 }})
	g, err := p.newPlanner(m.Entry, 2560) // 3 KiB live at k, and 4 at l
	if err != nil {
		t.Fatal(err)
	}
	if list, allowed := p.allowances(g); len(list) != 1 || allowed[list[0]] != 512 {
		t.Errorf("%v", allowed)
	}
}

// The bounds of small modules, to the byte and the second.
func TestLeastOfSmallModules(t *testing.T) {
	const moves = `
  p = f32[256] parameter(0)
  v = f32[256] sine(p)
  b = f32[512] concatenate(p, p), dimensions={0}
  c = f32[256] slice(b), slice={[0:256]}
  d = f32[256] add(c, v)
  ROOT r = f32[256] negate(d)`
	for _, c := range []struct {
		name, body string
		limit      uint64
		seconds    float64
		bytes      uint64
	}{
		{"what fits", example, 4 << 10, 0, 3 << 10},
		{"s is recomputed", example, 3 << 10, 1, 3 << 10},
		{"more is needed at once", example, 3<<10 - 2, math.Inf(1), 3 << 10},
		{"a definition moves for nothing", moves, 3 << 10, 0, 3 << 10},
		{"an effect runs all the same", strings.Replace(moves, "ROOT r", `k = f32[4096] custom-call(p), custom_call_target="x", custom_call_has_side_effect=true
  ROOT r`, 1), 32 << 10, 0, 16 << 10},
		{"what nothing needs does not run", strings.Replace(moves, "ROOT r", "k = f32[4096] iota(), iota_dimension=0\n  ROOT r", 1), 32 << 10, 0, 3 << 10},
	} {
		g := planned(t, c.body, 0)
		meter := memory.NewMeter(memory.Options{})
		seconds, err := LeastSeconds(g.c.Module, meter, c.limit, func(*hlo.Instruction) float64 { return 1 })
		if err != nil || seconds != c.seconds {
			t.Errorf("%s: %v s, %v; want %v", c.name, seconds, err, c.seconds)
		}
		if bytes, err := LeastMemory(g.c.Module, meter, false); err != nil || bytes != c.bytes {
			t.Errorf("%s: %d bytes, %v; want %d", c.name, bytes, err, c.bytes)
		}
	}
}

// A copy that is under way has one start and one end: neither is recomputed.
func TestHalvesOfCopiesStay(t *testing.T) {
	g := planned(t, `
  p = f32[256] parameter(0)
  start = (f32[256], f32[256], u32[]) copy-start(p)
  done = f32[256] copy-done(start)
  n = f32[256] negate(done)
  ROOT r = f32[256] add(n, done)`, 0)
	r := newRules(true)
	for name, want := range map[string]bool{"start": false, "done": false, "n": true} {
		if got := r.allow(g.c.Instruction(name)); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
