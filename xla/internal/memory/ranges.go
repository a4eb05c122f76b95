package memory

// Live ranges of buffers: when each takes memory, and what it adds to the curve.
//
// In the module of live.go p takes 16 bytes at the steps 0 to 5, n at 1 to 4, the table of t
// at 2 to 3, and s at 4 to 5. The sums are the curve: 16, 32, 48, 48, 48 and 32 bytes. In the
// chain of replay.go a counts at one step alone, although b reads it at the next: there b
// takes over its memory.

import "gpumem/xla/internal/hlo"

// A LiveRange is a time in which a buffer takes memory without a break.
type LiveRange struct {
	Buffer int // an index into Analysis.BufferBytes, which has its bytes
	// Value is an index into Analysis.Values. Of several values that share the buffer it is
	// the one that [Analysis.Peak] names if the range is live there, and else the first.
	Value int
	// Named is Value if it has an op_name, or else the first value of the buffer that has.
	Named int
	// First and Last are the steps of [Analysis.Curve] at which it counts, both included.
	First, Last int
	// Parameter reports whether the buffer is a parameter of the entry, Result whether the
	// entry returns it. A buffer that is both was given away.
	Parameter, Result bool
}

// Ranges returns the live ranges of all buffers but constants, in the order in which they
// begin. At each step of the curve the bytes of those that are live there add up to it.
func (a *Analysis) Ranges() []LiveRange {
	r := &ranger{usage: a.usage(), open: make([]int32, len(a.BufferBytes)), at: -1}
	r.alive = make([]bool, len(a.Values))
	a.replay(nil, r)
	for k := range r.list {
		x := &r.list[k]
		if r.open[x.Buffer] == int32(k)+1 && r.live[x.Buffer] > 0 { // to the end
			x.Last = r.at
		}
		x.Named = x.Value
		for _, v := range a.members[x.Buffer] {
			value := &a.Values[v]
			if a.Values[x.Named].Instruction.OpName() == "" && value.Instruction.OpName() != "" {
				x.Named = int(v)
			}
			x.Parameter = x.Parameter || value.Instruction.Opcode == hlo.Parameter && a.flow.Walk(value.Node) == 0
			x.Result = x.Result || value.LiveOut
		}
	}
	return r.list
}

// ranger is the ledger that notes ranges.
type ranger struct {
	*usage
	list []LiveRange
	open []int32 // by buffer: 1 + the index of its range in list
	at   int     // the last step that was counted
}

func (r *ranger) alloc(v int32) {
	b := r.a.Values[v].Buffer
	if r.live[b] == 0 {
		r.list = append(r.list, LiveRange{Buffer: b, Value: int(v), First: r.at + 1})
		r.open[b] = int32(len(r.list))
	}
	r.usage.alloc(v)
}

func (r *ranger) share(v, _ int32) { r.alloc(v) }

// free ends a range with its last value. A value whose memory is taken over is freed before
// its step is counted.
func (r *ranger) free(v int32) {
	r.usage.free(v)
	if b := r.a.Values[v].Buffer; r.live[b] == 0 {
		r.list[r.open[b]-1].Last = r.at
	}
}

func (r *ranger) made(step int) bool {
	r.at = step
	if step == r.a.peakStep {
		for v, is := range r.alive { // the last one stays, as in Peak
			if is {
				r.list[r.open[r.a.Values[v].Buffer]-1].Value = v
			}
		}
	}
	return r.usage.made(step)
}
