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

	"gpumem/xla/internal/alias"
	"gpumem/xla/internal/hlo"
)

// postOrder returns the place of each node in that order.
func postOrder(f *alias.Flow) []int32 {
	at := make([]int32, f.Nodes())
	orders := map[*hlo.Computation][]*hlo.Instruction{}
	p := &postOrderer{state: make([]byte, f.Module.IDs())}
	next := int32(0)
	for _, w := range callersFirst(f) {
		walk := &f.Walks[w]
		order, ok := orders[walk.Computation]
		if !ok {
			order = p.operandsFirst(walk.Instructions)
			orders[walk.Computation] = order
		}
		for k, i := range order {
			n, _ := f.Node(w, i)
			at[n] = next + int32(k)
		}
		next += int32(len(walk.Instructions))
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

// A postOrderer visits instructions behind what they run after. The stack is a list, as a chain of
// operands may be as long as a computation.
type postOrderer struct {
	state []byte // by Instruction.ID: 0, visited or inOrder
	order []*hlo.Instruction
}

const (
	visited = 1
	inOrder = 2
)

// visit lists what root runs after, and root, each after what it runs after itself. push adds to
// a stack what an instruction runs after, the first last.
func (p *postOrderer) visit(root *hlo.Instruction, push func(stack []*hlo.Instruction, x *hlo.Instruction) []*hlo.Instruction) {
	for stack := []*hlo.Instruction{root}; len(stack) > 0; {
		x := stack[len(stack)-1]
		if p.state[x.ID] == 0 {
			p.state[x.ID] = visited
			stack = push(stack, x)
			continue
		}
		stack = stack[:len(stack)-1]
		if p.state[x.ID] == visited {
			p.state[x.ID] = inOrder
			p.order = append(p.order, x)
		}
	}
}

// operandsFirst returns the instructions of a computation in post-order: from those without
// users, in the order of the text, first to the control predecessors, the last one first, then
// to the operands.
func (p *postOrderer) operandsFirst(list []*hlo.Instruction) []*hlo.Instruction {
	p.order = make([]*hlo.Instruction, 0, len(list))
	for _, i := range list {
		p.state[i.ID] = 0
	}
	for _, i := range list {
		if len(i.Users) == 0 {
			p.visit(i, func(stack []*hlo.Instruction, x *hlo.Instruction) []*hlo.Instruction {
				for _, o := range slices.Backward(x.Operands) {
					stack = append(stack, o)
				}
				return append(stack, x.After...)
			})
		}
	}
	return p.order
}
