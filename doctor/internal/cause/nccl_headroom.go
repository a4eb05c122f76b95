package cause

// nccl_headroom: no room was left for NCCL's buffers, which lie outside of every pool.

import (
	"strings"

	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/statement"
)

// ncclLines are the last line of NCCL's that fails, the one of memory, and a status that is not
// memory's; nil where there is none.
func (c *view) ncclLines() (last, memory, other *statement.Statement) {
	for _, st := range c.Statements() {
		if st.Layer != statement.LayerNCCL {
			continue
		}
		if echo := other != nil && other.Line+2 >= st.Line && st.Words["calloc"]; echo {
			continue // NCCL prints it after any error of CUDA's
		}
		if st.Refused || st.HasAny("failed", "failure", "error", "unhandled") {
			last = st
			if st.Refused && (memory == nil || memory.Amount(statement.RoleWant) == nil) {
				memory = st
			}
		}
		foreign := st.HasAny("system", "usage", "argument")
		named := strings.Contains(st.Text, "nccl") && foreign && !st.Words["cuda"] && st.HasAny("invalid", "unhandled", "nccl")
		if other == nil && (named || !st.Refused && st.Words["failure"] && strings.Contains(st.Text, "'")) {
			other = st
		}
	}
	return last, memory, other
}

func ncclHeadroom(c *view) found {
	last, memory, other := c.ncclLines()
	switch {
	case memory != nil && memory.Topic("shm") != nil:
		return nil
	case memory != nil:
		asked := "NCCL's buffers come from outside every pool, and the driver had no more"
		if a := memory.Amount(statement.RoleWant); a != nil {
			asked = "NCCL asked the driver for " + account.Human(a.N) + ", outside every pool, and got nothing"
		}
		return found{sure(870, "NCCL without room", c.leaveNCCL(), memory.Quoted(asked))}
	case other == nil && last != nil && !c.fatal && last.Words["cuda"] && last.Words["unhandled"]:
		return found{fits(870, "NCCL without a reason", c.leaveNCCL(), seeNCCL,
			last.Quoted("NCCL had a CUDA error; which one is unknown")).needs(needNCCL)}
	}
	return nil
}

// leaveNCCL leaves NCCL room.
func (c *view) leaveNCCL() Remedy {
	const smaller = "NCCL_BUFFSIZE and fewer channels (NCCL_MAX_NCHANNELS) make its buffers smaller; NCCL_DEBUG=INFO shows what it asks for"
	if c.Uses("jax") && !c.OnTensorFlow() {
		return c.lessFraction(.1,
			"NCCL takes some hundred MiB to some GiB for each communicator, outside of the pool: "+
				"in known cases .85 instead of .9, and .65 instead of .75, were enough").
			step(letJAXGrow, smaller)
	}
	return c.advise("beside").step(smaller)
}
