package cost

// Fusions: flops of what is inside, bytes of what goes in and out.

import "gpumem/xla/internal/hlo"

func (a *Analysis) fusion(i *hlo.Instruction) Cost {
	inside := i.Call("calls")
	c := a.sums[inside]
	c.Bytes = a.bytesWritten(i.Shape, inside.Root)
	for _, x := range inside.Instructions {
		switch {
		case x.Opcode == hlo.Parameter:
			c.Bytes = add(c.Bytes, a.bytesRead(x))
		case x.Opcode == hlo.Constant && a.elems(x.Shape) > immediate:
			// A constant of more than a few elements lies in memory and is read.
			c.Bytes = add(c.Bytes, a.bytes(x.Shape))
		}
	}
	return a.timed(c)
}

// immediate is the largest constant that is part of the code
// (HloCostAnalysis::immediate_constant_max_elements).
const immediate = 1

// bytesWritten is what a fusion writes: of a dynamic-update-slice only the update,
// since its result lies where its operand was.
func (a *Analysis) bytesWritten(s *hlo.Shape, root *hlo.Instruction) (sum uint64) {
	if s.Type == hlo.Tuple && root.Opcode == hlo.TupleOp && len(root.Operands) == len(s.Elements) {
		for n, e := range s.Elements {
			sum = add(sum, a.bytesWritten(e, root.Operands[n]))
		}
		return sum
	}
	if root.Opcode == hlo.DynamicUpdateSlice {
		return a.bytes(root.Operands[1].Shape)
	}
	return a.bytes(s)
}

// bytesRead is how much of a parameter a fusion reads: slices only what they cut
// out, all others share one reading of the whole.
func (a *Analysis) bytesRead(p *hlo.Instruction) (sum uint64) {
	if r := a.reads[p.ID]; r.known {
		return r.n
	}
	whole := a.bytes(p.Shape)
	shared := false
	for _, u := range p.Users {
		var n uint64
		switch {
		case u.Opcode == hlo.Fusion:
			inner := u.Call("calls").Parameters()
			for k, o := range u.Operands {
				if o == p {
					n = add(n, a.bytesRead(inner[k]))
				}
			}
		case u.Opcode == hlo.GetTupleElement:
			n = a.bytesRead(u)
		case u.Opcode == hlo.Slice, u.Opcode == hlo.DynamicSlice && u.Operands[0] == p:
			n = a.bytes(u.Shape)
		case u.Opcode == hlo.DynamicUpdateSlice && u.Operands[0] == p:
			// What is updated stays where it is.
		case u.Opcode == hlo.Broadcast, u.Opcode == hlo.Reshape:
			n = whole
		case !shared:
			shared, n = true, whole
		}
		sum = add(sum, n)
	}
	a.reads[p.ID] = readBytes{sum, true}
	return sum
}
