package streams

import (
	"testing"

	"pgregory.net/rapid"
)

// TestNotes compares the notes with a slice that has one entry per address, and
// counts who still has each event.
func TestNotes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 2000
		var n notes
		var model [size]*Mark
		alive := map[*Mark]bool{}
		gone := func(marks ...*Mark) {
			for _, m := range marks {
				if m.users--; m.users == 0 {
					delete(alive, m)
				}
			}
		}
		next := uint64(1)
		for range rapid.IntRange(1, 600).Draw(t, "steps") {
			addr := rapid.Uint64Range(0, size-1).Draw(t, "addr")
			bytes := rapid.Uint64Range(1, min(size-addr, rapid.Uint64Range(1, size).Draw(t, "most"))).Draw(t, "bytes")
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			default: // freed
				m := &Mark{seq: next, users: 1}
				next++
				alive[m] = true
				n.cut(addr, bytes, gone)
				n.add(note{addr, bytes, []*Mark{m}})
				for i := addr; i < addr+bytes; i++ {
					model[i] = m
				}
			case 7, 8: // handed out
				n.cut(addr, bytes, gone)
				clear(model[addr : addr+bytes])
			case 9: // some have passed
				odd := func(m *Mark) bool { return m.seq%2 == 1 }
				n.drop(func(one note) bool { return odd(one.marks[0]) }, gone)
				for i, m := range model {
					if m != nil && odd(m) {
						model[i] = nil
					}
				}
			}
			var over [size]*Mark
			count := 0
			n.over(0, size, func(one note) bool {
				count++
				for i := one.addr; i < one.end(); i++ {
					if over[i] != nil {
						t.Fatalf("two notes at %d", i)
					}
					over[i] = one.marks[0]
				}
				return true
			})
			if over != model || count != n.n {
				t.Fatalf("%d notes, %d counted: they are not those of the model", count, n.n)
			}
			left := map[*Mark]bool{}
			for _, m := range model {
				if m != nil {
					left[m] = true
				}
			}
			if len(left) != len(alive) {
				t.Fatalf("%d marks are in use, %d were not released", len(left), len(alive))
			}
			at := rapid.Uint64Range(0, size-1).Draw(t, "look")
			var got *Mark
			n.over(at, 1, func(one note) bool { got = one.marks[0]; return true })
			if got != model[at] {
				t.Fatalf("at %d there is %v, want %v", at, got, model[at])
			}
		}
	})
}

// TestNotesStayInLeaves: however many notes there are, an insertion moves at most
// one leaf, and the leaves are at least a quarter full on average.
func TestNotesStayInLeaves(t *testing.T) {
	var n notes
	const many = 50_000
	for i := range uint64(many) {
		n.add(note{addr: i * 7919 % many * 10, bytes: 10}) // 7919 is prime: all places, in disorder
	}
	if n.n != many || len(n.leaves) > 4*many/leafNotes {
		t.Errorf("%d notes in %d leaves", n.n, len(n.leaves))
	}
	for _, l := range n.leaves {
		if len(l) > leafNotes {
			t.Fatalf("a leaf of %d notes", len(l))
		}
	}
}
