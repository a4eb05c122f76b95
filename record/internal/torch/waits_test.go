package torch

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/record/internal/tape"
)

// TestWaits: a block waits from its request to be freed until that is completed, if another
// event lies between.
func TestWaits(t *testing.T) {
	asked := func(addr int) *dict { return ev("free_requested", addr, 10) }
	gone := func(addr int) *dict { return ev("free_completed", addr, 10) }
	made := func(addr int) *dict { return ev("alloc", addr, 10) }
	awaiting := func(addr int) *dict {
		return d("address", addr, "size", 512, "requested_size", 10, "state", "active_pending_free")
	}
	for _, c := range []struct {
		name   string
		blocks []any // of the segments
		events []any
		want   []tape.Wait
	}{
		{"at once", nil, []any{made(1), asked(1), gone(1)}, nil},
		{"later", nil, []any{made(1), asked(1), made(2), gone(1)}, []tape.Wait{{Slot: 0, From: 1, To: 3}}},
		{"two, in the order of the requests", nil, []any{made(1), made(2), asked(2), asked(1), made(3), gone(1), gone(2)}, []tape.Wait{{Slot: 0, From: 2, To: 4}, {Slot: 1, From: 2, To: 5}}},
		{"to the end", []any{awaiting(1)}, []any{made(1), asked(1), made(2)}, []tape.Wait{{Slot: 0, From: 1}}},
		{"from before the events", nil, []any{made(1), asked(1), gone(1), gone(9)}, []tape.Wait{{Slot: 0, From: 1, To: 4}}},
		{"from before the events to the end", []any{awaiting(9)}, []any{made(1)}, []tape.Wait{{Slot: 0, From: 1}}},
		{"no event asks for a free", nil, []any{made(1), gone(1), gone(9)}, nil},
		{"a free that nothing asked for", nil, []any{made(1), asked(1), gone(1), made(2), gone(2)}, nil},
		{"a block that is not there", nil, []any{made(1), asked(7), gone(1)}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr, err := played(d("segments", l(seg(0, c.blocks...)), "device_traces", l(l(c.events...))))
			if err != nil {
				t.Fatal(err)
			}
			defer tr.Close()
			if diff := cmp.Diff(c.want, tr.Pools[0].Waits()); diff != "" {
				t.Error(diff)
			}
		})
	}
}
