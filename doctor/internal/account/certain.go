package account

// Certain statements where no cause is found, and the facts that would help.

import (
	"fmt"
	"gpumem/doctor/internal/statement"
	"math"
	"slices"
)

// Finding is a cause that a row of the table found.
type Finding struct {
	Cause   string
	Name    string // of the argument
	Sure    bool
	Facts   []statement.Evidence // at least one line of the log, where there is a log
	Missing []string            // facts that would decide, where it is not sure
	Decide  string              // a command that would tell
	Certain []string
	Remedy  string // its name and quantity, to be written for the scene
	Bytes   uint64
	At      *Scene
	Verdict string // instead of what sure implies
	Alone   bool   // what fits beside it is about something else
}

// Apart are the facts of a state that tell apart causes with the same text.
func (e *Facts) Apart(causes []Finding) (list []string) {
	if !e.Known("processes") {
		list = append(list, "processes")
	}
	if slices.ContainsFunc(causes, func(f Finding) bool { return f.Cause == "jax_plus_tf" }) && !e.Known("frameworks") {
		list = append(list, "frameworks")
	}
	return list
}

// Known reports whether a fact that would decide is known already.
func (e *Facts) Known(id string) bool {
	switch id {
	case "total":
		return e.Total().Bytes > 0
	case "processes":
		_, told := e.Others()
		return told
	case "frameworks":
		return e.frameworksTold()
	}
	return false
}

// Binary reports whether the log was a binary dump, which has no lines.
func (e *Facts) Binary() bool { return e.Dump != nil && e.Dump.Line == 0 }

// Certainty is what is sure where no cause is found.
func (e *Facts) Certainty() []string {
	var c []string
	lead := e.lead()
	first, last, n := e.Ladder()
	switch {
	case n > 2:
		c = append(c, fmt.Sprintf("lines %d to %d are one request: each is nine tenths of the one before, from %s down to %s; the driver had less than each of them", first.St.Line, last.St.Line, Human(first.Want), Human(last.Want)))
	case lead != nil && lead.HasFree && lead.Free > lead.Want:
		c = append(c, fmt.Sprintf("line %d: the GPU had %s free when %s was refused, so its size was not the wall", lead.St.Line, Human(lead.Free), Human(lead.Want)))
	case lead != nil:
		c = append(c, fmt.Sprintf("line %d is the failure: %s was refused", lead.St.Line, Human(lead.Want)))
	}
	if d := e.Dump; d != nil && d.Pool > 0 && len(c) == 0 {
		c = append(c, fmt.Sprintf("the dumped pool has %s, of which %s is in use and %s free, in pieces of %s at most", Human(d.Pool), Human(d.InUse), Human(d.Free()), Human(d.LargestFree)))
	}
	if r := e.contextRefused(); r != nil {
		c = append(c, "not even a context could be made on the GPU: it was full before this program took any")
		if t := r.strange(); t > 0 {
			c = append(c, fmt.Sprintf("the total in line %d is no size: %d is %s below 2^64", r.St.Line, t, Human(-t)))
		}
	}
	if p := e.pool(); p != nil && p.limit.Bytes > 0 && p.inUse.Bytes > 0 {
		if Less(p.limit.Bytes, p.inUse.Bytes) < p.limit.Bytes/50 {
			c = append(c, fmt.Sprintf("the pool is full: %s of its limit of %s is in use (lines %d and %d)", Human(p.inUse.Bytes), Human(p.limit.Bytes), p.limit.from.Line, p.inUse.from.Line))
			if p.limit.Bytes < statement.Gib {
				c = append(c, "the limit is small: "+Human(p.limit.Bytes)+"; why is unknown")
			}
		}
	}
	for _, st := range e.statements.all() {
		if st.Words["dst"] && st.Words["tensor"] && st.Words["initialized"] {
			c = append(c, fmt.Sprintf("a copy to the GPU found no room (line %d)", st.Line))
			break
		}
	}
	if lead != nil {
		if n := tensorBytes(lead.St.Text); n > 0 {
			c = append(c, fmt.Sprintf("the tensor of line %d is %s", lead.St.Line, Human(n)))
		}
	}
	if r := e.last(func(r *Refusal) bool { return r.mild }); r != nil && e.Fatal() {
		c = append(c, fmt.Sprintf("line %d is a warning, not the failure", r.St.Line))
	}
	if total, st := e.assigned(); st != nil && total < smallProgram {
		c = append(c, fmt.Sprintf("the program needs %s only (line %d): the memory is elsewhere", Human(total), st.Line))
	}
	if h := e.handle(); h != nil {
		c = append(c, h.certain()...)
		if h.From != nil && !h.short() && !h.plenty() && !h.scarce() {
			c = append(c, fmt.Sprintf("%d %% free is what JAX's default pool leaves by design (a quarter, less a context), and a library would fit into it", percent(h.Left, h.Total)))
		}
	}
	if r := e.last(func(r *Refusal) bool { return !r.mild }); r != nil && len(c) == 0 {
		c = append(c, fmt.Sprintf("memory was refused (line %d); how much was requested is unknown", r.St.Line))
	}
	if f := e.pick("chunks", nil); f != nil && len(c) == 0 {
		c = append(c, fmt.Sprintf("line %d is one of a pool's report, which is printed when it refused a request; the rest is not there", f.Line))
	}
	return slices.Compact(c)
}

// lead is the last request that was refused.
func (e *Facts) lead() *Refusal {
	return e.last(func(r *Refusal) bool { return !r.mild && r.Want > 0 && r.Layer != statement.LayerContext })
}

// Next is the command that would tell more where no cause is found: what the process sees of
// a GPU that was not full, else the state of the machine.
func (e *Facts) Next() string {
	if lead := e.lead(); lead != nil && lead.HasFree && lead.Free > lead.Want && e.Uses("torch") {
		return Table.Decides["free"]
	}
	return Table.Decides["state"]
}

// Unknowns are the facts that would help where no cause is found.
func (e *Facts) Unknowns() []string {
	if !e.Said && e.handle() == nil && e.pick("chunks", nil) == nil {
		return nil
	}
	var m []string
	if e.Total().Bytes == 0 {
		m = append(m, "total")
	}
	if _, told := e.Others(); !told {
		m = append(m, "processes")
	}
	if p := e.pool(); p != nil && p.inUse.Bytes == 0 {
		m = append(m, "report")
	}
	return m
}

// strange is a total that is no size, just below 2^64, or 0.
func (r *Refusal) strange() uint64 {
	if r.Total >= math.MaxInt64 {
		return r.Total
	}
	return 0
}

// Ladder finds refusals that are one request, tried again at nine tenths.
func (e *Facts) Ladder() (first, last *Refusal, n int) {
	for _, r := range e.Failed {
		if r.Want == 0 || r.mild {
			continue
		}
		if n > 0 {
			if part := float64(r.Want) / float64(last.Want); part < .885 || part > .915 {
				if n > 2 {
					break
				}
				first, n = r, 0
			}
		} else {
			first = r
		}
		last, n = r, n+1
	}
	return first, last, n
}
