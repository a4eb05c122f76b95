package cause

// leak: memory in use grows until it is full.

import (
	"fmt"

	"gpumem/doctor/internal/account"
)

func leak(c *view) found {
	if s := c.Rising(); s != nil && c.fatal {
		first, last := s.First, s.Last
		first.Reading = account.Human(s.Low) + " at first"
		last.Reading = account.Say("%v after %d readings, each above the one before: %v more each time", s.High, s.N,
			(s.High-s.Low)/uint64(s.N-1))
		return found{sure(890, "readings that only rise", c.mendLeak(), first, last)}
	}
	if s := c.Steady(); s != nil && (c.fatal || c.LastError == nil) {
		first, last := s.First, s.Last
		first.Reading = fmt.Sprintf("%.2f at first; the line has no unit", float64(s.Low)/1000)
		last.Reading = fmt.Sprintf("%.2f after %d readings, each above the one before by nearly the same",
			float64(s.High)/1000, s.N)
		return found{sure(890, "readings that rise by the same each time", c.mendLeak(), first, last)}
	}
	b := c.Compiled.Buffers
	if b.Bytes > 0 && c.Compiled.Small && !c.gpuHalfEmpty() {
		live, source := c.LiveHere()
		switch {
		case source != "" && live > 4*b.Bytes:
			return found{sure(455, "a small program, and much that is live", c.mendLeak(),
				with(b, "the program needs %v only, and %v was live when %s was taken", b.Bytes, live, source)).only()}
		case source == "":
			return found{fits(455, "a small program that does not fit", c.mendLeak(), c.seeHeld(),
				with(b, "the program needs %v only: what fills the GPU is something else, earlier allocations of this process or another program",
					b.Bytes)).needs(NeedProcesses)}
		}
	}
	if r := c.bare; r != nil && c.bareXLA() && account.MayFollowGrowth(r.Want) {
		return found{fits(210, "a request and nothing more", c.mendLeak(), c.seeHeld(),
			r.St.Quoted(r.Refused())).needs(needReport)}
	}
	return nil
}

// gpuHalfEmpty reports whether the state shows that the GPU is not full.
func (c *view) gpuHalfEmpty() bool {
	used, total := c.GPUUsed()
	return used > 0 && used < total/2
}

func (c *view) mendLeak() Remedy {
	return steps(
		"see what stays alive between steps: lists of losses, caches, closures, logged arrays; turn them into " +
			"numbers").step(c.advise("leak").Steps...)
}
