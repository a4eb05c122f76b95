package cause

// What the numbers of one message leave: who could have given what was wanted. It is one decision,
// and each case has the causes that it means. The order is that of the evidence: what is told in
// words, what cannot be, the pool's own limit, who is named, what is computed, what is left.
//
// The borders between the cases are in package account, decides.go.

import (
	"strings"

	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/statement"
)

// fromMessage explains the message with numbers; nil if there is none, or if its numbers leave all
// open.
func (c *view) fromMessage() found {
	s := c.Shortfall
	if x := c.limitInWords(); x != nil || s == nil || s.Estimated {
		return x
	}
	if x := c.impossible(); x != nil {
		return x
	}
	switch {
	case s.Untold && s.RestDecides():
		return c.restOfGPU()
	case s.Untold:
		return nil
	case s.AtLimit() && c.Uses("mps") && s.OtherAtLimit():
		return c.limitByOthers()
	case s.AtLimit():
		free := ""
		if s.HasFree {
			free = account.Say(", while %v of the GPU is free", s.Free)
		}
		return found{sure(670, "the pool's own limit", c.raiseCap(s.Refusal, s.Limit),
			quote(s.St, "%v taken and %v requested pass the limit of %v%s%s", s.Taken, s.Want, s.Limit, s.Whose, free)).
			of("pool_limit")}
	case s.FreeEnough():
		return c.whileFree()
	case s.Capturing() && !s.OthersDecide():
		return found{sure(660, "graphs after the cache", c.lessCache(s),
			quote(s.St, "%v more while graphs are captured, and %v is free", s.Want, s.Free),
			s.Capture.Quoted("CUDA graphs are captured, after the cache took its part")).of("cuda_graph_headroom")}
	case !s.HasFree && !s.TotalTold && s.Idle < s.Want:
		return c.poolOnly()
	case s.OthersDecide() && (s.HolesMuch() || s.BesideMuch()):
		return c.severalHold()
	case s.OthersDecide(), s.RanksTook():
		lacking := when(s.Lacking > 0, account.Say(": %v was lacking", s.Lacking))
		return found{sure(656, "others in the message", c.ranksOr(s.Refusal),
			quote(s.St, "%v requested, %v free%s, and others hold %v of %v (%s)",
				s.Want, s.Free, lacking, s.Others, s.GPU, strings.Join(s.Names, ", "))).
			certainly(c.hint()...).of("device_occupied")}
	case s.BesideDecides() && !s.HolesMuch():
		return found{sure(652, "another allocator in the process", c.oneAllocator(),
			quote(s.St, "this process holds %v, of which its pool reserved %v: %v belongs to another allocator in it",
				s.Process, s.Reserved, account.Less(s.Process, s.Reserved))).
			certainly(c.hint()...).of("other_allocator_same_process")}
	case s.Waiting >= s.Lacking && s.Waiting > 0:
		return found{sure(651, "freed, and waiting for a stream", waitLess, s.WaitingFrom,
			quote(s.St, "%v was lacking, and %v waits", s.Lacking, s.Waiting)).of("stream_pending")}
	case s.RestDecides():
		return c.restOfGPU()
	case s.Fits() && s.Want > 0 && s.Capture == nil:
		return nil
	case s.BesideMuch():
		return c.severalHold()
	}
	if x := c.fromHoles(); x != nil {
		return x
	}
	return c.fromSizes()
}

// severalHold is for a message whose numbers leave more than one who holds what was lacking: others that
// it names, the process outside of its pool, holes in the pool, or somebody whom it does not name.
func (c *view) severalHold() (all found) {
	s := c.Shortfall
	if s.Others >= max(s.Lacking, 1) {
		all = append(all, fits(656, "one of several holders", c.endOthers(), c.processes(),
			quote(s.St, "others hold %v of %v (%s)", s.Others, s.GPU, strings.Join(s.Names, ", "))).of("device_occupied"))
	}
	if s.BesideMuch() {
		all = append(all, fits(652, "one of several holders", c.oneAllocator(), c.processes(),
			quote(s.St, "this process holds %v, of which its pool reserved %v: %v is not of the pool",
				s.Process, s.Reserved, account.Less(s.Process, s.Reserved))).of("other_allocator_same_process"))
	}
	if s.Holes() && s.Idle+s.Free >= s.Want {
		all = append(all, fits(640, "one of several holders", c.fillHoles(), c.onPool(seeSummary),
			quote(s.St, "%v is reserved and not in use%s for the %v requested", s.Idle, holesAnd(s), s.Want)).of("fragmentation"))
	}
	if s.UnnamedMuch() {
		all = append(all, fits(638, "one of several holders, unnamed", c.endOthers(), c.processes(),
			s.St.Quoted(s.InUse())).needs(NeedProcesses).of("device_occupied"))
	}
	if len(all) == 1 {
		all = append(all, fits(629, "one of several holders", c.smaller(), c.processes(),
			s.St.Quoted(s.Own())).of("program_too_big"))
	}
	return all
}

// limitInWords is for limits that are told in words.
func (c *view) limitInWords() found {
	s := c.Shortfall
	if s == nil {
		return nil
	}
	if s.Refusal == c.Over() {
		x := sure(690, "the pool's own maximum", c.raiseCap(s.Refusal, s.LimitTold),
			s.St.Quoted("the pool has reached its own maximum; the GPU was not asked"))
		if d := c.Simulated(); d.Bytes > 0 {
			x = x.and(with(d, "the simulated GPU has %v", d.Bytes))
		}
		return found{x.of("pool_limit")}
	}
	limit, st := c.Arena()
	full := s.St.HasAny("smaller", "less") && s.GPU == 0 // ONNX Runtime's word for what its limit leaves
	if !s.St.Words["arena"] || !s.HasFree || s.Free >= s.Want || limit == 0 && !full {
		return nil
	}
	var l []statement.Evidence
	if limit > 0 {
		l = append(l, quote(st, "the arena may take %v", limit))
	}
	return found{sure(688, "an arena's limit", c.raiseCap(s.Refusal, limit), l...).
		and(quote(s.St, "%v requested, and %v is what the arena may still take", s.Want, s.Free)).of("pool_limit")}
}

// impossible is for more than there is, of one GPU or of any.
func (c *view) impossible() found {
	s, unified := c.Shortfall, c.Unified()
	switch {
	case s.GPU > 0 && s.Want > s.GPU && s.Free <= s.GPU+s.GPU/8 && !unified:
		return found{sure(686, "a request above the total", c.smaller(),
			quote(s.St, "one request of %v is more than the GPU's %v", s.Want, s.GPU)).of("program_too_big")}
	case !s.TotalTold && s.Want > account.LargestGPU && !unified:
		return found{sure(684, "a request above any GPU", c.smaller(),
			quote(s.St, "%v in one piece is more than any device has", s.Want)).of("program_too_big")}
	case s.Spilled():
		return found{sure(682, "more allocated than the GPU has", c.smaller(),
			quote(s.St, "%v is allocated on a GPU of %v: the driver has moved a part of it to the host's memory already",
				s.Alloc, s.GPU)).
			certainly("on Windows the driver spills into the host's memory before a program is refused").
			of("program_too_big")}
	case !s.Untold && s.AboveMachine() && c.Uses("mps"):
		return found{sure(680, "a request above the limit", c.smaller(),
			quote(s.St, "one request of %v is more than the %v that may be taken of the machine's memory",
				s.Want, s.Limit)).of("program_too_big")}
	}
	return nil
}

// limitByOthers is for a limit on the process, most of which others in it took.
func (c *view) limitByOthers() found {
	s := c.Shortfall
	return found{
		fits(672, "others in the process", steps(
			"release what is not PyTorch's: other models, caches and Metal users of the process, or start it anew; torch.mps.empty_cache()",
			"or take a smaller workflow: batch, resolution, half precision"), seeMetal,
			quote(s.St, "%v of the %v that the process may take is not of PyTorch's own allocations, which are %v",
				s.OtherHere(), s.Limit, s.Alloc)).of("other_allocator_same_process"),
		fits(671, "the limit on the process", c.raiseCap(s.Refusal, s.Limit), seeMetal,
			quote(s.St, "%v taken and %v requested pass the limit of %v", s.Taken, s.Want, s.Limit)).of("pool_limit"),
	}
}

// whileFree is for a request that the GPU had room for.
func (c *view) whileFree() found {
	s := c.Shortfall
	had := account.Say("the GPU had %v free when %v was refused", s.Free, s.Want)
	switch {
	case !s.HasUse || s.GPU == 0:
		return nil
	case s.Part > 0:
		return found{sure(668, "just below a round part of the GPU", c.raiseCap(s.Refusal, s.Part),
			quote(s.St, "%v is free, and %v was refused: the pool has %v, "+
				"and with the request it would pass %d %% of %v, a limit as programs set it",
				s.Free, s.Want, s.Reserved, s.PartOf, s.GPU)).
			certainly(had).of("pool_limit")}
	case s.CapSet:
		return nil
	}
	refused := quote(s.St, "%v is free and %v was requested: the GPU was not full", s.Free, s.Want)
	limit := fits(604, "refused while enough is free", c.raiseCap(s.Refusal, 0), c.seeWall(), refused).
		needs(c.needCap()...).certainly(had).of("pool_limit")
	if c.Uses("xpu") && s.Want >= account.IntelBlock {
		limit = c.intelLimit(refused)
	}
	all := found{limit,
		fits(666, "refused while enough is free", steps(
			"see the host's memory while it fails: free -h, dmesg. "+
				"On Windows the paging file must hold what the driver grants; WSL has a limit in .wslconfig",
			"check that driver, runtime and framework fit each other: "+
				"a build for another release of ROCm or CUDA fails in the same way"), seeBoth, refused).certainly(had).of("host_memory"),
	}
	if externalQuota(c) == nil && !c.at("windows") { // it knows of no limiter, and there may be one
		all = append(all, fits(605, "refused while enough is free", c.raiseQuota(0), c.seeWall(), refused).of("external_quota"))
	}
	return all
}

// intelLimit is for one allocation of 4 GiB and more, which Intel's runtime refuses.
func (c *view) intelLimit(refused statement.Evidence) Explanation {
	s := c.Shortfall
	if s.LimitTold > 0 { // a release that tells of a cap, which was not the wall either
		return fits(667, "one allocation of 4 GiB", steps("split the tensor, or update Intel's driver and PyTorch"), relaxed, refused).
			of("pool_limit")
	}
	return sure(667, "one allocation of 4 GiB", intelBlock,
		quote(s.St, "%v is free, and one allocation of %v was refused: Intel's runtime has a limit of 4 GiB for one",
			s.Free, s.Want)).of("pool_limit")
}

// restOfGPU is for what is neither free, nor in the pool, nor named.
func (c *view) restOfGPU() found {
	s := c.Shortfall
	inUse := s.St.Quoted(s.InUse())
	rest := quote(s.St, "%v of the GPU is neither free nor in a tensor", s.Rest)
	switch {
	case c.told && s.RestIs(c.held):
		return found{sure(649, "others on the machine", c.endOthers(), c.othersLines()...).and(inUse).of("device_occupied")}
	case c.told && s.Async:
		return found{sure(648, "what the driver's pool keeps", releaseAsync, rest).of("fragmentation")}
	case c.told && c.seen && len(c.others) == 0:
		return found{sure(647, "alone on the GPU", c.oneAllocator(), inUse).certainly(c.hint()...).
			of("other_allocator_same_process")}
	}
	inProcess := fits(646, "the rest of the GPU", c.oneAllocator(), c.processes(), inUse).of("other_allocator_same_process")
	if s.Async {
		inProcess = fits(646, "what the driver's pool keeps", releaseAsync, c.processes(), rest).of("fragmentation")
	}
	return found{
		fits(647, "the rest of the GPU", c.endOthers(), c.processes(), inUse).needs(NeedProcesses).certainly(c.hint()...).
			of("device_occupied"),
		inProcess.needs(NeedProcesses),
	}
}

// fromHoles is for a pool that holds, and does not use, much of what was wanted.
func (c *view) fromHoles() found {
	s := c.Shortfall
	enough := s.Idle+s.Free >= s.Want
	switch {
	case s.Brimful():
		return nil
	case s.Full() && s.TotalTold && s.Holes() && enough:
		return c.holesOrTooFew(638)
	case s.HolesDecide() && s.MayWait() && c.onTorch(s.Refusal):
		return found{
			fits(640, "holes in the pool", c.fillHoles(), seeActive,
				quote(s.St, "%v is reserved and not allocated, many times the %v requested", s.Idle, s.Want)).of("fragmentation"),
			fits(639, "freed, and waiting for a stream", waitLess, seeActive,
				quote(s.St, "%v is reserved and not allocated: blocks that wait for another stream count so, too", s.Idle)).
				of("stream_pending"),
		}
	case s.HolesDecide() && s.UnnamedMuch():
		return c.severalHold()
	case s.HolesDecide():
		return found{sure(640, "holes in the pool", c.fillHoles(),
			quote(s.St, "%v is reserved and not in use%s for the %v requested, but not in one piece", s.Idle, holesAnd(s), s.Want)).
			of("fragmentation")}
	case s.HolesMay() && enough:
		return c.holesOrTooFew(640)
	case s.HolesMay():
		return c.holesOrTooFew(638)
	case s.OthersAndHoles():
		neither := when(max(s.Others, s.Idle) < s.Lacking, "; neither alone is enough")
		both := quote(s.St, "%v was lacking: others hold %v, and %v is reserved and not in use%s",
			s.Lacking, s.Others, s.Idle, neither)
		decide := c.onPool(seeSummary)
		return found{
			fits(639, "others and holes together", c.endOthers(), decide, both).of("device_occupied"),
			fits(638, "others and holes together", c.fillHoles(), decide, both).of("fragmentation"),
			fits(637, "others and holes together", c.smaller(), decide, both).of("program_too_big"),
		}
	}
	return nil
}

// holesOrTooFew is for holes that are enough, or just too few; rank is that of the holes.
func (c *view) holesOrTooFew(rank int) found {
	s := c.Shortfall
	decide, lost := c.onPool(seeSummary), s.St.Quoted(lostInRounding(s))
	all := found{
		fits(rank, "holes in the pool, or just too few", c.fillHoles(), decide, lost).of("fragmentation"),
		fits(639, "holes in the pool, or just too few", c.smaller(), decide, lost).of("program_too_big"),
	}
	if s.Others > 0 && s.Others >= s.Lacking {
		all = append(all, fits(636, "others in the message", c.endOthers(), seeSummary,
			quote(s.St, "%v was lacking, and others hold %v (%s)", s.Lacking, s.Others, strings.Join(s.Names, ", "))).
			of("device_occupied"))
	}
	return all
}

// fromSizes compares what was lacking with what the program and others have.
func (c *view) fromSizes() found {
	s := c.Shortfall
	own, others := s.St.Quoted(s.Own()), c.told && c.held >= s.Lacking
	known := s.HasUse && s.TotalTold
	switch {
	case known && others && c.held >= account.ContextMost && s.Alloc+s.Want <= s.GPU:
		return found{sure(632, "others on the machine", c.endOthers(), c.othersLines()...).and(own).certainly(c.hint()...).
			of("device_occupied")}
	case s.OwnDecides(c.told, c.held):
		return found{sure(630, "the program's own allocations fill the GPU", c.smaller(), own).certainly(c.hint()...).
			of("program_too_big")}
	case known:
		rank := 629
		if s.PoolSmall() {
			rank = 627
		}
		neither := when(s.HasFree, "neither free nor") + when(!s.HasFree, "not")
		return found{
			fits(rank, "the program's own allocations", c.smaller(), c.processes(), own).needs(NeedProcesses).of("program_too_big"),
			fits(628, "the rest of the GPU", c.endOthers(), c.processes(),
				quote(s.St, "%v of %v is %s of this program's pool", account.Less(s.GPU, s.Free+s.Reserved), s.GPU, neither)).
				needs(NeedProcesses).of("device_occupied"),
		}
	case s.HasFree:
		return c.freeOnly()
	}
	return c.poolOnly()
}

// freeOnly is for a message that tells what is free, and not who has the rest.
func (c *view) freeOnly() found {
	s := c.Shortfall
	of := ""
	if s.GPU > 0 {
		of = account.Say(" of %v", s.GPU)
	}
	free := account.Say("%v requested, %v%s free", s.Want, s.Free, of)
	switch {
	case c.told && c.held >= s.Lacking && c.held > 0 && !c.OneMayBeOwn():
		return found{sure(622, "others on the machine", c.endOthers(), c.othersLines()...).and(s.St.Quoted(free)).
			of("device_occupied")}
	case c.told && c.seen && !c.OneMayBeOwn() || c.FreeCard().Bytes > 0:
		return found{sure(620, "no other process on the machine", c.smaller(), s.St.Quoted(free)).and(c.freeCard()...).
			of("program_too_big")}
	}
	unnamed := s.St.Quoted(free + "; who holds the rest is unknown")
	return found{
		fits(620, "a message without its numbers", c.smaller(), c.processes(), unnamed).needs(NeedProcesses).of("program_too_big"),
		fits(619, "a message without its numbers", c.endOthers(), c.processes(), unnamed).needs(NeedProcesses).of("device_occupied"),
	}
}

// poolOnly is for a message that tells of a pool, and not of the GPU.
func (c *view) poolOnly() found {
	s, total := c.Shortfall, c.total.Bytes
	refused := s.St.Quoted(s.Refused())
	if s.Reserved > 0 {
		refused = quote(s.St, "%v in the pool already, %v more refused", s.Reserved, s.Want)
	}
	switch {
	case s.PoolFills(total):
		return found{sure(612, "the pool holds most of the GPU", c.smaller(), refused).and(c.totalLine()...).of("program_too_big")}
	case c.told && account.HoldsMuch(c.held, total):
		return found{sure(611, "others on the machine", c.endOthers(), c.othersLines()...).and(refused).of("device_occupied")}
	case c.told && len(c.others) == 0:
		return found{fits(612, "no other process on the machine", c.smaller(), c.processes(), refused).needs(needTotal).
			of("program_too_big")}
	}
	return found{
		fits(612, "a pool that the GPU refuses", c.smaller(), c.processes(), refused).needs(needTotal, NeedProcesses).of("program_too_big"),
		fits(611, "a pool that the GPU refuses", c.endOthers(), c.processes(), refused).needs(NeedProcesses).of("device_occupied"),
	}
}

// holesAnd is where holes are, in words.
func holesAnd(s *account.Shortfall) string {
	if s.Free > 0 {
		return account.Say(", and %v is free: together enough", s.Free)
	}
	return ": enough"
}

// lostInRounding is for holes that are enough or just too few, or too small a part of the pool.
func lostInRounding(s *account.Shortfall) string {
	if s.HolesEnough() {
		return account.Say("%v is reserved and not in use%s for the %v requested; it is %d %% of the pool's %v",
			s.Idle, holesAnd(s), s.Want, int(s.Idle*100/max(s.Reserved, 1)), s.Reserved)
	}
	return account.Say("%v is reserved and not in use, and %v is free: whether that is enough for the %v requested is lost in the rounding",
		s.Idle, s.Free, s.Want)
}

// hint is what to say of PyTorch's advice where the numbers refute it.
func (c *view) hint() []string { return c.HintIsWrong(c.Shortfall.Refusal) }

var releaseAsync = steps("torch.cuda.empty_cache() releases what the driver's pool keeps",
	"or use PyTorch's own allocator, which tells more: leave backend:cudaMallocAsync out of PYTORCH_CUDA_ALLOC_CONF")

// waitLess is for memory that is freed, and waits for another stream before it may be used again.
var waitLess = steps(
	"let the streams meet before the memory is needed again: current_stream().wait_stream(side), or side.synchronize(), in each step",
	"record_stream keeps a block until the other stream is done with it: free such tensors later, "+
		"or copy them within one stream; a loader that prefetches on a stream of its own may be too far ahead")
