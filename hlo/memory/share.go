package memory

// Results that lie in the memory of an operand: because they have to (in place), or
// because they may where the operand is read for the last time.

import (
	"slices"
	"strings"

	"gpumem/hlo"
)

// A pair is a part of a result that lies in the memory of a part of an operand.
type pair struct {
	operand  int
	from, to []int
}

// inPlace finds the pairs of instructions (xla/hlo/analysis/alias_info.cc, 2026).
type inPlace struct {
	fusions map[*hlo.Computation][]pair
	reads   map[*hlo.Computation]bool
}

func newInPlace() *inPlace {
	return &inPlace{map[*hlo.Computation][]pair{}, map[*hlo.Computation]bool{}}
}

func (p *inPlace) of(i *hlo.Instruction) ([]pair, error) {
	var list []pair
	switch i.Opcode {
	case hlo.DynamicUpdateSlice, hlo.SetDimensionSize:
		list = inputs(1)
	case hlo.Scatter:
		list = inputs((len(i.Operands) - 1) / 2)
	case "all-reduce-start":
		// NVSHMEM's all-reduce needs a separate result.
		if config, _ := i.Attribute("backend_config"); !strings.Contains(strings.ToLower(config), "nvshmem") {
			list = inputs(len(i.Operands))
		}
	case "ragged-all-to-all":
		list = []pair{{operand: 1}}
	case hlo.CollectivePermute, "collective-permute-start":
		if len(i.Operands) != 4 {
			return nil, nil
		}
		var to []int
		if i.Opcode != hlo.CollectivePermute {
			to = []int{1}
		}
		_ = walk(i.Operands[1].Shape, nil, func(_ *hlo.Shape, index []int) error {
			list = append(list, pair{1, slices.Clone(index), slices.Concat(to, index)})
			return nil
		})
	case hlo.CustomCall, hlo.Fusion, hlo.AsyncStart:
		given, err := outputAliases(i)
		if err != nil {
			return nil, err
		}
		for _, x := range given {
			list = append(list, pair{x.operand, x.index, x.output})
		}
		if c := i.Call("calls"); i.Opcode == hlo.Fusion && c != nil && c.Root != nil {
			list = append(list, p.fused(c)...)
		}
	}
	for _, x := range list {
		if x.operand >= len(i.Operands) {
			return nil, wrong(i, "its result lies in operand %d, which it has not", x.operand)
		}
	}
	return list, nil
}

// inputs pairs the first n operands with the elements of the result, or one
// operand with the result.
func inputs(n int) []pair {
	if n == 1 {
		return []pair{{}}
	}
	var list []pair
	for k := range n {
		list = append(list, pair{operand: k, to: []int{k}})
	}
	return list
}

// fused are the pairs of a fusion that ends in an operation in place on one of
// its parameters.
func (p *inPlace) fused(c *hlo.Computation) []pair {
	if list, ok := p.fusions[c]; ok || p.reads[c] {
		return list
	}
	p.reads[c] = true // a fusion that contains itself ends here
	var list []pair
	_ = walk(c.Root.Shape, nil, func(s *hlo.Shape, index []int) error {
		if s.Type == hlo.Tuple {
			return nil
		}
		out, at := p.behind(follow(c.Root, slices.Clone(index)))
		if out == nil {
			return nil
		}
		if out.Opcode == hlo.Fusion {
			if o, from := p.behind(out, at); o != nil {
				out, at = o, from
			}
		}
		if out.Opcode == hlo.Parameter {
			list = append(list, pair{out.Parameter, at, slices.Clone(index)})
		}
		return nil
	})
	p.fusions[c] = list
	return list
}

// behind is the part that an instruction computes its own part at an index in
// place of, and nil.
func (p *inPlace) behind(i *hlo.Instruction, index []int) (*hlo.Instruction, []int) {
	list, err := p.of(i)
	if err != nil {
		return nil, nil
	}
	for _, x := range list {
		if slices.Equal(x.to, index) {
			return follow(i.Operands[x.operand], x.from)
		}
	}
	return nil, nil
}

// follow goes back over tuples and what changes no byte. XLA counts a reshape
// among that on GPUs.
func follow(i *hlo.Instruction, index []int) (*hlo.Instruction, []int) {
	for i.Opcode == hlo.TupleOp && len(index) > 0 && index[0] < len(i.Operands) {
		i, index = i.Operands[index[0]], index[1:]
	}
	for i.Opcode == hlo.GetTupleElement && len(i.Operands) == 1 {
		k, err := i.TupleIndex()
		if err != nil {
			break
		}
		i, index = i.Operands[0], append([]int{k}, index...)
	}
	for len(index) == 0 && (i.Opcode == hlo.Bitcast || i.Opcode == hlo.Reshape) && len(i.Operands) == 1 {
		i = i.Operands[0]
	}
	return i, index
}

// sharing says which results may take over the memory of an operand that dies
// (HloDataflowAnalysis::CanShareOperandBufferWithUser, 2026).
type sharing struct {
	// What is found once, as looking again for each of many operands takes their square.
	trees, single map[*hlo.Computation][]bool // see through
	parameters    map[*hlo.Computation][]*hlo.Instruction
	shareable     map[*hlo.Instruction][]*hlo.Instruction          // see candidates
	wide          map[*hlo.Instruction]map[*hlo.Instruction][2]int // see numbers
	looked        *int                                             // operands that were looked at, for tests
}

func newSharing() sharing {
	return sharing{
		trees:      map[*hlo.Computation][]bool{},
		single:     map[*hlo.Computation][]bool{},
		parameters: map[*hlo.Computation][]*hlo.Instruction{},
		shareable:  map[*hlo.Instruction][]*hlo.Instruction{},
		wide:       map[*hlo.Instruction]map[*hlo.Instruction][2]int{},
		looked:     new(int),
	}
}

// candidates returns the operands of a user whose memory the part of its result at the
// index to may take over, in order, with some that it may not: see may.
func (s sharing) candidates(u *hlo.Instruction, to []int) []*hlo.Instruction {
	only := func(k int) []*hlo.Instruction {
		if k >= len(u.Operands) {
			return nil
		}
		return u.Operands[k : k+1]
	}
	switch u.Opcode {
	case hlo.Copy, hlo.CustomCall:
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
		if len(u.Operands) < wideTuple {
			return u.Operands
		}
		list, ok := s.shareable[u]
		if !ok {
			for _, o := range u.Operands {
				// What hands on another's value stays: may decides about that other.
				makes := o.Opcode == hlo.Parameter || o.Opcode == hlo.Fusion || o.Opcode.Unary() || o.Opcode.Binary()
				if first, _ := s.numbers(u, o); !makes || s.fusion(u, first) {
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

// numbers returns the first and the last number of an operand, -1 for what is none.
func (s sharing) numbers(u, o *hlo.Instruction) (first, last int) {
	if len(u.Operands) < wideTuple {
		*s.looked += len(u.Operands)
		return slices.Index(u.Operands, o), lastIndex(u.Operands, o)
	}
	all, ok := s.wide[u]
	if !ok {
		*s.looked += len(u.Operands)
		all = make(map[*hlo.Instruction][2]int, len(u.Operands))
		for n, o := range u.Operands {
			if x, ok := all[o]; ok {
				all[o] = [2]int{x[0], n}
			} else {
				all[o] = [2]int{n, n}
			}
		}
		s.wide[u] = all
	}
	if x, ok := all[o]; ok {
		return x[0], x[1]
	}
	return -1, -1
}

// may reports whether the part of a user's result at the index to may lie where the
// part of its operand o at the index from does.
func (s sharing) may(o *hlo.Instruction, from []int, u *hlo.Instruction, to []int) bool {
	number, last := s.numbers(u, o)
	if o.Opcode == hlo.Constant || u.Opcode == hlo.Copy || number < 0 || !equal(o.Shape.At(from...), u.Shape.At(to...)) {
		return false
	}
	once := number == last
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

func lastIndex(list []*hlo.Instruction, o *hlo.Instruction) int {
	for k := len(list) - 1; k >= 0; k-- {
		if list[k] == o {
			return k
		}
	}
	return -1
}

// equal compares types, dimensions and layouts. A layout that is left out is
// the usual one.
func equal(s, t *hlo.Shape) bool {
	if s == nil || t == nil || s.Type != t.Type || !slices.Equal(s.Dims, t.Dims) || !slices.Equal(s.Dynamic, t.Dynamic) || s.FullLayout() != t.FullLayout() {
		return false
	}
	return slices.EqualFunc(s.Elements, t.Elements, equal)
}

func (s sharing) fusion(u *hlo.Instruction, number int) bool {
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

// through reports whether everything that uses a fusion's parameter, in as many steps
// as may be, computes element by element or, where tuples is set, makes a tuple of it.
func (s sharing) through(c *hlo.Computation, number int, tuples bool) bool {
	known := s.single
	if tuples {
		known = s.trees
	}
	list, ok := known[c]
	if !ok {
		known[c] = nil // a fusion that contains itself ends here
		list = s.allThrough(c, tuples)
		known[c] = list
	}
	return number < len(list) && list[number]
}

// allThrough is through for all parameters of a computation. Users stand behind what they
// use, so one pass from the end knows of each user before of what it uses.
func (s sharing) allThrough(c *hlo.Computation, tuples bool) []bool {
	params := c.Parameters()
	list := make([]bool, len(params))
	bad := map[*hlo.Instruction]bool{}
	for _, i := range slices.Backward(c.Instructions) {
		*s.looked++
		for k, o := range i.Operands {
			*s.looked++
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
// the element at the same place.
func (s sharing) elementwise(i *hlo.Instruction, k int) bool {
	o := i.Opcode
	switch o {
	case hlo.Select, "clamp", hlo.Rng, "stochastic-convert":
		return true
	case hlo.DynamicUpdateSlice:
		return k == 0
	case "bitcast-convert":
		// Between types of different widths it is not.
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
