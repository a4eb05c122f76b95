package replay

import (
	"testing"

	"gpumem/record/trace"
)

// TestEventOfNoProcessIsAnError: it was the first process's, whose allocator does not know the block.
func TestEventOfNoProcessIsAnError(t *testing.T) {
	a, b := &part{first: 0, streams: 2}, &part{first: 2, streams: 1}
	p := &Pass{parts: []*part{a, b}}
	for stream, want := range []*part{a, a, b, nil} {
		if got, err := p.partOf(&trace.Event{Stream: uint32(stream)}); got != want || (err == nil) != (want != nil) {
			t.Errorf("stream %d: %v, %v", stream, got, err)
		}
	}
}
