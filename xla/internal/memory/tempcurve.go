package memory

// A peak in full: the memory of temporaries at each instruction of the entry, and the
// temporaries that live at the peak.
//
// In the module of live.go the curve is 0, 16, 32, 32 and 16 bytes, for p, n, t, g and s. At
// its first top, t, live n and the table of t, 16 bytes each. If a conditional with two
// branches of the same computation stood at the top, what lives at the peak of that
// computation would be there twice: one Temp with Copies 2.

import (
	"cmp"
	"math"
	"slices"

	"gpumem/xla/internal/hlo"
)

// Curve is what temporaries take while each instruction of a computation runs, in bytes,
// in the order of its list, counted as [Meter.Peak] does: with what the instruction calls,
// and without parameters and results. Its largest is the peak. The error is that of Peak.
func (p *Meter) Curve(c *hlo.Computation) (curve []uint64, err error) {
	err = p.run(c, func(_ *hlo.Instruction, bytes int64) { curve = append(curve, uint64(bytes)) })
	return curve, err
}

// span is the first and the last place at which a buffer takes memory. One that nothing uses
// takes it at its definer alone.
func (b *Buffers) span(id int) (first, last int32) {
	x := &b.List[id]
	last = x.Definer
	for _, u := range x.Uses {
		last = max(last, u.User)
	}
	return x.Definer, last
}

// A TempRange is a buffer of a computation, with the places of the list at which it counts,
// both included; or what one instruction calls.
type TempRange struct {
	Temp
	First, Last int
	Called      bool
}

// Ranges are the buffers of a computation that count, and what its instructions call, each at
// its place. At each place their bytes add up to the curve. The error is that of Peak.
func (p *Meter) Ranges(c *hlo.Computation) (list []TempRange, err error) {
	b, err := p.Buffers(c)
	if err != nil {
		return nil, err
	}
	for id := range b.List {
		x := &b.List[id]
		if first, last := b.span(id); x.Temp > 0 {
			list = append(list, TempRange{Temp{c.Instructions[x.Definer], x.Index, x.Shape, uint64(x.Temp), 1}, int(first), int(last), false})
		}
	}
	for k, i := range c.Instructions {
		called, err := p.called(i, math.MaxInt64)
		if err != nil {
			return nil, err
		}
		if called > 0 {
			list = append(list, TempRange{Temp{i, nil, i.Shape, uint64(called), 1}, k, k, true})
		}
	}
	return list, nil
}

// A Temp is a buffer that takes memory where temporaries take most.
type Temp struct {
	Instruction *hlo.Instruction // what defines it
	Index       []int            // which part of its result; empty: the whole
	Shape       *hlo.Shape       // of that part
	Bytes       uint64
	// Copies is how often it is there: more than once where several calls of
	// one computation run at once.
	Copies uint64
}

// Alive are the buffers that live at the peak of temporaries of the entry, the largest
// first: those of the entry, and those of what the instruction calls there, each
// computation at its own peak. Bytes times Copies add up to the peak. The error is that of
// [Meter.Peak].
func (p *Meter) Alive(entry *hlo.Computation) ([]Temp, error) {
	if _, err := p.Peak(entry); err != nil {
		return nil, err
	}
	var list []Temp
	// How often each computation is there: callers first, since a count is only final behind all
	// that call it. Those that run elsewhere than at a peak are not there at all.
	copies := map[*hlo.Computation]uint64{entry: 1}
	for _, c := range slices.Backward(entry.Module.CalleesFirst()) {
		n, at := copies[c], p.done[c].At
		if n == 0 || at == nil {
			continue
		}
		b, err := p.Buffers(c)
		if err != nil {
			return nil, err
		}
		place := int32(slices.Index(c.Instructions, at))
		for id := range b.List {
			x := &b.List[id]
			first, last := b.span(id)
			if x.Temp > 0 && first <= place && place <= last {
				list = append(list, Temp{c.Instructions[x.Definer], x.Index, x.Shape, uint64(x.Temp), n})
			}
		}
		for _, callee := range ControlFlow(at) {
			// A computation whose peak is 0 may be there more often than can be counted.
			copies[callee] += min(n, math.MaxUint64-copies[callee])
		}
	}
	slices.SortStableFunc(list, func(x, y Temp) int { return cmp.Compare(y.Bytes*y.Copies, x.Bytes*x.Copies) })
	return list, nil
}
