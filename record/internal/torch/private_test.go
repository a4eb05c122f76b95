package torch

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/record/internal/tape"
)

// TestPrivates: which requests private pools serve, from where they lie; also of pools that
// are gone at the end, if the default pool had room.
func TestPrivates(t *testing.T) {
	const mib = 1 << 20
	const normal, graph, gone, other = 0x1000000, 0x2000000, 0x3000000, 0x4000000 // segments
	segment := func(addr, pool int) *dict {
		return d("device", 0, "address", addr, "total_size", 2*mib, "segment_type", "small", "stream", 0, "segment_pool_id", l(int64(pool), int64(0)), "blocks", l(d("size", 2*mib, "state", "inactive")))
	}
	both := []any{segment(normal, 0), segment(graph, 1)}
	taken := func(addr int) *dict { return ev("segment_alloc", addr, 2*mib) }
	used := func(addr int) []any { return append([]any{ev("alloc", addr, 100)}, free(addr, 100)...) }
	list := func(parts ...any) (events []any) {
		for _, p := range parts {
			if several, ok := p.([]any); ok {
				events = append(events, several...)
			} else {
				events = append(events, p)
			}
		}
		return events
	}
	for _, c := range []struct {
		name     string
		segments []any
		events   []any
		want     []tape.Private
	}{
		{"none", []any{segment(normal, 0)}, list(used(normal), used(normal+512)), nil},
		{"one, that stays", both, list(used(normal), used(graph), used(graph+512), used(normal)), []tape.Private{{Event: 2, Pool: 1}, {Event: 6}}},
		{"one, that comes", both, list(used(normal), taken(graph), used(graph), used(normal)), []tape.Private{{Event: 2, Pool: 1}, {Event: 4}}},
		{"one, that is gone", both, list(used(normal), taken(gone), used(gone), used(normal), ev("segment_free", gone, 2*mib), used(normal)),
			[]tape.Private{{Event: 2, Pool: 2}, {Event: 4}, {Event: 6, Pool: 2, Ended: true}}},
		{"a segment of the default pool that is gone", both, list(ev("alloc", normal, mib), taken(gone), ev("alloc", gone, mib), free(gone, mib), ev("segment_free", gone, 2*mib), used(graph)),
			[]tape.Private{{Event: 3, Pool: 1}}},
		{"two that are gone", both, list(taken(gone), used(gone), taken(other), used(other), ev("segment_free", gone, 2*mib), ev("segment_free", other, 2*mib), used(normal)),
			[]tape.Private{{Event: 0, Pool: 2}, {Event: 2, Pool: 3}, {Event: 4, Pool: 2, Ended: true}, {Event: 4, Pool: 3, Ended: true}, {Event: 4}}},
		{"no private pool at the end", []any{segment(normal, 0)}, list(taken(gone), used(gone), ev("segment_free", gone, 2*mib), used(normal)), nil},
		{"a second segment of one that is gone", both, list(taken(gone), ev("alloc", gone, 900<<10), taken(other), ev("alloc", other, 900<<10), free(other, 900<<10), free(gone, 900<<10),
			ev("segment_free", gone, 2*mib), ev("segment_free", other, 2*mib), used(normal)),
			[]tape.Private{{Event: 0, Pool: 2}, {Event: 4, Pool: 2, Ended: true}, {Event: 4, Pool: 2, Ended: true}, {Event: 4}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr, err := played(d("segments", l(c.segments...), "device_traces", l(l(c.events...))))
			if err != nil {
				t.Fatal(err)
			}
			defer tr.Close()
			if diff := cmp.Diff(c.want, tr.Pools[0].Privates()); diff != "" {
				t.Error(diff)
			}
		})
	}
}
