package alias

// Sharing on GPUs: when the result of a fusion may lie where one of its operands does
// (xla/service/gpu/alias_info.cc, 2026). XLA:GPU has another rule for fusions, which
// takes the place of the general one of share.go.
//
// A fusion's kernel reads and writes element by element, in an order that the result
// dictates. So the operand and the result need the same number of elements of the same
// width, but not the same shape: a bitcast in between is no obstacle. Every way from the
// parameter has to go through operations element by element, bitcasts and tuples. In
//
//	f {
//	  p = f32[8,128] parameter(0)
//	  q = f32[1024] parameter(1)
//	  b = f32[1024] bitcast(p)
//	  n = f32[1024] negate(q)
//	  a = f32[1024] add(b, n)
//	  s = f32[1024] reverse(n), dimensions={0}
//	  ROOT t = (f32[1024], f32[1024]) tuple(a, s)
//	}
//
// the first result may lie where p does, by way of b. It may not lie where q does, as s
// reads an element of n, and so of q, that was overwritten by then. Five operations are not
// element by element and still allowed:
//
//   - the reduction that the kernel computes first (reduction): what it reads is read before
//     anything is written;
//   - a scatter, of which the array that is updated is the operand;
//   - a sort, whose result is the one of the operand's number;
//   - the update of a dynamic-update-slice, and a dynamic-slice of the array that it updates
//     if it reads just what is overwritten.
//
// The last three have to be what the result is made by.

import (
	"slices"
	"strings"

	"gpumem/xla/internal/hlo"
)

// A kernel is what the rule needs to know about a fused computation.
type kernel struct {
	params  []*hlo.Instruction
	outputs []*hlo.Instruction // of the root: what its elements are, or the root itself
	many    bool               // the fusion returns a tuple
	output  map[*hlo.Instruction]bool
	// hero is the reduction that runs first, nil if there is none.
	hero *hlo.Instruction
	// crossed are outputs that a transposition through shared memory computes, by a
	// separate order of the elements.
	crossed map[*hlo.Instruction]bool
	// By instruction. never has a way to an operation that allows no sharing; some to one
	// that may, for some outputs.
	never, some map[*hlo.Instruction]bool
	reached     map[*hlo.Instruction]*reach // by parameter
	visited     int                         // for all of them
}

// A reach is what depends on a parameter.
type reach struct {
	outputs map[*hlo.Instruction]bool
	crossed bool // one of them is
	// edges lead to operations of which it depends on the output whether they may be there.
	edges []edge
}

type edge struct{ from, to *hlo.Instruction }

// mostReached bounds the instructions that are looked at for the parameters of one
// computation; beyond, nothing is shared. A fusion of XLA has a thousand at most.
const mostReached = 1 << 21

// kernel returns what is known of a fused computation, found once.
func (s *sharing) kernel(u *hlo.Instruction, c *hlo.Computation) *kernel {
	if k, ok := s.kernels[c]; ok {
		return k
	}
	k := &kernel{
		params:  c.Parameters(),
		outputs: []*hlo.Instruction{c.Root},
		never:   map[*hlo.Instruction]bool{},
		some:    map[*hlo.Instruction]bool{},
		reached: map[*hlo.Instruction]*reach{},
	}
	s.kernels[c] = k
	if c.Root.Opcode == hlo.TupleOp {
		k.outputs, k.many = c.Root.Operands, true
	}
	k.output = make(map[*hlo.Instruction]bool, len(k.outputs))
	for _, o := range k.outputs {
		k.output[o] = true
	}
	k.findHeroes(u)
	// Users stand behind what they use, so one pass from the end knows of each user before
	// of what it uses. What is behind the hero does not count.
	for _, i := range slices.Backward(c.Instructions) {
		s.looked++
		for n, o := range i.Operands {
			s.looked++
			if o == k.hero {
				continue
			}
			switch s.step(k, i, o, n) {
			case neverShared:
				k.never[o] = true
			case perhapsShared:
				k.some[o] = true
			}
			k.never[o] = k.never[o] || k.never[i]
			k.some[o] = k.some[o] || k.some[i]
		}
	}
	return k
}

// What an operation is for the memory of its operand.
type sharable int

const (
	alwaysShared sharable = iota
	perhapsShared
	neverShared
)

// step judges one operand of one operation, the n-th.
func (s *sharing) step(k *kernel, i, o *hlo.Instruction, n int) sharable {
	switch {
	case i == k.hero, i.Opcode == hlo.TupleOp, i.Opcode == hlo.Bitcast, i.Opcode == hlo.DynamicUpdateSlice && i.Operands[0] == o:
		return alwaysShared
	case i.Opcode == hlo.Scatter, i.Opcode == hlo.Sort, i.Opcode == hlo.DynamicSlice, i.Opcode == hlo.DynamicUpdateSlice:
		return perhapsShared
	case i.Opcode == hlo.Copy || !s.elementwise(i, n):
		return neverShared
	}
	return alwaysShared
}

// onGPU reports whether the part of a fusion's result at the index to may lie where the
// operand with this number does, on a GPU.
func (s *sharing) onGPU(u, o *hlo.Instruction, number int, to []int) bool {
	c := u.Call("calls")
	if c == nil || c.Root == nil || !sameElements(o.Shape, u.Shape.At(to...)) {
		return false
	}
	k := s.kernel(u, c)
	out := 0
	if k.many {
		if len(to) != 1 || to[0] >= len(k.outputs) {
			return false
		}
		out = to[0]
	} else if len(to) > 0 && c.Root.Shape.At(to...) == nil {
		return false
	}
	if number >= len(k.params) || k.params[number] == nil || k.never[k.params[number]] {
		return false
	}
	output := k.outputs[out]
	made := output
	if made.Opcode == hlo.Bitcast && len(made.Operands) == 1 {
		made = made.Operands[0]
	}
	r := s.reachFrom(k, k.params[number])
	if r == nil || !r.outputs[output] {
		return false
	}
	for _, e := range r.edges {
		if !mayReadOverwritten(e, made, to) {
			return false
		}
	}
	// Another output that depends on the operand has to run in the same order.
	if len(r.outputs) > 1 {
		return elementwiseOpcode(made) && !r.crossed
	}
	return true
}

// candidatesOnGPU returns the operands of a fusion whose memory the part of its result at the
// index to may take over, in order, with some that it may not.
func (s *sharing) candidatesOnGPU(u *hlo.Instruction, to []int) []*hlo.Instruction {
	c := u.Call("calls")
	if c == nil || c.Root == nil {
		return nil
	}
	all, ok := s.onOutputs[u]
	if !ok {
		k := s.kernel(u, c)
		all = make([][]*hlo.Instruction, len(k.outputs))
		place := map[*hlo.Instruction][]int{} // of outputs; one may be there twice
		for n, o := range k.outputs {
			place[o] = append(place[o], n)
		}
		seen := map[*hlo.Instruction]bool{}
		for n, o := range u.Operands[:min(len(u.Operands), len(k.params))] {
			s.looked++
			if p := k.params[n]; !seen[o] && p != nil && !k.never[p] {
				seen[o] = true
				if r := s.reachFrom(k, p); r != nil {
					for x := range r.outputs {
						for _, n := range place[x] {
							all[n] = append(all[n], o)
						}
					}
				}
			}
		}
		s.onOutputs[u] = all
	}
	n := 0
	if len(to) > 0 {
		n = to[0]
	}
	if n >= len(all) {
		return nil
	}
	return all[n]
}

// addsInPlace reports whether a custom call multiplies matrices and adds the product to its
// third operand, which then may be overwritten by its first result (cublasLt).
func addsInPlace(u *hlo.Instruction, to []int) bool {
	target, _ := u.Attribute("custom_call_target")
	config, _ := u.Attribute("backend_config")
	_, beta, ok := strings.Cut(config, `"beta":`)
	adds := ok && !strings.HasPrefix(beta, "0,") && !strings.HasPrefix(beta, "0}")
	return adds && strings.Trim(target, `"`) == "__cublas$lt$matmul" && slices.Equal(to, []int{0})
}

// sameElements reports whether two arrays have the same number of elements of the same width.
// Tuples and the like have to be equal.
func sameElements(a, b *hlo.Shape) bool {
	if a == nil || b == nil {
		return false
	}
	if a.Equal(b) {
		return true
	}
	if !a.IsArray() || !b.IsArray() {
		return false
	}
	m, err := a.Elems()
	n, err2 := b.Elems()
	return err == nil && err2 == nil && m == n && a.ElementBits() == b.ElementBits()
}

// reachFrom finds what depends on a parameter, nil if that is too much to look at.
func (s *sharing) reachFrom(k *kernel, p *hlo.Instruction) *reach {
	if r, ok := k.reached[p]; ok {
		return r
	}
	if k.visited > mostReached {
		return nil
	}
	r := &reach{outputs: map[*hlo.Instruction]bool{}}
	k.reached[p] = r
	seen := map[*hlo.Instruction]bool{p: true}
	for queue := []*hlo.Instruction{p}; len(queue) > 0; queue = queue[1:] {
		i := queue[0]
		s.looked++
		k.visited++
		if k.output[i] {
			r.outputs[i] = true
			r.crossed = r.crossed || k.crossed[i]
		}
		if i == k.hero {
			continue
		}
		for _, user := range i.Users {
			if !seen[user] {
				seen[user] = true
				queue = append(queue, user)
			}
			if k.some[i] && s.step(k, user, i, slices.Index(user.Operands, i)) == perhapsShared {
				r.edges = append(r.edges, edge{i, user})
			}
		}
	}
	return r
}

// mayReadOverwritten reports whether an operation that is not element by element may read what is
// overwritten by the output that made makes.
func mayReadOverwritten(e edge, made *hlo.Instruction, to []int) bool {
	once := 0
	for _, o := range e.to.Operands {
		if o == e.from {
			once++
		}
	}
	number := slices.Index(e.to.Operands, e.from)
	switch e.to.Opcode {
	case hlo.Scatter:
		arrays := max(1, len(e.to.Shape.Elements))
		return e.to == made && number < arrays && once == 1
	case hlo.Sort:
		return e.to == made && once == 1 && slices.Equal(to, []int{number})
	case hlo.DynamicUpdateSlice:
		return e.to == made && number == 1
	}
	// A dynamic-slice of the array that the output updates.
	if made.Opcode != hlo.DynamicUpdateSlice || len(made.Operands) < 2 {
		return false
	}
	if made.Operands[0] != e.to.Operands[0] || !e.to.Shape.Equal(made.Operands[1].Shape) {
		return false
	}
	if n, err := e.to.Shape.Elems(); err == nil && n == 1 {
		return true
	}
	return slices.Equal(e.to.Operands[1:], made.Operands[2:])
}

// elementwiseOpcode reports whether an operation computes each element of its result from
// those at the same place.
func elementwiseOpcode(i *hlo.Instruction) bool {
	switch i.Opcode {
	case hlo.Select, hlo.Map, "clamp", hlo.Rng, "stochastic-convert":
		return true
	}
	return i.Opcode.Unary() || i.Opcode.Binary()
}

// findHeroes finds how the kernel of a fusion computes its outputs: by a reduction first, by
// transpositions through shared memory, or one loop over the elements
// (xla/service/gpu/hlo_fusion_analysis.cc, 2026).
func (k *kernel) findHeroes(u *hlo.Instruction) {
	if config, _ := u.Attribute("backend_config"); !strings.Contains(config, `"kind":"__`) {
		k.hero = k.firstReduction()
	}
	if k.hero != nil || !k.many {
		return
	}
	for _, o := range k.outputs {
		if crossesOnce(o) {
			if k.crossed == nil {
				k.crossed = map[*hlo.Instruction]bool{}
			}
			k.crossed[o] = true
		}
	}
}

// firstReduction returns the first reduction of an output whose kernel is one of reductions, if
// the other outputs fit in with it.
func (k *kernel) firstReduction() *hlo.Instruction {
	var first *hlo.Instruction
	var how reduced
	for _, o := range k.outputs {
		hero := behindOne(o)
		if r, ok := howItReduces(hero); ok && (hero == o || r.raceFree()) {
			first, how = hero, r
			break
		}
	}
	if first == nil {
		return nil
	}
	elements, err := first.Operands[0].Shape.Elems()
	for _, o := range k.outputs {
		hero := behindOne(o)
		if r, ok := howItReduces(hero); ok && (hero == o || r.raceFree()) {
			if r != how {
				return nil
			}
		} else if n, err2 := o.Shape.Elems(); err != nil || err2 != nil || n != elements {
			return nil
		}
	}
	return first
}

// behindOne goes back from an output through operations element by element of one operand.
func behindOne(i *hlo.Instruction) *hlo.Instruction {
	for len(i.Operands) == 1 && isBetween(i) {
		i = i.Operands[0]
	}
	return i
}

// isBetween reports whether an operation is none that a kernel is chosen by: element by
// element, or no more than another view of its operand.
func isBetween(i *hlo.Instruction) bool {
	switch i.Opcode {
	case hlo.Bitcast:
		return true
	case hlo.Copy:
		return len(i.Operands) == 1 && i.Shape.Equal(i.Operands[0].Shape)
	}
	return elementwiseOpcode(i)
}

// crossesOnce reports whether an output is computed by way of one transposition.
func crossesOnce(o *hlo.Instruction) bool {
	var found *hlo.Instruction
	seen := map[*hlo.Instruction]bool{o: true}
	for queue := []*hlo.Instruction{o}; len(queue) > 0; queue = queue[1:] {
		i := queue[0]
		if i.Opcode == hlo.Transpose {
			if found != nil {
				return false
			}
			found = i
			continue
		}
		if len(i.Operands) > 3 || !isBetween(i) {
			continue
		}
		for _, x := range i.Operands {
			if !seen[x] {
				seen[x] = true
				queue = append(queue, x)
			}
		}
	}
	return found != nil
}

// A reduced says which of three groups of dimensions a reduction reduces, in the order of
// the layout from the slowest: of a reduction by rows [D, H, W] to [H], of one by columns
// [D, H, W] to [D, W].
type reduced struct {
	rows bool
	size [3]uint64
}

// Threads of a warp, and how much of a dimension one block reduces without another one's
// help (xla/service/gpu/reduction_utils.cc, 2026, for NVIDIA).
const (
	warp        = 32
	rowBlock    = 1024 * 16
	columnBlock = warp * 128
	batchBlock  = 8
)

func (r reduced) raceFree() bool {
	if r.rows {
		return r.size[2] <= rowBlock && r.size[0] <= batchBlock
	}
	return r.size[1] <= columnBlock
}

// howItReduces returns how an operation reduces, and false if it is no reduction, or one that
// the loop over the elements of the result computes better.
func howItReduces(i *hlo.Instruction) (r reduced, ok bool) {
	if i.Opcode != hlo.Reduce || len(i.Operands) == 0 {
		return r, false
	}
	s := i.Operands[0].Shape
	order, ok := s.MinorToMajor()
	dims, err := i.Ints("dimensions")
	if !ok || err != nil {
		return r, false
	}
	slices.Reverse(order)
	gone := func(d int) bool { return slices.Contains(dims, int64(d)) }
	kept := func(d int) bool { return !gone(d) }
	if p, ok := middleGroups(s, order, kept); ok {
		switch {
		case p[1] == 1:
			r = reduced{true, [3]uint64{1, 1, p[0] * p[2]}}
		case p[2] == 1:
			r = reduced{false, [3]uint64{1, p[0], p[1]}}
		default:
			r = reduced{true, p}
		}
	} else if p, ok := middleGroups(s, order, gone); ok {
		if r = (reduced{false, p}); p[2] == 1 {
			r = reduced{true, [3]uint64{1, p[0], p[1]}}
		}
	} else {
		return r, false
	}
	if r.rows {
		w := r.size[2]
		return r, w >= warp || w > 0 && warp%w == 0
	}
	// The fewer columns there are, the more rows it takes.
	rows := uint64(warp)
	switch columns := r.size[2]; {
	case columns < 3:
		rows = 8 * warp
	case columns < 8:
		rows = 4 * warp
	case columns < warp:
		rows = 2 * warp
	}
	return r, r.size[1] >= rows
}

// middleGroups returns the sizes of three groups of dimensions, of which the one in the middle are
// those that in has. ok is false if other dimensions stand between them.
func middleGroups(s *hlo.Shape, order []int, in func(d int) bool) (p [3]uint64, ok bool) {
	p = [3]uint64{1, 1, 1}
	group := 0
	for _, d := range order {
		switch is := in(d); {
		case is && group == 0:
			group = 1
		case !is && group == 1:
			group = 2
		case is && group == 2:
			return p, false
		}
		p[group] *= uint64(max(s.Dims[d], 0))
	}
	if group == 0 { // none is in the middle: all are before it
		p = [3]uint64{1, 1, p[0]}
	}
	return p, true
}
