package pytorch_test

import (
	"errors"
	"testing"

	"gpumem/alloc"
	"gpumem/alloc/internal/pytorch"
	"gpumem/device/sim"
)

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
	place, err := a.Restore(20*mib, 0, false)
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
		{1, 10 * mib, 512}, {1, 19 * mib, 2 * mib}, {1, 30 * mib, 512}, {600, 12 * mib, 512}, {0, 12 * mib, 512}, {1, 12 * mib, 0},
	} {
		if _, err := place(alloc.Request{Bytes: bad.bytes}, bad.offset, bad.size); !errors.Is(err, alloc.ErrBadRequest) {
			t.Errorf("%+v: %v", bad, err)
		}
		check()
	}
	last := put(9*mib, 11*mib, 9*mib)
	if _, err := place(alloc.Request{Bytes: 1}, 20*mib, 512); !errors.Is(err, alloc.ErrBadRequest) {
		t.Errorf("a block behind the last: %v", err)
	}
	for _, want := range []uint64{5 * mib, 0} { // the smaller hole first
		b, err := a.Alloc(alloc.Request{Bytes: 2 * mib})
		if err != nil || b.Addr != base+want {
			t.Errorf("%v at %d, %v; want it at %d", b, b.Addr-base, err, want)
		}
		check()
	}
	if _, err := a.Restore(90*mib, 0, false); !errors.Is(err, alloc.ErrNoMemory) {
		t.Errorf("a segment larger than the device has free: %v", err)
	}
	if _, err := a.Restore(0, 0, true); !errors.Is(err, alloc.ErrBadRequest) {
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
	if _, err := a.Restore(mib, 0, true); !errors.Is(err, alloc.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	paged, err := pytorch.New(dev, pytorch.Config{Expandable: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := paged.Restore(mib, 0, true); !errors.Is(err, alloc.ErrBadRequest) {
		t.Errorf("expandable segments: %v", err)
	}
}
