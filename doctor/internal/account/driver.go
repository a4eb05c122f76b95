package account

// What the driver refused: a region of a pool that starts or grows, or a request past every
// pool.

import (
	"math"
	"slices"

	"gpumem/doctor/internal/statement"
)

// Driver is the first request that the driver refused.
type Driver struct {
	*Refusal
	Past      bool // past every pool
	Whole     bool // it is the size of a whole pool
	Later     bool // a pool's own refusal comes after it
	GotLess   bool // after trying less and less the pool got some
	Steps     int  // of the ladder
	Tried     string
	JAXOther  []statement.Evidence // another JAX on the GPU
	Both      []statement.Evidence // TensorFlow beside JAX in the process
	Second    []statement.Evidence // a second pool in the process
	Big       []statement.Evidence // others that hold much
	BigHeld   uint64
	Collected bool // TensorFlow's pool gave regions back before
}

// HeldBy reports whether others hold what was lacking on a GPU of these bytes: a part of it that counts, or
// of the request where the GPU's size is unknown.
func (d *Driver) HeldBy(gpu uint64) bool {
	if gpu == 0 {
		return d.BigHeld > d.Want/4
	}
	return d.BigHeld > gpu/4 || d.Want > Less(gpu, d.BigHeld)
}

// NotHad is what was not there, in words.
func (d *Driver) NotHad(total uint64) string {
	if d.Whole && total > 0 {
		return Say("the driver did not have %v: %d %% of %v, a whole pool", d.Want, percent(d.Want, total), total)
	}
	return "the driver did not have " + Human(d.Want)
}

// driver is the account of the driver's refusals, nil if there are none.
func (e *Case) driver() *Driver {
	var first *Refusal
	n := 0
	for _, r := range e.Failed {
		if r.Layer == statement.LayerDriver && r.Want > 0 && !r.Mild && !e.TorchLike(r) && !e.Uses("llama.cpp") {
			if first == nil {
				first = r
			}
			n++
		}
	}
	if first == nil {
		return nil
	}
	d := &Driver{Refusal: first, Past: first.St.Words["ordinal"] || first.St.Words["request"],
		Whole: e.WholePool(first, n)}
	d.Collected = !d.Past && e.About("collection") != nil
	d.Later = e.Last(func(r *Refusal) bool {
		return !r.Mild && r.Layer == statement.LayerPool && r.St.Line > first.St.Line
	}) != nil
	d.Both, d.Second = e.JAXAndTF(), e.secondPool()
	from, to, steps := e.Ladder()
	if d.Steps = steps; steps > 2 {
		// What it got at last: a pool is announced behind the ladder.
		d.GotLess = slices.ContainsFunc(e.Statements(), func(st *statement.Statement) bool {
			return st.Line > to.St.Line && (st.Topic("announced") != nil || st.Words["created"] && st.Words["device"] && len(st.Amounts) > 0)
		})
		d.Tried = Say("the pool asked for %v, and %d times for a tenth less, down to %v: the GPU had less than each of them",
			from.Want, steps-1, to.Want)
	}
	total := e.Total().Bytes
	others, _ := e.Others()
	var big []Holder
	for _, o := range others {
		if yes, why := o.IsJAX(total); yes && d.JAXOther == nil {
			d.JAXOther = []statement.Evidence{o.Shows(why)}
		}
		if !o.IsDesktop() && o.Used > max(total/10, FirstLibrary) {
			big = append(big, o)
		}
	}
	d.Big, d.BigHeld = Readings(big), HeldBy(big)
	return d
}

// secondPool are the lines that show that the program made its backend again, the first
// pool still there.
func (e *Case) secondPool() (q []statement.Evidence) {
	if e.state != nil && e.state.Process != nil && e.state.Process.BackendRecreated != nil {
		if !*e.state.Process.BackendRecreated {
			return nil
		}
		q = append(q, statement.Evidence{Text: "process.backend_recreated: true",
			Reading: "the backend was made a second time in the same process"})
	}
	if c := e.About("cleared"); c != nil {
		q = append(q, c.Quoted("the program cleared its backends"))
	}
	var pools []*statement.Statement
	for _, st := range e.Statements() {
		if st.Topic("announced") != nil {
			pools = append(pools, st)
		}
	}
	if len(q) > 0 && len(pools) > 1 {
		q = append(q, pools[0].Quoted("the first pool"), pools[len(pools)-1].Quoted("the same again"))
	}
	return q
}

// MadeAgain reports whether the program made its backend a second time.
func (e *Case) MadeAgain() bool {
	return e.About("cleared") != nil || e.state != nil && e.state.Process != nil && e.state.Process.BackendRecreated != nil &&
		*e.state.Process.BackendRecreated
}

// WholePool reports whether a refused request has the size of a pool: three quarters or
// nine tenths of the GPU, or, if that is not known, a GiB or more and the only one.
func (e *Case) WholePool(r *Refusal, n int) bool {
	if t := e.Total(); t.Bytes > 0 {
		part := float64(r.Want) / float64(t.Bytes)
		return math.Abs(part-.75) < .015 || math.Abs(part-.9) < .015
	}
	return n == 1 && r.Want >= statement.Gib
}

// Ladder finds refusals that are one request, tried again at nine tenths.
func (e *Case) Ladder() (first, last *Refusal, n int) {
	for _, r := range e.Failed {
		if r.Want == 0 || r.Mild {
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
