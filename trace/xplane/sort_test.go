package xplane

// Sorting memory events through the spool.

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"gpumem/internal/spool"
	"gpumem/trace"
)

// TestMemEvents: more events than are sorted at once, with many of the same
// time, come back as a stable sort has them, twice.
func TestMemEvents(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for limit, sizes := range map[int][]int{0: {0, 1, memEventsPerBlock + 1, memEventsPerRun + 77}, 1 << 30: {memEventsPerRun}} {
		for _, n := range sizes {
			l := &memEvents{spool: spool.New(limit, t.TempDir())}
			want := make([]memEvent, n)
			for i := range want {
				want[i] = memEvent{
					ns: rnd.Uint64N(uint64(n)), ps: uint16(rnd.UintN(3)), op: trace.Op(i % 2), has: uint8(i % 8), pool: uint32(i % 5), site: rnd.Uint32(),
					addr: rnd.Uint64(), requested: rnd.Uint64(), allocated: rnd.Uint64(), held: uint64(i),
				}
				if err := l.add(want[i]); err != nil {
					t.Fatal(err)
				}
			}
			slices.SortStableFunc(want, func(a, b memEvent) int {
				if a.ns != b.ns {
					return int(a.ns) - int(b.ns)
				}
				return int(a.ps) - int(b.ps)
			})
			for range 2 {
				i := 0
				if err := l.each(func(e *memEvent) error {
					if *e != want[i] {
						t.Fatalf("%d of %d: %+v, want %+v", i, n, *e, want[i])
					}
					i++
					return nil
				}); err != nil || i != n {
					t.Errorf("%d of %d, %v", i, n, err)
				}
			}
			enough := errors.New("enough")
			if err := l.each(func(*memEvent) error { return enough }); n > 0 && err != enough {
				t.Errorf("%v", err)
			}
			l.spool.Close()
		}
	}
}
