package gap

import (
	"testing"

	"pgregory.net/rapid"
)

// TestProfileCountsSlots: the blocks of a profile count what a plain list of slots does.
func TestProfileCountsSlots(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5*profileBlock).Draw(t, "slots")
		p, plain := newProfile(n), make([]int64, n)
		stretch := func() (from, to int) {
			from = rapid.IntRange(0, n-1).Draw(t, "from")
			return from, rapid.IntRange(from, n-1).Draw(t, "to")
		}
		for range rapid.IntRange(0, 12).Draw(t, "changes") {
			from, to := stretch()
			bytes := rapid.Int64Range(-4, 4).Draw(t, "bytes")
			p.add(from, to, bytes)
			for slot := from; slot <= to; slot++ {
				plain[slot] += bytes
			}
		}
		limit := rapid.Int64Range(-4, 4).Draw(t, "limit")
		p.count(limit)
		for range rapid.IntRange(0, 3).Draw(t, "more changes") {
			from, to := stretch()
			p.add(from, to, 1)
			for slot := from; slot <= to; slot++ {
				plain[slot]++
			}
		}
		p.count(limit)
		from, to := stretch()
		bytes := rapid.Int64Range(-8, 8).Draw(t, "above")
		var want int64
		for _, v := range plain[from : to+1] {
			if v > bytes {
				want++
			}
		}
		if got := p.above(from, to, bytes, int64(n)); got != want {
			t.Errorf("%d of the slots %d to %d have more than %d bytes, want %d", got, from, to, bytes, want)
		}
		over, total := 0, 0
		for slot, v := range plain {
			if v > limit {
				total++
				if from <= slot && slot <= to {
					over++
				}
			}
		}
		if got := p.overIn(from, to, limit); got != int64(over) || p.total() != total {
			t.Errorf("%d of the slots %d to %d and %d in all are over %d, want %d and %d", got, from, to, p.total(), limit, over, total)
		}
		if got := p.above(from, to, bytes, 1) > 0; got != (want > 0) {
			t.Errorf("slots %d to %d have more than %d bytes: %v, want %v", from, to, bytes, got, want > 0)
		}
	})
}
