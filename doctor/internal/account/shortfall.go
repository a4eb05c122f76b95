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

	"gpumem/doctor/internal/statement"
)

// absurdSize is what no program means to ask of one GPU, in bytes.
const absurdSize = 16 << 40

// Shortfall is the account of one refusal. Sizes are in bytes; 0 is unknown where a Has field
// does not say otherwise.
type Shortfall struct {
	*Refusal
	GPU       uint64 // its memory, by the message, or else by what is known of the machine
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
		r = e.Last((*Refusal).fillsUntold)
		untold = r != nil
	}
	if r == nil {
		return nil
	}
	s := &Shortfall{Refusal: r, Untold: untold, GPU: r.Total, TotalTold: r.Total > 0,
		Estimated: e.Uses("llama.cpp") && e.estimated(r)}
	if !s.TotalTold {
		s.GPU = e.Total().Bytes
	}
	if s.GPU == 0 && r.wholeGPU() {
		s.GPU, s.TotalTold = r.Alloc+r.Free, true
	}
	s.Reserved, s.Idle = r.reserved(), r.unallocated()
	s.Waiting, s.WaitingFrom = e.waiting()
	s.HasUse = r.hasAlloc || r.kept > 0
	s.Async = r.Alloc > 0 && r.kept == 0 && !r.hasIdle && e.Uses("torch")
	s.Process, s.Others, s.Names = r.owners(s.Reserved, s.HasUse)
	s.Rest = Less(s.GPU, r.Free+s.Reserved+r.other)
	s.Lacking, s.WantUp = Less(r.Want, r.Free), roundUp(r.wantHigh)
	s.limits(e)
	return s
}

// fillsUntold reports whether a message says what the GPU and its pool have, and not how much was
// wanted.
func (r *Refusal) fillsUntold() bool {
	asked := !r.Mild && r.Want == 0 && (r.Layer == statement.LayerPool || r.Layer == statement.LayerDriver)
	return asked && r.Total > 0 && r.hasAlloc && r.St.Topic("tpu") == nil
}

// wholeGPU reports whether what is allocated and free are together the memory of a GPU that the
// message does not tell.
func (r *Refusal) wholeGPU() bool {
	sum := r.Alloc + r.Free
	return r.hasAlloc && r.HasFree && r.Want > sum && r.LimitTold == 0 && knownTotal(sum)
}

// Over is the last refusal of a pool at its own maximum, told in words, and nil.
func (e *Case) Over() *Refusal {
	return e.Last(func(r *Refusal) bool { return r.St.Over && !r.Mild })
}

// limits is for the pool's own limit: told, set, or a round part of the GPU, which is what
// programs set.
func (s *Shortfall) limits(e *Case) {
	s.Limit = s.LimitTold
	f, set := e.TorchFraction()
	if s.CapSet = set; s.Limit == 0 && set && s.GPU > 0 {
		s.Limit = uint64(f * float64(s.GPU))
		s.Whose = fmt.Sprintf(" (per_process_memory_fraction %v)", f)
	}
	if s.TotalTold && s.Limit > part(s.GPU, allOfGPU) {
		s.Limit = 0
	}
	other := s.other
	if e.Uses("mps") {
		other += s.programs // one memory for all
	}
	s.Taken = max(s.Reserved, s.Alloc) + other
	s.Part, s.PartOf = s.roundPart()
}

// OtherHere is what others in the same process have allocated, as far as the message says.
func (s *Shortfall) OtherHere() uint64 { return s.other }

// inMessage reports whether the message names processes.
func (s *Shortfall) inMessage() bool { return len(s.listed) > 0 || s.this > 0 || s.programs > 0 }

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

// ownProcess is the place of the program's own process among those that the message lists, and -1:
// it holds what its pool reserved, and least beside that. Where the pool is unknown it may be the
// largest.
func (r *Refusal) ownProcess(reserved uint64, hasUse bool) int {
	own := -1
	for i, p := range r.listed {
		switch {
		case hasUse && p.used+part(p.used, ownRounded)+statement.Mib < reserved:
		case own < 0, hasUse && p.used < r.listed[own].used, !hasUse && p.used > r.listed[own].used:
			own = i
		}
	}
	return own
}

// owners is what the process of the message holds, and what others do, with their names.
func (r *Refusal) owners(reserved uint64, hasUse bool) (this, sum uint64, names []string) {
	own := -1
	if this = r.this; this == 0 {
		if own = r.ownProcess(reserved, hasUse); own >= 0 {
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
		if want := max(r.Want, tensorBytes(r.St.Text)); !r.Mild && want > absurdSize && !r.St.HasAny("compilation", "compile") {
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
	if s.unit() != "" {
		in = " in " + s.unit()
	}
	return Say("the program's own allocations hold %v of %v%s%s: %v more %s", min(s.Alloc, s.GPU), s.GPU, in, free,
		s.Want, end)
}

// InUse is what is in use of the GPU, and what of it is this program's, in words.
func (s *Shortfall) InUse() string {
	if s.Async {
		return Say("%v of %v is in use, and the program's tensors are %v of it: the rest is other programs', or kept by the driver's pool",
			Less(s.GPU, s.Free), s.GPU, s.Alloc)
	}
	return Say("%v of %v is in use, and this program's pool reserved %v of it", Less(s.GPU, s.Free), s.GPU,
		s.Reserved)
}

// Refused is what was refused, in words.
func (r *Refusal) Refused() string {
	if r.Want == 0 {
		return "memory was refused; how much was requested is unknown"
	}
	return Human(r.Want) + " was refused"
}
