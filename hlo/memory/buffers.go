package memory

// The buffers of a computation in the model of XLA's rematerialization pass
// (xla/hlo/transforms/simplifiers/hlo_rematerialization.cc, and below it
// xla/hlo/analysis/tuple_points_to_analysis.cc, 2026). It is not that of buffer
// assignment, which the rest of this package has.

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"gpumem/hlo"
)

// A Size is what a shape takes by itself in bytes, of a tuple the table of its
// elements alone. [hlo.Shape.Bytes] is one.
type Size func(*hlo.Shape) (uint64, error)

// A Buffer is memory that one instruction defines: its result, or a part of it.
type Buffer struct {
	Definer int32      // place of the defining instruction
	Index   []int      // which part of its result; empty: the whole
	Shape   *hlo.Shape // of that part
	Bytes   int64
	Uses    []Use
	Users   int  // different instructions among Uses
	LiveOut bool // the computation returns it
	// Indirect reports whether something other than a bitcast or a get-tuple-element
	// hands the buffer on to a user.
	Indirect bool
}

// A Use is an operand through which an instruction uses a buffer.
type Use struct {
	User    int32 // place of the using instruction
	Operand int32 // number of its operand
	// Index is the buffer's place in its definer's tuple, and -1 for a buffer that is
	// no element of the outermost tuple.
	Index int32
}

// Buffers are those of one computation. Places count its list of instructions
// from 0, and the numbers of buffers are places in List.
type Buffers struct {
	Computation *hlo.Computation
	List        []Buffer
	// Defined, Used and Outputs are buffers by the place of the instruction that
	// defines or uses them, or whose result they are part of.
	Defined, Used, Outputs [][]int32
}

// mostBytes is the most that the buffers of a computation may take together, so
// that no sum of them overflows.
const mostBytes = math.MaxInt64 >> 4

// Analyze finds the buffers of one computation, those that its instructions
// call not included. A nil size is [hlo.Shape.Bytes].
//
// A while defines nothing: it has the buffers of its operand. Tuple,
// get-tuple-element, bitcast, opt-barrier, domain, add-dependency, the ends of
// asynchronous operations and fusions with output_to_operand_aliasing hand on
// what they get. Everything else defines a buffer for each part of its result.
// The aliasing of custom calls does not count here, as in XLA.
//
// The error names an instruction whose shape does not fit its operands', or
// whose size is not known, or too large.
func Analyze(c *hlo.Computation, size Size) (*Buffers, error) {
	return newAnalyzer(size).analyze(c)
}

// An analyzer has what the analyses of several computations share.
type analyzer struct {
	size    Size
	maxUses int     // see mostUses
	place   []int32 // by ID less base: the place in the list of the last computation analyzed
	base    int
	fused   map[*hlo.Computation]*fusedUses

	places  places
	wide    map[*hlo.Instruction][]int32 // see numbers
	scratch []int32
	looked  int // operands and uses that were looked at, for tests
}

func newAnalyzer(size Size) *analyzer {
	if size == nil {
		size = (*hlo.Shape).Bytes
	}
	return &analyzer{size: size, maxUses: mostUses, fused: map[*hlo.Computation]*fusedUses{}, wide: map[*hlo.Instruction][]int32{}}
}

// A part is a buffer before it has users: a part of an instruction's result
// that no operand gave it.
type part struct {
	definer int32
	index   []int
	shape   *hlo.Shape
}

// points is what the instructions of a computation point to: for each, by
// its place, the number of a part for each part of its result in preorder.
type points struct {
	c     *hlo.Computation
	parts []part
	of    [][]int32
}

func (a *analyzer) analyze(c *hlo.Computation) (*Buffers, error) {
	clear(a.wide) // operands may have changed
	p, err := a.pointsTo(c)
	if err != nil {
		return nil, err
	}
	uses, indirect, err := a.uses(p)
	if err != nil {
		return nil, err
	}
	n := len(c.Instructions)
	b := &Buffers{Computation: c, List: make([]Buffer, 0, len(p.parts)),
		Defined: make([][]int32, n), Used: usedRoom(uses, n), Outputs: make([][]int32, n)}
	// Buffers are found in the order of their definers.
	ids := make([]int32, 0, len(p.parts))

	liveOut := make([]bool, len(p.parts))
	if root, ok := a.at(c, c.Root); ok {
		for _, q := range p.of[root] {
			liveOut[q] = true
		}
	}
	number := make([]int32, len(p.parts)) // of the buffer of each part
	last := make([]int32, n)              // by user: 1 + the last buffer that it was counted for
	var sum uint64
	var known userSet
	for q, d := range p.parts {
		if w := c.Instructions[d.definer]; w.Opcode == hlo.While {
			if err := b.joinWhile(a, p, q, number, uses[q], liveOut[q], &known); err != nil {
				return nil, err
			}
			continue
		}
		bytes, err := a.size(d.shape)
		if err == nil && (bytes > mostBytes || sum+bytes > mostBytes) {
			err = hlo.ErrTooLarge
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", hlo.Where(c.Instructions[d.definer]), err)
		}
		sum += bytes
		id := int32(len(b.List))
		number[q] = id
		buffer := Buffer{Definer: d.definer, Index: d.index, Shape: d.shape, Bytes: int64(bytes), Uses: uses[q], LiveOut: liveOut[q], Indirect: indirect[q]}
		for _, u := range buffer.Uses {
			if last[u.User] != id+1 {
				last[u.User] = id + 1
				buffer.Users++
				b.Used[u.User] = append(b.Used[u.User], id)
			}
		}
		b.List, ids = append(b.List, buffer), append(ids, id)
		first := len(ids) - 1 - len(b.Defined[d.definer])
		b.Defined[d.definer] = ids[first:len(ids):len(ids)]
	}
	a.looked += known.looked
	seen := make([]int32, len(b.List))
	total := 0
	for _, list := range p.of {
		total += len(list)
	}
	outputs := make([]int32, 0, total)
	for k, list := range p.of {
		first := len(outputs)
		for _, q := range list {
			if id := number[q]; seen[id] != int32(k)+1 {
				seen[id] = int32(k) + 1
				outputs = append(outputs, id)
			}
		}
		b.Outputs[k] = outputs[first:len(outputs):len(outputs)]
	}
	return b, nil
}

// usedRoom are empty lists for n users, in one piece of memory, each with room for
// all that it uses.
func usedRoom(uses [][]Use, n int) [][]int32 {
	count := make([]int, n)
	total := 0
	for _, list := range uses {
		for _, u := range list {
			count[u.User]++
		}
		total += len(list)
	}
	used, room := make([][]int32, n), make([]int32, total)
	for k, n := range count {
		if n > 0 {
			used[k], room = room[:0:n], room[n:]
		}
	}
	return used
}

// joinWhile gives the buffer of a while's operand the users of the while's own part q.
func (b *Buffers) joinWhile(a *analyzer, p *points, q int, number []int32, uses []Use, liveOut bool, known *userSet) error {
	d := p.parts[q]
	w := p.c.Instructions[d.definer]
	if len(w.Operands) != 1 {
		return shapeError(w, "a while takes one operand")
	}
	k, ok := a.at(p.c, w.Operands[0])
	if !ok {
		return shapeError(w, "its operand stands in another computation")
	}
	sub, ok := a.places.offset(w.Shape, d.index)
	if !ok || sub >= len(p.of[k]) {
		return shapeError(w, "its shape is not that of its operand")
	}
	id := number[p.of[k][sub]]
	number[q] = id
	buffer := &b.List[id]
	buffer.Indirect = true
	buffer.LiveOut = buffer.LiveOut || liveOut
	for _, u := range uses {
		if !known.has(id, buffer.Uses, u.User) {
			buffer.Users++
			buffer.Uses = append(buffer.Uses, u)
			b.Used[u.User] = append(b.Used[u.User], id)
		}
	}
	return nil
}

// mostUses is how many uses the parts of results in a computation may have: an instruction
// that takes a tuple as many of its operands uses each part as often.
const mostUses = 1 << 24

// A partUse is a use and the part that is used.
type partUse struct {
	part int32
	Use
}

// A userSet knows who uses the buffers of whiles.
type userSet struct {
	filled map[int32]int     // by buffer: how many of its uses are in set
	looked int               // uses that were looked at, for tests
	set    map[[2]int32]bool // buffer and user, where the uses are many
}

// has reports whether a user is among the uses of a buffer, which only grow.
func (s *userSet) has(id int32, uses []Use, user int32) bool {
	if len(uses) < wideTuple {
		s.looked += len(uses)
		return slices.ContainsFunc(uses, func(u Use) bool { return u.User == user })
	}
	if s.set == nil {
		s.filled, s.set = map[int32]int{}, map[[2]int32]bool{}
	}
	s.looked += len(uses) - s.filled[id]
	for _, u := range uses[s.filled[id]:] {
		s.set[[2]int32{id, u.User}] = true
	}
	s.filled[id] = len(uses)
	return s.set[[2]int32{id, user}]
}

// uses finds who uses each part and whether something hands it on.
func (a *analyzer) uses(p *points) (uses [][]Use, indirect []bool, err error) {
	uses, indirect = make([][]Use, len(p.parts)), make([]bool, len(p.parts))
	seen := make([]int32, len(p.parts)) // 1 + the last instruction that pointed there
	// All uses as they are found.
	all := make([]partUse, 0, 2*len(p.parts))
	known := useSet{}
	for k, i := range p.c.Instructions {
		known.begin(len(all))
		readers, err := a.readers(i, len(p.of[k]))
		if err != nil {
			return nil, nil, err
		}
		for sub, q := range p.of[k] {
			again := seen[q] == int32(k)+1
			seen[q] = int32(k) + 1
			index := int32(-1)
			if len(p.parts[q].index) == 1 {
				index = int32(p.parts[q].index[0])
			}
			for _, u := range readers.of(sub) {
				a.looked++
				user, ok := a.at(p.c, u)
				if !ok {
					return nil, nil, shapeError(u, "it uses an instruction of another computation")
				}
				if int(p.parts[q].definer) != k && !HandsOn(i) {
					indirect[q] = true
				}
				for _, n := range a.numbers(u, i) {
					use := partUse{q, Use{User: user, Operand: n, Index: index}}
					// A tuple may have a part twice.
					if !again || !known.has(all, use) {
						all = append(all, use)
					}
				}
				if len(all) > a.maxUses {
					return nil, nil, fmt.Errorf("%s: with it, the parts of results have more than %d uses", hlo.Where(u), a.maxUses)
				}
			}
		}
	}
	a.looked += known.looked
	// By part, in one piece of memory.
	count := make([]int32, len(p.parts))
	for n := range all {
		count[all[n].part]++
	}
	room := make([]Use, len(all))
	for q, n := range count {
		if n > 0 {
			uses[q], room = room[:0:n], room[n:]
		}
	}
	for n := range all {
		q := all[n].part
		uses[q] = append(uses[q], all[n].Use)
	}
	return uses, indirect, nil
}

// numbers returns which operands of u are o, in order. The list is good until the next
// call.
func (a *analyzer) numbers(u, o *hlo.Instruction) []int32 {
	if len(u.Operands) < wideTuple {
		a.looked += len(u.Operands)
		a.scratch = a.scratch[:0]
		for n, x := range u.Operands {
			if x == o {
				a.scratch = append(a.scratch, int32(n))
			}
		}
		return a.scratch
	}
	// Going through all operands for each of them would take their square.
	list, ok := a.wide[u]
	if !ok {
		a.looked += len(u.Operands)
		list = make([]int32, len(u.Operands))
		for n := range list {
			list[n] = int32(n)
		}
		slices.SortStableFunc(list, func(m, n int32) int { return cmp.Compare(u.Operands[m].ID, u.Operands[n].ID) })
		a.wide[u] = list
	}
	from, _ := slices.BinarySearchFunc(list, o.ID, func(n int32, id int) int { return cmp.Compare(u.Operands[n].ID, id) })
	to := from
	for to < len(list) && u.Operands[list[to]] == o {
		to++
	}
	return list[from:to]
}

// A useSet knows which uses were found through one instruction.
type useSet struct {
	from, filled int              // those from from on are meant, of which those below filled are in set
	set          map[partUse]bool // where they are many
	looked       int              // uses that were looked at, for tests
}

// begin is called before the uses through another instruction are found, n so far.
func (s *useSet) begin(n int) {
	s.from, s.filled = n, n
	clear(s.set)
}

// has reports whether a use is among those found through the instruction.
func (s *useSet) has(all []partUse, use partUse) bool {
	if len(all)-s.from < wideTuple {
		s.looked += len(all) - s.from
		return slices.Contains(all[s.from:], use)
	}
	if s.set == nil {
		s.set = map[partUse]bool{}
	}
	for ; s.filled < len(all); s.filled++ {
		s.looked++
		s.set[all[s.filled]] = true
	}
	return s.set[use]
}

// HandsOn reports whether an instruction only hands buffers on, in a way that the
// pass can look through: a bitcast or a get-tuple-element.
func HandsOn(i *hlo.Instruction) bool {
	return i.Opcode == hlo.Bitcast || i.Opcode == hlo.GetTupleElement
}

// at is the place of an instruction in the computation that is being analyzed.
func (a *analyzer) at(c *hlo.Computation, i *hlo.Instruction) (int32, bool) {
	if i == nil || i.ID < a.base || i.ID-a.base >= len(a.place) {
		return 0, false
	}
	k := a.place[i.ID-a.base]
	return k, int(k) < len(c.Instructions) && c.Instructions[k] == i
}

func shapeError(i *hlo.Instruction, what string) error {
	return fmt.Errorf("%s: %s: %s", hlo.Where(i), i.Opcode, what)
}
