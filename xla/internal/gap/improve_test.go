package gap

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/memory"
	"gpumem/xla/internal/test/remattest"
	"gpumem/xla/internal/verify"
)

// TestImprove: a plan that was searched for is no worse, its profile is that of its
// segments, and the module is what was planned.
func TestImprove(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := remattest.Random(t)
		if rapid.Bool().Draw(t, "training") {
			text = remattest.Layers(rapid.IntRange(2, 9).Draw(t, "layers"), true)
		}
		m, err := hlo.ParseString(text)
		if err != nil {
			t.Fatal(err)
		}
		before, _, err := memory.TempPeak(m, memory.Options{})
		if err != nil {
			t.Fatal(err)
		}
		sum := remattest.Meaning(m)
		limit := uint64(float64(before) * rapid.Float64Range(0, 1).Draw(t, "limit"))
		p := newModulePlan(Options{Limit: limit, Seconds: remattest.BySize})
		g, err := p.search(m.Entry, int64(limit))
		if err != nil {
			t.Fatal(err)
		}
		if g == nil {
			return
		}
		was := g.quality()
		g.improve(rapid.IntRange(0, 30).Draw(t, "rounds"), time.Time{})
		now := g.quality()
		if !now.noWorse(was) {
			t.Errorf("%+v, and before %+v", now, was)
		}
		if counted := recount(g); !slices.Equal(counted, g.profile.bytes()) {
			t.Fatalf("the segments take %d, and the profile says %d\n%s", counted, g.profile.bytes(), text)
		}
		g.build()
		if err := verify.Module(m); err != nil {
			t.Fatalf("%v\n%s\n%s", err, text, m)
		}
		after, err := hlo.ParseString(m.String())
		if err != nil {
			t.Fatal(err)
		}
		result := remattest.ResultBytes(after)
		planned := int64(limit) + now.beyond
		if got, err := remattest.ReplayPeak(after.String(), remattest.Bytes); err != nil || got-result > planned {
			t.Errorf("%d bytes (%v), and %d were planned, limit %d of %d\n%s\n%s", got, err, planned, limit, before, text, m)
		}
		if remattest.Meaning(after) != sum {
			t.Errorf("it computes something else\n%s\n%s", text, m)
		}
	})
}

// recount is the profile of a plan's segments and phases.
func recount(g *planner) []int64 {
	p := g.profile
	defer func() { g.profile = p }()
	g.profile = newProfile(p.n)
	for k, n := range g.called {
		g.profile.add(2*k+1, 2*k+1, n)
	}
	for id := range g.values {
		v := &g.values[id]
		for k := range v.segments {
			g.hold(v, &v.segments[k], 1)
		}
		if v.moved {
			g.profile.add(int(2*v.definer+1), int(2*v.definer+1), -v.inside)
		}
	}
	for at, k := range g.phases {
		g.profile.add(int(at), int(at), g.sequence(k.values, func(id int32) bool { return g.values[id].lasts(at) }))
	}
	return g.profile.bytes()
}
