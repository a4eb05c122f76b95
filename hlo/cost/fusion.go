package cost

// Fusions: flops of what is inside, bytes of what goes in and out.

import "gpumem/hlo"

func (a *Analysis) fusion(i *hlo.Instruction) (Cost, error) {
	inside := i.Call("calls")
	c := a.sums[inside]
	var err error
	if c.Bytes, err = written(i.Shape, inside.Root); err != nil {
		return Cost{}, err
	}
	for _, x := range inside.Instructions {
		// A constant of more than a few elements lies in memory and is read.
		if n, err := elems(x.Shape); err != nil {
			return Cost{}, err
		} else if x.Opcode == hlo.Constant && n > immediate {
			bytes, err := size(x.Shape)
			if err != nil {
				return Cost{}, err
			}
			c.Bytes = add(c.Bytes, bytes)
		}
		if x.Opcode == hlo.Parameter {
			bytes, err := a.read(x)
			if err != nil {
				return Cost{}, err
			}
			c.Bytes = add(c.Bytes, bytes)
		}
	}
	return a.timed(c), nil
}

// immediate is the largest constant that is part of the code
// (HloCostAnalysis::immediate_constant_max_elements).
const immediate = 1

// written is what a fusion writes: of a dynamic-update-slice only the update,
// since its result lies where its operand was.
func written(s *hlo.Shape, root *hlo.Instruction) (uint64, error) {
	if s.Type == hlo.Tuple && root.Opcode == hlo.TupleOp && len(root.Operands) == len(s.Elements) {
		var sum uint64
		for n, e := range s.Elements {
			bytes, err := written(e, root.Operands[n])
			if err != nil {
				return 0, err
			}
			sum = add(sum, bytes)
		}
		return sum, nil
	}
	if root.Opcode == hlo.DynamicUpdateSlice {
		return size(root.Operands[1].Shape)
	}
	return size(s)
}

// read is how much of a parameter a fusion reads: slices only what they cut
// out, all others share one reading of the whole.
func (a *Analysis) read(p *hlo.Instruction) (uint64, error) {
	if r := a.reads[p.ID]; r.known {
		return r.n, nil
	}
	whole, err := size(p.Shape)
	if err != nil {
		return 0, err
	}
	var sum uint64
	shared := false
	for _, u := range p.Users {
		var n uint64
		// share is whether the user takes part in the one reading of the whole.
		share := false
		switch {
		case u.Opcode == hlo.Fusion:
			inner := u.Call("calls").Parameters()
			for k, o := range u.Operands {
				if o == p {
					r, err := a.read(inner[k])
					if err != nil {
						return 0, err
					}
					n = add(n, r)
				}
			}
		case u.Opcode == hlo.GetTupleElement:
			n, err = a.read(u)
		case u.Opcode == hlo.Slice, u.Opcode == hlo.DynamicSlice && u.Operands[0] == p:
			n, err = size(u.Shape)
		case u.Opcode == hlo.DynamicUpdateSlice && u.Operands[0] == p:
			// What is updated stays where it is.
		case u.Opcode == hlo.Broadcast, u.Opcode == hlo.Reshape:
			n = whole
		default:
			share = true
		}
		if err != nil {
			return 0, err
		}
		if share && !shared {
			shared = true
			n = whole
		}
		sum = add(sum, n)
	}
	a.reads[p.ID] = readBytes{sum, true}
	return sum, nil
}
