package cause

// no_headroom_module_load: no room was left to load compiled code, which the driver keeps outside
// of the pool.

import (
	"strings"

	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/statement"
)

func moduleLoad(c *view) found {
	st := c.About("cubin")
	switch {
	case st == nil:
		return nil
	case st.Refused:
		guess := ""
		if st.Words["different"] {
			guess = "; the text's guess at another GPU is wrong here"
		}
		return found{sure(840, "compiled code without room", c.leaveCode(),
			st.Quoted("the driver's status is out of memory: it loads code outside of the pool"+guess))}
	case c.codeOpen(st):
		return found{fits(841, "compiled code that was not loaded", c.leaveCode(), c.decideCode(),
			st.Quoted("the driver's status is cut off: out of memory, or code for another GPU"))}
	}
	return nil
}

// codeNamed reports whether the driver's status is about the code.
func codeNamed(st *statement.Statement) bool {
	return st.Topic("image") != nil || account.CodeStatus.MatchString(st.Text)
}

// codeOpen reports whether code was not loaded, and no status says why.
func (c *view) codeOpen(st *statement.Statement) bool {
	open := !st.Refused && !codeNamed(st) && !strings.Contains(st.Text, "CUDA_ERROR_")
	return open && !c.fatal && st.Says(statement.CFail|statement.CNot)
}

// decideCode tells memory from code that does not fit.
func (c *view) decideCode() Command {
	switch {
	case c.onJAX():
		return tryGrowing
	case c.OnTorch():
		return seeVersions
	}
	return c.processes()
}

// leaveCode leaves the driver room for code.
func (c *view) leaveCode() Remedy {
	if c.onJAX() || c.Uses("exla") {
		return c.lessFraction(.05, "the driver loads code outside of the pool").step(letJAXGrow)
	}
	return c.advise("beside").step("load the code early: run each kernel once before the large allocations")
}
