// Package passes has the passes that planners need: removal of dead code as XLA does it,
// and a light fusion. It also knows what has side effects, and what may run again.
package passes

// Side effects, and instructions that may run again.

import (
	"slices"
	"strings"

	"gpumem/hlo"
)

// Effects are the computations that are known to have a side effect, or none. What it
// does not know yet it finds out, so that each computation is visited once.
type Effects map[*hlo.Computation]bool

// Recomputable reports whether XLA's pass may compute an instruction again, whatever its users.
func (e Effects) Recomputable(i *hlo.Instruction) bool {
	switch i.Opcode {
	case hlo.Copy:
		// A copy that changes no layout was put there because the value is needed twice.
		if len(i.Operands) == 1 && i.Shape.FullLayout() == i.Operands[0].Shape.FullLayout() {
			return false
		}
	case hlo.AllReduce, "all-reduce-start", hlo.AllGather, "all-gather-start", hlo.ReduceScatter, hlo.AllToAll, "ragged-all-to-all", hlo.CollectiveBroadcast:
		return !constrained(i)
	case hlo.Call, hlo.Constant, hlo.Conditional, hlo.CustomCall, hlo.Parameter, hlo.While:
		return false
	}
	return !e.Of(i)
}

func constrained(i *hlo.Instruction) bool {
	v, _ := i.Attribute("constrain_layout")
	return v == "true"
}

// Of reports whether an instruction does more than compute its result
// (HloInstruction::HasSideEffect).
func (e Effects) Of(i *hlo.Instruction) bool {
	switch i.Opcode {
	case hlo.Send, hlo.SendDone, hlo.Recv, hlo.RecvDone, hlo.Rng, hlo.RngGetAndUpdateState, hlo.Infeed, hlo.Outfeed,
		"all-reduce-start", "all-reduce-done", "all-gather-start", "all-gather-done",
		"collective-permute-start", "collective-permute-done", hlo.CollectiveBroadcast:
		return true
	case hlo.AllToAll, hlo.AllGather, hlo.AllReduce, hlo.ReduceScatter:
		if constrained(i) {
			return true
		}
	case hlo.CustomCall:
		if v, _ := i.Attribute("custom_call_has_side_effect"); v == "true" {
			return true
		}
	}
	if i.Opcode.WrapsStart() && i.Opcode != hlo.AsyncStart { // of the operation that it names
		in := *i
		in.Opcode = hlo.Opcode(strings.TrimSuffix(string(i.Opcode), "-start"))
		return e.Of(&in)
	}
	if i.Opcode.WrapsEnd() && len(i.Operands) > 0 {
		return e.Of(i.Operands[0])
	}
	for _, c := range i.Called() {
		has, known := e[c]
		if !known {
			e[c] = false // for one that calls itself
			has = slices.ContainsFunc(c.Instructions, e.Of)
			e[c] = has
		}
		if has {
			return true
		}
	}
	return false
}

// Repeatable reports whether an instruction may run twice with the same result and no
// other effect. Both halves of what is asynchronous would have to be cloned together.
func (e Effects) Repeatable(i *hlo.Instruction) bool {
	return i.Opcode != hlo.Parameter && !i.Opcode.IsAsyncStart() && !i.Opcode.IsAsyncDone() && !e.Of(i)
}
