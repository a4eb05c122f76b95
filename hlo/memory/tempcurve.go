package memory

// TempPeak in full: the memory of temporaries at each instruction of the entry, and the
// temporaries that live at the peak.

import (
	"cmp"
	"math"
	"slices"

	"gpumem/hlo"
)

// TempCurve is what temporaries take while each instruction of the entry runs,
// in bytes, in the order of its list, counted as [TempPeak] does: with what the
// instruction calls, and without parameters and results. Its largest is
// TempPeak's. The error is TempPeak's.
func TempCurve(m *hlo.Module, o Options) ([]uint64, error) {
	if m.Entry == nil {
		return nil, noEntry(m)
	}
	b, err := Analyze(m.Entry, o.Size)
	if err != nil {
		return nil, err
	}
	curve := make([]uint64, len(m.Entry.Instructions))
	return curve, o.run(b, o.NewMeter().called, func(k int, bytes int64) { curve[k] = uint64(bytes) })
}

// span is the first and the last place at which a buffer takes memory.
func (b *Buffers) span(id int) (first, last int32) {
	x := &b.List[id]
	last = x.Definer
	for _, u := range x.Uses {
		last = max(last, u.User)
	}
	return x.Definer, last
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

// TempAlive are the buffers that live at the peak of temporaries, the largest
// first: those of the entry, and those of what the instruction calls there, each
// computation at its own peak. Bytes times Copies add up to [TempPeak]. The
// error is TempPeak's.
func TempAlive(m *hlo.Module, o Options) ([]Temp, error) {
	all, err := Peaks(m, o)
	if err != nil {
		return nil, err
	}
	var list []Temp
	// How often each computation is there. Callees come to the list behind all
	// that call them, since a count is only final then.
	copies := map[*hlo.Computation]uint64{m.Entry: 1}
	for _, c := range callersFirst(m.Entry, all, o) {
		n, at := copies[c], all[c].At
		if n == 0 || at == nil {
			continue
		}
		b, err := Analyze(c, o.Size)
		if err != nil {
			return nil, err
		}
		place := int32(slices.Index(c.Instructions, at))
		for id := range b.List {
			x := &b.List[id]
			first, last := b.span(id)
			if bytes := o.Allocated(b, int32(id)); bytes > 0 && first <= place && place <= last {
				list = append(list, Temp{c.Instructions[x.Definer], x.Index, x.Shape, uint64(bytes), n})
			}
		}
		for _, callee := range o.Calls(at) {
			// A computation whose peak is 0 may be there more often than can be counted.
			copies[callee] += min(n, math.MaxUint64-copies[callee])
		}
	}
	slices.SortStableFunc(list, func(x, y Temp) int { return cmp.Compare(y.Bytes*y.Copies, x.Bytes*x.Copies) })
	return list, nil
}

// callersFirst are the computations that run at the peaks of others, each behind all
// that call it there.
func callersFirst(entry *hlo.Computation, all map[*hlo.Computation]Peak, o Options) []*hlo.Computation {
	var order []*hlo.Computation
	seen := map[*hlo.Computation]bool{}
	var visit func(*hlo.Computation)
	visit = func(c *hlo.Computation) {
		if seen[c] {
			return
		}
		seen[c] = true
		if at := all[c].At; at != nil {
			for _, callee := range o.Calls(at) {
				visit(callee)
			}
		}
		order = append(order, c)
	}
	visit(entry)
	slices.Reverse(order)
	return order
}
