package account

// The shortfall: what was wanted, and who has the rest. It is the account of one message that
// tells of the GPU, a pool or a process, whoever wrote it: PyTorch, CuPy, MPS, XGBoost, Paddle.
//
//	total = free + reserved + others + rest
//	reserved = allocated + idle
//
// What a message does not tell stays unknown: the Has fields say so, and rest is what nobody
// is known to have.

import (
	"fmt"
	"math"

	"gpumem/doctor/internal/statement"
)

// Absurd is what no program means to ask of one GPU, in bytes.
const Absurd = 16 << 40

// segment is the size of PyTorch's segment for small requests above a MiB, in bytes.
const segment = 20 * statement.Mib

// Shortfall is the account of one refusal. Sizes are in bytes; 0 is unknown where a Has field
// does not say otherwise.
type Shortfall struct {
	*Refusal
	Total     uint64 // of the GPU
	TotalTold bool   // by the message
	HasUse    bool   // what the pool has is told
	Reserved  uint64 // by the pool
	Idle      uint64 // of Reserved, not allocated
	Process   uint64 // the process of the program, pool and all
	Others    uint64 // other processes named in the message
	Names     []string
	Rest      uint64 // neither free, nor reserved, nor named
	Lacking   uint64 // wanted less free
	WantUp    uint64 // as PyTorch's pool rounds it
	Limit     uint64 // of the pool, told or set
	Whose     string // the setting that makes the limit
	CapSet    bool   // a fraction is set for PyTorch
	Taken     uint64 // of the limit
	Part      uint64 // a round part of the GPU that the pool would pass, 0 if none
	PartOf    int    // in percent
	Async     bool   // the driver's pool, whose idle memory PyTorch does not tell
	Untold    bool   // the message does not say how much was wanted
	Estimated bool   // by llama.cpp, whose buffers are planned

	Waiting     uint64 // freed, and waiting for another stream; 0 if not told
	WaitingFrom statement.Evidence
}

// shortfall is the account of the last refusal with numbers, and nil.
func (e *Case) shortfall() *Shortfall {
	r, untold := e.subject(), false
	if over := e.Over(); over != nil && (r == nil || r == over) && over.Layer != statement.LayerEngine {
		r = over
	}
	if r == nil {
		r = e.Last(func(r *Refusal) bool {
			return !r.Mild && r.Want == 0 && r.Total > 0 && r.HasAlloc && (r.Layer == statement.LayerPool || r.Layer == statement.LayerDriver) && r.St.Topic("tpu") == nil
		})
		untold = r != nil
	}
	if r == nil {
		return nil
	}
	s := &Shortfall{Refusal: r, Untold: untold, Total: r.Total, TotalTold: r.Total > 0,
		Estimated: e.Uses("llama.cpp") && e.estimated(r)}
	if !s.TotalTold {
		s.Total = e.Total().Bytes
	}
	if sum := r.Alloc + r.Free; s.Total == 0 && r.HasAlloc && r.HasFree && r.Want > sum && r.limit == 0 && knownTotal(sum) {
		s.Total, s.TotalTold = sum, true // together they are a whole GPU
	}
	s.Reserved, s.Idle = r.reserved(), r.unallocated()
	s.Waiting, s.WaitingFrom = e.waiting()
	s.HasUse = r.HasAlloc || r.kept > 0
	s.Async = s.HasUse && r.kept == 0 && !r.hasIdle && e.Uses("torch")
	s.Process, s.Others, s.Names = r.owners(s.Reserved, s.HasUse)
	s.Rest = Less(s.Total, r.Free+s.Reserved+r.other)
	s.Lacking, s.WantUp = Less(r.Want, r.Free), roundUp(r.wantHigh)
	s.limits(e)
	return s
}

// Over is the last refusal of a pool at its own maximum, told in words, and nil.
func (e *Case) Over() *Refusal {
	return e.Last(func(r *Refusal) bool { return r.St.Over && !r.Mild })
}

// limits is for the pool's own limit: told, set, or a round part of the GPU, which is what
// programs set. What is taken is below it, and with the request above: that is no
// coincidence where the request is small.
func (s *Shortfall) limits(e *Case) {
	s.Limit = s.limit
	f, set := e.TorchFraction()
	if s.CapSet = set; s.Limit == 0 && set && s.Total > 0 {
		s.Limit = uint64(f * float64(s.Total))
		s.Whose = fmt.Sprintf(" (per_process_memory_fraction %v)", f)
	}
	if s.TotalTold && float64(s.Limit) > .985*float64(s.Total) {
		s.Limit = 0 // all of the GPU: no limit
	}
	other := s.other
	if e.Uses("mps") {
		other += s.programs // one memory for all
	}
	s.Taken = max(s.Reserved, s.Alloc) + other
	high := float64(s.Reserved+s.WantUp+s.Round) / float64(s.Total)
	low := float64(Less(s.Reserved, s.Round)) / float64(s.Total)
	if part := math.Ceil(low*20) / 20; s.Total > 0 && high-low < .006 && part > low && part <= high && part < 1 {
		s.Part, s.PartOf = uint64(part*float64(s.Total)), int(math.Round(100*part))
	}
}

// OtherHere is what others in the same process have allocated, as far as the message says.
func (s *Shortfall) OtherHere() uint64 { return s.other }

// InMessage reports whether the message names processes.
func (s *Shortfall) InMessage() bool { return len(s.listed) > 0 || s.this > 0 || s.programs > 0 }

// waiting is what is freed and waits for another stream, in PyTorch's summary: active, and not
// allocated. It is 0 if no summary tells.
func (e *Case) waiting() (uint64, statement.Evidence) {
	active := e.pick("torch summary", func(f *statement.Fact) bool { return f.Name == "Active" })
	allocated := e.pick("torch summary", func(f *statement.Fact) bool { return f.Name == "Allocated" })
	if active == nil || allocated == nil {
		return 0, statement.Evidence{}
	}
	return Less(active.InUse, allocated.InUse), active.Quoted(Say(
		"%v is active, and %v allocated: the rest is freed, and waits for another stream",
		active.InUse, allocated.InUse))
}

// MayWait reports whether so much is reserved and not allocated that the gaps between blocks are
// a poor reason: freed blocks that wait for another stream count as not allocated, too.
func (s *Shortfall) MayWait() bool { return s.Idle >= 10*s.Want && s.Want >= 100*statement.Mib }

// LimitLeaves reports whether what is called free may be what the limit leaves.
func (s *Shortfall) LimitLeaves() bool {
	if !s.HasFree || s.Free+s.Round+segment >= s.Want {
		return true
	}
	sum := s.Alloc + s.Free
	return s.HasUse && s.Limit > 0 && Less(sum, s.Limit)+Less(s.Limit, sum) <= s.Limit/200
}

// AtLimit reports whether the request would have passed the pool's own limit, and the GPU has
// more than that.
func (s *Shortfall) AtLimit() bool {
	return s.passes() && s.LimitLeaves() && (s.Want > s.Limit || s.Total == 0 || s.Alloc+s.Want <= s.Total)
}

// passes reports whether what is taken and the request pass the limit.
func (s *Shortfall) passes() bool {
	return s.Limit > 0 && (s.HasUse || s.Want > s.Limit) && s.Taken+s.WantUp+s.Round+s.Limit/1000 >= s.Limit
}

// AboveMachine reports whether one request is more than may be taken of a machine with one
// memory.
func (s *Shortfall) AboveMachine() bool { return s.passes() && s.Want > s.Limit }

// margin is above what rounding and a context's growth can hide, in bytes.
const margin = 64 * statement.Mib

// FreeEnough reports whether the GPU had room for the request.
// Where a named process holds much, a few hundred MiB more may have come free since.
func (s *Shortfall) FreeEnough() bool {
	more := uint64(margin)
	if s.Others >= s.Total*2/5 {
		more = max(margin, s.Total/50)
	}
	return s.HasFree && s.Free >= s.Want+more
}

// OthersDecide reports whether processes that the message names hold what was lacking.
func (s *Shortfall) OthersDecide() bool {
	enough := s.Total > 0 && s.HasFree && s.Others >= margin && s.Others >= s.Lacking
	return enough && (s.Others >= s.Total*2/5 || s.Idle+s.Free < s.Want || s.Others >= 4*s.Idle)
}

// BesideDecides reports whether the process holds, outside of its pool, what was lacking.
func (s *Shortfall) BesideDecides() bool {
	known := s.Total > 0 && s.HasUse && !s.Async && s.Process > s.Reserved+ContextMost
	return known && s.Process-s.Reserved-ContextMost+s.Round >= s.Lacking && s.Process-s.Reserved >= 2*s.Idle
}

// RestDecides reports whether much of the GPU is in nobody's account, and would have done.
func (s *Shortfall) RestDecides() bool {
	if s.Untold {
		return s.HasFree && s.Free < margin && len(s.listed) == 0 && s.Rest >= s.Total*2/5
	}
	known := s.TotalTold && s.HasFree && s.HasUse && !s.InMessage()
	much := s.Rest >= ContextMost/2+s.Lacking && s.Rest >= s.Total/5
	return known && much && (s.Rest >= s.Total*2/5 || s.Idle+s.Free < s.Want)
}

// Holes reports whether what the pool holds and does not use is worth a word: a fortieth, or a
// few segments' ends, is what rounding leaves in any pool, and where a segment is refused that
// is no cause.
func (s *Shortfall) Holes() bool {
	worth := s.HasUse && s.Idle >= 2*statement.Mib
	return worth && (s.Want > segment || s.Idle >= max(s.Alloc/40, 4*segment))
}

// HolesDecide reports whether they would have served the request, beyond what rounding and the
// usual ends of segments can hide: a twenty-fifth of the pool at least.
func (s *Shortfall) HolesDecide() bool {
	enough := s.Idle+s.Free >= s.Want+s.Round || s.Idle >= s.Want
	return s.Holes() && enough && !s.Full() && s.Idle >= s.Reserved/25
}

// Full reports whether what is allocated leaves so little that the next request does not fit,
// whatever the holes.
func (s *Shortfall) Full() bool { return s.Total > 0 && s.Alloc >= s.Total*95/100 }

// HolesMay reports whether they may have.
func (s *Shortfall) HolesMay() bool {
	return s.Holes() && !s.Full() && s.Idle+s.Free+s.Round >= s.Want && 2*s.Idle >= s.Lacking
}

// OthersAndHoles reports whether others and holes together hold what was lacking, and each a part
// of it that counts.
func (s *Shortfall) OthersAndHoles() bool {
	enough := s.Others >= margin && s.Idle+s.Free+s.Others >= s.Want
	return enough && s.Idle > s.Lacking/10 && s.Others > s.Lacking/10
}

// OwnDecides reports whether the program's own allocations fill the GPU.
func (s *Shortfall) OwnDecides(told bool, held uint64) bool {
	if !s.HasUse || !s.TotalTold {
		return false
	}
	if s.HasFree && s.Free >= s.WantUp+s.Round {
		return false // it would have fitted, as far as is told
	}
	full := s.Alloc+s.Want+ContextMost/3+s.Round > s.Total || s.Alloc >= s.Total*9/10 || s.Alloc >= s.Total*3/4 && s.Rest <= ContextMost && s.HasFree
	return full || s.InMessage() && s.Others < s.Lacking || told && held < s.Lacking
}

// owners is what the process of the message holds, and what others do, with their names.
// Which of the processes in the message is this one: it holds what its pool reserved, and
// least beside that. Where the pool is unknown it may be the largest.
func (r *Refusal) owners(reserved uint64, hasUse bool) (this, sum uint64, names []string) {
	own := -1
	if this = r.this; this == 0 {
		for i, p := range r.listed {
			if hasUse && p.used+p.used/200+statement.Mib >= reserved && (own < 0 || p.used < r.listed[own].used) || !hasUse && (own < 0 || p.used > r.listed[own].used) {
				own = i
			}
		}
		if own >= 0 {
			this = r.listed[own].used
		}
	}
	for i, p := range r.listed {
		if i != own {
			sum += p.used
			names = append(names, Say("process %d: %v", p.pid, p.used))
		}
	}
	if r.programs > 0 {
		sum += r.programs
		names = append(names, "other programs: "+Human(r.programs))
	}
	return this, sum, names[:min(len(names), 8)]
}

// Arena is the limit that an arena is made with, and its line; 0 if none is told. It is the
// largest of the sizes that such a line has.
func (e *Case) Arena() (uint64, *statement.Statement) {
	for _, st := range e.Statements() {
		most := uint64(0)
		for _, a := range st.Amounts {
			if a.Role == statement.RoleLimit {
				most = max(most, a.N)
			}
		}
		if st.Words["arena"] && most < saneTotal && most > statement.Mib {
			return most, st
		}
	}
	return 0, nil
}

// AbsurdRequest is the first request that no program means, in bytes, and its line.
func (e *Case) AbsurdRequest() (uint64, *statement.Statement) {
	for _, r := range e.Failed {
		if want := max(r.Want, tensorBytes(r.St.Text)); !r.Mild && want > Absurd && r.Layer != statement.LayerHost && !r.St.HasAny("compilation", "compile") {
			return want, r.St
		}
	}
	return 0, nil
}

// Own is what the program's own allocations hold of the GPU, in words. A message without what
// is free (XPU's) tells only what this program has.
func (s *Shortfall) Own() string {
	free, end := ", "+Human(s.Free)+" is free", "does not fit"
	switch {
	case !s.HasFree:
		free, end = "", "was refused"
	case s.Free >= s.Want: // by less than a context's growth
		end = "was refused"
	case s.Idle+s.Free >= s.Want: // in one piece it does not fit
		end = "was refused"
	}
	if s.Idle > 0 {
		free = ", " + Human(s.Idle) + " of its pool is unused" + free
	}
	in := ""
	if s.Unit() != "" {
		in = " in " + s.Unit()
	}
	return Say("the program's own allocations hold %v of %v%s%s: %v more %s", min(s.Alloc, s.Total), s.Total, in, free,
		s.Want, end)
}

// InUse is what is in use of the GPU, and what of it is this program's, in words.
func (s *Shortfall) InUse() string {
	if s.Async {
		return Say("%v of %v is in use, and the program's tensors are %v of it: the rest is other programs', or kept by the driver's pool",
			Less(s.Total, s.Free), s.Total, s.Alloc)
	}
	return Say("%v of %v is in use, and this program's pool reserved %v of it", Less(s.Total, s.Free), s.Total,
		s.Reserved)
}

// Refused is what was refused, in words.
func (r *Refusal) Refused() string {
	if r.Want == 0 {
		return "memory was refused; how much was requested is unknown"
	}
	return Human(r.Want) + " was refused"
}
