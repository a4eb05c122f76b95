package tape

import (
	"testing"
)

// TestFreedForgets: a log that never uses an address again takes no more memory.
func TestFreedForgets(t *testing.T) {
	b := testBuilder("rmm", Options{})
	a := b.Pool("").Blocks(true)
	for i := range uint64(maxFreed + 100) {
		if err := a.Alloc(i+1, Event{Bytes: 1}); err != nil {
			t.Fatal(err)
		}
		if err := a.Free(i+1, Event{Bytes: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if n := a.freed.Len(); n > 100 {
		t.Errorf("%d addresses are remembered", n)
	}
	b.trace.Close()
}
