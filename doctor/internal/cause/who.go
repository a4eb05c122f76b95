package cause

// Who could have given what was wanted: one decision over the account of a message, of which the
// causes are the outcomes. The order is that of the evidence: what cannot be, what is told, who
// is named, what is computed, what is left.

import (
	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/statement"
)

type giver int

const (
	nobodyKnown    giver = iota
	ownMaximum           // the pool's own maximum, told in words
	ownArena             // an arena's limit
	aboveGPU             // more in one piece than the GPU has
	aboveAny             // more than any GPU has
	spilled              // the driver has moved a part to the host already
	aboveMachine         // more than may be taken of a machine with one memory
	ownLimit             // the pool's own limit
	limitByOthers        // the pool's own limit, most of which others in the process took
	roundPart            // a round part of the GPU, which is what programs set
	enoughIsFree         // the GPU itself
	graphCapture         // an engine's cache, which left graphs too little
	poolAlone            // unknown: the message tells of a pool and not of the GPU
	namedOthers          // processes that the message names
	besidePool           // the process itself, outside of its pool
	restListed           // processes that hold the rest, by the machine's list
	restAsync            // the driver's pool, which keeps what is idle
	restOwn              // the process itself: it is alone on the GPU
	restUnknown          // somebody who is not named
	pendingFrees         // blocks that are freed and wait for another stream
	holes                // holes in the pool
	holesOrWaiting       // holes, or blocks that wait
	holesMaybe           // holes, or nobody
	holesHardly          // nobody, or holes
	othersAndHoles       // others and holes together
	listedOthers         // processes by the machine's list
	ownFills             // nobody: the program's own allocations fill the GPU
	restMaybe            // others, or nobody
	ownMaybe             // nobody, or others
	freeListed           // processes by the machine's list; the message does not say who has the rest
	freeAlone            // nobody: no other process is on the machine
	freeOnly             // nobody, or others
	poolFills            // nobody: the pool holds most of the GPU
	poolListed           // processes by the machine's list
	poolOnMachine        // nobody, as far as the machine's list goes
)

// who decides it. It is nobodyKnown where no message has the numbers.
func (c *view) who() giver {
	s := c.Shortfall
	if g := c.whoByWords(); g != nobodyKnown || s == nil || s.Estimated {
		return g
	}
	unified := c.Unified()
	switch {
	case s.Total > 0 && s.Want > s.Total && !unified:
		return aboveGPU
	case !s.TotalTold && s.Want > account.LargestGPU && !unified:
		return aboveAny
	case s.TotalTold && s.HasUse && s.Alloc > s.Total+s.Total/50:
		return spilled
	case s.Untold && s.RestDecides():
		return c.whoHasRest()
	case s.Untold:
		return nobodyKnown
	case s.AboveMachine() && c.Uses("mps"):
		return aboveMachine
	case s.AtLimit() && c.Uses("mps") && s.OtherHere() >= max(s.Alloc, s.Limit/3):
		return limitByOthers
	case s.AtLimit():
		return ownLimit
	case s.FreeEnough():
		return c.whoWhileFree()
	case capturing(s):
		return graphCapture
	case !s.HasFree && !s.TotalTold && s.Idle < s.Want:
		return c.whoBesidePool()
	case s.OthersDecide():
		return namedOthers
	case c.ranksTook():
		return namedOthers
	case s.BesideDecides():
		return besidePool
	case s.Waiting >= s.Lacking && s.Waiting > 0:
		return pendingFrees
	case s.RestDecides():
		return c.whoHasRest()
	}
	return c.whoByArithmetic()
}

// ranksTook reports whether processes of one size, as the ranks of one job have, hold what was
// lacking, whatever is unused in the pool.
func (c *view) ranksTook() bool {
	s := c.Shortfall
	n, _ := s.Ranks()
	return n >= 3 && s.Total > 0 && s.HasFree && s.Others >= s.Lacking && s.Others >= 256*statement.Mib
}

// whoByWords is for limits that are told in words.
func (c *view) whoByWords() giver {
	s := c.Shortfall
	if over := c.Over(); s != nil && over != nil && s.Refusal == over {
		return ownMaximum
	}
	limit, _ := c.Arena()
	toldFull := s != nil && s.St.HasAny("smaller", "less") && s.Total == 0 // ONNX Runtime's word for what its limit leaves
	if s != nil && s.St.Words["arena"] && s.HasFree && s.Free < s.Want && (limit > 0 || toldFull) {
		return ownArena
	}
	return nobodyKnown
}

// whoWhileFree is for a request that the GPU had room for.
func (c *view) whoWhileFree() giver {
	s := c.Shortfall
	switch {
	case !s.HasUse || s.Total == 0:
		return nobodyKnown
	case s.Part > 0:
		return roundPart
	case s.CapSet:
		return nobodyKnown
	}
	return enoughIsFree
}

// whoHasRest is for what is neither free, nor in the pool, nor named.
func (c *view) whoHasRest() giver {
	s := c.Shortfall
	switch {
	case c.told && c.held >= s.Lacking && c.held >= s.Rest/2:
		return restListed
	case c.told && s.Async:
		return restAsync
	case c.told && c.seen && len(c.others) == 0:
		return restOwn
	}
	return restUnknown
}

// whoByArithmetic compares what was lacking with what the pool, the program and others have.
func (c *view) whoByArithmetic() giver {
	s := c.Shortfall
	known := s.HasUse && s.TotalTold
	switch {
	case known && s.HasFree && s.Free >= s.WantUp+s.Round && s.Want > 0 && s.Capture == nil:
		return nobodyKnown // it would have fitted, as far as is told
	case s.Full() && s.TotalTold && s.Holes() && s.Idle+s.Free >= s.Want:
		return holesHardly
	case s.HolesDecide() && s.MayWait() && c.onTorch(s.Refusal):
		return holesOrWaiting
	case s.HolesDecide():
		return holes
	case s.HolesMay() && s.Idle+s.Free >= s.Want:
		return holesMaybe
	case s.HolesMay():
		return holesHardly
	case s.Holes() && !s.Full() && s.OthersAndHoles():
		return othersAndHoles
	case known && c.told && c.held >= s.Lacking && c.held >= account.ContextMost && s.Alloc+s.Want <= s.Total:
		return listedOthers
	case s.OwnDecides(c.told, c.held):
		return ownFills
	case known && !s.HasFree && s.Reserved+s.Want < s.Total/2:
		return restMaybe
	case known:
		return ownMaybe
	case s.HasFree && c.told && c.held >= s.Lacking && c.held > 0:
		return freeListed
	case s.HasFree && (c.told && c.seen || c.FreeCard().Bytes > 0):
		return freeAlone
	case s.HasFree:
		return freeOnly
	}
	return c.whoBesidePool()
}

// whoBesidePool is for a message that tells of a pool, and not of the GPU.
func (c *view) whoBesidePool() giver {
	s, total := c.Shortfall, c.total.Bytes
	switch {
	case total > 0 && (s.Reserved > total*3/4 || s.Reserved+s.Want > total):
		return poolFills
	case c.told && total > 0 && c.held > total/4:
		return poolListed
	case c.told && len(c.others) == 0:
		return poolOnMachine
	}
	return poolAlone
}

// holesAnd is where holes are, in words.
func holesAnd(s *account.Shortfall) string {
	if s.Free > 0 {
		return ", and " + account.Human(s.Free) + " is free: together enough"
	}
	return ": enough"
}

// enoughFree is what is free and was refused, in words.
func enoughFree(s *account.Shortfall) string {
	return account.Say("%v is free and %v was requested: the GPU was not full", s.Free, s.Want)
}

// poolRefused is what a pool has and what it was refused, in words.
func poolRefused(s *account.Shortfall) string {
	if s.Reserved == 0 {
		return s.Refused()
	}
	return account.Say("%v in the pool already, %v more refused", s.Reserved, s.Want)
}

// unnamed is freeOf where nobody is named.
func unnamed(s *account.Shortfall) string { return freeOf(s) + "; who holds the rest is unknown" }

// freeOf is what was requested and what is free, in words.
func freeOf(s *account.Shortfall) string {
	of := ""
	if s.Total > 0 {
		of = " of " + account.Human(s.Total)
	}
	return account.Say("%v requested, %v%s free", s.Want, s.Free, of)
}

// lostInRounding is for holes that are enough or just too few, or a small part of the pool.
func lostInRounding(s *account.Shortfall) string {
	if sum := s.Idle + s.Free; sum > s.Want+s.Want/20 {
		return account.Say("%v is reserved and not in use%s for the %v requested, but what is not in use is a small part of the pool's %v",
			s.Idle, holesAnd(s), s.Want, s.Reserved)
	}
	return account.Say("%v is reserved and not in use, and %v is free: whether that is enough for the %v requested is lost in the rounding",
		s.Idle, s.Free, s.Want)
}

// unowned is what is neither free nor of the pool, in words.
func unowned(s *account.Shortfall) string {
	neither := "neither free nor"
	if !s.HasFree {
		neither = "not"
	}
	return account.Say("%v of %v is %s of this program's pool", account.Less(s.Total, s.Free+s.Reserved), s.Total,
		neither)
}

// hint is what to say of PyTorch's advice where the numbers refute it.
func (c *view) hint() []string { return c.HintIsWrong(c.Shortfall.Refusal) }
