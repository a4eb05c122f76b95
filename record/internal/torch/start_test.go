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
	const small, large = 0x1000000, 0x2800000 // on the grid of large pages
	paged := func(addr, size int) *dict {
		kind := map[bool]string{true: "small"}[size == 2*mib]
		return with(segment(kind, addr, size, idle(size)), "is_expandable", true)
	}
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
			{Addr: small, Bytes: 2 * mib, Small: true, Blocks: []tape.SegmentBlock{{Addr: small + 512, Bytes: 512, Requested: 5}}},
			{Addr: large, Bytes: 20 * mib, Blocks: []tape.SegmentBlock{{Addr: large, Bytes: 3*mib + 512, Requested: 3*mib + 1}}},
		}},
		{"a block known from its free", snapshot([]any{segment("small", small, 2*mib, idle(2*mib))},
			free(small+4096, 700),
		), []tape.Segment{{Addr: small, Bytes: 2 * mib, Small: true, Blocks: []tape.SegmentBlock{{Addr: small + 4096, Requested: 700}}}}},
		{"a block whose end shows", snapshot([]any{segment("large", large, 20*mib, idle(20*mib)), segment("small", small, 2*mib, idle(2*mib))}, append([]any{
			ev("alloc", large+9*mib, 2*mib), // behind what is not split off
			ev("alloc", large+12*mib, 2*mib),
		}, free(large, 8*mib)...)), []tape.Segment{
			{Addr: small, Bytes: 2 * mib, Small: true},
			{Addr: large, Bytes: 20 * mib, Blocks: []tape.SegmentBlock{{Addr: large, Bytes: 9 * mib, Requested: 8 * mib}}},
		}},
		{"a block that is gone before the next", snapshot([]any{segment("large", large, 20*mib, idle(20*mib)), segment("small", small, 2*mib, idle(2*mib))}, append(
			free(large, 8*mib), ev("alloc", large+9*mib, 2*mib),
		)), []tape.Segment{
			{Addr: small, Bytes: 2 * mib, Small: true},
			{Addr: large, Bytes: 20 * mib, Blocks: []tape.SegmentBlock{{Addr: large, Requested: 8 * mib}}},
		}},
		{"segments that came and went", snapshot([]any{segment("small", small, 2*mib, idle(2*mib))}, []any{
			ev("segment_free", large, 20*mib), ev("segment_alloc", small, 2*mib),
		}), []tape.Segment{{Addr: large, Bytes: 20 * mib}}},
		{"no segments", snapshot(nil, free(small, 700)), nil},
		{"a block in no segment", snapshot([]any{segment("small", small, 2*mib, idle(2*mib))}, free(large, 700)), nil},
		{"two blocks in one place", snapshot([]any{segment("small", small, 2*mib, idle(2*mib))}, append(free(small, 700), free(small+512, 1)...)), nil},
		{"a block beyond its segment", snapshot([]any{segment("small", small, 2*mib, idle(2*mib))}, free(small+2*mib-512, 700)), nil},
		{"segments that overlap", snapshot([]any{segment("small", small, 2*mib), segment("small", small+512, 2*mib)}, nil), nil},
		{"an expandable segment", snapshot([]any{with(segment("small", small, 2*mib), "is_expandable", true)}, nil), []tape.Segment{
			{Addr: small, Bytes: 2 * mib, Small: true, Base: small},
		}},
		{"pages that were mapped and unmapped", snapshot([]any{paged(small, 2*mib), paged(large, 60*mib)}, []any{
			ev("segment_map", large+40*mib, 20*mib), ev("segment_unmap", large+80*mib, 40*mib), ev("segment_unmap", small-4*mib, 2*mib),
			ev("segment_unmap", small-2*mib, 2*mib), ev("segment_map", small-2*mib, 2*mib), ev("segment_unmap", small-2*mib, 2*mib),
		}), []tape.Segment{
			{Addr: small - 4*mib, Bytes: 6 * mib, Small: true, Base: small - 4*mib},
			{Addr: large, Bytes: 40 * mib, Base: large},
			{Addr: large + 80*mib, Bytes: 40 * mib, Base: large},
		}},
		{"an older segment's pages that came back below", snapshot([]any{paged(small, 2*mib)}, []any{
			ev("segment_map", small-2*mib, 2*mib), ev("alloc", small-2*mib, 100), free(small-2*mib, 100)[1], ev("segment_unmap", small-2*mib, 2*mib),
		}), []tape.Segment{{Addr: small, Bytes: 2 * mib, Small: true, Base: small - 2*mib}}},
		{"a segment that came after the first was gone", snapshot([]any{paged(small, 2*mib)}, []any{
			ev("segment_unmap", large, 20*mib), ev("segment_map", large-20*mib, 20*mib), ev("alloc", large-20*mib, 3*mib),
			free(large-20*mib, 3*mib)[1], ev("segment_unmap", large-20*mib, 20*mib),
		}), []tape.Segment{{Addr: small, Bytes: 2 * mib, Small: true, Base: small}, {Addr: large, Bytes: 20 * mib, Base: large}}},
		{"the default pools", snapshot([]any{with(segment("small", small, 2*mib), "segment_pool_id", l(int64(0), int64(0)))}, nil), []tape.Segment{{Addr: small, Bytes: 2 * mib, Small: true}}},
		{"a private pool", snapshot([]any{with(segment("small", small, 2*mib), "segment_pool_id", l(int64(0), int64(1)))}, nil), []tape.Segment{
			{Addr: small, Bytes: 2 * mib, Small: true, Private: 1},
		}},
		{"a pool with an unknown id", snapshot([]any{with(segment("small", small, 2*mib), "segment_pool_id", "x")}, nil), nil},
		{"nothing held at first", snapshot([]any{segment("small", small, 2*mib, idle(2*mib))}, []any{ev("segment_alloc", small, 2*mib)}), []tape.Segment{}},
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
