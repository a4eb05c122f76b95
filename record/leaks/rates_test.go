package leaks

// This file is for how often the answer is right, over many random loops.

import (
	"math/rand/v2"
	"testing"
)

// anyLoop is a random loop; leaky plants one to three leaks.
func anyLoop(seed uint64, leaky bool) loop {
	rng := rand.New(rand.NewPCG(seed, 2))
	maybe := func(n int) int { // 0, or up to n
		return rng.IntN(2) * rng.IntN(n+1)
	}
	l := loop{
		seed: seed, steps: 50 + rng.IntN(250), sites: rng.IntN(60), noise: rng.IntN(2) == 1,
		load: maybe(300), warm: maybe(4), ring: maybe(8), random: maybe(40),
		overlap: rng.IntN(2) == 1, cut: rng.IntN(2) == 1, ends: rng.IntN(4) == 0, text: rng.IntN(3) == 0,
	}
	l.cache = maybe(l.steps * 7 / 10)
	if rng.IntN(3) == 0 {
		l.learns = 1 + rng.IntN(l.steps/5)
	}
	if !leaky {
		l.sites++
		return l
	}
	for i := range 1 + rng.IntN(3) {
		k := leaker{site: 700 + i, bytes: (1 + rng.IntN(4000)) * 1024, every: 1 + rng.IntN(5)}
		if rng.IntN(3) == 0 {
			k.lose = .5 * rng.Float64()
		}
		l.leaks = append(l.leaks, k)
	}
	if rng.IntN(4) == 0 {
		l.same = rng.IntN(300)
	}
	return l
}

// TestRates: leaks that are planted are found, and nothing else is called one.
func TestRates(t *testing.T) {
	const runs = 400
	var planted, found, other, clean, alarms, noSteps, farSteps int
	verdicts := map[verdict]int{}
	for seed := range uint64(runs) {
		l := anyLoop(seed, true)
		rep := look(t, l)
		verdicts[rep.Verdict]++
		if rep.Steps == nil {
			noSteps++
		} else if n := float64(*rep.Steps) / float64(l.steps); n < .8 || n > 1.2 {
			farSteps++
			t.Logf("seed %d: %d steps in %+v", seed, *rep.Steps, l)
		}
		names := map[string]bool{}
		for _, p := range rep.Leaks {
			names[p.Site] = true
		}
		want := map[string]bool{}
		for _, k := range l.leaks {
			want[l.nameOf(k)] = true
		}
		for n := range want {
			planted++
			if names[n] {
				found++
			} else {
				t.Logf("seed %d: %q is missed in %+v", seed, n, l)
			}
		}
		for n := range names {
			if !want[n] {
				other++
				t.Logf("seed %d: %q is no leak in %+v", seed, n, l)
			}
		}
		l = anyLoop(seed, false)
		clean++
		if rep := look(t, l); rep.Verdict == Leak || rep.Verdict == Growth {
			alarms++
			t.Logf("seed %d: %s, %+v, unnamed %d in %+v", seed, rep.Verdict, rep.Leaks, rep.Unnamed, l)
		}
	}
	// With the seeds above it is 795 of 804, 1, and 7 of 400; the rest leaves room
	// for other changes, not for many.
	if found*100 < planted*98 || other*100 > planted || alarms*100 > clean*3 {
		t.Error("too many wrong answers")
	}
	t.Logf("%d of %d leaks found, %d places wrongly named; %d false alarms in %d clean loops; verdicts %v; steps not told %d, far off %d",
		found, planted, other, alarms, clean, verdicts, noSteps, farSteps)
}
