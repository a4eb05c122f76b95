package pytorch_test

import (
	"errors"
	"testing"

	"gpumem/alloc"
	"gpumem/alloc/internal/pytorch"
	"gpumem/alloc/streams"
	"gpumem/device"
	"gpumem/device/sim"
)

// emptyPool is a pool on a device of 100 MiB.
func emptyPool(t *testing.T, cfg pytorch.Config, tracker func(device.Streams) *streams.Tracker) *pytorch.Allocator {
	t.Helper()
	dev, err := sim.New(sim.Config{Total: 100 << 20})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Streams = tracker(dev)
	a, err := pytorch.New(dev, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestRestoredSegments: a pool that begins with given blocks uses the holes between them
// as if it had made them.
func TestRestoredSegments(t *testing.T) {
	const mib = 1 << 20
	dev, err := sim.New(sim.Config{Total: 100 * mib})
	if err != nil {
		t.Fatal(err)
	}
	a, err := pytorch.New(dev, pytorch.Config{})
	if err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		if err := a.Check(); err != nil {
			t.Fatal(err)
		}
	}
	place, err := a.Restore(pytorch.Recorded{}, 20*mib)
	if err != nil {
		t.Fatal(err)
	}
	put := func(bytes, offset, size uint64) alloc.Block {
		t.Helper()
		b, err := place(alloc.Request{Bytes: bytes}, offset, size)
		if err != nil || b.Size != size || a.Live(b) != nil {
			t.Fatalf("%v, %v", b, err)
		}
		check()
		return b
	}
	first := put(2*mib-100, 3*mib, 2*mib)
	second := put(4*mib, 7*mib, 4*mib)
	base := first.Addr - 3*mib
	if second.Addr != base+7*mib {
		t.Errorf("the second block lies at %#x", second.Addr-base)
	}
	for _, bad := range []struct{ bytes, offset, size uint64 }{
		{1, 10 * mib, 512}, {1, 19 * mib, 2 * mib}, {1, 30 * mib, 512}, {1, 12 * mib, 30 * mib}, {600, 12 * mib, 512}, {0, 12 * mib, 512}, {1, 12 * mib, 0},
	} {
		if _, err := place(alloc.Request{Bytes: bad.bytes}, bad.offset, bad.size); !errors.Is(err, alloc.ErrBadRequest) {
			t.Errorf("%+v: %v", bad, err)
		}
		check()
	}
	last := put(9*mib, 11*mib, 9*mib)
	for _, offset := range []uint64{11 * mib, 20 * mib} {
		if _, err := place(alloc.Request{Bytes: 1}, offset, 512); !errors.Is(err, alloc.ErrBadRequest) {
			t.Errorf("a block at %d of a full segment: %v", offset, err)
		}
	}
	for _, want := range []uint64{5 * mib, 0} { // the smaller hole first
		b, err := a.Alloc(alloc.Request{Bytes: 2 * mib})
		if err != nil || b.Addr != base+want {
			t.Errorf("%v at %d, %v; want it at %d", b, b.Addr-base, err, want)
		}
		check()
	}
	if _, err := a.Restore(pytorch.Recorded{}, 90*mib); !errors.Is(err, alloc.ErrNoMemory) {
		t.Errorf("a segment larger than the device has free: %v", err)
	}
	if _, err := a.Restore(pytorch.Recorded{Small: true}, 0); !errors.Is(err, alloc.ErrBadRequest) {
		t.Errorf("an empty segment: %v", err)
	}
	for _, b := range []alloc.Block{second, last, first} {
		if err := a.Free(b); err != nil {
			t.Fatal(err)
		}
		check()
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Restore(pytorch.Recorded{Small: true}, mib); !errors.Is(err, alloc.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	paged, err := pytorch.New(dev, pytorch.Config{Expandable: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := paged.Restore(pytorch.Recorded{Small: true}, 0); !errors.Is(err, alloc.ErrBadRequest) {
		t.Errorf("expandable segments: %v", err)
	}
}

// TestRestoredPages: an expandable segment with memory at given places grows where the
// recorded one would: first into the lowest gap that has room.
func TestRestoredPages(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		name   string
		ranges []pytorch.Pages
		err    error
	}{
		{"pages", []pytorch.Pages{{Offset: 20 * mib, Bytes: 20 * mib}, {Offset: 80 * mib, Bytes: 40 * mib}}, nil},
		{"no pages", nil, alloc.ErrBadRequest},
		{"an empty range", []pytorch.Pages{{Bytes: 20 * mib}, {Offset: 40 * mib}}, alloc.ErrBadRequest},
		{"the same pages twice", []pytorch.Pages{{Bytes: 20 * mib}, {Bytes: 20 * mib}}, alloc.ErrBadRequest},
		{"half a page", []pytorch.Pages{{Offset: 20 * mib, Bytes: 10 * mib}}, alloc.ErrBadRequest},
		{"between pages", []pytorch.Pages{{Offset: 10 * mib, Bytes: 20 * mib}}, alloc.ErrBadRequest},
		{"in falling order", []pytorch.Pages{{Offset: 80 * mib, Bytes: 20 * mib}, {Offset: 20 * mib, Bytes: 20 * mib}}, alloc.ErrBadRequest},
		{"beyond the addresses", []pytorch.Pages{{Offset: 400 * mib, Bytes: 20 * mib}}, alloc.ErrBadRequest},
		{"past the end of the addresses", []pytorch.Pages{{Offset: 220 * mib, Bytes: 40 * mib}}, alloc.ErrBadRequest},
		{"more than the device has", []pytorch.Pages{{Bytes: 220 * mib}}, alloc.ErrNoMemory},
	} {
		t.Run(c.name, func(t *testing.T) {
			dev, err := sim.New(sim.Config{Total: 200 * mib})
			if err != nil {
				t.Fatal(err)
			}
			a, err := pytorch.New(dev, pytorch.Config{Expandable: true})
			if err != nil {
				t.Fatal(err)
			}
			place, err := a.RestorePaged(pytorch.Recorded{}, c.ranges)
			if !errors.Is(err, c.err) {
				t.Fatal(err)
			}
			if err := a.Check(); err != nil {
				t.Fatal(err)
			}
			if c.err == nil {
				growsInGaps(t, a, place)
			}
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
			if free, _, _ := dev.MemInfo(); free != 200*mib {
				t.Errorf("%d bytes are free after Close", free)
			}
		})
	}
}

func growsInGaps(t *testing.T, a *pytorch.Allocator, place []pytorch.Placer) {
	const mib = 1 << 20
	low, err := place[0](alloc.Request{Bytes: 15 * mib}, 0, 15*mib)
	if err != nil {
		t.Fatal(err)
	}
	high, err := place[1](alloc.Request{Bytes: 30 * mib}, 10*mib, 30*mib)
	if err != nil || high.Addr-low.Addr != 70*mib {
		t.Fatalf("the second block lies %d above the first, %v", high.Addr-low.Addr, err)
	}
	for _, want := range []struct {
		bytes uint64
		above int64
	}{
		{8 * mib, 60 * mib}, // the 10 MiB below the second block, for they cannot grow
		{4 * mib, 15 * mib}, // behind the first block
		{40 * mib, 19 * mib},
		{30 * mib, 100 * mib}, // behind the second block: the gap has too few addresses left
		{20 * mib, -20 * mib},
	} {
		b, err := a.Alloc(alloc.Request{Bytes: want.bytes})
		if err != nil || int64(b.Addr-low.Addr) != want.above {
			t.Errorf("%d bytes lie %d above the first block, %v; want %d", want.bytes, int64(b.Addr-low.Addr), err, want.above)
		}
		if err := a.Check(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRestoredSegmentIsOfItsPool: small requests, those of a stream and those of a private pool
// have segments of their own.
func TestRestoredSegmentIsOfItsPool(t *testing.T) {
	const mib, kib = 1 << 20, 1 << 10
	for _, c := range []struct {
		name     string
		recorded pytorch.Recorded
		request  alloc.Request
		private  uint64 // serves the request
		want     bool   // the segment serves it
	}{
		{"large", pytorch.Recorded{}, alloc.Request{Bytes: 2 * mib}, 0, true},
		{"large, and the request is small", pytorch.Recorded{}, alloc.Request{Bytes: kib}, 0, false},
		{"small", pytorch.Recorded{Small: true}, alloc.Request{Bytes: kib}, 0, true},
		{"small, and the request is large", pytorch.Recorded{Small: true}, alloc.Request{Bytes: 2 * mib}, 0, false},
		{"of a stream", pytorch.Recorded{Stream: 3}, alloc.Request{Bytes: 2 * mib, Stream: 3}, 0, true},
		{"of a stream, and the request is of none", pytorch.Recorded{Stream: 3}, alloc.Request{Bytes: 2 * mib}, 0, false},
		{"private", pytorch.Recorded{Private: 7}, alloc.Request{Bytes: 2 * mib}, 7, true},
		{"private, and another pool serves", pytorch.Recorded{Private: 7}, alloc.Request{Bytes: 2 * mib}, 8, false},
		{"private, and no private pool serves", pytorch.Recorded{Private: 7}, alloc.Request{Bytes: 2 * mib}, 0, false},
	} {
		a := emptyPool(t, pytorch.Config{}, streams.Creating)
		for _, r := range []pytorch.Recorded{{Private: 6}, c.recorded} {
			if _, err := a.Restore(r, 20*mib); err != nil {
				t.Fatal(err)
			}
		}
		before := a.Stats().PoolBytes
		if c.private != 0 {
			if err := a.BeginPool(c.private, nil); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := a.Alloc(c.request); err != nil {
			t.Fatal(err)
		}
		if got := a.Stats().PoolBytes == before; got != c.want {
			t.Errorf("%s: the segment serves the request: %v", c.name, got)
		}
		if err := a.Check(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestRestoredSegmentOfAnUnknownStream: there is no list that it could be in.
func TestRestoredSegmentOfAnUnknownStream(t *testing.T) {
	a := emptyPool(t, pytorch.Config{}, streams.New)
	if _, err := a.Restore(pytorch.Recorded{Stream: 9}, 20<<20); !errors.Is(err, alloc.ErrBadRequest) {
		t.Error(err)
	}
}

// TestRestoredPrivatePoolHasAUser: it keeps its memory until that is released.
func TestRestoredPrivatePoolHasAUser(t *testing.T) {
	const mib = 1 << 20
	a := emptyPool(t, pytorch.Config{}, streams.Single)
	for range 2 {
		if _, err := a.Restore(pytorch.Recorded{Private: 7}, 20*mib); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := a.Trim(0); n != 0 || err != nil {
		t.Errorf("%d bytes go back while the pool has a user, %v", n, err)
	}
	if err := a.ReleasePool(7); err != nil {
		t.Fatal(err)
	}
	if n, err := a.Trim(0); n != 40*mib || err != nil {
		t.Errorf("%d bytes go back, %v", n, err)
	}
}

// TestRestoredSegmentsKeepTheLimit: segments are taken up to it.
func TestRestoredSegmentsKeepTheLimit(t *testing.T) {
	const mib = 1 << 20
	a := emptyPool(t, pytorch.Config{Limit: 50 * mib}, streams.Single)
	for _, c := range []struct {
		bytes uint64
		err   error
	}{{60 * mib, alloc.ErrNoMemory}, {20 * mib, nil}, {40 * mib, alloc.ErrNoMemory}, {30 * mib, nil}, {2 * mib, alloc.ErrNoMemory}} {
		if _, err := a.Restore(pytorch.Recorded{}, c.bytes); !errors.Is(err, c.err) {
			t.Errorf("%d MiB: %v, want %v", c.bytes/mib, err, c.err)
		}
	}
}

// TestOccupied: a block takes what is not split off behind it.
func TestOccupied(t *testing.T) {
	const mib = 1 << 20
	dev, err := sim.New(sim.Config{Total: 200 * mib})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		cfg         pytorch.Config
		small       bool
		bytes, free uint64
		want        uint64
	}{
		{pytorch.Config{}, true, 700, 1024, 1024},
		{pytorch.Config{}, true, 700, 1536, 1024},
		{pytorch.Config{}, false, 3 * mib, 4 * mib, 4 * mib},
		{pytorch.Config{}, false, 3 * mib, 4*mib + 512, 3 * mib},
		{pytorch.Config{}, false, 3*mib + 1, 3 * mib, 0},
		{pytorch.Config{}, false, 0, 3 * mib, 0},
		{pytorch.Config{Expandable: true}, false, 3 * mib, 3*mib + 512, 3 * mib},
		{pytorch.Config{MaxSplit: 20 * mib}, false, 30 * mib, 40 * mib, 40 * mib},
	} {
		a, err := pytorch.New(dev, c.cfg)
		if err != nil {
			t.Fatal(err)
		}
		if got := a.Occupies(pytorch.Recorded{Small: c.small}, c.bytes, c.free); got != c.want {
			t.Errorf("%+v, small %v: %d bytes of %d take %d, want %d", c.cfg, c.small, c.bytes, c.free, got, c.want)
		}
	}
}
