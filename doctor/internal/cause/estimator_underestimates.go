package cause

// estimator_underestimates: the estimate of what the model needs was too low. llama.cpp and
// Ollama count which layers fit before they load them.

import (
	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/statement"
)

func underestimate(c *view) found {
	if c.Plan != nil || !c.bareLlama() {
		return nil // engine.go has the plan
	}
	if l := c.ranBefore(); l != nil {
		return found{sure(238, "refused after the model was loaded", c.fewerLayers(&account.Plan{Compute: true}),
			l.Quoted("the model was loaded: the plan said that it fits"),
			c.bare.St.Quoted("and the first computation was refused memory"))}
	}
	if c.Uses("ollama") {
		return found{fits(232, "a refusal without its numbers", c.fewerLayers(&account.Plan{}), c.processes(),
			c.bare.St.Quoted(c.bare.Refused())).needs(needTotal, NeedProcesses)}
	}
	return nil
}

// ranBefore is the line before a refusal that says that the model was loaded, and nil.
func (c *view) ranBefore() *statement.Statement {
	return c.StatementBefore(c.bare.St.Line, func(st *statement.Statement) bool {
		return st.Topic("success") != nil && st.HasAny("runner", "loaded", "slots")
	})
}
