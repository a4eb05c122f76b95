package torch

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/record/internal/tape"
)

// TestSegmentsAtTheFirstEvent: which segments there were, and the seeds in them.
func TestSegmentsAtTheFirstEvent(t *testing.T) {
	const mib = 1 << 20
	segment := func(kind string, addr, size int, blocks ...any) *dict {
		return d("device", int64(0), "address", int64(addr), "total_size", int64(size), "segment_type", kind, "stream", int64(0), "blocks", l(blocks...))
	}
	with := func(s *dict, kv ...any) *dict {
		s.items = append(s.items, d(kv...).items...)
		return s
	}
	idle := func(size int) *dict { return d("size", int64(size), "state", "inactive") }
	used := func(size, requested int) *dict {
		return d("size", int64(size), "requested_size", int64(requested), "state", "active_allocated")
	}
	const small, large = 0x1000000, 0x2000000
	snapshot := func(segments, events []any) *dict {
		events = append(events, ev("alloc", small+1024, 100)) // without any the snapshot is refused
		return d("segments", l(segments...), "device_traces", l(l(events...)))
	}
	for _, tc := range []struct {
		name string
		tree *dict
		want []tape.Segment
	}{
		{"blocks older than the events", snapshot([]any{
			segment("large", large, 20*mib, used(3*mib+512, 3*mib+1), idle(17*mib-512)),
			segment("small", small, 2*mib, idle(512), used(512, 5), idle(2*mib-1024)),
		}, nil), []tape.Segment{
			{Addr: small, Bytes: 2 * mib, Small: true, Blocks: []tape.SegmentBlock{{Addr: small + 512, Bytes: 512}}},
			{Addr: large, Bytes: 20 * mib, Blocks: []tape.SegmentBlock{{Addr: large, Bytes: 3*mib + 512}}},
		}},
		{"a block known from its free", snapshot([]any{segment("small", small, 2*mib, idle(2*mib))},
			free(small+4096, 700),
		), []tape.Segment{{Addr: small, Bytes: 2 * mib, Small: true, Blocks: []tape.SegmentBlock{{Addr: small + 4096, Bytes: 1024}}}}},
		{"segments that came and went", snapshot([]any{segment("small", small, 2*mib, idle(2*mib))}, []any{
			ev("segment_free", large, 20*mib), ev("segment_alloc", small, 2*mib),
		}), []tape.Segment{{Addr: large, Bytes: 20 * mib}}},
		{"no segments", snapshot(nil, free(small, 700)), nil},
		{"a block in no segment", snapshot([]any{segment("small", small, 2*mib, idle(2*mib))}, free(large, 700)), nil},
		{"two blocks in one place", snapshot([]any{segment("small", small, 2*mib, idle(2*mib))}, append(free(small, 700), free(small+512, 1)...)), nil},
		{"a block beyond its segment", snapshot([]any{segment("small", small, 2*mib, idle(2*mib))}, free(small+2*mib-512, 700)), nil},
		{"segments that overlap", snapshot([]any{segment("small", small, 2*mib), segment("small", small+512, 2*mib)}, nil), nil},
		{"an expandable segment", snapshot([]any{with(segment("small", small, 2*mib), "is_expandable", true)}, nil), nil},
		{"pages that were mapped", snapshot([]any{segment("small", small, 2*mib)}, []any{ev("segment_map", small, 2*mib)}), nil},
		{"the default pools", snapshot([]any{with(segment("small", small, 2*mib), "segment_pool_id", l(int64(0), int64(0)))}, nil), []tape.Segment{{Addr: small, Bytes: 2 * mib, Small: true}}},
		{"a private pool", snapshot([]any{with(segment("small", small, 2*mib), "segment_pool_id", l(int64(0), int64(1)))}, nil), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr, err := played(tc.tree)
			if err != nil {
				t.Fatal(err)
			}
			defer tr.Close()
			var got []tape.Segment
			if len(tr.Pools) > 0 {
				got = tr.Pools[0].Segments()
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("want -, got +:\n%s", diff)
			}
			var blocks uint64
			for _, s := range got {
				blocks += uint64(len(s.Blocks))
			}
			if got != nil && blocks != tr.Seeds {
				t.Errorf("%d blocks, %d seeds", blocks, tr.Seeds)
			}
		})
	}
}
