package memory

// Live ranges of values over the flattened schedule, as XLA has them
// (xla/hlo/utils/hlo_live_range.cc, 2026).

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"gpumem/hlo"
)

// An Analysis is the values of a module, how long they live, and which of them
// lie in the same memory. It is made for one order of the module's
// instructions and does not follow later changes.
type Analysis struct {
	Module *hlo.Module
	// Schedule is every instruction that runs, in the order of execution: what an
	// instruction calls comes before it, of a while the condition first. A
	// computation that is called twice is there twice; the body of a loop once.
	// What fusions, reductions and the like call is part of them and not there.
	Schedule []*hlo.Instruction
	// Values are in the order in which they are found.
	Values []Value
	// BufferBytes is what each buffer takes: the most of its values, in bytes. It is
	// 0 for a buffer in the host's memory.
	BufferBytes []uint64

	// members are the values of each buffer.
	members [][]int32
	// byStart are the values that take memory, in the order in which they are
	// made; byEnd those that end at each step, in the same order.
	byStart []int32
	byEnd   [][]int32
	// first is the first node of each instruction, by Instruction.ID; -1: it does not run.
	first []int32
	flow  *flow
	share sharing

	peak, minimum uint64
	peakStep      int
	curve         []uint64
}

// AnalyzeModule finds the values of all computations that run in a module and
// their ranges, in the order in which instructions stand.
//
// The rules are XLA's: an entry parameter lives for the whole program unless an
// output has its memory (input_output_alias); what a computation returns lives to
// the computation's end; the first value of a while's state dies when the body
// begins; values that asynchronous operations compute live from the beginning
// of the caller to the operation's end.
//
// A module as frameworks hand it over has not yet the copies that XLA inserts
// later: where two parts of a loop's state begin as the same value, they
// count as one until then.
//
// The error names the instruction whose shape has no size, whose operands come
// later, or whose callee does not fit. A module that calls itself is an error.
func AnalyzeModule(m *hlo.Module) (*Analysis, error) {
	if m.Entry == nil {
		return nil, errors.New("memory: the module has no entry computation")
	}
	a, f, err := trace(m)
	if err != nil {
		return nil, err
	}
	if err := f.buffers(); err != nil {
		return nil, err
	}
	f.ranges()
	a.keep(f)
	a.measure()
	return a, nil
}

// trace finds the values alone.
func trace(m *hlo.Module) (*Analysis, *flow, error) {
	a := &Analysis{Module: m, share: newSharing()}
	f := &flow{a: a, walked: map[*hlo.Computation]bool{}, loops: map[int32]int32{}, asyncs: map[int32]asyncRun{},
		place: make([]int32, m.IDs()), width: make([]int32, m.IDs())}
	if _, err := f.enter(m.Entry, nil, 0); err != nil {
		return nil, nil, err
	}
	f.resolve()
	return a, f, nil
}

// donations returns a function that reports whether a parameter of the entry gives the
// memory of one of its parts to an output.
func donations(m *hlo.Module) func(parameter int, index []int) bool {
	set := make(map[string]bool, len(m.Aliases))
	for _, x := range m.Aliases {
		set[fmt.Sprint(x.Parameter, x.Index)] = true
	}
	return func(parameter int, index []int) bool {
		return len(set) > 0 && set[fmt.Sprint(parameter, index)]
	}
}

// ranges sets Start, End and LiveOut of all values.
func (f *flow) ranges() {
	a := f.a
	// The last step at which a value is part of a result other than the one that
	// makes it, and that position.
	shown, at := make([]int32, len(a.Values)), make([]int32, len(a.Values))
	made := make([]int32, len(a.Values))
	reads := make([]lastRead, len(f.inst))
	for n := range reads {
		reads[n] = lastRead{-1, -1}
	}
	for k := range f.frames {
		fr := &f.frames[k]
		from, to := fr.start, int32(0)
		if fr.outer >= 0 {
			from = f.frames[fr.outer].start
			if to = fr.end; f.frames[fr.async].done >= 0 {
				to = f.when[f.frames[fr.async].done]
			}
		}
		for n, i := range fr.list {
			node := fr.nodes + int32(n)
			end := f.when[node]
			if i == fr.c.Root {
				end = fr.end
			}
			for sub := range f.width[i.ID] {
				id := f.val[f.first[node]+sub]
				v := &a.Values[id]
				if v.Instruction == i && int(v.frame) == k {
					start := f.when[node]
					if i.Opcode == hlo.Parameter || fr.outer >= 0 {
						start = from
					}
					v.Start = int(start)
					made[id] = max(end, to)
				} else if end > shown[id] {
					shown[id], at[id] = end, f.first[node]+sub
				}
			}
			f.uses(int32(k), node, reads)
		}
	}
	for n, last := range reads {
		w := f.width[f.inst[n].ID]
		for sub := range w {
			v := &a.Values[f.val[f.first[n]+sub]]
			v.End = max(v.End, int(last.parts))
			if sub == 0 {
				v.End = max(v.End, int(last.table))
			}
		}
	}
	for k := range a.Values {
		v := &a.Values[k]
		if shown[k] > made[k] {
			v.last = at[k]
		}
		v.End = max(v.End, int(shown[k]), int(made[k]))
	}
	fr := &f.frames[0]
	root := f.root(0)
	donated := donations(a.Module)
	for sub := range f.width[fr.c.Root.ID] {
		a.Values[f.val[root+sub]].LiveOut = true
	}
	for n, i := range fr.list {
		if i.Opcode != hlo.Parameter {
			continue
		}
		node := fr.nodes + int32(n)
		for sub := range f.width[i.ID] {
			v := &a.Values[f.val[f.first[node]+sub]]
			if !donated(i.Parameter, v.Index) {
				v.End = len(a.Schedule)
			}
		}
	}
}

// A lastRead is the last step at which a node's result is read: all its parts, and the
// table alone. It is -1 where there is none.
type lastRead struct{ parts, table int32 }

// uses notes that a node reads its operands at its step. What hands values on does
// not read them; that they are part of its result is counted elsewhere.
func (f *flow) uses(k, node int32, reads []lastRead) {
	i := f.inst[node]
	step := f.when[node]
	switch i.Opcode {
	case hlo.TupleOp, hlo.Domain, hlo.Call:
		return
	case hlo.While:
		body := f.loops[node]
		p, _ := f.node(body, f.frames[body].c.Parameters()[0])
		step = f.when[p]
	}
	for _, o := range i.Operands {
		n, _ := f.node(k, o)
		if i.Opcode == hlo.GetTupleElement || i.Opcode == hlo.Copy {
			reads[n].table = max(reads[n].table, step)
		} else {
			reads[n].parts = max(reads[n].parts, step)
		}
	}
}

// buffers puts values together that have to lie in the same memory.
func (f *flow) buffers() error {
	a := f.a
	for _, b := range f.bound {
		for k := range b.n {
			f.union(f.val[b.p+k], f.val[b.q+k])
		}
	}
	pairs := newInPlace()
	for k := range f.frames {
		fr := &f.frames[k]
		for n, i := range fr.list {
			list, err := pairs.of(i)
			if err != nil {
				return err
			}
			node := fr.nodes + int32(n)
			for _, p := range list {
				o, _ := f.node(int32(k), i.Operands[p.operand])
				from, ok := f.partOf(f.inst[o].Shape, p.from...)
				to, ok2 := f.partOf(i.Shape, p.to...)
				if !ok || !ok2 {
					return wrong(i, "result %v lies in operand %d %v, but there is no such part", p.to, p.operand, p.from)
				}
				f.union(f.val[f.first[o]+from], f.val[f.first[node]+to])
			}
		}
	}
	if err := f.donated(); err != nil {
		return err
	}
	number := make([]int, len(a.Values))
	for v := range a.Values {
		r := f.find(int32(v)) // the smallest, so it comes first
		if int(r) == v {
			number[v] = len(a.BufferBytes)
			a.BufferBytes = append(a.BufferBytes, 0)
			a.members = append(a.members, nil)
		}
		b := number[r]
		x := &a.Values[v]
		x.Buffer = b
		a.members[b] = append(a.members[b], int32(v))
		if x.Space != hlo.HostSpace {
			a.BufferBytes[b] = max(a.BufferBytes[b], x.Bytes)
		}
	}
	// Every sum that follows counts a value at most once, with its buffer's bytes.
	sum := uint64(0)
	for b, members := range a.members {
		high, low := bits.Mul64(a.size(b), uint64(len(members)))
		if high > 0 || low > mostBytes || sum+low > mostBytes {
			return fmt.Errorf("memory: %s: with it, values of more than 2^59 bytes: %w", hlo.Where(a.Values[members[0]].Instruction), hlo.ErrTooLarge)
		}
		sum += low
	}
	return nil
}

// donated ties outputs to the parameters whose memory they have.
func (f *flow) donated() error {
	m := f.a.Module
	if len(m.Aliases) == 0 {
		return nil
	}
	params := m.Entry.Parameters()
	for _, x := range m.Aliases {
		out, ok := f.partOf(m.Entry.Root.Shape, x.Output...)
		if !ok || x.Parameter < 0 || x.Parameter >= len(params) || params[x.Parameter] == nil {
			return fmt.Errorf("memory: input_output_alias: there is no output %v or no parameter %d", x.Output, x.Parameter)
		}
		p := params[x.Parameter]
		in, ok := f.partOf(p.Shape, x.Index...)
		if !ok {
			return fmt.Errorf("memory: input_output_alias: parameter %d has no part %v", x.Parameter, x.Index)
		}
		n, _ := f.node(0, p)
		f.union(f.val[f.root(0)+out], f.val[f.first[n]+in])
	}
	return nil
}

// keep stores what later calls need, and cuts the ranges of the values of a
// buffer so that each ends where the next begins.
func (a *Analysis) keep(f *flow) {
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
	a.flow, a.first = f, make([]int32, len(f.place))
	for k := range a.first {
		a.first[k] = -1
	}
	for n, i := range f.inst {
		if a.first[i.ID] < 0 {
			a.first[i.ID] = int32(n)
		}
	}
}

// earlier orders values by start, end and number.
func (a *Analysis) earlier(v, w int32) int {
	x, y := &a.Values[v], &a.Values[w]
	return cmp.Or(cmp.Compare(x.Start, y.Start), cmp.Compare(x.End, y.End), cmp.Compare(v, w))
}

// ValueAt is the value at a part of an instruction's result, where a computation
// that is called several times is first called. It is false where the
// instruction does not run or its result has no such part.
func (a *Analysis) ValueAt(i *hlo.Instruction, index ...int) (Value, bool) {
	if i == nil || i.ID < 0 || i.ID >= len(a.first) || a.first[i.ID] < 0 {
		return Value{}, false
	}
	sub, ok := new(places).offset(i.Shape, index)
	if !ok {
		return Value{}, false
	}
	return a.Values[a.flow.val[a.flow.first[a.first[i.ID]]+int32(sub)]], true
}
