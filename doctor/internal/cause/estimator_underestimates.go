package cause

// estimator_underestimates: the estimate of what the model needs was too low. llama.cpp and
// Ollama count which layers fit before they load them.

import (
	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/statement"
)

func underestimate(c *view) found {
	p := c.Plan
	switch {
	case p == nil:
		if l := c.ranBefore(); l != nil && c.bareLlama() {
			return found{sure(238, "refused after the model was loaded",
				c.fewerLayers(&account.Plan{Compute: true}),
				l.Quoted("the model was loaded: the plan said that it fits"),
				c.bare.St.Quoted("and the first computation was refused memory"))}
		}
		if c.bareLlama() && c.Uses("ollama") {
			return found{fits(232, "a refusal without its numbers",
				c.fewerLayers(&account.Plan{}),
				c.processes(),
				c.bare.St.Quoted(c.bare.Refused())).needs(needTotal, NeedProcesses)}
		}
		return nil
	case c.planTooBig() || c.planOccupied():
		return nil
	case p.Planned > 0 && p.Planned <= p.Available:
		from := p.From
		from.Reading = account.Say("%v was estimated, and %v was free", p.Planned, p.Available)
		return found{sure(715, "the estimate said that it fits", c.fewerLayers(p),
			from,
			quote(p.St, "and %v more was refused", p.Want))}
	case c.runnerEstimate():
		return found{sure(714, "the estimate of a runner", c.fewerLayers(p), quote(p.St,
			"the buffer for the computation, %v, which comes after the weights, was refused",
			p.Want),
			p.Runner.Quoted("the runner was started because its estimate said that this fits"))}
	case c.told && p.Total.Bytes > 0 && c.held > p.Total.Bytes/4, c.planOneBuffer():
		return nil
	case c.Uses("ollama"):
		return found{fits(712, "a buffer of llama.cpp", c.fewerLayers(p), c.processes(),
			quote(p.St, "one buffer of %v was refused", p.Want)).needs(NeedProcesses, needTotal)}
	}
	return nil
}

// ranBefore is the line before a refusal that says that the model was loaded, and nil.
func (c *view) ranBefore() *statement.Statement {
	if c.bare == nil {
		return nil
	}
	st := c.StatementBefore(c.bare.St.Line, func(st *statement.Statement) bool {
		return st.Topic("success") != nil && st.HasAny("runner", "loaded", "slots")
	})
	return st
}

// planTooBig reports whether the parts of the model are more than the GPU, or than what was free
// of a GPU that was free.
func (c *view) planTooBig() bool {
	p := c.Plan
	above := p.Free > 0 && p.Total.Bytes > 0 && p.Planned == 0 && p.Parts+p.Want > p.Free
	return above && (p.Free >= p.Total.Bytes*8/10 || p.Parts+p.Want > p.Total.Bytes) || p.Total.Bytes > 0 && p.Want > p.Total.Bytes
}

// planOccupied reports whether most of the GPU was taken before the model came.
func (c *view) planOccupied() bool {
	p := c.Plan
	return p.Free > 0 && p.Total.Bytes > 0 && p.Planned == 0 && p.Parts+p.Want > p.Free && p.Free < p.Total.Bytes*6/10 && !c.planTooBig()
}

// runnerEstimate reports whether a runner was started, and its buffer for the computation, of a
// usual size, was refused.
func (c *view) runnerEstimate() bool {
	p := c.Plan
	return p.Compute && p.Runner != nil && p.Want < 16*statement.Gib
}

// planOneBuffer reports whether the weights were to go into one large buffer of a GPU whose size
// is unknown, or too small.
func (c *view) planOneBuffer() bool {
	p := c.Plan
	return p.Want > 32*statement.Gib && p.Total.Bytes < p.Want && !p.Compute // more than any card for a desktop has
}

// fewerLayers lets less go to the GPU. A buffer for the computation does not become smaller with
// fewer layers there.
func (c *view) fewerLayers(p *account.Plan) Remedy {
	switch {
	case p.Cache:
		return c.advise("cache", "weights", "beside")
	case p.Compute:
		return c.advise("batch", "cache", "beside")
	case p.Refusal != nil && (c.planOneBuffer() || p.Total.Bytes > 0 && p.Want > p.Total.Bytes):
		return c.advise("weights") // a smaller cache makes no room for it
	}
	return c.advise("weights", "cache", "beside")
}
