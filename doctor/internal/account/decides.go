package account

// Whether the numbers of one message decide who could have given what was wanted. The
// figures at which the account of a message or of an engine turns are named here.

import (
	"math"

	"gpumem/doctor/internal/statement"
)

// Parts of a whole, in thousandths.
const (
	allOfGPU     = 985 // of the GPU. A limit above is none: the driver keeps up to 1.5 % of a card
	limitNear    = 5   // of the limit. Two sums so near are one that was rounded to three digits
	limitRounded = 1   // of the limit, which is printed to three digits
	spillBegins  = 20  // of the GPU, above it. No rounding of a total is as large
	othersLarge  = 400 // of the GPU. Whoever holds so much is the reason, whatever is lacking beside
	restLarge    = 200 // of the GPU. Less may be contexts and libraries of this program, on a small card too
	othersMove   = 20  // of the GPU. A process that holds much may have released so much since
	holesLeast   = 25  // of what is allocated. Rounding leaves as much in any pool
	holesLarge   = 40  // of the pool. The usual ends of segments are less
	holesMain    = 250 // of the pool. Where a GPU is nearly full, less is no better reason than the program's size
	holesSmall   = 30  // of the pool. To use them all gains less than the next step may need
	askedMuch    = 830 // of the GPU, allocated and asked for: a program a little smaller does without the holes
	gpuFull      = 950 // of the GPU. The next request does not fit then, whatever the holes
	gpuTensors   = 940 // of the GPU, all of it tensors: with small holes the program itself is too large
	ownNearly    = 900 // of the GPU. A context and what rounding hides are the rest
	ownMostly    = 750 // of the GPU, where no more than a context is in nobody's account
	poolSmall    = 500 // of the GPU. Above it the program is the first to ask, below it others
	poolMost     = 750 // of the GPU, where the message does not tell of it
	holderMuch   = 250 // of the GPU. No context is as large
	restTold     = 500 // of what is in nobody's account: listed processes that hold so much explain it
	eachCounts   = 100 // of what was lacking. Others or holes below it are no part of the reason
	captureFree  = 100 // of the GPU. With more free a graph's own request has room
	ownRounded   = 5   // of what a process holds, which is printed to three digits
)

// The same, of an engine and its GPU.
const (
	startFree    = 800 // a GPU of which so much is free is this program's alone
	startTaken   = 600 // of one with less free others hold much
	loadedLittle = 60  // free beside the weights: graphs and activations alone take it
	loadedFree   = 125 // free beside the weights: more than graphs and activations take
	shareLeaves  = 50  // what no share may take: contexts and libraries
	beforeMuch   = 100 // in use before the weights: more than a context
	weightsHeavy = 700 // weights that leave a cache of any length too little
	partMost     = 500 // one part of an engine that is most of it
	partLeft     = 100 // what was left behind it, and is too little for any other
)

// Refusals of a few bytes.
const (
	manyRefusals = 4       // so many are no chance
	pageSize     = 4 << 10 // bytes
)

// NearlyAll is the share of the GPU from which on nobody can be given much more.
const NearlyAll = .95

// How many times one figure is another.
const (
	othersOverHoles = 4  // others of whom the holes are a small part
	besideOverHoles = 2  // what lies outside of the pool, against the holes in it
	idleOverWant    = 10 // the gaps between blocks are a poor reason for more
	holesOfLacking  = 2  // holes of half of what was lacking may have served it, as far as rounding tells
	otherOverOwn    = 2  // Metal's own buffers for a program's graphs are as much as its tensors
	otherOfLimit    = 3  // a third of the limit is no accident of the program's own
)

// Sizes, in bytes.
const (
	margin       = 64 * statement.Mib  // what rounding and a context's growth can hide
	segment      = 20 * statement.Mib  // PyTorch's segment for small requests above a MiB
	leastHole    = 2 * statement.Mib   // PyTorch's segment for those below
	waitingWant  = 100 * statement.Mib // a smaller request has gaps many times its size in any pool
	rankLeast    = 256 * statement.Mib // a context is not smaller
	captureMost  = 2 * statement.Gib   // what a graph's capture asks for
	othersLeast  = 2 * statement.Gib   // less in other programs is a desktop
	steadyMost   = 4 * statement.Gib   // a larger request is refused for its size, and not for what grew before it
	largeBuffer  = 16 * statement.Gib  // cards for a desktop that have more are few; twice that none has
	contextUsual = ContextMost / 2
	contextSmall = ContextMost / 3
)

// Limits that programs set are round parts of the GPU: twentieths. Where rounding may hide more than
// roundWindow of it, no such part is near enough to be meant.
const (
	roundSteps  = 20
	roundWindow = .006
)

// part is so many thousandths of n.
func part(n, thousandths uint64) uint64 { return n/1000*thousandths + n%1000*thousandths/1000 }

// What cannot be.

// IntelBlock is the least allocation that Intel's runtime refuses by itself, in bytes.
const IntelBlock = 4 * statement.Gib

// AboveGPU reports whether a program's buffers leave a GPU of these bytes no room for a context.
func AboveGPU(bytes, gpu uint64) bool { return gpu > 0 && bytes > gpu-contextUsual }

// OneAboveGPU reports whether one request is more than a GPU of these bytes can give.
func OneAboveGPU(bytes, gpu uint64) bool { return gpu > 0 && bytes > gpu-ContextMost/4 }

// AboveOwn reports whether a program's buffers are more than what its process has of the GPU, a context included.
func AboveOwn(bytes, own uint64) bool { return own > 0 && bytes+contextUsual > own }

// FewForCapture reports whether a request is as small as those are that capture a graph, or unknown.
func FewForCapture(bytes uint64) bool { return bytes <= captureMost }

// MayFollowGrowth reports whether a request is so small that what grew before it may be the reason.
func MayFollowGrowth(bytes uint64) bool { return bytes <= steadyMost }

// Spilled reports whether more is allocated than the GPU has.
func (s *Shortfall) Spilled() bool {
	return s.TotalTold && s.HasUse && s.Alloc > s.GPU+part(s.GPU, spillBegins)
}

// AboveMachine reports whether one request is more than may be taken of a machine with one
// memory.
func (s *Shortfall) AboveMachine() bool { return s.passes() && s.Want > s.Limit }

// The pool's own limit.

// roundPart is the round part of the GPU that the pool would pass with the request, in bytes and in
// percent; 0 if there is none. What is taken is below it, and with the request above: that is no
// coincidence where the request is small.
func (s *Shortfall) roundPart() (bytes uint64, percent int) {
	gpu := float64(s.GPU)
	high := float64(s.Reserved+s.WantUp+s.Round) / gpu
	low := float64(Less(s.Reserved, s.Round)) / gpu
	step := math.Ceil(low*roundSteps) / roundSteps
	if near := s.GPU > 0 && high-low < roundWindow; !near || step <= low || step > high || step >= 1 {
		return 0, 0
	}
	return uint64(step * gpu), int(math.Round(100 * step))
}

// AtLimit reports whether the request would have passed the pool's own limit, and the GPU has
// more than that.
func (s *Shortfall) AtLimit() bool {
	return s.passes() && s.limitLeaves() && (s.Want > s.Limit || s.GPU == 0 || s.Alloc+s.Want <= s.GPU)
}

// passes reports whether what is taken and the request pass the limit.
func (s *Shortfall) passes() bool {
	known := s.Limit > 0 && (s.HasUse || s.Want > s.Limit)
	return known && s.Taken+s.WantUp+s.Round+part(s.Limit, limitRounded) >= s.Limit
}

// limitLeaves reports whether what is called free may be what the limit leaves.
func (s *Shortfall) limitLeaves() bool {
	if !s.HasFree || s.Free+s.Round+segment >= s.Want {
		return true
	}
	sum := s.Alloc + s.Free
	return s.HasUse && s.Limit > 0 && Less(sum, s.Limit)+Less(s.Limit, sum) <= part(s.Limit, limitNear)
}

// OtherAtLimit reports whether others in the process took most of what its limit gives.
func (s *Shortfall) OtherAtLimit() bool {
	return s.OtherHere() >= max(otherOverOwn*s.Alloc, s.Limit/otherOfLimit)
}

// FreeEnough reports whether the GPU had room for the request.
// Where a named process holds much, a few hundred MiB more may have come free since.
func (s *Shortfall) FreeEnough() bool {
	more := uint64(margin)
	if s.Others >= part(s.GPU, othersLarge) {
		more = max(margin, part(s.GPU, othersMove))
	}
	return s.HasFree && s.Free >= s.Want+more
}

// Fits reports whether it would have fitted, as far as is told.
func (s *Shortfall) Fits() bool {
	return s.HasUse && s.TotalTold && s.HasFree && s.Free >= s.WantUp+s.Round
}

// Capturing reports whether a small request found a full GPU while graphs were captured.
func (s *Shortfall) Capturing() bool {
	small := s.Capture != nil && s.Want > 0 && s.Want <= captureMost
	return small && (s.GPU == 0 || s.Free <= part(s.GPU, captureFree) && s.Want <= s.GPU)
}

// Others, and what is in nobody's account.

// OthersDecide reports whether processes that the message names hold what was lacking.
func (s *Shortfall) OthersDecide() bool {
	enough := s.GPU > 0 && s.HasFree && s.Others >= margin && s.Others >= s.Lacking
	large := s.Others >= part(s.GPU, othersLarge) || s.Others >= othersOverHoles*s.Idle
	return enough && (large || s.Idle+s.Free < s.Want)
}

// RanksTook reports whether processes of one size, as the ranks of one job have, hold what was
// lacking, whatever is unused in the pool.
func (s *Shortfall) RanksTook() bool {
	n, _ := s.Ranks()
	return n > 0 && s.GPU > 0 && s.HasFree && s.Others >= max(s.Lacking, rankLeast)
}

// beside is what the process holds outside of its pool, in bytes; 0 if it is not told.
func (s *Shortfall) beside() uint64 { return Less(s.Process, s.Reserved) }

// unnamed is what neither the free figure, nor a process of the message, nor the pool explains.
func (s *Shortfall) unnamed() uint64 {
	return Less(s.GPU, s.Free+max(s.Process, s.Reserved)+s.Others+s.other)
}

// BesideMuch reports whether so much is in the process outside of its pool that the program's own tensors,
// or others, are not the only reason.
func (s *Shortfall) BesideMuch() bool { return s.counts(s.beside()) }

// UnnamedMuch reports whether so much is in nobody's account.
func (s *Shortfall) UnnamedMuch() bool { return s.counts(s.unnamed()) }

// counts reports whether so many bytes are more than a context, would have served the request, and are a
// good part of the GPU.
func (s *Shortfall) counts(bytes uint64) bool {
	known := s.HasFree && s.HasUse && s.TotalTold && !s.Async
	return known && bytes >= max(contextUsual+s.Lacking, part(s.GPU, restLarge))
}

// HolesMuch reports whether the pool's holes alone hold the request and are a good part of the pool, so
// that others who hold what was lacking are not the only reason.
func (s *Shortfall) HolesMuch() bool {
	return s.Holes() && s.Idle >= s.Want && s.Idle >= part(s.Reserved, holesMain)
}

// BesideDecides reports whether the process holds, outside of its pool, what was lacking.
func (s *Shortfall) BesideDecides() bool {
	known := s.GPU > 0 && s.HasUse && !s.Async && s.Process > s.Reserved+ContextMost
	beside := s.Process - s.Reserved
	return known && beside-ContextMost+s.Round >= s.Lacking && beside >= besideOverHoles*s.Idle
}

// RestDecides reports whether much of the GPU is in nobody's account, and would have done.
func (s *Shortfall) RestDecides() bool {
	large := s.Rest >= part(s.GPU, othersLarge)
	if s.Untold {
		return s.HasFree && s.Free < margin && len(s.listed) == 0 && large
	}
	known := s.TotalTold && s.HasFree && s.HasUse && !s.inMessage()
	much := s.Rest >= contextUsual+s.Lacking && s.Rest >= part(s.GPU, restLarge)
	return known && much && (large || s.Idle+s.Free < s.Want)
}

// RestIs reports whether listed processes that hold so many bytes are what is in nobody's account.
func (s *Shortfall) RestIs(held uint64) bool {
	return held >= s.Lacking && held >= part(s.Rest, restTold)
}

// HoldLittle reports whether other processes hold no more than a desktop does.
func HoldLittle(held uint64) bool { return held <= othersLeast }

// Taken reports whether most of a GPU is in use.
func Taken(used, gpu uint64) bool { return gpu > 0 && used > part(gpu, poolMost) }

// StartTaken reports whether little of a GPU was free before a program took any.
func StartTaken(free, gpu uint64) bool { return free < part(gpu, holderMuch) }

// HoldsMuch reports whether processes that hold so many bytes took a part of the GPU that counts.
func HoldsMuch(held, gpu uint64) bool { return gpu > 0 && held > part(gpu, holderMuch) }

// Holes in the pool.

// Holes reports whether what the pool holds and does not use is worth a word: where a segment is
// refused, the ends of a few segments are no cause.
func (s *Shortfall) Holes() bool {
	worth := s.HasUse && s.Idle >= leastHole
	return worth && (s.Want > segment || s.Idle >= max(part(s.Alloc, holesLeast), 4*segment))
}

// HolesDecide reports whether they would have served the request, beyond what rounding and the
// usual ends of segments can hide.
func (s *Shortfall) HolesDecide() bool {
	enough := s.HolesEnough() || s.Idle >= s.Want
	roomy := s.Alloc+s.Want <= part(s.GPU, askedMuch) && s.Idle >= part(s.Reserved, holesLarge)
	worth := roomy || s.Idle >= part(s.Reserved, holesMain)
	return s.Holes() && enough && worth && !s.Full() && !s.oddFree
}

// holeRound is how far the figures are rounded by which holes are enough or too few, in bytes.
func (s *Shortfall) holeRound() uint64 {
	if s.hasIdle {
		return s.roundHole
	}
	return s.roundHole + s.roundPool
}

// HolesEnough reports whether they and what is free are together as much as was wanted, beyond rounding.
func (s *Shortfall) HolesEnough() bool { return s.Idle+s.Free >= s.Want+s.holeRound() }

// HolesMay reports whether they may have.
func (s *Shortfall) HolesMay() bool {
	return s.Holes() && !s.Full() && s.Idle+s.Free+s.holeRound() >= s.Want && holesOfLacking*s.Idle >= s.Lacking
}

// MayWait reports whether so much is reserved and not allocated that the gaps between blocks are
// a poor reason: freed blocks that wait for another stream count as not allocated, too.
func (s *Shortfall) MayWait() bool { return s.Idle >= idleOverWant*s.Want && s.Want >= waitingWant }

// OthersAndHoles reports whether others and holes together hold what was lacking, and each a part
// of it that counts.
func (s *Shortfall) OthersAndHoles() bool {
	enough := s.Holes() && !s.Full() && s.Others >= margin && s.Idle+s.Free+s.Others >= s.Want
	return enough && min(s.Idle, s.Others) > part(s.Lacking, eachCounts)
}

// The program's own allocations.

// Full reports whether what is allocated leaves so little that the next request does not fit,
// whatever the holes.
func (s *Shortfall) Full() bool { return s.GPU > 0 && s.Alloc >= part(s.GPU, gpuFull) }

// Brimful reports whether the program's tensors fill the GPU, and the holes in its pool are small.
func (s *Shortfall) Brimful() bool {
	full := s.TotalTold && s.HasUse && s.Alloc >= part(s.GPU, gpuTensors)
	return full && s.Idle <= part(s.Reserved, holesSmall) && (!s.HasFree || s.Free < s.Want)
}

// OwnDecides reports whether the program's own allocations fill the GPU: by themselves, or because
// the other processes, named in the message or listed with what they hold, are too small.
func (s *Shortfall) OwnDecides(told bool, held uint64) bool {
	if !s.HasUse || !s.TotalTold || s.Fits() {
		return false
	}
	nearly := s.Alloc+s.Want+contextSmall+s.Round > s.GPU || s.Alloc >= part(s.GPU, ownNearly)
	mostly := s.Alloc >= part(s.GPU, ownMostly) && s.Rest <= min(ContextMost, part(s.GPU, restLarge)) && s.HasFree
	othersSmall := s.inMessage() && s.Others < s.Lacking && !s.UnnamedMuch() || told && held < s.Lacking
	return nearly || mostly || othersSmall
}

// PoolSmall reports whether the pool and the request are a small part of a GPU of which the message
// does not say what is free.
func (s *Shortfall) PoolSmall() bool { return !s.HasFree && s.Reserved+s.Want < part(s.GPU, poolSmall) }

// PoolFills reports whether the pool holds most of a GPU of these bytes, of which the message does
// not tell.
func (s *Shortfall) PoolFills(gpu uint64) bool {
	return gpu > 0 && (s.Reserved > part(gpu, poolMost) || s.Reserved+s.Want > gpu)
}
