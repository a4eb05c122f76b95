package hlo

// Side effects, and instructions that may run again.

import (
	"slices"
	"strings"
)

// Effects are the computations that are known to have a side effect, or none. What it
// does not know yet it finds out, so that each computation is visited once.
type Effects map[*Computation]bool

// Recomputable reports whether XLA's pass may compute an instruction again, whatever its users.
func (e Effects) Recomputable(i *Instruction) bool {
	switch i.Opcode {
	case Copy:
		// A copy that changes no layout was put there because the value is needed twice.
		if len(i.Operands) == 1 && i.Shape.FullLayout() == i.Operands[0].Shape.FullLayout() {
			return false
		}
	case AllReduce, "all-reduce-start", AllGather, "all-gather-start", ReduceScatter, AllToAll, "ragged-all-to-all", CollectiveBroadcast:
		return !constrained(i)
	case Call, Constant, Conditional, CustomCall, Parameter, While:
		return false
	}
	return !e.Of(i)
}

func constrained(i *Instruction) bool {
	v, _ := i.Attribute("constrain_layout")
	return v == "true"
}

// Of reports whether an instruction does more than compute its result
// (HloInstruction::HasSideEffect).
func (e Effects) Of(i *Instruction) bool {
	switch i.Opcode {
	case Send, SendDone, Recv, RecvDone, Rng, RngGetAndUpdateState, Infeed, Outfeed,
		"all-reduce-start", "all-reduce-done", "all-gather-start", "all-gather-done",
		"collective-permute-start", "collective-permute-done", CollectiveBroadcast:
		return true
	case AllToAll, AllGather, AllReduce, ReduceScatter:
		if constrained(i) {
			return true
		}
	case CustomCall:
		if v, _ := i.Attribute("custom_call_has_side_effect"); v == "true" {
			return true
		}
	}
	if i.Opcode.WrapsStart() && i.Opcode != AsyncStart { // of the operation that it names
		in := *i
		in.Opcode = Opcode(strings.TrimSuffix(string(i.Opcode), "-start"))
		return e.Of(&in)
	}
	if i.Opcode.WrapsEnd() && len(i.Operands) > 0 {
		return e.Of(i.Operands[0])
	}
	return e.Calls(i, e.Of)
}

// Calls reports whether an instruction calls a computation with an instruction for which
// has is true. All calls on one Effects have the same has.
func (e Effects) Calls(i *Instruction, has func(*Instruction) bool) bool {
	for _, c := range i.Called() {
		found, known := e[c]
		if !known {
			e[c] = false // for one that calls itself
			found = slices.ContainsFunc(c.Instructions, has)
			e[c] = found
		}
		if found {
			return true
		}
	}
	return false
}

// Repeatable reports whether an instruction may run twice with the same result and no
// other effect. Both halves of what is asynchronous would have to be cloned together.
func (e Effects) Repeatable(i *Instruction) bool {
	return i.Opcode != Parameter && !i.Opcode.IsAsyncStart() && !i.Opcode.IsAsyncDone() && !e.Of(i)
}
