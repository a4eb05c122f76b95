package legal

// The checker's own lists of what operations do beside computing a value.

import (
	"strings"

	"gpumem/xla/internal/hlo"
)

// A class is what holds for an operation, or for anything that it calls.
type class uint8

const (
	effect     class = 1 << iota // it does something beside its result: exactly as often, in order
	collective                   // all devices have to take part, or it makes random bits
	loop                         // a loop, a conditional or a custom call
)

// classOf returns the class of an instruction without what it calls.
func classOf(i *hlo.Instruction) class {
	base := strings.TrimSuffix(string(i.Opcode), "-start")
	base = strings.TrimSuffix(strings.TrimSuffix(base, "-update"), "-done")
	switch hlo.Opcode(base) {
	case "send", "recv", "infeed", "outfeed", "rng", "rng-get-and-update-state":
		return effect
	case "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute", "collective-broadcast":
		if v, _ := i.Attribute("constrain_layout"); v == "true" {
			return effect | collective
		}
		return collective
	case "rng-bit-generator":
		return collective
	case "while", "conditional":
		return loop
	case "custom-call":
		if v, _ := i.Attribute("custom_call_has_side_effect"); v == "true" {
			return effect // which is exactly as often
		}
		if v, _ := i.Attribute("custom_call_target"); v == `"Sharding"` {
			return 0 // an annotation
		}
		return loop
	}

	return 0
}

// isStart, isUpdate and isDone are the parts of an asynchronous operation.
func isStart(i *hlo.Instruction) bool  { return strings.HasSuffix(string(i.Opcode), "-start") }
func isUpdate(i *hlo.Instruction) bool { return strings.HasSuffix(string(i.Opcode), "-update") }
func isDone(i *hlo.Instruction) bool   { return strings.HasSuffix(string(i.Opcode), "-done") }

// forwardsOperands reports whether an instruction hands on its operands without reading their bytes.
func forwardsOperands(i *hlo.Instruction) bool {
	switch i.Opcode {
	case hlo.Parameter, hlo.GetTupleElement, hlo.TupleOp, hlo.Bitcast, hlo.OptBarrier, hlo.Domain, hlo.AddDependency:
		return true
	}
	return false
}

// ownsCallees reports whether an instruction must be the only caller of what it calls in a module
// that is compiled: fusions and asynchronous operations always, and once it is scheduled also what
// runs its callee as a part of the program, since XLA gives each such call a separate computation
// before that. Small functions such as those of a reduce may be shared.
func ownsCallees(i *hlo.Instruction, scheduled bool) bool {
	switch i.Opcode {
	case hlo.Fusion:
		return true
	case hlo.Call, hlo.While, hlo.Conditional:
		return scheduled
	}
	// The update and the end of an asynchronous operation name what its start calls.
	return isStart(i)
}
