package memory

// Dataflow and alias analysis: the values of a module, and those that have to lie in the
// same memory, as in XLA (xla/hlo/analysis/
// hlo_dataflow_analysis.cc, hlo_alias_analysis.cc and alias_info.cc of 2026).
//
// XLA first gives each call a separate computation (flatten-call-graph). Here
// a computation is walked once for each call instead, and a frame is one such
// walk; the module stays as it is.

import (
	"errors"
	"fmt"

	"gpumem/hlo"
)

// A Position is a place where a value can be read: a part of an instruction's
// result.
type Position struct {
	Instruction *hlo.Instruction
	// Index says which part of a tuple; empty: the whole, or the tuple's table.
	Index []int
}

// A Value is what an instruction computes, or one part of it. What only hands a
// value on (a tuple's elements, get-tuple-element, bitcast, call and so on) makes
// none. A while, and a conditional whose branches return different values, makes
// one for each part that it does not hand through.
type Value struct {
	// ID is the value's place in Analysis.Values.
	ID int
	// Position is where the value is made.
	Position
	// Bytes is what the value takes by itself, in bytes.
	Bytes uint64
	// Space is the memory space: [hlo.HostSpace] takes nothing of the device.
	Space uint64
	// Start and End are the steps of Analysis.Schedule from which and to which
	// the value lives, both included. A result of the program lives until step
	// len(Schedule).
	Start, End int
	// Buffer is equal for values that have to lie in the same memory, and an
	// index into Analysis.BufferBytes.
	Buffer int
	// LiveOut reports whether the entry computation returns the value.
	LiveOut bool

	frame int32
	last  int32 // the position, in flow.val, that is read last, -1: where it is made
}

// Limits of a module whose computations are copied for each of their calls.
// A module that exceeds them calls itself, or calls in a doubling chain.
const (
	maxNodes     = 1 << 20
	maxPositions = 1 << 24
	maxDepth     = 1000
)

// maxValues is how many values, and how many buffers of a computation, there may be: each
// takes some 150 bytes. It is a variable for tests.
var maxValues = 1 << 22

var errTooManyParts = errors.New("with it, the results have more than 2^24 parts, or more than 2^22 values of their own")

var errTooManyCalls = errors.New("memory: with a copy of each computation for each of its calls the module has more than 2^20 instructions or 2^24 parts of results; does it call itself?")

// A frame is one walk through a computation.
type frame struct {
	c     *hlo.Computation
	list  []*hlo.Instruction
	nodes int32 // the first node; node k is list[k]
	// start and end are the first step, and the one after the last.
	start, end int32
	// outer is the frame of the asynchronous operation during which this one runs,
	// -1: none. async is the frame of what that operation calls, whose done is the
	// node of the operation's end, -1: none.
	outer, async, done int32
}

// A phi is a value that is one of several, according to where control came from.
type phi struct {
	value int32
	in    []int32
}

// A flow is the values of a module on the way.
type flow struct {
	a      *Analysis
	frames []frame
	inst   []*hlo.Instruction // of a node
	first  []int32            // position of a node's result; its parts follow in preorder
	when   []int32            // step of a node; -1: not walked yet
	val    []int32            // value at a position
	phis   []phi
	alias  []int32 // union-find over values
	// By Instruction.ID: the place in its computation's order, and how many parts
	// the result has.
	place, width []int32
	// bound is what has to lie in the same memory, loops are the nodes of whiles
	// with the frames of their bodies, asyncs what asynchronous operations run.
	bound  []bound
	loops  map[int32]int32
	asyncs map[int32]asyncRun
	walked map[*hlo.Computation]bool
	places places
}

// parts is how many parts a shape has, itself included.
func parts(s *hlo.Shape) int32 { return int32(countParts(s)) }

// partOf is the preorder number of the part at an index, and whether there is one.
func (f *flow) partOf(s *hlo.Shape, index ...int) (int32, bool) {
	n, ok := f.places.offset(s, index)
	return int32(n), ok
}

func wrong(i *hlo.Instruction, format string, args ...any) error {
	return fmt.Errorf("memory: %s: %s: %s", hlo.Where(i), i.Opcode, fmt.Sprintf(format, args...))
}

// define makes a value at a part of a node's result.
func (f *flow) define(fr, node, sub int32, index []int, shape *hlo.Shape) (int32, error) {
	bytes, err := shape.Bytes()
	if err != nil {
		return 0, wrong(f.inst[node], "%v", err)
	}
	if len(f.a.Values) >= maxValues {
		return 0, wrong(f.inst[node], "%v", errTooManyParts)
	}
	id := int32(len(f.a.Values))
	v := Value{ID: int(id), Position: Position{Instruction: f.inst[node]}, Bytes: bytes, Space: shape.Space(), frame: fr, last: -1}
	if len(index) > 0 {
		v.Index = append([]int(nil), index...)
	}
	f.a.Values = append(f.a.Values, v)
	f.alias = append(f.alias, id)
	f.val[f.first[node]+sub] = id
	return id, nil
}

// enter walks one computation. args are the first positions of what its
// parameters are given, nil for one whose parameters make values. It returns
// the number of the frame.
func (f *flow) enter(c *hlo.Computation, args []int32, depth int) (int32, error) {
	if depth > maxDepth || len(f.inst) > maxNodes {
		return 0, errTooManyCalls
	}
	list := c.Instructions
	fr := int32(len(f.frames))
	base := int32(len(f.inst))
	f.frames = append(f.frames, frame{c: c, list: list, nodes: base, start: int32(len(f.a.Schedule)), outer: -1, async: -1, done: -1})
	for k, i := range list {
		if !f.walked[c] {
			f.place[i.ID], f.width[i.ID] = int32(k), parts(i.Shape)
		}
		f.inst = append(f.inst, i)
		f.first = append(f.first, int32(len(f.val)))
		f.when = append(f.when, -1)
		for range f.width[i.ID] {
			f.val = append(f.val, -1)
		}
		if len(f.val) > maxPositions {
			return 0, errTooManyCalls
		}
	}
	f.walked[c] = true
	for k, i := range list {
		node := base + int32(k)
		for _, o := range i.Operands {
			if n, ok := f.node(fr, o); !ok {
				return 0, wrong(i, "operand %s is not of this computation", o.Name)
			} else if f.when[n] < 0 {
				return 0, wrong(i, "operand %s comes later; expected an order in which operands come first", o.Name)
			}
		}
		if err := f.step(fr, node, args, depth); err != nil {
			return 0, err
		}
		f.when[node] = int32(len(f.a.Schedule))
		f.a.Schedule = append(f.a.Schedule, i)
	}
	f.frames[fr].end = int32(len(f.a.Schedule))
	if _, ok := f.node(fr, c.Root); !ok {
		return 0, fmt.Errorf("memory: computation %s has no root among its instructions", c.Name)
	}
	return fr, nil
}

// node is the node of an instruction in a frame.
func (f *flow) node(fr int32, i *hlo.Instruction) (int32, bool) {
	r := &f.frames[fr]
	if i == nil || i.ID < 0 || i.ID >= len(f.place) {
		return 0, false
	}
	k := f.place[i.ID]
	if int(k) >= len(r.list) || r.list[k] != i {
		return 0, false
	}
	return r.nodes + k, true
}

// from is the first position of operand k of a node.
func (f *flow) from(fr, node int32, k int) (int32, error) {
	i := f.inst[node]
	if k >= len(i.Operands) {
		return 0, wrong(i, "has %d operands, expected at least %d", len(i.Operands), k+1)
	}
	n, _ := f.node(fr, i.Operands[k])
	return f.first[n], nil
}

// root is the first position of what a frame returns.
func (f *flow) root(fr int32) int32 {
	n, _ := f.node(fr, f.frames[fr].c.Root)
	return f.first[n]
}

// same reports whether values can be handed from one shape to another: they have
// the same parts.
func same(s, t *hlo.Shape) bool {
	if len(s.Elements) != len(t.Elements) || (s.Type == hlo.Tuple) != (t.Type == hlo.Tuple) {
		return false
	}
	for k := range s.Elements {
		if !same(s.Elements[k], t.Elements[k]) {
			return false
		}
	}
	return true
}

// forward gives the parts of a node's result from sub on the values at and
// behind the position p, which belong to shape.
func (f *flow) forward(node, sub int32, to *hlo.Shape, p int32, shape *hlo.Shape) error {
	if to == nil || shape == nil || !same(to, shape) {
		return wrong(f.inst[node], "hands on what has other parts than its result")
	}
	at := f.first[node] + sub
	n := parts(to)
	copy(f.val[at:at+n], f.val[p:p+n])
	return nil
}

// defineRest makes values for the parts that nothing was handed to.
func (f *flow) defineRest(fr, node int32) error {
	sub := int32(-1)
	return walk(f.inst[node].Shape, nil, func(s *hlo.Shape, index []int) error {
		if sub++; f.val[f.first[node]+sub] >= 0 {
			return nil
		}
		_, err := f.define(fr, node, sub, index, s)
		return err
	})
}

// merge makes each part of a node's result one of the values at the positions
// in: handed through if they turn out to be the same.
func (f *flow) merge(fr, node int32, in ...int32) error {
	sub := int32(-1)
	return walk(f.inst[node].Shape, nil, func(s *hlo.Shape, index []int) error {
		sub++
		id, err := f.define(fr, node, sub, index, s)
		if err != nil {
			return err
		}
		p := phi{value: id, in: make([]int32, len(in))}
		for k, at := range in {
			p.in[k] = f.val[at+sub]
		}
		f.phis = append(f.phis, p)
		return nil
	})
}

func (f *flow) find(v int32) int32 {
	for f.alias[v] != v {
		f.alias[v] = f.alias[f.alias[v]]
		v = f.alias[v]
	}
	return v
}

// union puts two values into the same memory. The number of the set is its
// smallest member.
func (f *flow) union(v, w int32) {
	if v, w = f.find(v), f.find(w); v < w {
		f.alias[w] = v
	} else {
		f.alias[v] = w
	}
}
