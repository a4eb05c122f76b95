package idtable

// The table of numeric IDs.

import (
	"testing"

	"pgregory.net/rapid"
)

// TestModel compares the table with a map, over keys that collide.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table := New()
		table.seed = rapid.Uint64().Draw(t, "seed")
		model := map[uint64]uint32{}
		keys := rapid.OneOf(rapid.Uint64Range(0, 300), rapid.Map(rapid.Uint64Range(0, 300), func(k uint64) uint64 { return k << 54 }))
		next := uint32(0)
		for range rapid.IntRange(0, 1000).Draw(t, "steps") {
			key := keys.Draw(t, "key")
			want, isIn := model[key]
			if rapid.IntRange(0, 2).Draw(t, "op") == 0 {
				got, found := table.Delete(key)
				if found != isIn || got != want {
					t.Fatalf("del %d: %d %v, want %d %v", key, got, found, want, isIn)
				}
				delete(model, key)
				continue
			}
			slot, found := table.Put(key)
			if found != isIn || found && *slot != want+1 {
				t.Fatalf("put %d: %v, want %v", key, found, isIn)
			}
			if !found {
				*slot = next + 1
				model[key] = next
				next++
			}
		}
		if table.used != len(model) {
			t.Fatalf("used %d, want %d", table.used, len(model))
		}
		for key, want := range model {
			if got, found := table.Delete(key); !found || got != want {
				t.Fatalf("at the end: del %d: %d %v, want %d", key, got, found, want)
			}
		}
	})
}

// TestSpread: the shapes that IDs have in recordings do not pile up,
// whatever the seed. A pile is a run of used cells; at half load runs of a
// random table of this size stay below about 60.
func TestSpread(t *testing.T) {
	shapes := map[string]func(i uint64) uint64{
		"counting":     func(i uint64) uint64 { return i },
		"from a clock": func(i uint64) uint64 { return 1_700_000_000_000_000 + 10*i },
		"addresses":    func(i uint64) uint64 { return 0x7f0000000000 + i<<21 },
		"high bits":    func(i uint64) uint64 { return i << 44 },
	}
	const n = 1 << 13
	for name, key := range shapes {
		t.Run(name, func(t *testing.T) {
			for range 50 {
				table := New()
				for i := range uint64(n) {
					slot, _ := table.Put(key(i))
					*slot = 1
				}
				run, longest := 0, 0
				for _, c := range table.cells {
					run++
					if c.slot == 0 {
						run = 0
					}
					longest = max(longest, run)
				}
				if longest > 300 {
					t.Fatalf("seed %#x: a run of %d cells", table.seed, longest)
				}
			}
		})
	}
}
