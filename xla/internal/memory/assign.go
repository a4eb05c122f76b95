package memory

// Buffer assignment: the memory of a compiled module, as XLA assigns it
// (xla/service/buffer_assignment.cc, 2026). The largest buffers come first, and of equal
// ones those that are returned. Parameters, constants, results and the tables of tuples get
// an allocation each. Other buffers go into the allocation of a result if it is free while
// they live, and else into the heap, which package pack packs.
//
// In the module of live.go, s comes first and gets an allocation of 16 bytes as a result. p
// gets one as a parameter, and the table of t one that counts as temporary. n goes into that
// of s: it ends where s begins, and an addition may take over the memory of its operand.
// Nothing is left for the heap, so the total is 48 bytes.
//
// In the loop of package alias the array, the counter and the tables are returned, with 400,
// 4 and 16 bytes: 420 of results. The array lies in the memory of the parameter p, which is
// given away, so that its 400 bytes are those of the parameter, too, and count once in the
// total. The constants are 12 bytes: n, one, and zero, whose buffer is the counter's. What is
// left is the byte of the condition: it is the heap. That makes 420 + 8 + 1 = 429 bytes.

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/pack"
)

// An Assignment is what XLA prints as BufferAssignment stats, in bytes.
type Assignment struct {
	// Parameters are those of the entry, Constants those of all that runs. A buffer with both,
	// such as a loop's counter that begins as a constant, counts as constant.
	Parameters, Constants uint64
	// LiveOut is what the program returns, parameters whose memory it
	// returns included. In the loop of package alias it is 420 bytes, of which 400 are also
	// among the parameters.
	LiveOut uint64
	// Temp is the heap of everything else: packed, each value on a multiple of
	// [pack.Alignment], with the tables of tuples beside it. Fragmentation is what the
	// packing of the heap loses.
	Temp, Fragmentation uint64
	// Total is all of it. Parameters that are returned count once.
	Total uint64
	// TotalFragmentation is Total without [Analysis.MinimumMemory]. Constants
	// count in the one and not in the other. It is negative where XLA's minimum
	// counts buffers twice.
	TotalFragmentation int64
	// Host is what lies in the host's memory, not counted above: whole buffers, and the heap
	// of that memory space.
	Host uint64
	// Offsets are where values lie in the heap of their memory space, in bytes, by
	// Value.ID; -1 for those that lie elsewhere.
	Offsets []int64
	// Heap is the size of the heap in the device's own memory space.
	Heap uint64
}

// Assign gives the values memory, in the analysed order. The error is of a heap of more than
// 2^63-1 bytes.
//
// XLA does this after it has fused operations and inserted copies: for a module as a
// framework hands it over, this is what it would take without fusion.
func (a *Analysis) Assign() (*Assignment, error) { return a.AssignBest(0) }

// AssignBest is Assign with heaps that are packed better than XLA does, by up to
// work more steps for each: see [pack.Search]. Only Temp, and with it the totals, can differ.
// Memory spaces other than the device's and the host's have heaps by themselves, whose bytes
// all count as temporary.
func (a *Analysis) AssignBest(work int) (*Assignment, error) {
	s := &Assignment{Offsets: slices.Repeat([]int64{-1}, len(a.Values))}
	g := &assigner{a: a, in: make([]int32, len(a.BufferBytes))}
	heaps := g.allocations()
	var all []kept // in the order in which XLA makes them
	for _, x := range g.list {
		bytes := a.size(x.buffer)
		if a.space(x.buffer) == hlo.HostSpace {
			s.Host += bytes
			continue
		}
		switch {
		case x.constant:
			s.Constants += bytes
		case x.parameter:
			s.Parameters += bytes
		// The table of a tuple that is not returned is temporary, but lies outside of the heap.
		case x.table && !x.liveOut:
			all = append(all, kept{true, a.space(x.buffer), bytes})
			continue
		}
		if x.liveOut {
			s.LiveOut += bytes
		}
		s.Total += bytes
		all = append(all, kept{})
	}
	all = slices.Concat(all[:lastTemporary(all)], a.wrappedTables(), all[lastTemporary(all):])
	align := a.Alignment()
	for _, space := range slices.Sorted(maps.Keys(heaps)) {
		r := a.recordBlocks(heaps[space])
		heap, offsets, err := pack.Search(r.blocks, align, work)
		if err != nil {
			return nil, err
		}
		for v, of := range heaps[space] {
			if of {
				s.Offsets[v] = int64(offsets[r.block[v]])
			}
		}
		if space == 0 {
			s.Heap = heap
		}
		if space == hlo.HostSpace {
			s.Host += heap
			continue
		}
		all = append(all, kept{true, space, heap})
		s.Fragmentation += heap - r.peak
	}
	s.Temp = bytesTogether(append(all, make([]kept, inThreads(a.Module))...), align)
	s.Total += s.Temp
	s.TotalFragmentation = int64(s.Total) - int64(a.minimum)
	return s, nil
}

// Alignment is what offsets in a heap are multiples of, in bytes.
func (a *Analysis) Alignment() uint64 {
	if a.Module.Backend() == hlo.CPU {
		return pack.AlignmentCPU
	}
	return pack.Alignment
}

// A kept is an allocation as far as it matters to the block of temporaries.
type kept struct {
	temp  bool
	space uint64
	bytes uint64
}

// bytesTogether returns what the temporary allocations take in one block for each memory space,
// one behind the other, each on a multiple of align. XLA first moves them behind all
// others: it exchanges the first temporary one with the last one that is not, and so on,
// which turns their order around. So the heap is mostly in front and tables of tuples, of
// which the last one is not rounded up, behind it (BufferAssignment::CombineTempAllocations).
func bytesTogether(all []kept, align uint64) (sum uint64) {
	for i, j := 0, len(all)-1; ; i, j = i+1, j-1 {
		for i < j && !all[i].temp {
			i++
		}
		for i < j && all[j].temp {
			j--
		}
		if i >= j {
			break
		}
		all[i], all[j] = all[j], all[i]
	}
	blocks := map[uint64]uint64{}
	for _, x := range all {
		if x.temp {
			blocks[x.space] = (blocks[x.space]+align-1)/align*align + x.bytes
		}
	}
	for _, bytes := range blocks {
		sum += bytes
	}
	return sum
}

// lastTemporary is the index behind the last temporary allocation.
func lastTemporary(all []kept) int {
	for k := len(all); k > 0; k-- {
		if all[k-1].temp {
			return k
		}
	}
	return len(all)
}

// wrappedTables are those of results that are tuples within asynchronous operations whose
// computation the text does not show: all-gather-start in place of async-start with calls=.
// Such a computation has the operation as its root, which makes a table, too.
func (a *Analysis) wrappedTables() (list []kept) {
	generic := false // a start of one operand has it in a tuple
	var wide []*hlo.Instruction
	for _, i := range a.Schedule {
		shown := !i.Opcode.IsAsyncStart() || i.Opcode == hlo.AsyncStart || i.Opcode == "call-start"
		if shown || len(i.Shape.Elements) < 2 || i.Shape.Elements[0].Type != hlo.Tuple {
			continue
		}
		generic = generic || len(i.Operands) == 1
		if i.Shape.Elements[1].Type == hlo.Tuple {
			wide = append(wide, i)
		}
	}
	for _, i := range wide {
		if s := i.Shape.Elements[1]; generic || i.Opcode.WrapsStart() {
			bytes, _ := s.Bytes() // of a table
			list = append(list, kept{true, s.Space(), bytes})
		}
	}
	return list
}

// inThreads is how many allocations XLA makes behind all others for the values of computations
// that run for each element: what reductions, sorts and the like call. They lie in the
// registers of a thread.
func inThreads(m *hlo.Module) (n int) {
	seen := map[*hlo.Computation]bool{m.Entry: true}
	type call struct {
		c        *hlo.Computation
		embedded bool
	}
	for list := []call{{m.Entry, false}}; len(list) > 0; {
		at := list[len(list)-1]
		list = list[:len(list)-1]
		for _, i := range at.c.Instructions {
			// The values of fusions are nowhere.
			if at.embedded && i.Opcode != hlo.GetTupleElement && i.Opcode != hlo.Bitcast {
				n++
			}
			embedded := at.embedded || len(ControlFlow(i)) == 0
			for _, c := range i.Called() {
				if !seen[c] {
					seen[c] = true
					list = append(list, call{c, embedded && i.Opcode != hlo.Fusion})
				}
			}
		}
	}
	return n
}

// An allocation is memory that is not in the heap: of a parameter, a constant, an output or a
// tuple's table. Other buffers may lie in that of an output, and in that of a parameter that
// is given away, if it is free at the time.
type allocation struct {
	buffer                              int
	constant, parameter, liveOut, table bool
	reusable                            bool
	lives                               lifeList // of what lies in it, where it is reusable
	open                                int32    // 1 + its place in assigner.open; 0: none
}

// An openAllocation is one that others may use.
type openAllocation struct {
	space  uint64
	number int32 // of the allocation
	taken  steps // by what lies in it
}

// assigner goes through the buffers as XLA does, the largest first. What gets an allocation by
// itself is listed at the head of this file; what finds no place in one goes to the heap, and
// is packed when all buffers have been looked at.
type assigner struct {
	a     *Analysis
	list  []allocation
	in    []int32          // by buffer: 1 + its allocation
	open  []openAllocation // the largest first
	spans []span           // of the buffer that looks for one
}

// allocations makes those of all buffers but the temporary ones, which it returns,
// by value, for each memory space.
//
// The order is XLA's and part of the result: the largest buffer first, of equal ones those
// that are returned, then those that come first in an order of the instructions that knows
// nothing of the schedule (postorder.go). A buffer that is looked at later is never
// larger, so that it fits into each allocation there is, and only time has to be compared.
func (g *assigner) allocations() map[uint64][]bool {
	a := g.a
	type buffer struct {
		number  int
		bytes   uint64
		liveOut bool
		first   int32 // in the post-order
	}
	// What a buffer is sorted by is found once, as comparing asks for it many times.
	at := postOrder(a.flow)
	var order []buffer
	for b, members := range a.members {
		x := buffer{number: b, bytes: a.size(b), first: math.MaxInt32}
		for _, v := range members {
			value := &a.Values[v]
			x.liveOut = x.liveOut || value.LiveOut
			x.first = min(x.first, at[value.Node])
		}
		order = append(order, x)
	}
	slices.SortStableFunc(order, func(x, y buffer) int {
		outs := 0
		if x.liveOut != y.liveOut {
			if outs = 1; x.liveOut {
				outs = -1
			}
		}
		return cmp.Or(cmp.Compare(y.bytes, x.bytes), outs, cmp.Compare(x.first, y.first))
	})
	temp := map[uint64][]bool{}
	for _, next := range order {
		b := next.number
		x := allocation{buffer: b, liveOut: next.liveOut}
		for _, v := range a.members[b] {
			value := &a.Values[v]
			i := value.Instruction
			if i.Opcode == hlo.Constant {
				x.constant = true
			} else if i.Opcode == hlo.Parameter && a.flow.Walk(value.Node) == 0 {
				x.parameter = true
				x.reusable = x.reusable || value.Donated
			}
			x.table = x.table || value.Shape.Type == hlo.Tuple
		}
		switch {
		case x.constant:
			x.parameter, x.reusable = false, false
		case x.parameter:
		case x.table:
		case x.liveOut:
			x.reusable = true
		case g.reuseAllocation(b):
			continue
		default:
			space := a.space(b)
			if temp[space] == nil {
				temp[space] = make([]bool, len(a.Values))
			}
			for _, v := range a.members[b] {
				temp[space][v] = true
			}
			continue
		}
		g.list = append(g.list, x)
		g.in[b] = int32(len(g.list))
		if x.reusable {
			at := &g.list[len(g.list)-1]
			if x.parameter || x.liveOut {
				g.open = append(g.open, openAllocation{space: a.space(b), number: int32(len(g.list) - 1)})
				at.open = int32(len(g.open))
			}
			g.occupyWith(at, b)
		}
	}
	return temp
}

// size is what a buffer takes, also in the host's memory: the largest of its values.
func (a *Analysis) size(b int) (bytes uint64) {
	for _, v := range a.members[b] {
		bytes = max(bytes, a.Values[v].Bytes)
	}
	return bytes
}

// space is a buffer's memory space: that of its first value, as all lie in the same memory.
func (a *Analysis) space(b int) uint64 { return a.Values[a.members[b][0]].Space }

// reuseAllocation puts a temporary buffer into the allocation of an operand, or else into
// the smallest one in which nothing else lives at the time. What is returned
// lives to the end, so nothing that is returned finds a place.
//
// g.open is in the order in which allocations were made, the largest first, so that it is
// gone through from its end. Most are ruled out by the bits of their steps, without a search
// of what lies in them: a module has thousands of buffers for each of its results.
func (g *assigner) reuseAllocation(b int) bool {
	a := g.a
	for _, v := range a.members[b] {
		x := &a.Values[v]
		if len(x.Index) > 0 {
			continue
		}
		for _, o := range x.Instruction.Operands {
			n, _ := a.flow.Node(a.flow.Walk(x.Node), o)
			w := a.Values[a.flow.Parts(n)[0]].Buffer
			if k := g.in[w] - 1; k >= 0 && g.fitsInto(b, k) {
				return true
			}
		}
	}
	space := a.space(b)
	g.spans = g.spans[:0]
	for _, v := range a.members[b] {
		g.spans = append(g.spans, a.span(v))
	}
	for k := len(g.open) - 1; k >= 0; k-- {
		if o := &g.open[k]; o.space == space && !o.taken.any(g.spans) && g.fitsInto(b, o.number) {
			return true
		}
	}
	return false
}

// fitsInto puts a buffer into an allocation if it may lie there. It is not too large, as
// the largest buffers come first. Each value of the buffer has to find its time free.
func (g *assigner) fitsInto(b int, k int32) bool {
	a, x := g.a, &g.list[k]
	if !x.reusable || a.space(b) != a.space(x.buffer) {
		return false
	}
	for _, v := range a.members[b] {
		free, value := true, &a.Values[v]
		x.lives.Each(value.Start, value.End, func(w int32) bool {
			free = !a.interferes(v, w)
			return free
		})
		if !free {
			return false
		}
	}
	g.in[b] = k + 1
	g.occupyWith(x, b)
	return true
}

// occupyWith puts the values of a buffer into an allocation that is free while they live.
func (g *assigner) occupyWith(x *allocation, b int) {
	for _, v := range g.a.members[b] {
		value := &g.a.Values[v]
		x.lives.Add(life{Start: value.Start, End: value.End, Value: v})
		if x.open > 0 {
			g.open[x.open-1].taken.add(g.a.span(v))
		}
	}
}

// span is the steps at which the memory of a value may not be in use by others. Where it is
// made, it may be made in place of an operand; if it never is, what ends there is in its way.
func (a *Analysis) span(v int32) span {
	x := &a.Values[v]
	if x.Start > 0 && len(a.flow.Candidates(x.Position)) == 0 {
		return span{x.Start - 1, x.End}
	}
	return span{x.Start, x.End}
}

// interferes reports whether two values need memory at the same time. One may be
// made where the other is read for the last time if it may take its place. n of live.go,
// steps 1 to 4, and s, steps 4 to 5, share step 4 and do not interfere: s = add(g, g) may
// take the place of n.
func (a *Analysis) interferes(v, w int32) bool {
	x, y := &a.Values[v], &a.Values[w]
	if x.Start > y.End || y.Start > x.End {
		return false
	}
	if x.End != y.Start {
		x, y = y, x
	}
	return x.End != y.Start || !a.takesOver(x, y)
}

// takesOver reports whether a value may be made in place of an operand's, which is read for the
// last time there. The operand is seen where it was handed on last, as a get-tuple-element
// or a call may stand between it and the reader.
func (a *Analysis) takesOver(operand, made *Value) bool {
	if len(a.flow.Candidates(made.Position)) == 0 {
		return false
	}
	at := operand.Position
	if operand.last >= 0 {
		at = a.flow.Position(operand.last, int(operand.part))
	}
	return a.flow.MayShare(at, made.Position)
}

// recordBlocks makes blocks of the values that use says; their times count what is made
// and freed. XLA's heap simulator has such a clock instead of steps: within a step a value
// that takes over another's memory comes after it, which steps could not say.
func (a *Analysis) recordBlocks(use []bool) *recorder {
	r := &recorder{usage: a.usage(), block: make([]int32, len(a.Values))}
	a.replay(use, r)
	return r
}

// recorder is the ledger that notes blocks. A value that shares the memory of another becomes a
// block that lies with the other's (pack.Block.With), so that the packer keeps them together
// and may put others there in between.
type recorder struct {
	*usage
	blocks []pack.Block
	block  []int32 // of a value
	clock  int
}

// note adds the block of a value, from now on; with is the block that it lies with, below 0 for
// none. All blocks of a buffer have its bytes, as each of its values may be the largest.
func (r *recorder) note(v int32, with int) {
	n := len(r.blocks)
	if with < 0 {
		with = n
	}
	r.block[v] = int32(n)
	bytes := r.a.size(r.a.Values[v].Buffer)
	r.blocks = append(r.blocks, pack.Block{Bytes: bytes, Start: r.clock, With: with})
	r.tick(bytes)
}

// tick counts what is made and freed. Like XLA's clock it does not see what
// takes nothing.
func (r *recorder) tick(bytes uint64) {
	if bytes > 0 {
		r.clock++
	}
}

// alloc begins a block that lies with no other.
func (r *recorder) alloc(v int32) {
	r.usage.alloc(v)
	r.note(v, -1)
}

// share begins a block that lies where another does or did.
func (r *recorder) share(v, with int32) {
	r.usage.share(v, with)
	r.note(v, int(r.block[with]))
}

// free ends the block of a value.
func (r *recorder) free(v int32) {
	r.usage.free(v)
	b := &r.blocks[r.block[v]]
	b.End = r.clock
	r.tick(b.Bytes)
}
