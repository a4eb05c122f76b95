package logs

import (
	"testing"

	"gpumem/record/internal/tape"
)

// TestLogOrderCountsMovedLinesOnce: an event counts as out of order when the one
// played just before it has a later line.
func TestLogOrderCountsMovedLinesOnce(t *testing.T) {
	for _, c := range []struct {
		name string
		in   []*logEvent // by line, from 1 on
		want int
	}{
		{"as written", []*logEvent{{now: 1}, {now: 2}, {now: 3}}, 0},
		{"one line played early", []*logEvent{{now: 2}, {now: 3}, {now: 4}, {now: 5}, {now: 1}, {now: 6}}, 1},
		{"one line played late", []*logEvent{{now: 5}, {now: 1}, {now: 2}, {now: 3}, {now: 4}, {now: 6}}, 1},
		{"two lines played early, apart", []*logEvent{{now: 2}, {now: 4}, {now: 5}, {now: 1}, {now: 3}}, 2},
		{"two lines played early, together", []*logEvent{{now: 3}, {now: 4}, {now: 1}, {now: 2}}, 1},
		{"backwards", []*logEvent{{now: 4}, {now: 3}, {now: 2}, {now: 1}}, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := logOrder{play: func(*logEvent) error { return nil }}
			for i, e := range c.in {
				e.line, e.timed, e.addr = i+1, true, uint64(i+1)
				if err := o.add(e); err != nil {
					t.Fatal(err)
				}
			}
			if err := o.end(); err != nil {
				t.Fatal(err)
			}
			if o.moved != c.want {
				t.Errorf("%d events are out of order, want %d", o.moved, c.want)
			}
		})
	}
}

// TestLogOrderCountsPulledFreeOnce: the free of a live address is played before
// the allocation there, which counts once, however early that allocation is.
func TestLogOrderCountsPulledFreeOnce(t *testing.T) {
	// Played: lines 1, 2, 4, 3, 5. Line 4 is the free of address 1.
	log := allocAt(0, 7, 1, 1) + allocAt(5, 7, 2, 2) + allocAt(10, 7, 3, 1) + freeAt(20, 8, 1, 1) + allocAt(30, 7, 4, 4)
	tr := mustRead(t, []byte(log), tape.Options{Format: "memdebug"})
	if got, want := sizesOf(t, tr.Pools[0]), "1 2 -1 3 4"; got != want {
		t.Fatalf("played %s, want %s", got, want)
	}
	const want = "1 line out of order, "
	for _, n := range tr.Notes {
		if len(n) >= len(want) && n[:len(want)] == want {
			return
		}
	}
	t.Errorf("notes %q, want one that begins with %q", tr.Notes, want)
}
