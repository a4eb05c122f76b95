package vmm_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"gpumem/alloc"
	"gpumem/alloc/internal/ref"
	"gpumem/alloc/internal/vmm"
	"gpumem/device"
	"gpumem/device/sim"
)

func TestStreams(t *testing.T) {
	for _, tc := range []struct {
		name string
		use  func(b *bench) alloc.Block // gives a block of 10 pages, in use
		wait time.Duration              // until it can go back
	}{
		{"its own", func(b *bench) alloc.Block {
			k := b.alloc(alloc.Request{Bytes: 10 * page, Stream: 1})
			b.work(1, k)
			return k
		}, time.Hour},
		{"another's work", func(b *bench) alloc.Block {
			k := b.alloc(alloc.Request{Bytes: 10 * page, Stream: 1})
			b.work(2, b.pages(1))
			return k
		}, 0},
		{"used in two", func(b *bench) alloc.Block {
			k := b.alloc(alloc.Request{Bytes: 10 * page, Stream: 1})
			for range 2 {
				if err := b.a.Record(k, 2); err != nil {
					b.Fatal(err)
				}
			}
			b.work(2, k)
			return k
		}, time.Hour},
		{"in its former life", func(b *bench) alloc.Block {
			k := b.alloc(alloc.Request{Bytes: 10 * page, Stream: 1})
			b.work(1, k)
			b.free(k)
			return b.alloc(alloc.Request{Bytes: 10 * page, Stream: 2})
		}, time.Hour},
		{"the batch's other blocks", func(b *bench) alloc.Block {
			k, other := b.alloc(alloc.Request{Bytes: 10 * page, Stream: 1}), b.alloc(alloc.Request{Bytes: page, Stream: 2})
			b.work(2, other)
			b.free(other)
			return k
		}, time.Hour},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := open(t, sim.Config{Total: 1 << 30}, vmm.Config{})
			k := tc.use(b)
			b.free(k)
			before := b.dev.Now()
			if n, err := b.a.Trim(0); n < k.Size || err != nil {
				t.Fatal(n, err)
			}
			if took := b.dev.Now() - before; took < tc.wait || took > tc.wait+time.Minute {
				t.Errorf("waited %v, want %v", took, tc.wait)
			}
			b.check()
		})
	}
}

func TestOneWait(t *testing.T) {
	b := open(t, sim.Config{Total: 1 << 30}, vmm.Config{})
	var blocks []alloc.Block
	for range 5 {
		blocks = append(blocks, b.pages(33)) // a batch each
		b.work(0, blocks[len(blocks)-1])
	}
	b.free(blocks...)
	b.called()
	if n, err := b.a.Trim(2 * 33 * page); n != 3*33*page || err != nil {
		t.Fatal(n, err)
	}
	want := "cuEventCreate cuEventRecord cuEventSynchronize" + strings.Repeat(" "+callsReclaim, 3)
	if calls := b.called(); calls != want {
		t.Errorf("calls %q, want %q", calls, want)
	}
	b.check()
}

func TestManyStreams(t *testing.T) {
	asked := map[uint32]int{}
	b := open(t, sim.Config{Total: 1 << 30}, vmm.Config{})
	b.streamOf = func(n uint32) (device.Stream, error) {
		asked[n]++
		if n == 1000 {
			return 0, errors.New("no stream 1000")
		}
		return b.dev.StreamCreate()
	}
	var blocks []alloc.Block
	for n := range uint32(80) {
		k := b.alloc(alloc.Request{Bytes: page, Stream: n})
		b.work(device.Stream(n+3), k) // after those that open makes
		blocks = append(blocks, k)
	}
	if k, err := b.a.Alloc(alloc.Request{Bytes: page, Stream: 1000}); err == nil || !k.IsZero() {
		t.Errorf("a stream that is none: %v, %v", k, err)
	}
	if err := b.a.Record(blocks[0], 1000); err == nil {
		t.Error("a stream that is none can be used")
	}
	b.check()
	b.free(blocks[:3]...)
	for i := len(blocks) - 1; i >= 3; i-- {
		b.free(blocks[i])
	}
	if n, err := b.a.Trim(page); n != 79*page || err != nil {
		t.Fatal(n, err)
	}
	for n, times := range asked {
		if times != 1 && n != 1000 {
			t.Errorf("stream %d was asked for %d times", n, times)
		}
	}
	if err := b.a.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestRecord(t *testing.T) {
	b := open(t, sim.Config{Total: 1 << 30}, vmm.Config{})
	k := b.pages(1)
	b.free(k)
	for _, tc := range []struct {
		name string
		k    alloc.Block
		want error
	}{
		{"an empty block", alloc.Block{}, nil},
		{"a freed block", k, alloc.ErrNotAllocated},
		{"another's block", alloc.Block{Addr: k.Addr, Size: k.Size, Ref: ref.Make(99, 1)}, alloc.ErrNotAllocated},
	} {
		if err := b.a.Record(tc.k, 1); !errors.Is(err, tc.want) || errors.Is(err, alloc.ErrDoubleFree) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
	}
	if err := b.a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.a.Record(k, 1); !errors.Is(err, alloc.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if k, err := b.a.BlockAt(k.Addr); !errors.Is(err, alloc.ErrClosed) {
		t.Errorf("after Close: %v, %v", k, err)
	}
}
