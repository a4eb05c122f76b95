package torch

// What a snapshot says of the recorded pool: its segments at the end, and what it held over
// the events.

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gpumem/record/internal/tape"
)

// held is a segment with its size: address, bytes, blocks.
func held(addr, bytes int, blocks ...any) *dict {
	return d("device", 0, "address", addr, "total_size", bytes, "segment_type", "large", "stream", 0, "blocks", l(blocks...))
}

// TestFinalSegments: they are known if they can be: apart, and with their blocks inside and
// apart.
func TestFinalSegments(t *testing.T) {
	small := held(0x500, 16)
	for i := range small.items {
		if small.items[i].key == "segment_type" {
			small.items[i].value = "small"
		}
	}
	other := blk(0x108, 4)
	other.items = append(other.items[:len(other.items)-1], item{"state", "inactive"})
	for _, c := range []struct {
		name     string
		segments []any
		want     string // address+bytes, s: small, and the blocks of each; "" for none
	}{
		{"one", []any{held(0x100, 16, blk(0x100, 4), blk(0x108, 8))}, "256+16[256+4 264+8]"},
		{"by address", []any{held(0x300, 8), held(0x100, 16), held(0x200, 4)}, "256+16[] 512+4[] 768+8[]"},
		{"side by side", []any{held(0x110, 8), held(0x100, 16)}, "256+16[] 272+8[]"},
		{"by one byte in another", []any{held(0x10f, 8), held(0x100, 16)}, ""},
		{"small and large", []any{small, held(0x600, 16)}, "1280+16s[] 1536+16[]"},
		{"free blocks are left out", []any{held(0x100, 16, blk(0x100, 4), other, blk(0x10c, 4))}, "256+16[256+4 268+4]"},
		{"a block up to the end", []any{held(0x100, 16, blk(0x108, 8))}, "256+16[264+8]"},
		{"a block past the end", []any{held(0x100, 16, blk(0x108, 9))}, ""},
		{"a block larger than its segment", []any{held(0x100, 16, blk(0x100, 17))}, ""},
		{"a block behind its segment", []any{held(0x100, 16, blk(0x111, 1))}, ""},
		{"nothing at the segment's end", []any{held(0x100, 16, blk(0x110, 0))}, "256+16[272+0]"},
		{"a block before its segment", []any{held(0x100, 16, blk(0xff, 4))}, ""},
		{"blocks side by side", []any{held(0x100, 16, blk(0x100, 4), blk(0x104, 4))}, "256+16[256+4 260+4]"},
		{"a block in another", []any{held(0x100, 16, blk(0x100, 4), blk(0x103, 4))}, ""},
		{"without a size", []any{held(0x100, 16), d("device", 0, "address", 0x200, "stream", 0, "blocks", l())}, ""},
		{"beyond all addresses", []any{held(-8, 16)}, ""},
		{"to the last address", []any{held(-16, 15)}, "18446744073709551600+15[]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr, err := played(d("segments", l(c.segments...), "device_traces", l(l(ev("alloc", 0x9000, 1), ev("free_completed", 0x9000, 1)))))
			if err != nil {
				t.Fatal(err)
			}
			defer tr.Close()
			var list []string
			for _, s := range tr.Pools[0].Final() {
				var blocks []string
				for _, b := range s.Blocks {
					blocks = append(blocks, fmt.Sprintf("%d+%d", b.Addr, b.Bytes))
				}
				kind := map[bool]string{true: "s"}[s.Small]
				list = append(list, fmt.Sprintf("%d+%d%s[%s]", s.Addr, s.Bytes, kind, strings.Join(blocks, " ")))
			}
			if got := strings.Join(list, " "); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestReserved: what the pool held over the events, from the segments at the end and those that
// came and went. Each stands from the event after it: a segment is there when its block comes.
func TestReserved(t *testing.T) {
	events := func(parts ...any) (list []any) {
		for _, p := range parts {
			if several, ok := p.([]any); ok {
				list = append(list, several...)
			} else {
				list = append(list, p)
			}
		}
		return list
	}
	old := held(0x1000, 1000, blk(0x1000, 50)) // with a block that is older: event 1 is its
	for _, c := range []struct {
		name     string
		segments []any
		events   []any
		want     []tape.Reserved
	}{
		{
			"come and gone", []any{old, held(0x2000, 100, blk(0x2000, 10))},
			events(ev("segment_alloc", 0x2000, 100), ev("alloc", 0x2000, 10), ev("segment_alloc", 0x3000, 200), ev("alloc", 0x3000, 20), free(0x3000, 20), ev("segment_free", 0x3000, 200), ev("alloc", 0x2010, 5), free(0x2010, 5)),
			[]tape.Reserved{{Event: 0, Bytes: 1000}, {Event: 2, Bytes: 1100}, {Event: 3, Bytes: 1300}, {Event: 5, Bytes: 1100}},
		},
		{
			"after the last event", []any{old},
			events(ev("alloc", 0x1100, 5), free(0x1100, 5), ev("segment_free", 0x3000, 200)),
			[]tape.Reserved{{Event: 0, Bytes: 1200}, {Event: 4, Bytes: 1000}},
		},
		{
			"pages count too", []any{old},
			events(ev("segment_map", 0x1000, 300), ev("alloc", 0x1100, 5), ev("segment_unmap", 0x1800, 100), free(0x1100, 5)),
			[]tape.Reserved{{Event: 0, Bytes: 800}, {Event: 2, Bytes: 1100}, {Event: 3, Bytes: 1000}},
		},
		{
			"all of it came", []any{held(0x2000, 100)},
			events(ev("segment_alloc", 0x2000, 100), ev("alloc", 0x2000, 10), free(0x2000, 10)),
			[]tape.Reserved{{Event: 0, Bytes: 0}, {Event: 1, Bytes: 100}},
		},
		{
			"more came than there is", []any{held(0x2000, 99)},
			events(ev("segment_alloc", 0x2000, 100), ev("alloc", 0x2000, 10), free(0x2000, 10)),
			nil,
		},
		{"without segments", nil, events(ev("segment_alloc", 0x2000, 100), ev("alloc", 0x2000, 10), free(0x2000, 10), ev("segment_free", 0x2000, 100)), nil},
		{
			"with a segment of no size", []any{old, d("device", 0, "address", 0x2000, "stream", 0, "blocks", l())},
			events(ev("alloc", 0x1100, 5), free(0x1100, 5)),
			nil,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr, err := played(d("segments", l(c.segments...), "device_traces", l(l(c.events...))))
			if err != nil {
				t.Fatal(err)
			}
			defer tr.Close()
			if got := tr.Pools[0].Reserved(); !slices.Equal(got, c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}
