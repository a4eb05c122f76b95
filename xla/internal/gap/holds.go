package gap

// What holds a plan where it takes the most.

import (
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/memory"
)

// Holds is what lives at the peak of an entry, in bytes. The parts add up to the peak.
type Holds struct {
	At *hlo.Instruction // where the peak is
	// Once is what loops, custom calls and the like have made or are going to work on: they do
	// not run again, so that it stays. Own is what the instruction reads and makes beside that,
	// Called what it calls takes. Others are the rest, which could be computed again.
	Once, Own, Called, Others uint64
}

// HoldsAt returns what holds the peak of an entry. The error is that of [memory.Meter.Peak].
func HoldsAt(m *hlo.Module, meter *memory.Meter) (h Holds, err error) {
	peak, err := meter.Peak(m.Entry)
	if err != nil || peak.At == nil {
		return h, err
	}
	b, err := meter.Buffers(m.Entry)
	if err != nil {
		return h, err
	}
	h.At = peak.At
	rules := newRules(true)
	once, own := map[int32]bool{}, map[int32]bool{}
	at := int32(0)
	for n, i := range m.Entry.Instructions {
		if i == peak.At {
			at = int32(n)
		}
		if rules.runsOnce(i) {
			for _, id := range b.Outputs[n] {
				once[id] = true
			}
		}
	}
	for _, list := range [2][]int32{b.Used[at], b.Defined[at]} {
		for _, id := range list {
			own[id] = true
		}
	}
	left := uint64(peak.Bytes)
	for id := range b.List {
		x := &b.List[id]
		last := x.Definer
		for _, u := range x.Uses {
			last = max(last, u.User)
		}
		if x.Definer > at || last < at {
			continue
		}
		left -= uint64(x.Temp)
		switch {
		case once[int32(id)]:
			h.Once += uint64(x.Temp)
		case own[int32(id)]:
			h.Own += uint64(x.Temp)
		default:
			h.Others += uint64(x.Temp)
		}
	}
	h.Called = left
	return h, nil
}
