package memory

// The order of the instructions of all walks in which XLA sorts buffers of equal size: a
// computation before those that it calls, and in a computation operands before users, with
// nothing of the schedule (HloComputation::MakeInstructionPostOrder and
// CallGraph::VisitNodes, 2026).
//
// In the loop of package alias the walks are the entry, the condition and the body, in this
// order. In the body the post-order begins at the root t: i and what it is made of, one, j, x,
// y, t, which is also the order of the text. Had the text y before j, the post-order would
// still have j before y, as j is the first operand of t.

import (
	"slices"

	"gpumem/xla/hlo"
	"gpumem/xla/internal/alias"
)

// postOrder returns the place of each node in that order.
func postOrder(f *alias.Flow) []int32 {
	at := make([]int32, f.Nodes())
	orders := map[*hlo.Computation][]int32{}
	next := int32(0)
	for _, w := range callersFirst(f) {
		walk := &f.Walks[w]
		order, ok := orders[walk.Computation]
		if !ok {
			order = operandsFirst(f, w)
			orders[walk.Computation] = order
		}
		for k, place := range order {
			at[walk.First+alias.Node(k)] = next + place
		}
		next += int32(len(order))
	}
	return at
}

// callersFirst returns the walks in the reverse post-order of calls: of the calls in a
// walk the last comes first, and of a loop the condition before the body.
func callersFirst(f *alias.Flow) []int32 {
	calls := make([][]int32, len(f.Walks)) // by walk: those inside, in the order of calls
	for w := 1; w < len(f.Walks); w++ {
		outer := f.Walk(f.Walks[w].Caller)
		calls[outer] = append(calls[outer], int32(w))
	}
	list := make([]int32, 0, len(f.Walks))
	for stack := []int32{0}; len(stack) > 0; {
		w := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		list = append(list, w)
		// What is pushed last is taken first. The walks of a loop are the condition, then the
		// body, while XLA has them the other way round.
		inside := calls[w]
		for k := 0; k+1 < len(inside); k++ {
			a, b := f.Walks[inside[k]].Caller, f.Walks[inside[k+1]].Caller
			if a == b && f.Instruction(a).Opcode == hlo.While {
				inside[k], inside[k+1] = inside[k+1], inside[k]
				k++
			}
		}
		stack = append(stack, inside...)
	}
	return list
}

// operandsFirst returns the place of each instruction of a walk's computation in its
// post-order: from the instructions without users, in the order of the text, first to the
// control predecessors, the last one first, then to the operands.
func operandsFirst(f *alias.Flow, walk int32) []int32 {
	list := f.Walks[walk].Instructions
	place := make([]int32, len(list))
	const fresh, open, done = 0, 1, 2
	state := make([]byte, len(list))
	next := int32(0)
	index := func(i *hlo.Instruction) (int, bool) {
		n, ok := f.Node(walk, i)
		return int(n - f.Walks[walk].First), ok
	}
	var stack []int
	push := func(i *hlo.Instruction) {
		if k, ok := index(i); ok && state[k] != done {
			stack = append(stack, k)
		}
	}
	for k, i := range list {
		if len(i.Users) > 0 || state[k] == done {
			continue
		}
		for stack = append(stack[:0], k); len(stack) > 0; {
			k := stack[len(stack)-1]
			switch state[k] {
			case fresh:
				state[k] = open
				for _, o := range slices.Backward(list[k].Operands) {
					push(o)
				}
				for _, o := range list[k].After {
					push(o)
				}
			case open:
				state[k] = done
				place[k] = next
				next++
				fallthrough
			case done:
				stack = stack[:len(stack)-1]
			}
		}
	}
	return place
}
