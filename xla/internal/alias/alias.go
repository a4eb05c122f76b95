// Package alias finds the values that a module computes, the places where each can be
// read, and the values that have to, or may, lie in the same memory, as XLA does
// (xla/hlo/analysis: hlo_dataflow_analysis.cc, hlo_alias_analysis.cc, alias_info.cc and
// tuple_points_to_analysis.cc, 2026). It knows neither sizes nor times: package memory adds
// them.
//
// In
//
//	ENTRY e {
//	  p = f32[4] parameter(0)
//	  n = f32[4] negate(p)
//	  t = (f32[4], f32[4]) tuple(p, n)
//	  ROOT g = f32[4] get-tuple-element(t), index=1
//	}
//
// there are four nodes, one for each instruction, and six parts of results: one each of p,
// n and g, three of t, which are its table and its two elements. p, n and t define a value
// each: 0, 1 and 2. t forwards p and n, and g forwards element 1 of t, so that the parts of
// t are 2, 0 and 1, and that of g is 1. Were n an operation in place, values 0 and 1 would
// be members of one buffer; as it is not, n may take the place of p if p dies there.
//
// There are two models. Buffer assignment ([Analyze]) looks through calls, loops and
// branches: XLA first gives each call a separate computation (flatten-call-graph), and here
// a computation is walked once for each of its calls instead. XLA's rematerialization pass
// ([AnalyzeComputation]) looks at one computation, whose calls are operations like others.
// The models agree on most opcodes. Where they do not, see [Flow.inModule] and
// [Flow.inComputation].
//
// A loop, on which the comments of this package go on, steps a counter and negates an array:
//
//	body {                                               nodes  steps  parts
//	  b = (s32[], f32[100]) parameter(0)                 8      7      8 9 10
//	  i = s32[] get-tuple-element(b), index=0            9      8      9
//	  one = s32[] constant(1)                            10     9      11
//	  j = s32[] add(i, one)                              11     10     12
//	  x = f32[100] get-tuple-element(b), index=1         12     11     10
//	  y = f32[100] negate(x)                             13     12     13
//	  ROOT t = (s32[], f32[100]) tuple(j, y)             14     13     14 12 13
//	}
//	cond {
//	  c = (s32[], f32[100]) parameter(0)                 4      3      3 4 5
//	  k = s32[] get-tuple-element(c), index=0            5      4      4
//	  n = s32[] constant(10)                             6      5      6
//	  ROOT l = pred[] compare(k, n), direction=LT        7      6      7
//	}
//	ENTRY e {
//	  p = f32[100] parameter(0)                          0      0      0
//	  zero = s32[] constant(0)                           1      1      1
//	  init = (s32[], f32[100]) tuple(zero, p)            2      2      2 1 0
//	  ROOT w = (s32[], f32[100]) while(init), ...        3      14     15 16 17
//	}
//
// Three walks have 15 nodes: the nodes of a walk are numbered when it is entered, the steps
// when an instruction is reached, so that w is node 3 and runs last. There are 18 values.
// The while, and the parameters of its condition and body, define all of their parts: the
// values there are one thing before the first round and another after it (phi.go). They lie
// in three buffers, as what goes around a loop has to stay in its place (inplace.go).
//
// Files: rules.go has what each opcode forwards and defines, async.go asynchronous
// operations, phi.go values where control flow meets, inplace.go what has to lie in the same
// memory, share.go what may, and shape.go numbers the parts of shapes.
//
// The rooms above hand in modules that have passed xla/internal/verify. All the same no shape or
// attribute is trusted here: what does not fit is an error that names the instruction, as
// xla/internal/verify lets pass what it does not know.
package alias

import (
	"errors"
	"fmt"
	"slices"

	"gpumem/xla/internal/hlo"
)

// A Position is a place where a value can be read: a part of an instruction's result. One value
// has many: in the first example of the package comment the value that n defines can be read
// at n itself, at element 1 of t, and at g.
type Position struct {
	Instruction *hlo.Instruction
	// Index leads to the part in nested tuples. It is empty for an array, and for the
	// table of the outermost tuple. {1, 0} is the first element of the second one.
	Index []int
}

// A Value is what an instruction computes, or one part of it. Instructions that only
// forward (get-tuple-element, bitcast, call and so on) define none. A while, and a
// conditional whose branches return different values, define one for each part that they
// do not forward.
type Value struct {
	// ID is the value's index in [Flow.Values]. It is final when Analyze returns.
	ID int
	// Position is where the value is defined, Shape the shape of that part.
	Position
	Shape *hlo.Shape
	Node  Node
	// Donated reports whether the value is a parameter of the module, or a part of one, that
	// gives its memory to an output (input_output_alias). [Flow.Buffers] sets it.
	Donated bool
}

// A Node is an instruction in one walk through its computation. The nodes of a walk are
// consecutive, in the order of the computation. A computation that is called twice has two
// walks, and each of its instructions two nodes with separate values.
type Node int32

// A Walk is one walk through a computation: one call of it, or the body or condition of a loop.
type Walk struct {
	Computation  *hlo.Computation
	Instructions []*hlo.Instruction // the computation's, at the time of the analysis
	// First is the node of the first instruction. That of instruction k is First+k.
	First Node
	// Start and End are the first step, and the one after the last.
	Start, End int
	// Caller is the node of the call, 0 for the entry.
	Caller Node
	// Outer is the walk with the asynchronous operation during which this one runs, -1 if
	// there is none. Async is the walk through what that operation calls. Done, of the latter,
	// is the node of the operation's end, -1 if there is none.
	Outer, Async int32
	Done         Node

	args  []int32 // first positions of the arguments; nil if the parameters define values
	depth int
}

// Limits of a module whose computations are walked once for each of their calls. A module
// that exceeds them calls itself, or calls in a doubling chain: f0 calls f1 twice, which calls
// f2 twice, and so on, so that thirty lines of text would be 2^30 walks. The largest real
// module in the tests has 41,881 instructions.
const (
	maxNodes     = 1 << 20
	maxPositions = 1 << 24
	maxDepth     = 1000
)

// maxValues limits the values: each takes some 200 bytes here and in package memory. It is
// a variable for tests.
var maxValues = 1 << 22

var (
	errTooManyParts = errors.New("with it, the results have more than 2^24 parts, or define more than 2^22 values")
	errTooManyCalls = errors.New("with a copy of each computation for each of its calls the module has more than 2^20 instructions " +
		"or 2^24 parts of results; does it call itself?")
)

// A Flow is the result of an analysis. It does not follow later changes of the module.
type Flow struct {
	// Module is nil for a computation by itself.
	Module *hlo.Module
	// Schedule is every instruction that runs, in the order of execution: what an
	// instruction calls comes before it, of a while the condition first. A computation that
	// is called twice is there twice, the body of a loop once. What fusions, reductions and
	// the like call is part of them and not there.
	Schedule []*hlo.Instruction
	// Values are in the order in which they are found.
	Values []Value
	// Walks begin with that of the entry; FirstWalk is the first one of each computation.
	Walks     []Walk
	FirstWalk map[*hlo.Computation]int32

	// By node: its instruction, its walk, its step (-1 before it is walked), and the position
	// of its result. The parts of a result have consecutive positions, in preorder.
	inst  []*hlo.Instruction
	walk  []int32
	step  []int32
	first []int32
	val   []int32 // by position: the value there, -1 if it is not known yet
	// place is the index of each instruction in its computation, by Instruction.ID less base:
	// it leads from an operand to its node without a map. Instructions of a computation by
	// itself may have any IDs, of which base is the least.
	place []int32
	base  int

	// What is noted on the way and evaluated at the end, by resolvePhis and by Buffers.
	phis   []phi
	bound  []bound
	loops  map[Node]int32    // the walk through a while's body
	asyncs map[Node]asyncRun // what an asynchronous operation runs
	places places
	sharing
}

// A phi is a value that is one of several, according to where control came from: in are those.
type phi struct {
	value int32
	in    []int32
}

// A bound ties the values at n positions from p on to those at n positions from q on: they
// have to lie in the same memory. Positions are kept instead of values because phis among the
// values may turn out to be others, and are then replaced at their positions.
type bound struct{ p, q, n int32 }

// Analyze finds the values of all computations that run in a module, in the order in which
// instructions stand, as buffer assignment sees them.
//
// A module as frameworks hand it over has not yet the copies that XLA inserts later: where
// two parts of a loop's state begin as the same value, they count as one until then.
//
// The error names the instruction whose operands come later, or whose shape or callee does
// not fit. A module that calls itself is an error.
func Analyze(m *hlo.Module) (*Flow, error) {
	if m.Entry == nil {
		return nil, errors.New("the module has no entry computation")
	}
	f := &Flow{Module: m, FirstWalk: map[*hlo.Computation]int32{}, loops: map[Node]int32{}, asyncs: map[Node]asyncRun{},
		place: make([]int32, m.IDs()), sharing: newSharing()}
	f.gpu = m.Backend() == hlo.GPU
	if _, err := f.enterComputation(m.Entry, nil, 0); err != nil {
		return nil, err
	}
	// Only now is it known what comes back from the bodies of loops.
	f.resolvePhis()
	return f, nil
}

// AnalyzeComputation finds the values of one computation as the rematerialization pass sees
// them. Nothing it calls is walked, so that there is one walk, and no phi. Each of its nodes
// is the index of an instruction in the computation. The error is that of [Analyze].
func AnalyzeComputation(c *hlo.Computation) (*Flow, error) {
	low, high := c.Module.IDs(), 0
	for _, i := range c.Instructions {
		low, high = min(low, i.ID), max(high, i.ID+1)
	}
	f := &Flow{FirstWalk: map[*hlo.Computation]int32{}, place: make([]int32, max(0, high-low)), base: low, sharing: newSharing()}
	_, err := f.enterComputation(c, nil, 0)
	return f, err
}

// enterComputation walks one computation and returns the number of the walk. It reserves the nodes and
// positions of the whole computation before its first instruction, so that those of what it
// calls come behind, and an operand's node follows from its place in the list.
//
// args are the first positions of the arguments, which the parameters forward, or nil if the
// parameters define values: in the entry and in loops.
func (f *Flow) enterComputation(c *hlo.Computation, args []int32, depth int) (int32, error) {
	if depth > maxDepth || len(f.inst) > maxNodes {
		return 0, errTooManyCalls
	}
	list := c.Instructions
	w, base := int32(len(f.Walks)), Node(len(f.inst))
	walk := Walk{Computation: c, Instructions: list, First: base, Start: len(f.Schedule), Outer: -1, Async: -1, Done: -1}
	walk.args, walk.depth = args, depth
	f.Walks = append(f.Walks, walk)
	if _, ok := f.FirstWalk[c]; !ok {
		f.FirstWalk[c] = w
		for k, i := range list {
			f.place[i.ID-f.base] = int32(k)
		}
	}
	f.inst = append(f.inst, list...)
	f.walk, f.step, f.first = slices.Grow(f.walk, len(list)), slices.Grow(f.step, len(list)), slices.Grow(f.first, len(list))
	f.Schedule, f.Values = slices.Grow(f.Schedule, len(list)), slices.Grow(f.Values, len(list))
	count := len(f.val)
	for _, i := range list {
		if i.Shape == nil {
			return 0, wrong(i, "it has no shape")
		}
		f.walk = append(f.walk, w)
		f.step = append(f.step, -1)
		f.first = append(f.first, int32(count))
		if count += int(countParts(i.Shape)); count > maxPositions {
			if w == 0 {
				return 0, wrong(i, "%v", errTooManyParts)
			}
			return 0, errTooManyCalls
		}
	}
	// All positions exist before the first rule, unknown: rules of the walks inside append.
	f.val = slices.Grow(f.val, count-len(f.val))
	for len(f.val) < count {
		f.val = append(f.val, -1)
	}
	// Operands have to come first, as rules copy the values at their positions: a step of -1
	// is an operand that was not walked yet.
	for k, i := range list {
		n := base + Node(k)
		for _, o := range i.Operands {
			if p, ok := f.Node(w, o); !ok {
				return 0, wrong(i, "operand %s is not of this computation", o.Name)
			} else if f.step[p] < 0 {
				return 0, wrong(i, "operand %s comes later; expected an order in which operands come first", o.Name)
			}
		}
		if err := f.applyRule(n); err != nil {
			return 0, err
		}
		f.step[n] = int32(len(f.Schedule))
		f.Schedule = append(f.Schedule, i)
	}
	f.Walks[w].End = len(f.Schedule)
	if _, ok := f.Node(w, c.Root); !ok {
		return 0, fmt.Errorf("computation %s has no root among its instructions", c.Name)
	}
	return w, nil
}

// Node returns the node of an instruction in a walk. ok is false if the instruction is not
// of the computation.
func (f *Flow) Node(walk int32, i *hlo.Instruction) (n Node, ok bool) {
	w := &f.Walks[walk]
	if i == nil || i.ID < f.base || i.ID-f.base >= len(f.place) {
		return 0, false
	}
	k := f.place[i.ID-f.base]
	if int(k) >= len(w.Instructions) || w.Instructions[k] != i {
		return 0, false
	}
	return w.First + Node(k), true
}

// Nodes is the number of nodes: the instructions of all walks together, so that lists by node
// have this length. It is at most some more than 2^20, the limit at which another walk is
// refused.
func (f *Flow) Nodes() int { return len(f.inst) }

// Instruction is the instruction of a node.
func (f *Flow) Instruction(n Node) *hlo.Instruction { return f.inst[n] }

// Walk is the walk of a node, 0 for the entry.
func (f *Flow) Walk(n Node) int32 { return f.walk[n] }

// Step is the index of a node in Schedule. What an instruction calls has lower ones.
func (f *Flow) Step(n Node) int { return int(f.step[n]) }

// Parts are the IDs of the values that a node's result consists of: its own, then those of
// its elements, in preorder. Those of init in the package comment are 2, 1 and 0: its table,
// and what zero and p define. The list is part of the Flow and must not be changed.
func (f *Flow) Parts(n Node) []int32 {
	end := int32(len(f.val))
	if int(n)+1 < len(f.first) {
		end = f.first[n+1]
	}
	return f.val[f.first[n]:end:end]
}

// Position is the position of one of a node's Parts, counted in preorder from 0, the whole.
func (f *Flow) Position(n Node, part int) Position {
	i := f.inst[n]
	return Position{i, f.places.index(i.Shape, part)}
}

// At returns the ID of the value at a part of an instruction's result, in the first walk
// through its computation. ok is false if the instruction does not run, or its result has
// no such part.
func (f *Flow) At(i *hlo.Instruction, index ...int) (value int32, ok bool) {
	if i == nil {
		return 0, false
	}
	w, ok := f.FirstWalk[i.Parent]
	if !ok {
		return 0, false
	}
	n, ok := f.Node(w, i)
	if !ok {
		return 0, false
	}
	p, ok := f.position(n, index...)
	if !ok {
		return 0, false
	}
	return f.val[p], true
}

// Root is the node of what a walk returns. Its computation has a root: enterComputation has checked it.
func (f *Flow) Root(walk int32) Node {
	n, _ := f.Node(walk, f.Walks[walk].Computation.Root)
	return n
}

// LoopBody is the walk through the body of a while: when a loop's first value dies and the
// values of a round begin is a matter of that walk's steps.
func (f *Flow) LoopBody(n Node) int32 { return f.loops[n] }

// position is the position of a part of a node's result, and whether the result has that part.
func (f *Flow) position(n Node, index ...int) (int32, bool) {
	sub, ok := f.places.offset(f.inst[n].Shape, index)
	return f.first[n] + int32(sub), ok
}

// operand is the node of operand k of a node. The error is of too few operands: opcodes that
// xla/internal/verify does not know may have any number.
func (f *Flow) operand(n Node, k int) (Node, error) {
	i := f.inst[n]
	if k >= len(i.Operands) {
		return 0, wrong(i, "has %d operands, expected at least %d", len(i.Operands), k+1)
	}
	o, _ := f.Node(f.walk[n], i.Operands[k])
	return o, nil
}

func wrong(i *hlo.Instruction, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %s", hlo.Where(i), i.Opcode, fmt.Sprintf(format, args...))
}
