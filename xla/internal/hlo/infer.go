package hlo

// Shapes of instructions that were written without one. Printers always write
// them; only tests written by hand leave them out.

// maxInferred is how many shapes an inferred tuple may have in it. Without a limit
// fifty lines of tuples of the tuple before would be a shape of 2^50.
const maxInferred = 1024

// infer is the shape that an instruction has to have, or nil and the reason.
func infer(i *Instruction) (*Shape, string) {
	const few = "it has too few operands to tell"
	operand := func(n int) (*Shape, string) {
		if n >= len(i.Operands) {
			return nil, few
		}
		return i.Operands[n].Shape, ""
	}
	switch op := i.Opcode; op {
	case Compare, "is-finite":
		s, why := operand(0)
		if s == nil {
			return nil, why
		}
		if s.Type == Tuple {
			return nil, "its operand is a tuple"
		}
		of := *s
		of.Type = "pred"
		return &of, ""
	case Select, "clamp":
		return operand(1)
	case Copy, OptBarrier, While, AddDependency, Reverse, DynamicUpdateSlice, Domain:
		return operand(0)
	case TupleOp:
		s := &Shape{Type: Tuple}
		for _, o := range i.Operands {
			s.Elements = append(s.Elements, o.Shape)
		}
		if left := maxInferred; !fits(s, &left, maxDepth) {
			return nil, "its tuple is too large or too deep to be left out"
		}
		return s, ""
	case GetTupleElement:
		s, why := operand(0)
		if s == nil {
			return nil, why
		}
		n, err := i.Int("index", -1)
		if err != nil || n < 0 || n >= int64(len(s.Elements)) {
			return nil, "its index= is no element of its operand"
		}
		return s.Elements[n], ""
	case Call:
		if c := i.Call("to_apply"); c != nil {
			return c.Root.Shape, ""
		}
		return nil, "no to_apply= says what it calls"
	case Conditional:
		if all := i.Called(); len(all) > 0 {
			return all[0].Root.Shape, ""
		}
		return nil, "no branch_computations= say what it calls"
	case "after-all":
		return &Shape{Type: Token}, ""
	case "get-dimension-size":
		return &Shape{Type: "s32"}, ""
	case "real", "imag", "complex", "convert", "bitcast-convert":
		// The type of these is not the operand's.
	default:
		if op.Unary() || op.Binary() {
			return operand(0)
		}
	}
	return nil, "it does not follow from the operands"
}

// fits reports whether a shape has at most left shapes in it, and depth levels.
func fits(s *Shape, left *int, depth int) bool {
	*left--
	if *left < 0 || depth == 0 {
		return false
	}
	for _, e := range s.Elements {
		if !fits(e, left, depth-1) {
			return false
		}
	}
	return true
}
