package cost

// Trip counts of loops.

import (
	"math"
	"strconv"

	"gpumem/xla/internal/hlo"
)

// while runs its condition once more than its body.
func (a *Analysis) while(i *hlo.Instruction) Cost {
	body, condition := a.sums[i.Call("body")], a.sums[i.Call("condition")]
	n, ok := TripCount(i)
	if !ok {
		a.Unknown = append(a.Unknown, i)
		return plus(body, condition)
	}
	return plus(times(body, n), times(condition, n+1))
}

// TripCount is the number of times that a while runs its body, and whether that is known: either the
// compiler wrote it down (known_trip_count, only in modules after optimization), or the
// condition compares a whole number that the body steps by a constant, as in the
// loops of jax.lax.scan and fori_loop, with start and bound constant.
func TripCount(i *hlo.Instruction) (uint64, bool) {
	if n, ok := i.TripCount(); ok {
		return n, true
	}
	body, condition := i.Call("body"), i.Call("condition")
	if i.Opcode != hlo.While || body == nil || condition == nil || len(i.Operands) != 1 {
		return 0, false
	}
	test := condition.Root
	direction, _ := test.Attribute("direction")
	if test.Opcode != hlo.Compare || len(test.Operands) != 2 {
		return 0, false
	}
	left, right := test.Operands[0], test.Operands[1]
	counter, ok := parameterElement(left)
	bound, isConstant := unchangedValue(i, right)
	if !ok || !isConstant {
		// bound > counter.
		left, right = right, left
		direction = map[string]string{"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE"}[direction]
		counter, ok = parameterElement(left)
		if bound, isConstant = unchangedValue(i, right); !ok || !isConstant {
			return 0, false
		}
	}
	start, ok := initialValue(i, counter)
	if !ok {
		return 0, false
	}
	step, ok := constantStep(body, counter)
	if !ok {
		return 0, false
	}
	n, ok := countIterations(start, step, bound, direction)
	if !ok || !holdsValues(left.Shape.Type, start, step, n) {
		return 0, false
	}
	return n, true
}

// parameterElement is the number of the element of the computation's parameter that an
// instruction takes.
func parameterElement(i *hlo.Instruction) (int, bool) {
	if i.Opcode != hlo.GetTupleElement || len(i.Operands) != 1 || i.Operands[0].Opcode != hlo.Parameter {
		return 0, false
	}
	n, err := i.Int("index", -1)
	return int(n), err == nil && n >= 0
}

// constantValue is the value of a whole number.
func constantValue(i *hlo.Instruction) (int64, bool) {
	if i.Opcode != hlo.Constant || len(i.Shape.Dims) > 0 {
		return 0, false
	}
	n, err := strconv.ParseInt(i.Literal, 10, 64)
	return n, err == nil
}

// initialValue is what an element of the while's tuple begins with.
func initialValue(while *hlo.Instruction, n int) (int64, bool) {
	tuple := while.Operands[0]
	if tuple.Opcode != hlo.TupleOp || n >= len(tuple.Operands) {
		return 0, false
	}
	return constantValue(tuple.Operands[n])
}

// unchangedValue is the value of an instruction of the condition that is the same each
// time: a constant, or an element that begins as one and that the body does not change.
func unchangedValue(while, i *hlo.Instruction) (int64, bool) {
	if n, ok := constantValue(i); ok {
		return n, true
	}
	n, ok := parameterElement(i)
	if !ok {
		return 0, false
	}
	root := while.Call("body").Root
	if root.Opcode != hlo.TupleOp || n >= len(root.Operands) {
		return 0, false
	}
	if same, ok := parameterElement(root.Operands[n]); !ok || same != n {
		return 0, false
	}
	return initialValue(while, n)
}

// constantStep is the constant that the body adds to an element of its tuple.
func constantStep(body *hlo.Computation, n int) (int64, bool) {
	if body.Root.Opcode != hlo.TupleOp || n >= len(body.Root.Operands) {
		return 0, false
	}
	sum := body.Root.Operands[n]
	if sum.Opcode != hlo.Add || len(sum.Operands) != 2 {
		return 0, false
	}
	for k, o := range sum.Operands {
		if from, ok := parameterElement(o); ok && from == n {
			return constantValue(sum.Operands[1-k])
		}
	}
	return 0, false
}

// countIterations is how often start, start+step, ... is on the right side of bound.
func countIterations(start, step, bound int64, direction string) (uint64, bool) {
	const limit = 1 << 62 // so that no difference overflows
	for _, n := range []int64{start, step, bound} {
		if n > limit || n < -limit {
			return 0, false
		}
	}
	if step == 0 {
		return 0, false
	}
	if direction == "NE" {
		if (bound-start)%step != 0 || (bound-start)/step < 0 {
			return 0, false
		}
		return uint64((bound - start) / step), true
	}
	switch direction {
	case "LE":
		bound++
	case "GE":
		bound--
	case "LT", "GT":
	default:
		return 0, false
	}
	way, width := bound-start, step
	if direction == "GT" || direction == "GE" {
		way, width = -way, -width
	}
	switch {
	case way <= 0:
		return 0, true
	case width < 0:
		return 0, false // it runs away from the bound
	}
	return uint64((way-1)/width) + 1, true
}

// holdsValues reports whether the counter's type has all its values up to the last: it
// would wrap around otherwise.
func holdsValues(t hlo.Type, start, step int64, n uint64) bool {
	if n > math.MaxInt64/2 {
		return false
	}
	last := start
	if n > 0 {
		// start + n*step is at most one step behind the bound, so it fits.
		last = start + int64(n)*step
	}
	limits := map[hlo.Type][2]int64{
		"s8": {math.MinInt8, math.MaxInt8}, "s16": {math.MinInt16, math.MaxInt16},
		"s32": {math.MinInt32, math.MaxInt32}, "s64": {math.MinInt64, math.MaxInt64},
		"u8": {0, math.MaxUint8}, "u16": {0, math.MaxUint16}, "u32": {0, math.MaxUint32}, "u64": {0, math.MaxInt64},
	}[t]
	return limits[1] > 0 && last >= limits[0] && last <= limits[1]
}
