package alias

// Values that may lie in the memory of an operand that is read for the last time.
//
// An operation that computes element by element may write each element of its result where
// it read that of an operand, if both have the same shape and layout. So may a loop fusion
// through which a parameter reaches the result element by element alone. A copy and a custom
// call may not.
//
// Some answers, for operands that die there:
//
//	f32[4] negate(p)                          in the place of p
//	f32[4] add(p, q)                          of p or of q, p is tried first
//	pred[4] compare(p, q), both f32[4]        of none: another type
//	f32[4] dot(p, q)                          of none: each element needs many
//	f32[8] scatter(p, i, u)                   of p, the array that is updated
//	f32[4] fusion(p, q), kind=kLoop, which
//	  adds p to a reversed q                  of p; the reversal reads elsewhere than it writes
//
// Here is only whether it would be right. Whether the operand dies, and which one is taken,
// is decided by package memory, which knows times.

import (
	"cmp"
	"slices"
	"strings"

	"gpumem/xla/internal/hlo"
)

// Candidates are the operands whose memory a value may take over where it is defined, in
// order, with some that it may not: see [Flow.MayShare].
func (f *Flow) Candidates(v Position) []*hlo.Instruction { return f.candidates(v.Instruction, v.Index) }

// MayShare reports whether a value may be defined where an operand is read for the last
// time, in the operand's memory. It is false if operand is no operand of the defining
// instruction.
func (f *Flow) MayShare(operand, defined Position) bool {
	return f.may(operand.Instruction, operand.Index, defined.Instruction, defined.Index)
}

// sharing finds the results that may take over the memory of an operand that dies
// (HloDataflowAnalysis::CanShareOperandBufferWithUser, 2026). It keeps what it finds, as
// looking again for each of many operands takes their square.
type sharing struct {
	elements   map[elements][]bool // see through
	parameters map[*hlo.Computation][]*hlo.Instruction
	shareable  map[*hlo.Instruction][]*hlo.Instruction // see candidates
	wide       map[*hlo.Instruction][]int32            // see numbers
	gpu        bool                                    // by the rules of gpu.go
	kernels    map[*hlo.Computation]*kernel
	onOutputs  map[*hlo.Instruction][][]*hlo.Instruction // see candidatesOnGPU
	scratch    []int32
	looked     int // operands that were looked at, for tests
}

// elements is a question to through, for all parameters of a computation. The two answers of a
// computation may differ: a loop fusion may return a tuple, an operation inside may not.
type elements struct {
	c      *hlo.Computation
	tuples bool
}

func newSharing() sharing {
	return sharing{
		elements:   map[elements][]bool{},
		parameters: map[*hlo.Computation][]*hlo.Instruction{},
		shareable:  map[*hlo.Instruction][]*hlo.Instruction{},
		wide:       map[*hlo.Instruction][]int32{},
		kernels:    map[*hlo.Computation]*kernel{},
		onOutputs:  map[*hlo.Instruction][][]*hlo.Instruction{},
	}
}

// Looked is how many operands and elements of tuples were looked at. Tests compare it with
// the size of a module.
func (f *Flow) Looked() int { return f.looked + f.places.looked }

// candidates returns the operands of a user whose memory the part of its result at the
// index to may take over, in order, with some that it may not: see may.
func (s *sharing) candidates(u *hlo.Instruction, to []int) []*hlo.Instruction {
	only := func(k int) []*hlo.Instruction {
		if k >= len(u.Operands) {
			return nil
		}
		return u.Operands[k : k+1]
	}
	switch u.Opcode {
	case hlo.CustomCall:
		if s.gpu {
			return only(2)
		}
		return nil
	case hlo.Copy:
		return nil
	case hlo.AllReduce, "collective-broadcast":
		if s.gpu {
			return u.Operands
		}
		return nil
	case hlo.Scatter, hlo.SetDimensionSize, hlo.DynamicUpdateSlice:
		return only(0)
	case hlo.TriangularSolve:
		return only(1)
	case hlo.Sort:
		if len(u.Operands) > 1 && len(to) > 0 {
			return only(to[0])
		}
		return only(0)
	case hlo.Fusion:
		if s.gpu {
			return s.candidatesOnGPU(u, to)
		}
		if len(u.Operands) < wideTuple {
			return u.Operands
		}
		list, ok := s.shareable[u]
		if !ok {
			for _, o := range u.Operands {
				// What forwards a value stays: may decides about that value.
				makes := o.Opcode == hlo.Parameter || o.Opcode == hlo.Fusion || o.Opcode.Unary() || o.Opcode.Binary()
				if !makes || s.fusion(u, int(s.numbers(u, o)[0])) {
					list = append(list, o)
				}
			}
			s.shareable[u] = list
		}
		return list
	}
	if !s.elementwise(u, 0) {
		return nil
	}
	return u.Operands
}

// Numbers returns which operands of u are o, in order: 0 and 1 for add(g, g). The list is valid
// until the next call.
func (f *Flow) Numbers(u, o *hlo.Instruction) []int32 { return f.numbers(u, o) }

// numbers is Numbers. Of an instruction with few operands they are compared one by one; of
// one with many the operands are sorted once, so that each question is a search by halves.
func (s *sharing) numbers(u, o *hlo.Instruction) []int32 {
	if len(u.Operands) < wideTuple {
		s.looked += len(u.Operands)
		s.scratch = s.scratch[:0]
		for n, x := range u.Operands {
			if x == o {
				s.scratch = append(s.scratch, int32(n))
			}
		}
		return s.scratch
	}
	// Going through all operands for each of them would take their square: a fusion may have a
	// thousand, and each of them asks.
	list, ok := s.wide[u]
	if !ok {
		s.looked += len(u.Operands)
		list = make([]int32, len(u.Operands))
		for n := range list {
			list[n] = int32(n)
		}
		slices.SortStableFunc(list, func(m, n int32) int { return cmp.Compare(u.Operands[m].ID, u.Operands[n].ID) })
		s.wide[u] = list
	}
	from, _ := slices.BinarySearchFunc(list, o.ID, func(n int32, id int) int { return cmp.Compare(u.Operands[n].ID, id) })
	to := from
	for to < len(list) && u.Operands[list[to]] == o {
		to++
	}
	return list[from:to]
}

// may reports whether the part of a user's result at the index to may lie where the
// part of its operand o at the index from does. An operand that an operation in place has
// twice is read after it was overwritten, so that it must be there once; element by element
// both readings come before the writing of each element.
func (s *sharing) may(o *hlo.Instruction, from []int, u *hlo.Instruction, to []int) bool {
	numbers := s.numbers(u, o)
	if len(numbers) == 0 || o.Opcode == hlo.Constant || u.Opcode == hlo.Copy {
		return false
	}
	number, once := int(numbers[0]), len(numbers) == 1
	if s.gpu {
		switch u.Opcode {
		case hlo.Fusion:
			return s.onGPU(u, o, number, to)
		case hlo.AllReduce, "collective-broadcast":
			own := len(u.Operands) == 1 || len(to) == 1 && to[0] < len(u.Operands) && u.Operands[to[0]] == o
			return own && !needsOwnResult(u)
		case hlo.CustomCall:
			return once && number == 2 && addsInPlace(u, to)
		}
	}
	if !o.Shape.At(from...).Equal(u.Shape.At(to...)) {
		return false
	}
	switch u.Opcode {
	case hlo.CustomCall:
		return false
	case hlo.Fusion:
		return s.fusion(u, number)
	case hlo.Scatter, hlo.SetDimensionSize, hlo.DynamicUpdateSlice:
		return once && number == 0
	case hlo.TriangularSolve:
		return once && number == 1
	case hlo.Sort:
		return len(o.Users) == 1 && (len(u.Operands) == 1 || once && len(to) > 0 && to[0] == number)
	}
	return s.elementwise(u, number)
}

// needsOwnResult reports whether a collective is NVSHMEM's, which needs a separate result.
func needsOwnResult(i *hlo.Instruction) bool {
	config, _ := i.Attribute("backend_config")
	return strings.Contains(strings.ToLower(config), "nvshmem")
}

// fusion reports whether the result of a fusion may lie where its operand with this number
// does. That depends on its kind, which says how its code runs: one loop over the elements,
// or a matrix product with something added to it.
func (s *sharing) fusion(u *hlo.Instruction, number int) bool {
	c := u.Call("calls")
	if c == nil || c.Root == nil {
		return false
	}
	params, ok := s.parameters[c]
	if !ok {
		params = c.Parameters()
		s.parameters[c] = params
	}
	if number >= len(params) || params[number] == nil {
		return false
	}
	p := params[number]
	switch kind, _ := u.Attribute("kind"); {
	case kind == "kLoop" || kind == "kInput":
		return s.through(c, number, true)
	case kind == "kOutput" && c.Root.Opcode == hlo.Add && len(c.Root.Operands) == 2:
		// The operand is what is added to a product.
		for k, x := range c.Root.Operands {
			if x.Opcode == hlo.Dot || x.Opcode == hlo.Convolution {
				return len(p.Users) == 1 && c.Root.Operands[1-k] == p
			}
		}
		return false
	}
	return s.elementwise(u, number)
}

// through reports whether everything that depends on a fusion's parameter computes element
// by element or, where tuples is set, makes a tuple of it. Then the fusion has read each
// element of the parameter before it writes there.
func (s *sharing) through(c *hlo.Computation, number int, tuples bool) bool {
	key := elements{c, tuples}
	list, ok := s.elements[key]
	if !ok {
		s.elements[key] = nil // a fusion that contains itself ends here
		list = s.allThrough(c, tuples)
		s.elements[key] = list
	}
	return number < len(list) && list[number]
}

// allThrough is through for all parameters of a computation. Users stand behind what they
// use, so one pass from the end knows of each user before of what it uses. bad is what
// reaches the root, or a result that is not used, by way of an operation that is neither
// element by element nor, where that is allowed, a tuple.
func (s *sharing) allThrough(c *hlo.Computation, tuples bool) []bool {
	params := c.Parameters()
	list := make([]bool, len(params))
	bad := map[*hlo.Instruction]bool{}
	for _, i := range slices.Backward(c.Instructions) {
		s.looked++
		for k, o := range i.Operands {
			s.looked++
			if bad[i] || !(tuples && i.Opcode == hlo.TupleOp) && !s.elementwise(i, k) {
				bad[o] = true
			}
		}
	}
	for n, p := range params {
		list[n] = p != nil && !bad[p]
	}
	return list
}

// elementwise reports whether each element of the result needs, of operand k, only
// the element at the same place. A map counts if its dimensions are in order; a fusion if all
// on the way from the parameter to the root is.
func (s *sharing) elementwise(i *hlo.Instruction, k int) bool {
	o := i.Opcode
	switch o {
	case hlo.Select, "clamp", hlo.Rng, "stochastic-convert":
		return true
	case hlo.DynamicUpdateSlice:
		return k == 0 // the update goes elsewhere than it was read
	case "bitcast-convert":
		// Between types of different widths it is not: then the dimensions differ, too.
		return len(i.Operands) == 1 && slices.Equal(i.Shape.Dims, i.Operands[0].Shape.Dims)
	case hlo.Map:
		dims, err := i.Ints("dimensions")
		if err != nil || len(dims) > 0 && len(dims) != len(i.Shape.Dims) {
			return false
		}
		for d, x := range dims {
			if x != int64(d) {
				return false
			}
		}
		return true
	case hlo.Fusion:
		c := i.Call("calls")
		return c != nil && s.through(c, k, false)
	}
	return o.Unary() || o.Binary()
}
