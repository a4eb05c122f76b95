package alloc_test

import (
	"fmt"
	"strings"
	"testing"

	"gpumem/alloc"
)

const mib = 1 << 20

// picture is an allocator drawn by hand: pieces of whole MiB, a region a line.
// A letter is a live MiB (runs of one letter are one block), a capital letter a
// MiB that its block has but did not ask for, a dot a free one.
type picture struct {
	regions []string
	limit   uint64
}

func (p picture) Walk(yield func(alloc.Chunk) bool) {
	base := uint64(1 << 40)
	for i, r := range p.regions {
		for at := 0; at < len(r); {
			end := at + 1
			for end < len(r) && lower(r[end]) == lower(r[at]) {
				end++
			}
			c := alloc.Chunk{Addr: base + uint64(at)*mib, Size: uint64(end-at) * mib, Region: i, Live: r[at] != '.'}
			for _, m := range r[at:end] {
				if m >= 'a' {
					c.Requested += mib
				}
			}
			c.Site = alloc.Site(lower(r[at]))
			if !yield(c) {
				return
			}
			at = end
		}
		base += uint64(len(r))*mib + 2*mib
	}
}

func lower(b byte) byte {
	if b >= 'A' && b <= 'Z' {
		return b + 'a' - 'A'
	}
	return b
}

func (p picture) Stats() alloc.Stats {
	s := alloc.Stats{BytesLimit: p.limit}
	p.Walk(func(c alloc.Chunk) bool {
		s.PoolBytes += c.Size
		if c.Live {
			s.BytesInUse += c.Size
		} else {
			s.LargestFreeBlock = max(s.LargestFreeBlock, c.Size)
		}
		return true
	})
	return s
}

func (picture) Alloc(alloc.Request) (alloc.Block, error) { return alloc.Block{}, alloc.ErrNoMemory }
func (picture) Free(alloc.Block) error                   { return alloc.ErrNotAllocated }
func (picture) FreeAddr(uint64) error                    { return alloc.ErrNotAllocated }
func (picture) Trim(uint64) (uint64, error)              { return 0, nil }
func (picture) BlockAt(uint64) (alloc.Block, error)      { return alloc.Block{}, alloc.ErrNotAllocated }
func (picture) Live(alloc.Block) error                   { return nil }
func (picture) Close() error                             { return nil }

func TestExplain(t *testing.T) {
	for _, tc := range []struct {
		name       string
		regions    []string
		limit      uint64 // MiB
		ask        uint64 // MiB
		deviceFree int64  // MiB; -1 unknown

		hole, stranded, pinHole, waste, splitHole, pages uint64 // MiB
		pin                                              byte   // the block's letter, 0 none
		growth, splitting, paged                         bool
	}{
		{
			name: "one block between two holes", regions: []string{"aa..b..c"}, limit: 8, ask: 4, deviceFree: 0,
			hole: 2, stranded: 2, pin: 'b', pinHole: 5, splitHole: 2, pages: 2,
		},
		{
			name: "the smaller of two that would do", regions: []string{"...bb...c..."}, limit: 12, ask: 5, deviceFree: 0,
			hole: 3, stranded: 6, pin: 'c', pinHole: 7, splitHole: 3, pages: 6, paged: true,
		},
		{
			name: "a block as large as the request pins nothing", regions: []string{".bbbb."}, limit: 6, ask: 4, deviceFree: 0,
			hole: 1, stranded: 1, splitHole: 1,
		},
		{
			name: "a block at the start of a region", regions: []string{"b...", "cccc"}, limit: 8, ask: 4, deviceFree: 0,
			hole: 3, pin: 'b', pinHole: 4, splitHole: 3, pages: 2,
		},
		{
			name: "a block at the end of a region", regions: []string{"...b", "cccc"}, limit: 8, ask: 4, deviceFree: 0,
			hole: 3, pin: 'b', pinHole: 4, splitHole: 3, pages: 2,
		},
		{
			name: "holes of two regions do not join", regions: []string{"aaaa..", "..bbbb"}, limit: 12, ask: 4, deviceFree: 0,
			hole: 2, stranded: 2, splitHole: 2, pages: 4, paged: true, // but pages do
		},
		{
			name: "waste below a hole", regions: []string{"aAA.b"}, limit: 5, ask: 3, deviceFree: 0,
			hole: 1, waste: 2, splitHole: 3, splitting: true,
		},
		{
			name: "waste between two blocks", regions: []string{"aAAb"}, limit: 4, ask: 2, deviceFree: 0,
			hole: 0, waste: 2, splitHole: 2, splitting: true,
		},
		{
			name: "the limit forbids growth", regions: []string{"aaaa"}, limit: 4, ask: 2, deviceFree: 10,
			growth: true, paged: true,
		},
		{
			name: "nothing taken", regions: nil, limit: 4, ask: 2, deviceFree: 1,
		},
		{
			name: "the device's free memory is unknown", regions: []string{"a."}, limit: 2, ask: 2, deviceFree: -1,
			hole: 1, pin: 'a', pinHole: 2, splitHole: 1,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			free := tc.deviceFree
			if free > 0 {
				free *= mib
			}
			p := picture{tc.regions, tc.limit * mib}
			c := alloc.Explain(p, alloc.Request{Bytes: tc.ask * mib}, free)
			for _, f := range []struct {
				name      string
				got, want uint64
			}{
				{"hole", c.Hole, tc.hole * mib}, {"stranded", c.Stranded, tc.stranded * mib},
				{"pin's hole", c.PinHole, tc.pinHole * mib}, {"waste", c.Waste, tc.waste * mib},
				{"split hole", c.SplitHole, tc.splitHole * mib}, {"pages", c.Pages, tc.pages * mib},
				{"pin", uint64(c.Pin.Site), uint64(tc.pin)},
			} {
				if f.got != f.want {
					t.Errorf("%s: %d, want %d", f.name, f.got, f.want)
				}
			}
			if c.Growth() != tc.growth || c.Splitting() != tc.splitting || c.Paged() != tc.paged {
				t.Errorf("growth %v, splitting %v, paged %v; want %v, %v, %v", c.Growth(), c.Splitting(), c.Paged(), tc.growth, tc.splitting, tc.paged)
			}
			text := c.Text(func(s alloc.Site) string { return "site " + string(rune(s)) + "\nouter frame" })
			if named := strings.Contains(text, "asked for by site "+string(rune(tc.pin))+"."); named != (tc.pin != 0) || !named && strings.Contains(text, "asked for by site") {
				t.Errorf("the block of site %q; the text:\n%s", rune(tc.pin), text)
			}
			if strings.Contains(text, "outer frame") || !strings.HasSuffix(text, "\n") {
				t.Errorf("text:\n%s", text)
			}
		})
	}
}

// TestExplainHuge: a size near 2^64 must not wrap in any of the sums.
func TestExplainHuge(t *testing.T) {
	c := alloc.Explain(picture{[]string{"a.b."}, 4 * mib}, alloc.Request{Bytes: 1<<64 - 1}, 1<<62)
	if c.Growth() || c.Splitting() || c.Paged() || c.Pin.Size != 0 {
		t.Errorf("%+v", c)
	}
}

func TestFragmentation(t *testing.T) {
	for _, tc := range []struct {
		pool, used, hole uint64
		want             float64
	}{
		{0, 0, 0, 0}, {100, 100, 0, 0}, {100, 0, 100, 0}, {100, 20, 20, 0.75},
	} {
		s := alloc.Stats{PoolBytes: tc.pool, BytesInUse: tc.used, LargestFreeBlock: tc.hole}
		if got := s.Fragmentation(); got != tc.want {
			t.Errorf("%+v: %v, want %v", tc, got, tc.want)
		}
	}
}

// speaking is an allocator that has its own account.
type speaking struct{ picture }

func (speaking) Why(r alloc.Request, free int64) []string {
	return []string{fmt.Sprintf("%d were asked for and %d are free.", r.Bytes, free), "That is all."}
}

func TestExplainOwnWords(t *testing.T) {
	c := alloc.Explain(speaking{picture{[]string{"aa.b"}, 8 * mib}}, alloc.Request{Bytes: 5 << 20}, 7)
	const want = "Why: 5 MiB was asked for.\n  5242880 were asked for and 7 are free.\n  That is all.\n"
	if got := c.Text(nil); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if c.LiveBlocks != 2 || c.Hole != 0 || c.Limit != 8*mib {
		t.Errorf("%+v", c)
	}
}
