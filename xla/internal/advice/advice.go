// Package advice says what holds a program's memory, and what its author can do about it with
// jax.checkpoint.
//
// holders.go finds the largest holders, loops.go what loops over layers stack up, byhand.go which
// layers to put under jax.checkpoint, and checkpoint.go what that would leave of a compiled
// program. text.go has it all in words.
package advice

import (
	"gpumem/xla/internal/cost"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/memory"
	"gpumem/xla/internal/plan"
)

// An Advice is what to do about a program's memory by hand. Scripts rely on its JSON.
type Advice struct {
	Holders []Holder `json:"holders,omitempty"`
	ByHand  []ByHand `json:"by_hand,omitempty"`
	Loops   []Loop   `json:"loops,omitempty"` // over layers, the largest first
	Holds   string   `json:"holds,omitempty"` // if the limit is missed: what holds the plan, as text for people
	// Text is the advice on jax.checkpoint as text for people.
	Text []Section `json:"-"`
}

// A Program is what advice is about. Memory is in bytes.
type Program struct {
	Module  *hlo.Module
	Meter   *memory.Meter
	Given   *plan.Plan // the module as it is
	Rates   cost.Rates
	Seconds float64 // of one run
	Limit   uint64
	Peak    uint64
	Heap    uint64      // 0: it could not be packed
	Planned *hlo.Module // the planned module if that misses the limit; nil if it does not
}

// The most entries of Advice.Holders and Advice.ByHand.
const (
	mostHolders = 5
	mostByHand  = 2
)

// Find returns the advice for a program, and warnings for people.
func Find(p Program) (a Advice, warnings []string, err error) {
	if !p.Module.HasOpNames() {
		warnings = append(warnings, "no op_name in it: no advice on the lines of the program and on what to mark there")
	}

	heap := p.Heap
	if heap == 0 {
		heap = p.Peak
	}

	loops, rooms, err := findLoops(p.Module, heap, p.Rates, p.Seconds)
	if err != nil {
		return a, nil, err
	}

	a.Loops = loops
	holders, err := findHolders(p.Module, p.Meter, rooms)
	if err != nil {
		return a, nil, err
	}

	a.Holders = holders[:min(len(holders), mostHolders)]
	if p.Planned != nil {
		if a.Holds, err = describeHolds(p.Planned, p.Meter); err != nil {
			return a, nil, err
		}
	}

	plans, err := planByHand(p.Given, p.Limit, p.Heap, plan.Options{Rates: p.Rates})
	if err != nil { // the plan stands all the same
		warnings = append(warnings, "no advice on what to mark by hand: "+err.Error())
	}

	a.ByHand = plans[:min(len(plans), mostByHand)]
	for n := range a.ByHand {
		a.ByHand[n].Extra = plan.PercentMore(a.ByHand[n].Seconds, p.Seconds)
	}

	a.Text = a.sections(p.Limit, max(p.Heap, p.Peak))
	return a, warnings, nil
}
