package account

import (
	"fmt"
	"gpumem/doctor/internal/statement"
	"math"
	"slices"
)

// What is sure where no cause is found, and the facts that would help.

// Binary reports whether the log was a binary dump, which has no lines.
func (e *Case) Binary() bool { return e.Dump != nil && e.Dump.Line == 0 }

// Certainty is what is sure where no cause is found.
func (e *Case) Certainty() []string {
	c := e.certainOfRequest()
	if d := e.Dump; d != nil && d.Pool > 0 && len(c) == 0 {
		c = append(c, Say("the dumped pool has %v, of which %v is in use and %v free, in pieces of %v at most", d.Pool,
			d.InUse, d.Free(), d.LargestFree))
	}
	c = append(c, e.certainOfGPU()...)
	c = append(c, e.certainOfProgram()...)
	if h := e.Library; h != nil {
		c = append(c, h.Certain()...)
		if byDesign := h.From != nil && h.Left+ContextMost >= h.Total/4; byDesign && !h.Short() && !h.Plenty() && !h.scarce() {
			c = append(c, Say(
				"%v of %v free (%d %%) is what JAX's default pool leaves by design (a quarter, less a context), and a "+
					"library would fit into it",
				h.Left, h.Total, percent(h.Left, h.Total)))
		}
	}
	c = append(c, e.Roomy()...)
	if r := e.Last(func(r *Refusal) bool { return !r.Mild }); r != nil && len(c) == 0 {
		c = append(c, fmt.Sprintf("memory was refused (line %d); how much was requested is unknown", r.St.Line))
	}
	if f := e.pick("chunks", nil); f != nil && len(c) == 0 {
		c = append(c, fmt.Sprintf(
			"line %d belongs to a pool's report, which is printed when the pool refuses a request; the rest of the report is missing",
			f.Line))
	}
	return slices.Compact(c)
}

// certainOfRequest is what is sure of the request that was refused last.
func (e *Case) certainOfRequest() []string {
	lead := e.Lead()
	switch first, last, n := e.Ladder(); {
	case n > 2:
		return []string{Say(
			"lines %d to %d are one request: each is nine tenths of the one before, from %v down to %v; "+
				"the driver had less than each of them",
			first.St.Line, last.St.Line, first.Want, last.Want)}
	case lead == nil:
		return nil
	case e.OnlyBytes():
		return []string{fmt.Sprintf("the %d requests that were refused are all below a page of memory: nothing was given at all, "+
			"because the GPU was full before the program began, or because the library's build does not fit this machine", e.refusals())}
	case lead.HasFree && lead.Free > lead.Want:
		return []string{Say("line %d: the GPU had %v free when %v was refused, so the GPU was not full", lead.St.Line,
			lead.Free, lead.Want)}
	}
	return []string{Say("line %d is the failure: %v was refused", lead.St.Line, lead.Want)}
}

// refusals is how many refusals of the GPU's memory there are that were no warnings.
func (e *Case) refusals() (n int) {
	for _, r := range e.Failed {
		if ofGPU(r) {
			n++
		}
	}
	return n
}

// OnlyBytes reports whether memory was refused again and again, and never as much as a page: no limit, and no other
// program, gives room for larger requests and not for these.
func (e *Case) OnlyBytes() bool {
	larger := e.Last(func(r *Refusal) bool { return ofGPU(r) && (r.Want == 0 || r.Want >= pageSize || r.Total > 0) })
	return larger == nil && e.refusals() >= manyRefusals
}

// certainOfGPU is what is sure of the GPU, and of the pool on it.
func (e *Case) certainOfGPU() (c []string) {
	if r := e.ContextRefused(); r != nil {
		c = append(c, "not even a context could be made on the GPU: it was full before this program took any")
		if t := r.Strange(); t > 0 {
			c = append(c, fmt.Sprintf("the total in line %d is no size: %d is %s below 2^64", r.St.Line, t, Human(-t)))
		}
	}
	p := e.Pool
	if p == nil || p.Limit.Bytes == 0 || p.InUse.Bytes == 0 || Less(p.Limit.Bytes, p.InUse.Bytes) >= p.Limit.Bytes/50 {
		return c
	}
	c = append(c, Say("the pool is full: %v of its limit of %v is in use (lines %d and %d)", p.InUse.Bytes,
		p.Limit.Bytes, p.Limit.From.Line, p.InUse.From.Line))
	if p.Limit.Bytes < statement.Gib {
		c = append(c, "the limit is small: "+Human(p.Limit.Bytes)+"; why is unknown")
	}
	return c
}

// certainOfProgram is what is sure of what the program did, and needs.
func (e *Case) certainOfProgram() (c []string) {
	if st := e.StatementWith("dst", "tensor", "initialized"); st != nil {
		c = append(c, fmt.Sprintf("a copy to the GPU found no room (line %d)", st.Line))
	}
	if lead := e.Lead(); lead != nil && tensorBytes(lead.St.Text) > 0 {
		c = append(c, Say("the tensor of line %d is %v", lead.St.Line, tensorBytes(lead.St.Text)))
	}
	if r := e.Last(func(r *Refusal) bool { return r.Mild }); r != nil && e.Fatal() {
		c = append(c, fmt.Sprintf("line %d is a warning, not the failure", r.St.Line))
	}
	if total, st := e.assigned(); st != nil && total < smallProgram {
		c = append(c, Say("the program needs %v only (line %d): the memory is elsewhere", total, st.Line))
	}
	return c
}

// Lead is the last request that was refused.
func (e *Case) Lead() *Refusal {
	return e.Last(func(r *Refusal) bool { return !r.Mild && r.Want > 0 && r.Layer != statement.LayerContext })
}

// Strange is a total that is no size, just below 2^64, or 0.
func (r *Refusal) Strange() uint64 {
	if r.Total >= math.MaxInt64 {
		return r.Total
	}
	return 0
}
