package elastic

import (
	"errors"
	"testing"
	"time"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
	"gpumem/alloc/streams"
	"gpumem/device"
	"gpumem/device/sim"
)

// edge is a pool of some pages of 2 MiB on a device that has no more.
type edge struct {
	testing.TB
	*Allocator
	dev *sim.Device
}

const edgePage = 2 << 20

func newEdge(t testing.TB, pages uint64, cfg Config) edge {
	t.Helper()
	dev, err := sim.New(sim.Config{Total: pages * edgePage})
	if err != nil {
		t.Fatal(err)
	}
	a, err := New(dev, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return edge{t, a, dev}
}

func (e edge) alloc(bytes uint64) alloc.Block {
	e.Helper()
	b, err := e.Alloc(alloc.Request{Bytes: bytes})
	e.must(err)
	return b
}

func (e edge) must(errs ...error) {
	e.Helper()
	if err := errors.Join(errs...); err != nil {
		e.Fatal(err)
	}
}

// mapAt maps pages [from, to) of a space's addresses, counted from base.
func (e edge) mapAt(sp *space, base, from, to uint64) (chunks.H, *chunks.Chunk) {
	e.Helper()
	lo := base + from*edgePage
	e.must(e.create(to-from, e.cap), e.mapRun(e.holding(sp.first, lo), lo, base+to*edgePage))
	h := e.holding(sp.first, lo)
	return h, e.store.At(h)
}

// TestAlignedBlockEndsWithTheAddresses: 86 pages have 64 times as many addresses,
// three quarters of them for large blocks: 4,128 pages. They begin a page above a
// multiple of 8 GiB (4,096 pages), so that from the next multiple on there are 33.
func TestAlignedBlockEndsWithTheAddresses(t *testing.T) {
	e := newEdge(t, 86, Config{})
	_, err := e.dev.AddressReserve(edgePage, 0)
	e.must(err)
	for _, tc := range []struct {
		pages uint64
		want  error
	}{{34, alloc.ErrNever}, {33, nil}} {
		b, err := e.Alloc(alloc.Request{Bytes: tc.pages * edgePage, Align: 8 << 30})
		if !errors.Is(err, tc.want) || b.Addr%(8<<30) != 0 {
			t.Errorf("%d pages at %#x: %v, want %v", tc.pages, b.Addr, err, tc.want)
		}
	}
}

// TestEagerKeepsReserve: whole pages that fit into Config.Reserve stay mapped.
func TestEagerKeepsReserve(t *testing.T) {
	e := newEdge(t, 16, Config{Eager: true, Reserve: 3*edgePage - 1})
	e.must(e.Free(e.alloc(5 * edgePage)))
	if e.owned() != 2 {
		t.Errorf("%d pages are left of 5, want the 2 that fit into the reserve", e.owned())
	}
}

// TestSmallBlockStaysInHeldPagesWhenShort: eight blocks of three quarters of a page
// fill six pages, which is all. Freed are blocks 1 and 2, [0.75, 2.25) in pages, and
// 4 and 5, [3, 4.5). The best fit for half a page is the lower of the two, where it
// would cost page 1. The last half of the other costs none.
func TestSmallBlockStaysInHeldPagesWhenShort(t *testing.T) {
	e := newEdge(t, 6, Config{})
	e.must(e.reserve())
	e.mapAt(&e.small, e.split, 0, 6)
	var b []alloc.Block
	for range 8 {
		b = append(b, e.alloc(edgePage*3/4))
	}
	for _, i := range []int{1, 2, 4, 5} {
		e.must(e.Free(b[i]))
	}
	held := e.held
	if got := e.alloc(edgePage / 2); got.Addr != e.split+4*edgePage || e.held != held {
		t.Errorf("at page %.2f, want 4; %d pages held, %d before", float64(got.Addr-e.split)/edgePage, e.held, held)
	}
	e.must(e.Check())
}

// TestShortPagesTheBestFitServes: 16 blocks of a page and a quarter fill 20 pages, which is
// all, so that pages are short. Freed are block 1, [1.25, 2.5) in pages, where no whole page
// fits; blocks 5 and 6, [6.25, 8.75), where one fits at 7 with odd ends on both sides; and
// blocks 9 to 11, [11.25, 15), where one at 14 would leave none. A page goes to 7: the search
// among larger chunks, which finds 14, is not made.
func TestShortPagesTheBestFitServes(t *testing.T) {
	for _, tc := range []struct {
		name  string
		free  []int
		align uint64
	}{
		{"beside a chunk where it fits nowhere", []int{1, 5, 6, 9, 10, 11}, 0},
		{"with an alignment", []int{5, 6, 9, 10, 11}, 512},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := newEdge(t, 20, Config{})
			e.must(e.reserve())
			e.mapAt(&e.large, e.base, 0, 20)
			var b []alloc.Block
			for range 16 {
				b = append(b, e.alloc(edgePage*5/4))
			}
			for _, i := range tc.free {
				e.must(e.Free(b[i]))
			}
			got, err := e.Alloc(alloc.Request{Bytes: edgePage, Align: tc.align})
			e.must(err, e.Check())
			if want := e.base + 7*edgePage; got.Addr != want {
				t.Errorf("at page %.2f, want 7", float64(got.Addr-e.base)/edgePage)
			}
		})
	}
}

// TestRefusedDeviceIsAskedOnceMore: a request that the device has no memory for is chosen
// anew under what is owned, and a later one tries the device once. A pool that asked for ever
// would meet the lost device.
func TestRefusedDeviceIsAskedOnceMore(t *testing.T) {
	e := newEdge(t, 8, Config{})
	e.alloc(4 * edgePage)
	e.dev.SetUsed(4 * edgePage)
	creates := 0
	e.dev.OnCall(func(_ uint64, name string, _ uint64) error {
		if name == "cuMemCreate" {
			creates++
		}
		if creates > 10 {
			return device.ErrLost
		}
		return nil
	})
	for n, when := range []string{"at first", "then"} {
		_, err := e.Alloc(alloc.Request{Bytes: edgePage})
		if want := n + 1; !errors.Is(err, alloc.ErrNoMemory) || creates != want {
			t.Errorf("%s: the device was asked %d times, want %d; %v", when, creates, want, err)
		}
	}
	e.dev.SetUsed(0)
	e.alloc(edgePage)
	e.must(e.Check())
}

// TestTrimWaitsOnceForAllItReleases: two blocks were freed, each behind an hour of
// work and in an epoch that has ended. To release both, the later must be waited for.
func TestTrimWaitsOnceForAllItReleases(t *testing.T) {
	e := newEdge(t, 8, Config{})
	tracker := e.streams
	tracker.Defer(false)
	b := []alloc.Block{e.alloc(edgePage), e.alloc(edgePage), e.alloc(edgePage)}
	for _, i := range []int{0, 2} { // the other keeps them apart
		e.must(e.dev.Work(0, time.Hour, nil, []device.Range{{Addr: b[i].Addr, Bytes: b[i].Size}}), e.Free(b[i]))
		e.must(e.epochs.Close())
	}
	_, err := e.Trim(0)
	var pending *streams.Pending
	if !errors.As(err, &pending) {
		t.Fatalf("trim: %v", err)
	}
	pending.Settle(pending.Wait())
	tracker.SetRepeated(true)
	if released, err := e.Trim(0); err != nil || released != 2*edgePage {
		t.Errorf("released %d bytes of 2 pages, %v", released, err)
	}
}

// TestJoinedPagesHaveTheLaterPlace: a page mapped between two idle chunks joins
// them. What was freed the latest counts, or pages in use a moment ago would be
// unmapped before those that nobody needs.
func TestJoinedPagesHaveTheLaterPlace(t *testing.T) {
	for _, tc := range []struct {
		name         string
		below, above uint32 // epochs; a third chunk has epoch 2
	}{{"above is later", 1, 3}, {"below is later", 3, 1}} {
		t.Run(tc.name, func(t *testing.T) {
			e := newEdge(t, 8, Config{})
			e.must(e.reserve())
			e.epochs.SkipTo(4)
			at := map[uint32]uint64{tc.below: 0, tc.above: 2, 2: 5}
			for epoch := uint32(3); epoch > 0; epoch-- {
				_, c := e.mapAt(&e.large, e.base, at[epoch], at[epoch]+1)
				c.Stream, c.Requested = epoch, uint64(epoch)
				e.ops = max(e.ops, uint64(epoch))
			}
			_, c := e.mapAt(&e.large, e.base, 1, 2)
			if c.Size != 3*edgePage || c.Stream != 3 || c.Requested != 3 {
				t.Errorf("chunk of %d bytes, epoch %d, freed by operation %d", c.Size, c.Stream, c.Requested)
			}
			e.must(e.Check())
		})
	}
}

// TestPackageComment runs the case that the package comment walks through.
func TestPackageComment(t *testing.T) {
	const mib = 1 << 20
	e := newEdge(t, 6, Config{})
	at := func(name string, b alloc.Block, want, mapped, held uint64) {
		t.Helper()
		if got := (b.Addr - e.base) / mib; got != want || e.mapped != mapped || e.held != held {
			t.Errorf("%s lies at %d, want %d; %d pages are mapped and %d held, want %d and %d", name, got, want, e.mapped, e.held, mapped, held)
		}
	}
	a := e.alloc(5 * mib)
	at("A", a, 128, 3, 3)
	at("B", e.alloc(3*mib), 133, 4, 4)
	e.must(e.Free(a))
	if e.held != 2 {
		t.Errorf("%d pages are held after the free of A, want 2", e.held)
	}
	at("C", e.alloc(7*mib), 126, 5, 5)
	if _, err := e.Alloc(alloc.Request{Bytes: 3 * mib}); !errors.Is(err, alloc.ErrNoMemory) {
		t.Errorf("D: %v", err)
	}
}

// TestSmallBlockTakesASmallRest: of a free chunk that is at most an eighth larger a small
// block gets all, and just its bytes if the rest is of use or pages are short.
func TestSmallBlockTakesASmallRest(t *testing.T) {
	for _, tc := range []struct {
		name              string
		pages             uint64
		hole, bytes, want uint64
	}{
		{"an eighth", 8, 9 << 10, 8 << 10, 9 << 10},
		{"more than an eighth", 8, 9<<10 + 256, 8 << 10, 8 << 10},
		{"just as large", 8, 8 << 10, 8 << 10, 8 << 10},
		{"below the unit", 8, 1024, 512, 512},
		{"pages are short", 1, 9 << 10, 8 << 10, 8 << 10},
		{"a large block", 8, 9 * edgePage, 8 * edgePage, 8 * edgePage},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := newEdge(t, max(tc.pages, tc.hole/edgePage*2), Config{})
			hole := e.alloc(tc.hole)
			e.alloc(256) // keeps the hole apart from what is free above
			e.must(e.Free(hole))
			if b := e.alloc(tc.bytes); b.Size != tc.want {
				t.Errorf("%d bytes of a hole of %d, want %d", b.Size, tc.hole, tc.want)
			}
			e.must(e.Check())
		})
	}
}
