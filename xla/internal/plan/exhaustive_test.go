package plan

// Small modules, for which the cheapest plan is found by trying everything: how far
// the plans made here are from it.

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"gpumem/xla/internal/cost"
	"gpumem/xla/internal/gap"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/test/remattest"
)

// A small is a module of few values, in the order of their definitions.
type small struct {
	names    []string
	rights   []string // shape, and what computes it, with %d for the operands
	operands [][]int  // values, no parameters
	sizes    []int64
	prices   []float64
	out      []bool // is returned
}

// randomSmall is a chain that is walked back, or any graph: vectors of several
// lengths, each computed from one or two others.
func randomSmall(r *rand.Rand) *small {
	s := &small{}
	var lengths []int
	add := func(op string, length int, operands ...int) {
		s.names = append(s.names, fmt.Sprint("v", len(s.names)))
		s.rights = append(s.rights, fmt.Sprintf("f32[%d] %s", length, op))
		s.operands = append(s.operands, operands)
		s.sizes = append(s.sizes, int64(4*length))
		s.prices = append(s.prices, float64(1+r.IntN(9)))
		s.out = append(s.out, true)
		lengths = append(lengths, length)
		for _, o := range operands {
			s.out[o] = false
		}
	}
	unary := func(o int) {
		if r.IntN(3) == 0 && lengths[o] > 256 {
			add("slice(%s), slice={[0:256]}", 256, o)
			return
		}
		add([]string{"negate(%s)", "sine(%s)", "tanh(%s)"}[r.IntN(3)], lengths[o], o)
	}
	binary := func(a, b int) {
		if lengths[a] == lengths[b] && r.IntN(4) > 0 {
			add("add(%s, %s)", lengths[a], a, b)
		} else if lengths[a]+lengths[b] > 1536 {
			unary(a)
		} else {
			add("concatenate(%s, %s), dimensions={0}", lengths[a]+lengths[b], a, b)
		}
	}
	add("sine(p)", 256)
	if r.IntN(2) == 0 { // a chain with skips, walked back
		n := 2 + r.IntN(3)
		for k := 1; k <= n; k++ {
			if k > 1 && r.IntN(3) == 0 {
				binary(k-1, r.IntN(k-1))
			} else {
				unary(k - 1)
			}
		}
		for k := n - 1; k >= 0; k-- {
			binary(len(s.names)-1, k)
		}
		return s
	}
	for range 4 + r.IntN(6) {
		a, b := r.IntN(len(s.names)), r.IntN(len(s.names))
		if r.IntN(3) == 0 || a == b {
			unary(a)
		} else {
			binary(a, b)
		}
	}
	return s
}

// text is the module that computes values in an order; what comes again is a
// clone, and each reads the latest.
func (s *small) text(order []int) string {
	var b strings.Builder
	b.WriteString("HloModule small, is_scheduled=true\n\nENTRY e {\n  p = f32[256] parameter(0)\n")
	latest := slices.Clone(s.names)
	times := make([]int, len(s.names))
	for _, v := range order {
		var in []any
		for _, o := range s.operands[v] {
			in = append(in, latest[o])
		}
		if times[v]++; times[v] > 1 {
			latest[v] = fmt.Sprintf("%s.remat%d", s.names[v], times[v])
		}
		fmt.Fprintf(&b, "  %s = %s\n", latest[v], fmt.Sprintf(s.rights[v], in...))
	}
	var shapes, names []string
	for v, name := range latest {
		if s.out[v] {
			shape, _, _ := strings.Cut(s.rights[v], " ")
			shapes, names = append(shapes, shape), append(names, name)
		}
	}
	fmt.Fprintf(&b, "  ROOT o = (%s) tuple(%s)\n}\n", strings.Join(shapes, ", "), strings.Join(names, ", "))
	return b.String()
}

// given is the order of definitions.
func (s *small) given() []int {
	order := make([]int, len(s.names))
	for v := range order {
		order[v] = v
	}
	return order
}

// extra is what a module's instructions cost beyond the given ones, without what nothing uses.
func (s *small) extra(t *testing.T, m *hlo.Module) float64 {
	lean := remattest.Parsed(t, m.String())
	if _, err := hlo.RemoveDead(lean); err != nil {
		t.Fatal(err)
	}
	var sum float64
	for _, i := range lean.Entry.Instructions {
		name, _, _ := strings.Cut(i.Name, ".remat")
		if v := slices.Index(s.names, name); v >= 0 {
			sum += s.prices[v]
		}
	}
	return sum - s.total()
}

func (s *small) total() (sum float64) {
	for _, p := range s.prices {
		sum += p
	}
	return sum
}

// cheapest is the least extra price at which a limit is met, and an order that does,
// nil where none is found. Everything is tried: before each place any values that come
// before it may be computed again, in the order of their definitions, or in any order and any
// number of times; each may be dropped after any use; and a definition may be left out
// where it is not needed yet. What is returned is computed once, at its place.
//
// A state is the set of values that live. What it costs at least to come to each of
// them is known place by place.
func (s *small) cheapest(limit int64, anyOrder bool) (float64, []int) {
	n := len(s.names)
	bytes := make([]int64, 1<<n)
	for set := range bytes {
		for v, size := range s.sizes {
			if set>>v&1 == 1 && !s.out[v] {
				bytes[set] += size
			}
		}
	}
	type came struct {
		cost float64
		back *came
		v    int // what was computed; -1: nothing
	}
	now := make([]*came, 1<<n)
	now[0] = &came{}
	// run computes a value in a state and tells of the states that may follow.
	run := func(set int, from *came, v int, follow func(set int, k came)) {
		size := s.sizes[v]
		if s.out[v] {
			size = 0
		}
		drop := 1 << v
		for _, o := range s.operands[v] {
			if set>>o&1 == 0 {
				return
			}
			drop |= 1 << o
		}
		if set>>v&1 == 1 || bytes[set]+size > limit {
			return
		}
		for w := range n {
			if s.out[w] {
				drop &^= 1 << w
			}
		}
		for d := drop; ; d = (d - 1) & drop {
			follow((set|1<<v)&^d, came{from.cost + s.prices[v], from, v})
			if d == 0 {
				return
			}
		}
	}
	for p := range n {
		// Before the place: values in the order of definitions, or in any until nothing gets
		// cheaper.
		for again := true; again; {
			again = false
			for v := range p {
				if s.out[v] {
					continue
				}
				for set, k := range now {
					if k == nil {
						continue
					}
					run(set, k, v, func(next int, k came) {
						if now[next] == nil || k.cost < now[next].cost {
							now[next] = &k
							again = anyOrder
						}
					})
				}
			}
		}
		then := make([]*came, 1<<n)
		for set, k := range now {
			if k == nil {
				continue
			}
			better := func(next int, k came) {
				if then[next] == nil || k.cost < then[next].cost {
					then[next] = &k
				}
			}
			run(set, k, p, better)
			if !s.out[p] {
				better(set, came{k.cost, k, -1})
			}
		}
		now = then
	}
	var best *came
	for _, k := range now {
		if k != nil && (best == nil || k.cost < best.cost) {
			best = k
		}
	}
	if best == nil {
		return math.Inf(1), nil
	}
	var order []int
	for k := best; k.back != nil; k = k.back {
		if k.v >= 0 {
			order = append(order, k.v)
		}
	}
	slices.Reverse(order)
	return best.cost - s.total(), order
}

// A score is how plans compare with the cheapest ones.
type score struct {
	name                  string
	plans, optimal, miss  int
	sum, worst, extra, of float64 // relative to the whole module's price
}

func (k *score) add(reachable bool, met bool, extra, least, total float64) {
	if !reachable {
		return
	}
	if !met {
		k.miss++
		return
	}
	k.plans++
	k.extra += extra
	k.of += least
	gap := (extra - least) / total
	if gap < 1e-9 {
		k.optimal++
	}
	k.sum += gap
	k.worst = max(k.worst, gap)
}

func (k *score) String() string {
	return fmt.Sprintf("%s: of %d limits in reach %d are missed; of the others %.1f %% cost least; mean gap %.2f %% of the module, worst %.1f %%; extra in all %.3f of the least",
		k.name, k.plans+k.miss, k.miss, 100*float64(k.optimal)/float64(max(1, k.plans)), 100*k.sum/float64(max(1, k.plans)), 100*k.worst, k.extra/max(k.of, 1e-9))
}

// TestAgainstAllPlans: no plan is cheaper than the cheapest, none meets a limit that is
// out of reach, and the best is never worse than XLA's.
func TestAgainstAllPlans(t *testing.T) {
	inOrder, split, searched := &score{name: "clones in the order of definitions, against any"}, &score{name: "gap, against those"}, &score{name: "gap and 100 rounds, against those"}
	best, theirs := &score{name: "best, against any"}, &score{name: "XLA's, against any"}
	modules := 1000
	if testing.Short() {
		modules = 50
	}
	for seed := range modules {
		r := rand.New(rand.NewPCG(uint64(seed), 1))
		s := randomSmall(r)
		m := remattest.Parsed(t, s.text(s.given()))
		was := remattest.TempPeak(t, m)
		limit := uint64(float64(was) * (.4 + .6*r.Float64()))
		sum := remattest.Meaning(m)

		// By prices that are told.
		least, order := s.cheapest(int64(limit), false)
		free, anyOrder := s.cheapest(int64(limit), true)
		if free > least {
			t.Fatalf("seed %d: more orders are to try, and cost %v, not %v", seed, free, least)
		}
		inOrder.add(anyOrder != nil, order != nil, least, free, s.total())
		for _, order := range [][]int{order, anyOrder} {
			if order == nil {
				continue
			}
			plan := remattest.Parsed(t, s.text(order))
			if got := remattest.TempPeak(t, plan); got > limit || remattest.Meaning(plan) != sum {
				t.Fatalf("seed %d: the cheapest plan takes %d, limit %d, and has to compute the same\n%s", seed, got, limit, plan)
			}
			if got := s.extra(t, plan); math.Abs(got-least) > 1e-9 && math.Abs(got-free) > 1e-9 {
				t.Fatalf("seed %d: the cheapest plan costs %v, told %v, or %v in any order\n%s", seed, got, least, free, plan)
			}
		}
		for _, k := range []struct {
			rounds int
			*score
		}{{0, split}, {100, searched}} {
			c := remattest.Parsed(t, s.text(s.given()))
			if _, err := gap.Run(c, gap.Options{Limit: limit, Rounds: k.rounds, Seconds: func(i *hlo.Instruction) float64 {
				if v := slices.Index(s.names, i.Name); v >= 0 {
					return s.prices[v]
				}
				return 0
			}}); err != nil {
				t.Fatal(err)
			}
			met, extra := remattest.TempPeak(t, c) <= limit, s.extra(t, c)
			if met && extra < least-1e-9 {
				t.Errorf("seed %d, limit %d: the cheapest plan costs %v, and that of %s %v\n%s\n%s", seed, limit, least, k.name, extra, m, c)
			}
			if remattest.Meaning(c) != sum {
				t.Errorf("seed %d: %s computes something else\n%s\n%s", seed, k.name, m, c)
			}
			k.add(order != nil, met, extra, least, s.total())
		}

		// By the cost model's prices, which the best plan goes by.
		rates := cost.Rates{Bytes: 1e9, Flops: 1e9}
		prices, err := cost.New(m, rates)
		if err != nil {
			t.Fatal(err)
		}
		for v, name := range s.names {
			s.prices[v] = prices.Of(m.Entry.Instructions[slices.IndexFunc(m.Entry.Instructions, func(i *hlo.Instruction) bool { return i.Name == name })]).Seconds
		}
		least, order = s.cheapest(int64(limit), true)
		ours, err := bestPlan(m, limit, rates)
		if err != nil {
			t.Fatal(err)
		}
		xla, err := xlaPlan(m, limit, Options{Rates: rates})
		if err != nil {
			t.Fatal(err)
		}
		before, err := Seconds(m, rates)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range []struct {
			*Plan
			*score
		}{{ours, best}, {xla, theirs}} {
			extra := k.Seconds - before
			if k.Meets(limit) && extra < least-1e-12 {
				t.Errorf("seed %d, limit %d: the cheapest plan costs %v, and that of %s %v\n%s\n%s", seed, limit, least, k.By, extra, m, k.Module)
			}
			k.add(order != nil, k.Meets(limit), extra, least, s.total())
		}
		if xla.betterThan(ours, limit) {
			t.Errorf("seed %d, limit %d: XLA's plan is better\n%s", seed, limit, m)
		}
	}
	for _, k := range []*score{inOrder, split, searched, best, theirs} {
		t.Log(k)
	}
	if testing.Short() {
		return // too few to judge by
	}
	// Measured are 34, 16 and 33 missed limits, and 1.35, 0.79 and 1.70 % of the module.
	for _, want := range []struct {
		*score
		miss int
		mean float64
	}{{split, 36, .0145}, {searched, 18, .0085}, {best, 35, .018}} {
		if mean := want.sum / float64(want.plans); want.score.miss > want.miss || mean > want.mean {
			t.Errorf("%s: want at most %d missed, and a mean gap of %.2f %%", want.score, want.miss, 100*want.mean)
		}
	}
}
