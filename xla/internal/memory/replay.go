package memory

// The most that a module takes at once: a replay of the schedule that makes
// and frees values (xla/service/heap_simulator/heap_simulator.cc, 2026).
//
// At each step the values that start there are made, then those that end there are freed.
// A value whose buffer has one already shares its memory. Another may take over the memory
// of an operand that ends at the step: that one is freed first, and the two never count
// together.
//
// Take a chain a = f(p), b = f(a), c = f(b) of 16 bytes each, where p is a parameter and f
// works element by element. At b's step a ends. b takes over a's memory: free(a), share(b, a).
// The ledger never has a and b at once, and the chain takes 16 bytes beside p, however long
// it is. Were f a matrix product, b would be made first, alloc(b), and a freed behind it: 32.
//
// The same replay serves three ledgers: usage counts bytes for the peak and the curve, it
// notes who is there at the peak, and the recorder of assign.go notes blocks with their
// times for the heap. So the three cannot differ in what they think lives.

import (
	"cmp"
	"slices"

	"gpumem/xla/internal/hlo"
)

// A ledger is called with the events of a replay, in order. Each value in use is made once, by
// alloc or share, and freed once, in its last step at the latest; a value whose memory is
// taken over is freed right before the share that takes it.
type ledger interface {
	// alloc makes a value, free ends one. share makes one in the memory of another
	// that is, or was, there: of the same buffer, or of one that just ended.
	alloc(v int32)
	share(v, with int32)
	free(v int32)
	// made is called at each step when its values are made and none is freed yet;
	// the replay goes on if it is true.
	made(step int) bool
}

// replay makes and frees the values in use, or all but constants if use is nil. At
// each step values are made first, then freed; but one that may take over an
// operand's memory does, if the operand's last use is here. An operand is taken over once: of
// two values that could, the first in order has it.
func (a *Analysis) replay(use []bool, h ledger) {
	// A value of a buffer that was begun shares the memory of the first one, even if that is
	// freed by now: the ledger sees one block for it.
	begun := make([]int32, len(a.BufferBytes)) // 1 + the first value made there
	taken := make([]bool, len(a.Values))       // by the value that shares it
	next := 0
	for step := 0; step <= len(a.Schedule); step++ {
		for ; next < len(a.byStart) && a.Values[a.byStart[next]].Start == step; next++ {
			v := a.byStart[next]
			if use != nil && !use[v] {
				continue
			}
			b := a.Values[v].Buffer
			if begun[b] > 0 {
				h.share(v, begun[b]-1)
				continue
			}
			begun[b] = v + 1
			if with := a.dyingOperand(v, step, use, taken); with >= 0 {
				taken[with] = true
				h.free(with)
				h.share(v, with)
			} else {
				h.alloc(v)
			}
		}
		if !h.made(step) {
			return
		}
		for _, v := range a.byEnd[step] {
			if (use == nil || use[v]) && !taken[v] {
				h.free(v)
			}
		}
	}
}

// dyingOperand is an operand's value whose memory v may take over at a step, and -1. Neither may be
// one of several values of a buffer: what has to stay in one place cannot move in elsewhere.
// The operand must be of the same walk, as the memory of a caller's value is not for the
// callee to take.
func (a *Analysis) dyingOperand(v int32, step int, use, taken []bool) int32 {
	x := &a.Values[v]
	if len(a.members[x.Buffer]) > 1 || x.Instruction.Opcode == hlo.Copy {
		return -1
	}
	walk := a.flow.Walk(x.Node)
	for _, o := range a.flow.Candidates(x.Position) {
		a.looked++
		n, _ := a.flow.Node(walk, o)
		w := a.flow.Parts(n)[0]
		y := &a.Values[w]
		dies := a.flow.Walk(y.Node) == walk && y.End == step && y.Instruction.Opcode != hlo.Constant
		alone := len(a.members[y.Buffer]) == 1 && !taken[w] && (use == nil || use[w])
		if dies && alone && a.flow.MayShare(y.Position, x.Position) {
			return w
		}
	}
	return -1
}

// usage is the ledger that counts. A buffer counts from its first live value to its last, with
// the bytes of the largest of its values, however many live in it at the step; plain counts
// each value by itself, which is XLA's minimum.
type usage struct {
	a       *Analysis
	live    []int32 // values alive in each buffer: more than one for the step between two
	bytes   uint64
	curve   []uint64
	peak    uint64
	step    int
	plain   uint64 // as XLA counts: each value by itself
	minimum uint64
	// alive is by value, and nil if not wanted: only Peak asks.
	alive []bool
	until int // stop behind this step
}

// alloc makes a value. plain counts the buffer once more even if another of its values lives.
func (u *usage) alloc(v int32) {
	b := u.a.Values[v].Buffer
	if u.live[b]++; u.live[b] == 1 {
		u.bytes += u.a.BufferBytes[b]
	}
	u.plain += u.a.BufferBytes[b]
	u.minimum = max(u.minimum, u.plain)
	if u.alive != nil {
		u.alive[v] = true
	}
}

func (u *usage) share(v, _ int32) { u.alloc(v) }

// free ends a value. Its buffer's bytes go with the last one that lives there.
func (u *usage) free(v int32) {
	b := u.a.Values[v].Buffer
	if u.live[b]--; u.live[b] == 0 {
		u.bytes -= u.a.BufferBytes[b]
	}
	u.plain -= u.a.BufferBytes[b]
	if u.alive != nil {
		u.alive[v] = false
	}
}

// made notes the curve and the peak. Of equal tops the first counts.
func (u *usage) made(step int) bool {
	if u.curve[step] = u.bytes; u.bytes > u.peak {
		u.peak, u.step = u.bytes, step
	}
	return step < u.until
}

// usage returns a ledger for a replay of everything.
func (a *Analysis) usage() *usage {
	return &usage{a: a, live: make([]int32, len(a.BufferBytes)), curve: make([]uint64, len(a.Schedule)+1), until: len(a.Schedule)}
}

// Peak is the most that the module takes at once in bytes: entry parameters
// and results included, constants not, nor what lies in the host's memory, and
// nothing lost to packing. at is the first instruction at which it does, nil in
// a module without instructions, and alive the values there, one of each buffer, the
// largest first.
//
// It is XLA's MinimumMemoryForModule, but for one thing: where one value of a
// buffer follows another, in a loop or in place, XLA counts both for the step. See
// [Analysis.MinimumMemory].
func (a *Analysis) Peak() (bytes uint64, at *hlo.Instruction, alive []Value) {
	if len(a.Schedule) == 0 {
		return 0, nil, nil
	}
	u := a.usage()
	u.alive, u.until = make([]bool, len(a.Values)), a.peakStep
	a.replay(nil, u)
	// Where one value of a buffer follows another in the step, both are there, and one is named.
	newest := map[int]int{} // value by buffer
	for v, is := range u.alive {
		if is {
			newest[a.Values[v].Buffer] = v
		}
	}
	for v, is := range u.alive {
		if is && newest[a.Values[v].Buffer] == v {
			alive = append(alive, a.Values[v])
		}
	}
	slices.SortStableFunc(alive, func(v, w Value) int {
		return cmp.Compare(a.BufferBytes[w.Buffer], a.BufferBytes[v.Buffer])
	})
	return a.peak, a.Schedule[min(a.peakStep, len(a.Schedule)-1)], alive
}

// MinimumMemory is the result of XLA's MinimumMemoryForModule since 2021, in bytes: as
// Peak, but at the step at which a value takes over the memory of another of its
// buffer, the buffer counts twice. XLA chooses between orders by it.
func (a *Analysis) MinimumMemory() uint64 { return a.minimum }

// Curve is what lives at each step of Schedule, in bytes, before what dies there is
// freed. It has one step more than Schedule, for the end. It is not to be changed.
func (a *Analysis) Curve() []uint64 { return a.curve }

// measureAll replays everything once, for all figures but who lives at the peak: Peak replays up to
// there when it is asked for, so that a list that is not shown costs nothing.
func (a *Analysis) measureAll() {
	u := a.usage()
	a.replay(nil, u)
	a.peak, a.peakStep, a.curve, a.minimum = u.peak, u.step, u.curve, u.minimum
}
