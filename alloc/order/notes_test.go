package order

import (
	"testing"

	"pgregory.net/rapid"

	"gpumem/device"
)

// TestNotes compares the notes with a slice that has one entry per address, and
// counts who still has each event.
func TestNotes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 40
		var n notes
		var model [size]*event
		alive := map[*event]bool{}
		retire := func(gone []mark) {
			for _, m := range gone {
				if m.event.notes--; m.event.notes == 0 {
					delete(alive, m.event)
				}
			}
		}
		next := device.Event(1)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			addr := rapid.Uint64Range(0, size-1).Draw(t, "addr")
			bytes := rapid.Uint64Range(1, size-addr).Draw(t, "bytes")
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0, 1, 2: // freed
				e := &event{handle: next, notes: 1}
				next++
				alive[e] = true
				n.cut(addr, bytes, retire)
				n.add(note{addr, bytes, []mark{{1, e}}})
				for i := addr; i < addr+bytes; i++ {
					model[i] = e
				}
			case 3: // handed out
				n.cut(addr, bytes, retire)
				clear(model[addr : addr+bytes])
			case 4: // some have passed
				odd := func(e *event) bool { return e.handle%2 == 1 }
				n.drop(func(one note) bool { return odd(one.marks[0].event) }, retire)
				for i, e := range model {
					if e != nil && odd(e) {
						model[i] = nil
					}
				}
			}
			left := map[*event]bool{}
			for i, want := range model {
				var got *event
				if over := n.over(uint64(i), 1); len(over) == 1 {
					got = over[0].marks[0].event
				} else if len(over) > 1 {
					t.Fatalf("%d notes at %d", len(over), i)
				}
				if got != want {
					t.Fatalf("at %d there is %v, want %v", i, got, want)
				}
				if want != nil {
					left[want] = true
				}
			}
			if len(left) != len(alive) {
				t.Fatalf("%d events are in use, %d were not retired", len(left), len(alive))
			}
		}
	})
}
