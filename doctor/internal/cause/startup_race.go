package cause

// startup_race: another program took or released memory while this one started and measured.

import (
	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/statement"
)

var waitForOthers = steps(
	"start them one after another, each when the one before is ready: "+
		"gpumem run --wait -- COMMAND measures free memory under a lock, and waits until it stands still",
	"after an engine was ended, wait until nvidia-smi shows its memory free")

// freeRose reports whether the second reading of what is free is above the first, or there are none.
func freeRose(st *statement.Statement) bool {
	var free []uint64
	for _, a := range st.Amounts {
		if a.Role == statement.RoleFree || a.Initial {
			free = append(free, a.N)
		}
	}
	return len(free) < 2 || free[1] > free[0]
}

func startupRace(c *view) found {
	if l := c.about("profiling",
		"less was in use after loading than before: another process released memory in between"); l != nil && freeRose(c.About("profiling")) {
		return found{sure(820, "free memory moved during the measurement", waitForOthers, l...)}
	}
	g := c.Engine
	switch {
	case g == nil:
	case g.AtStart:
		x := fits(759, "a neighbour at its start or end", waitForOthers, waitAndSee,
			g.St.Quoted("whoever holds the rest may be starting, or ending"))
		return found{x.beside()}
	case g.CacheShort() && g.BeforeOf > 0 && g.Before.Bytes >= g.BeforeOf/10+g.Weights.Bytes+account.ContextMost/2*min(g.Weights.Bytes, 1) && !c.shareRaises(g):
		return found{sure(745, "an engine counts what was there before it", waitForOthers,
			with(g.Before, "%v of %v was in use before this engine had loaded anything, and it counts that as its own",
				g.Before.Bytes, g.BeforeOf),
			g.St.Quoted("so nothing of its share is left for the cache"))}
	}
	return nil
}
