package memory

// Live ranges of values over the flattened schedule, as XLA has them
// (xla/hlo/utils/hlo_live_range.cc, 2026).
//
// In
//
//	ENTRY e {
//	  p = f32[4] parameter(0)
//	  n = f32[4] negate(p)
//	  t = (f32[4], f32[4]) tuple(p, n)
//	  g = f32[4] get-tuple-element(t), index=1
//	  ROOT s = f32[4] add(g, g)
//	}
//
// there are five steps, 0 to 4, and four values of 16 bytes: p, n, the table of t, and s.
// p lives from 0 to 5, the end of the program, as parameters do. n lives from 1, where it is
// defined, to 4, where s reads it by way of t and g; the table from 2 to 3, where g reads it;
// s from 4 to 5. So at the steps live 16, 32, 48, 48 and 48 bytes, and 32 at the end.
//
// In the loop of package alias there are 15 steps. What goes around the loop is one buffer
// of five values, of which each ends where the next begins: p from 0 to 3, the parameter of
// the condition from 3 to 7, that of the body from 7 to 12, y from 12 to 14, and the array of
// the while's result from 14 to 15. By its use alone p would live to step 7, where the body
// begins, beside the parameter of the condition, which lies in its memory: keep cuts the
// ranges of a buffer's values. So the array counts 400 bytes at each step and never 800. Only
// [Analysis.MinimumMemory], which is 841 bytes where the peak is 421, counts as XLA did:
// the array, the counter and the table twice at the step where one value follows another.

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"

	"gpumem/xla/internal/alias"
	"gpumem/xla/internal/hlo"
)

// A Value is what an instruction computes, or one part of it, with its memory.
type Value struct {
	// Value has the value's ID, which is its index in Analysis.Values, and the
	// instruction that defines it.
	alias.Value
	// Bytes is what the value takes by itself, in bytes.
	Bytes uint64
	// Space is the memory space: [hlo.HostSpace] takes nothing of the device. Others, such as
	// that of collectives, are parts of the device's memory.
	Space uint64
	// Start and End are the steps of Analysis.Schedule from which and to which
	// the value lives, both included. A result of the program lives until step
	// len(Schedule).
	Start, End int
	// Buffer is equal for values that have to lie in the same memory, and an
	// index into Analysis.BufferBytes. Most values are the only ones of their buffer.
	Buffer int
	// LiveOut reports whether the entry computation returns the value.
	LiveOut bool

	// last is the node whose result is the last of which the value is a part, and which
	// part; last is -1 if that is the result that defines the value. What may take over the
	// value's memory is judged by the operand through which it is read last (takesOver): of n
	// in the first example that is g.
	last alias.Node
	part int32
}

// An Analysis is the values of a module, how long they live, and which of them
// lie in the same memory. It is made for one order of the module's
// instructions and does not follow later changes. One Analysis serves all figures: the
// peak, the curve and the heap of one state of a module.
type Analysis struct {
	Module *hlo.Module
	// Schedule is every instruction that runs, in the order of execution: see
	// [alias.Flow].
	Schedule []*hlo.Instruction
	// Values are in the order in which they are found.
	Values []Value
	// BufferBytes is what each buffer takes: the most of its values, in bytes. It is
	// 0 for a buffer in the host's memory.
	BufferBytes []uint64

	// members are the values of each buffer.
	members [][]int32
	// byStart are the values that take memory, in the order in which they are
	// defined; byEnd those that end at each step, in the same order. A replay goes through
	// both once, side by side.
	byStart []int32
	byEnd   [][]int32
	flow    *alias.Flow
	looked  int // operands that were considered by replay, for tests

	peak, minimum uint64
	peakStep      int
	curve         []uint64
}

// AnalyzeModule finds the values of all computations that run in a module and
// their ranges, in the order in which instructions stand. It takes time in proportion to the
// schedule and the parts of results; see scale_test.go.
//
// The rules are XLA's: an entry parameter lives for the whole program unless an
// output has its memory (input_output_alias); what a computation returns lives to
// the computation's end; the first value of a while's state dies when the body
// begins; values that asynchronous operations compute live from the beginning
// of the caller to the operation's end.
//
// The error is that of [alias.Analyze], or names an instruction whose shape has no size or
// a size too large.
func AnalyzeModule(m *hlo.Module) (*Analysis, error) {
	f, err := alias.Analyze(m)
	if err != nil {
		return nil, err
	}
	a := &Analysis{Module: m, Schedule: f.Schedule, flow: f}
	if err := a.joinBuffers(); err != nil {
		return nil, err
	}
	a.setRanges()
	a.splitDonated()
	a.cutRanges()
	a.measureAll()
	return a, nil
}

// setRanges sets Start, End and LiveOut of all values.
//
// A value ends at the latest of three: the step at which it is made, or the end of its
// computation if that returns it (made); the same of each result that forwards it (shown);
// and the steps at which such a result is read (reads). In the first example n is made at 1
// and read at 2 by t, which only forwards and so does not count as a reader; t is read at 3
// by g, which reads the table alone; g forwards n, and is read at 4. So n ends at 4, and the
// table of t at 3.
func (a *Analysis) setRanges() {
	f := a.flow
	// The last step at which a value is part of a result other than the one that
	// defines it, and how long that one needs it. Both are kept, as XLA asks through which
	// result a value is seen last, and that of its definition only counts if no other one is
	// as late.
	shown, made := make([]int, len(a.Values)), make([]int, len(a.Values))
	reads := make([]lastRead, f.Nodes())
	for n := range reads {
		reads[n] = lastRead{-1, -1}
	}
	for k := range f.Walks {
		w := &f.Walks[k]
		// What an asynchronous operation runs may run at any time between the beginning of its
		// caller and the operation's end, so that its values need memory all the while.
		from, to := w.Start, 0
		if w.Outer >= 0 {
			from = f.Walks[w.Outer].Start
			if to = w.End; f.Walks[w.Async].Done >= 0 {
				to = f.Step(f.Walks[w.Async].Done)
			}
		}
		for k, i := range w.Instructions {
			node := w.First + alias.Node(k)
			end := f.Step(node)
			if i == w.Computation.Root {
				end = w.End
			}
			for sub, id := range f.Parts(node) {
				if v := &a.Values[id]; v.Node == node {
					v.Start = f.Step(node)
					// Parameters are there from the beginning of their computation on,
					// wherever they stand in the list.
					if i.Opcode == hlo.Parameter || w.Outer >= 0 {
						v.Start = from
					}
					made[id] = max(end, to)
				} else if end > shown[id] {
					shown[id], v.last, v.part = end, node, int32(sub)
				}
			}
			a.uses(node, i, reads)
		}
	}
	for n, last := range reads {
		for sub, id := range f.Parts(alias.Node(n)) {
			v := &a.Values[id]
			v.End = max(v.End, last.parts)
			if sub == 0 {
				v.End = max(v.End, last.table)
			}
		}
	}
	// Of an entry parameter the caller keeps the memory, unless it gave it away.
	for k := range a.Values {
		v := &a.Values[k]
		if shown[k] <= made[k] {
			v.last = -1
		}
		v.End = max(v.End, shown[k], made[k])
		if v.Instruction.Opcode == hlo.Parameter && f.Walk(v.Node) == 0 && !v.Donated {
			v.End = len(a.Schedule)
		}
	}
	for _, id := range f.Parts(f.Root(0)) {
		a.Values[id].LiveOut = true
	}
}

// A lastRead is the last step at which a node's result is read: all its parts, and the
// table alone. It is -1 where there is none. It is kept by node, not by value, as a result
// may have thousands of parts and as many readers: the parts are gone through once at the end.
type lastRead struct{ parts, table int }

// uses notes that a node reads its operands at its step. What forwards values does
// not read them; that they are part of its result is counted elsewhere. A while reads what it
// begins with when its body begins: the condition, which runs first, may still read it, and
// from then on the values of the loop are there instead. A copy and a get-tuple-element read
// the table of their operand alone.
func (a *Analysis) uses(node alias.Node, i *hlo.Instruction, reads []lastRead) {
	f := a.flow
	step := f.Step(node)
	switch i.Opcode {
	case hlo.TupleOp, hlo.Domain, hlo.Call:
		return
	case hlo.While:
		body := f.LoopBody(node)
		p, _ := f.Node(body, f.Walks[body].Computation.Parameters()[0])
		step = f.Step(p)
	}
	for _, o := range i.Operands {
		n, _ := f.Node(f.Walk(node), o)
		if i.Opcode == hlo.GetTupleElement || i.Opcode == hlo.Copy {
			reads[n].table = max(reads[n].table, step)
		} else {
			reads[n].parts = max(reads[n].parts, step)
		}
	}
}

// joinBuffers puts values together that have to lie in the same memory, with their sizes. The sum
// over all values is bounded here, so that no later sum overflows and none has to be checked.
func (a *Analysis) joinBuffers() (err error) {
	if a.members, err = a.flow.Buffers(); err != nil {
		return err
	}
	a.Values = make([]Value, len(a.flow.Values))
	for k, v := range a.flow.Values {
		bytes, err := v.Shape.Bytes()
		if err != nil {
			return fmt.Errorf("%s: %s: %w", hlo.Where(v.Instruction), v.Instruction.Opcode, err)
		}
		a.Values[k] = Value{Value: v, Bytes: bytes, Space: v.Shape.Space()}
	}
	a.BufferBytes = make([]uint64, len(a.members))
	// Every sum that follows counts a value at most once, with its buffer's bytes. So the sum
	// of these is bounded by 2^59, and sums of sums still fit.
	sum := uint64(0)
	for b, members := range a.members {
		for _, v := range members {
			x := &a.Values[v]
			x.Buffer = b
			if x.Space != hlo.HostSpace {
				a.BufferBytes[b] = max(a.BufferBytes[b], x.Bytes)
			}
		}
		high, low := bits.Mul64(a.size(b), uint64(len(members)))
		if high > 0 || low > mostBytes || sum+low > mostBytes {
			return fmt.Errorf("%s: with it, values of more than 2^59 bytes: %w", hlo.Where(a.Values[members[0]].Instruction), hlo.ErrTooLarge)
		}
		sum += low
	}
	return nil
}

// splitDonated takes the outputs that are written while the donated parameter whose memory they have is
// still read out of its buffer: of p and y = transpose(p), where p is donated for y and read again
// later. There XLA inserts a copy: the output is a temporary value first, and the parameter's memory
// is returned. In a module that was compiled there is none left to insert.
func (a *Analysis) splitDonated() {
	for b := range a.members {
		var p *Value // the parameter
		for _, v := range a.members[b] {
			if x := &a.Values[v]; x.Donated && (p == nil || x.End > p.End) {
				p = x
			}
		}
		if p == nil {
			continue
		}
		var kept, moved []int32
		for _, v := range a.members[b] {
			x := &a.Values[v]
			if x.LiveOut && !x.Donated && x.Start < p.End {
				moved = append(moved, v)
			} else {
				kept = append(kept, v)
			}
		}
		if len(moved) == 0 {
			continue
		}
		for _, v := range moved {
			x := &a.Values[v]
			x.Buffer, x.LiveOut, x.End = len(a.members), false, min(x.End, len(a.Schedule)-1)
		}
		p.LiveOut = true
		a.members[b] = kept
		a.members = append(a.members, moved)
		a.BufferBytes = append(a.BufferBytes, a.BufferBytes[b])
	}
}

// cutRanges cuts the ranges of the values of a buffer so that each ends where the next begins,
// and sorts the values by their ends. Constants take no memory of the heap and are left out.
func (a *Analysis) cutRanges() {
	for _, members := range a.members {
		if len(members) < 2 {
			continue
		}
		live := slices.Clone(members)
		slices.SortFunc(live, a.earlier)
		for k := 0; k+1 < len(live); k++ {
			v, w := &a.Values[live[k]], &a.Values[live[k+1]]
			w.End = max(v.End, w.End)
			v.End = min(v.End, w.Start)
		}
	}
	a.byEnd = make([][]int32, len(a.Schedule)+1)
	for k := range a.Values {
		if a.Values[k].Instruction.Opcode != hlo.Constant {
			a.byStart = append(a.byStart, int32(k))
		}
	}
	slices.SortFunc(a.byStart, a.earlier)
	for _, v := range a.byStart {
		end := a.Values[v].End
		a.byEnd[end] = append(a.byEnd[end], v)
	}
}

// earlier orders values by start, end and number: the order in which XLA goes through them, on
// which it depends who takes over whose memory.
func (a *Analysis) earlier(v, w int32) int {
	x, y := &a.Values[v], &a.Values[w]
	return cmp.Or(cmp.Compare(x.Start, y.Start), cmp.Compare(x.End, y.End), cmp.Compare(v, w))
}

// ValueAt is the value at a part of an instruction's result, where a computation
// that is called several times is first called. It is false where the
// instruction does not run or its result has no such part. The value need not be defined by
// the instruction: at a get-tuple-element it is that of the element.
func (a *Analysis) ValueAt(i *hlo.Instruction, index ...int) (Value, bool) {
	v, ok := a.flow.At(i, index...)
	if !ok {
		return Value{}, false
	}
	return a.Values[v], true
}
