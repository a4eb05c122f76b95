package remat

// Which instructions may be computed again.

import (
	"slices"
	"strconv"
	"strings"

	"gpumem/hlo"
)

// able is whether an instruction may be computed again; the zero value is not known yet.
type able int8

const (
	yes able = iota + 1
	no
)

// recomputable says whether an instruction may be computed again, whatever its users.
func recomputable(i *hlo.Instruction, effects map[*hlo.Computation]bool) bool {
	switch i.Opcode {
	case hlo.Copy:
		// A copy that changes no layout was put there because the value is needed twice.
		if len(i.Operands) == 1 && sameLayout(i.Shape, i.Operands[0].Shape) {
			return false
		}
	case hlo.AllReduce, "all-reduce-start", hlo.AllGather, "all-gather-start", hlo.ReduceScatter, hlo.AllToAll, "ragged-all-to-all", hlo.CollectiveBroadcast:
		return !constrained(i)
	case hlo.Call, hlo.Constant, hlo.Conditional, hlo.CustomCall, hlo.Parameter, hlo.While:
		return false
	}
	return !sideEffect(i, effects)
}

func constrained(i *hlo.Instruction) bool {
	v, _ := i.Attribute("constrain_layout")
	return v == "true"
}

// sideEffect says whether an instruction does more than compute its result
// (HloInstruction::HasSideEffect). effects remembers computations.
func sideEffect(i *hlo.Instruction, effects map[*hlo.Computation]bool) bool {
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
	if inner, ok := wrapped(i); ok {
		in := *i
		in.Opcode = inner
		return sideEffect(&in, effects)
	}
	if i.Opcode.WrapsEnd() && len(i.Operands) > 0 {
		return sideEffect(i.Operands[0], effects)
	}
	for _, c := range i.Called() {
		has, known := effects[c]
		if !known {
			effects[c] = false // for one that calls itself
			has = slices.ContainsFunc(c.Instructions, func(j *hlo.Instruction) bool { return sideEffect(j, effects) })
			effects[c] = has
		}
		if has {
			return true
		}
	}
	return false
}

// wrapped is the opcode that a start such as call-start wraps.
func wrapped(i *hlo.Instruction) (hlo.Opcode, bool) {
	if !i.Opcode.WrapsStart() || i.Opcode == hlo.AsyncStart {
		return "", false
	}
	return hlo.Opcode(strings.TrimSuffix(string(i.Opcode), "-start")), true
}

// asyncEnd says whether an instruction begins or ends an asynchronous
// operation: of those there is one begin for one end.
func asyncEnd(i *hlo.Instruction) bool {
	switch i.Opcode {
	case hlo.Send, hlo.Recv:
		return true
	}
	return i.Opcode.IsAsyncStart() || i.Opcode.IsAsyncDone()
}

// sameLayout says whether two shapes have the same layout. An array without one has
// the default: the last dimension runs fastest.
func sameLayout(s, t *hlo.Shape) bool { return layout(s) == layout(t) }

func layout(s *hlo.Shape) string {
	if s.HasLayout || !s.IsArray() {
		return s.Layout
	}
	var b strings.Builder
	for d := len(s.Dims) - 1; d >= 0; d-- {
		b.WriteString(strconv.Itoa(d))
		if d > 0 {
			b.WriteByte(',')
		}
	}
	return b.String()
}

// sameShape says whether two shapes are equal, layouts included.
func sameShape(s, t *hlo.Shape) bool {
	if s == t {
		return true
	}
	return s.Type == t.Type && slices.Equal(s.Dims, t.Dims) && s.Buffer == t.Buffer &&
		(s.Dynamic == nil && t.Dynamic == nil || slices.Equal(s.Dynamic, t.Dynamic)) &&
		sameLayout(s, t) && slices.EqualFunc(s.Elements, t.Elements, sameShape)
}
