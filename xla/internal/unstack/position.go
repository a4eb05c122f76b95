package unstack

// Positions in stacks: whole numbers that depend on the round of a loop, and what they are
// computed from in its body.

import (
	"strconv"

	"gpumem/xla/internal/hlo"
)

// An affine is a*round + b. a is 1, -1, or 0 for a constant.
type affine struct{ a, b int64 }

func (x affine) less(b int64) affine  { return affine{x.a, x.b - b} }
func (x affine) times(a int64) affine { return affine{a * x.a, a * x.b} }

// compose returns x of another round, that itself is a function of one.
func (x affine) compose(y affine) affine { return affine{x.a * y.a, x.a*y.b + x.b} }

// constantOf returns the value of a constant.
func constantOf(i *hlo.Instruction) (int64, bool) {
	if i.Opcode != hlo.Constant || len(i.Shape.Dims) > 0 {
		return 0, false
	}
	n, err := strconv.ParseInt(i.Literal, 10, 32)
	return n, err == nil
}

// slot returns which slot of a stack the operands of a dynamic-slice or dynamic-update-slice name:
// one in the stack, in each round. user is the instruction of the body, and c its fused
// computation or nil.
func (l *loop) slot(operands []*hlo.Instruction, user *hlo.Instruction, c *hlo.Computation) (affine, bool) {
	in := func(i *hlo.Instruction) (affine, bool) { return l.position(i) }
	if c != nil {
		in = func(i *hlo.Instruction) (affine, bool) { return l.inside(i, user) }
	}

	for _, o := range operands[1:] {
		if a, ok := in(o); !ok || a != (affine{}) {
			return a, false
		}
	}

	a, ok := in(operands[0])
	return a, ok && (a == affine{1, 0} || a == affine{-1, l.trips - 1})
}

// position returns a whole number of the body as a function of the round.
func (l *loop) position(i *hlo.Instruction) (affine, bool) {
	if l.element(i) == l.counter && l.counter >= 0 {
		return affine{1, 0}, true
	}
	if c := fused(i); c != nil && i.Opcode == hlo.Fusion {
		return l.inside(c.Root, i)
	}
	return l.sum(i, l.position)
}

// inside is position for an instruction in a fusion.
func (l *loop) inside(i, fusion *hlo.Instruction) (affine, bool) {
	if i.Opcode == hlo.Parameter {
		if i.Parameter >= len(fusion.Operands) {
			return affine{}, false
		}
		return l.position(fusion.Operands[i.Parameter])
	}
	return l.sum(i, func(o *hlo.Instruction) (affine, bool) { return l.inside(o, fusion) })
}

// deepest is how many sums may stand on each other: a sum of sums may double each time.
const deepest = 12

// sum is position for an instruction by its operands.
func (l *loop) sum(i *hlo.Instruction, of func(*hlo.Instruction) (affine, bool)) (affine, bool) {
	if l.depth++; l.depth > deepest {
		l.depth--
		return affine{}, false
	}

	defer func() { l.depth-- }()
	if i.Shape.Type != "s32" || len(i.Shape.Dims) > 0 {
		return affine{}, false
	}

	switch i.Opcode {
	case hlo.Constant:
		n, ok := constantOf(i)
		return affine{0, n}, ok
	case hlo.Copy, hlo.Bitcast:
		return of(i.Operands[0])
	case hlo.Add, hlo.Subtract:
		x, ok := of(i.Operands[0])
		y, too := of(i.Operands[1])
		if !ok || !too {
			return affine{}, false
		}
		if i.Opcode == hlo.Subtract {
			y = y.times(-1)
		}
		x = affine{x.a + y.a, x.b + y.b}
		return x, x.a >= -1 && x.a <= 1 && x.b < mostTrips*4 && x.b > -mostTrips*4
	case hlo.Select:
		// An index below 0 counts from the end: jnp asks for that each time.
		if test, known := l.test(i.Operands[0], of); known {
			if test {
				return of(i.Operands[1])
			}
			return of(i.Operands[2])
		}
	}

	return affine{}, false
}

// test returns what a comparison with 0 is in each round, if it is always the same.
func (l *loop) test(i *hlo.Instruction, of func(*hlo.Instruction) (affine, bool)) (is, known bool) {
	direction, _ := i.Attribute("direction")
	if i.Opcode != hlo.Compare || direction != "LT" {
		return false, false
	}

	x, ok := of(i.Operands[0])
	y, too := of(i.Operands[1])
	if !ok || !too || y.a != 0 {
		return false, false
	}

	first, last := x.b, x.a*(l.trips-1)+x.b
	switch {
	case first < y.b && last < y.b:
		return true, true
	case first >= y.b && last >= y.b:
		return false, true
	}
	return false, false
}

// element returns which element of the loop's state an instruction of its body is, -1 if none.
func (l *loop) element(i *hlo.Instruction) int {
	if i.Opcode != hlo.GetTupleElement || i.Operands[0] != l.parameter {
		return -1
	}
	n, err := i.TupleIndex()
	if err != nil || n >= len(l.while.Shape.Elements) {
		return -1
	}
	return n
}

// fused returns the computation of a fusion or of its start, nil if an instruction is none.
func fused(i *hlo.Instruction) *hlo.Computation {
	if i.Opcode == hlo.Fusion || wrapsFusion(i) {
		return i.Call("calls")
	}
	return nil
}
