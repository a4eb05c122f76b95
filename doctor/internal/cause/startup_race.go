package cause

// startup_race: another program took or released memory while this one started and measured.

import (
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
	return nil
}
