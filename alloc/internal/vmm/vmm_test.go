package vmm_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"gpumem/alloc"
	"gpumem/alloc/internal/vmm"
	"gpumem/alloc/streams"
	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/internal/invariants"
)

// The contract is checked by package alloctest; here is what is vmm's own.

const (
	mib  = 1 << 20
	page = 2 * mib
)

// bench is an allocator on a simulated device, which notes the driver's calls.
type bench struct {
	testing.TB
	dev   *sim.Device
	a     *vmm.Allocator
	calls []string // since the last look
	marks int      // calls that record an event, in all
	// streamOf gives the streams of requests; nil: a number is the device's stream
	streamOf func(uint32) (device.Stream, error)
}

// open makes one whose stream numbers are the device's streams, of which there
// are three.
func open(t testing.TB, dev sim.Config, cfg vmm.Config) *bench {
	t.Helper()
	d, err := sim.New(dev)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{TB: t, dev: d}
	for range 2 {
		if _, err := d.StreamCreate(); err != nil {
			t.Fatal(err)
		}
	}
	cfg.Streams = streams.Of(d, func(n uint32) (device.Stream, error) {
		if b.streamOf != nil {
			return b.streamOf(n)
		}
		return device.Stream(n), nil
	})
	if b.a, err = vmm.New(d, cfg); err != nil {
		t.Fatal(err)
	}
	d.OnCall(func(_ uint64, name string, _ uint64) error {
		b.calls = append(b.calls, name)
		if name == "cuEventRecord" {
			b.marks++
		}
		return nil
	})
	t.Cleanup(func() {
		t.Helper()
		if found := d.Hazards(); len(found) > 0 {
			t.Errorf("hazards: %v", found)
		}
	})
	return b
}

// alloc must be served.
func (b *bench) alloc(r alloc.Request) alloc.Block {
	b.Helper()
	got, err := b.a.Alloc(r)
	if err != nil {
		b.Fatalf("%+v: %v", r, err)
	}
	b.check()
	return got
}

// pages asks for n pages, less a byte, in stream 0.
func (b *bench) pages(n uint64) alloc.Block {
	b.Helper()
	return b.alloc(alloc.Request{Bytes: n*page - 1})
}

func (b *bench) free(blocks ...alloc.Block) {
	b.Helper()
	for _, k := range blocks {
		if err := b.a.Free(k); err != nil {
			b.Fatal(err)
		}
		b.check()
	}
}

// work keeps a block in use by a stream for an hour.
func (b *bench) work(s device.Stream, k alloc.Block) {
	b.Helper()
	if err := b.dev.Work(s, time.Hour, nil, []device.Range{{Addr: k.Addr, Bytes: k.Size}}); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) check() {
	b.Helper()
	if err := b.a.Check(); err != nil {
		b.Fatal(err)
	}
	held, _ := b.dev.Held()
	if s := b.a.Stats(); s.PoolBytes != held || s.Fragmentation() < 0 || s.Fragmentation() > 1 {
		b.Fatalf("statistics %+v, fragmentation %g; the device says %d are held", s, s.Fragmentation(), held)
	}
}

// called says which driver calls there were since the last time.
func (b *bench) called() string {
	c := strings.Join(b.calls, " ")
	b.calls = nil
	return c
}

// pending are the addresses that are not live, ascending.
func (b *bench) pending() (addrs []uint64) {
	b.a.Walk(func(c alloc.Chunk) bool {
		if !c.Live {
			addrs = append(addrs, c.Addr)
		}
		return true
	})
	return addrs
}

const (
	callsFresh   = "cuMemCreate cuMemAddressReserve cuMemMap cuMemSetAccess"
	callsReclaim = "cuMemUnmap cuMemRelease cuMemAddressFree"
)

func TestNew(t *testing.T) {
	for _, tc := range []struct {
		name   string
		dev    sim.Config
		refuse []string // parts of the error
	}{
		{"plain", sim.Config{Total: 1 << 30}, nil},
		{"Volta, the first that has all", sim.Config{Total: 1 << 30, CCMajor: 7}, nil},
		{"Pascal", sim.Config{Total: 1 << 30, CCMajor: 6, CCMinor: 1}, []string{
			"UNIMPLEMENTED: Device 0 does not support 64-bit stream memory operations (cuStreamWriteValue64 requires compute capability >= 7.0). " +
				"Query CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS returned false.", "has 6.1", "use bfc or platform",
		}},
		{"no virtual memory", sim.Config{Total: 1 << 30, NoPages: true, Name: "vGPU"}, []string{"vGPU", "lacks the calls for virtual memory", "use bfc or platform there, or async"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dev, err := sim.New(tc.dev)
			if err != nil {
				t.Fatal(err)
			}
			var log alloc.Report
			a, err := vmm.New(dev, vmm.Config{Budget: 805306368, Log: func(m alloc.Message) { log = append(log, m) }})
			if n := dev.Counters().Calls; n != 0 {
				t.Errorf("%d driver calls", n)
			}
			if tc.refuse == nil {
				if err != nil || a.Name() != "vmm" {
					t.Fatalf("%v, %v", a, err)
				}
				want := "I VMM device-address allocator pa_budget for device 0: 805306368 bytes.\n"
				if log.String() != want {
					t.Errorf("logged %q, want %q", log, want)
				}
				return
			}
			if !errors.Is(err, device.ErrNotSupported) || a != nil || len(log) > 0 {
				t.Fatalf("%v, %v, logged %q; want ErrNotSupported", a, err, log)
			}
			for _, part := range tc.refuse {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
		})
	}
}

func TestReuse(t *testing.T) {
	type free struct {
		pages uint64
		end   alloc.End
	}
	for _, tc := range []struct {
		name  string
		frees []free
		ask   alloc.Request
		want  int // which of the freed ones; -1: a fresh one
	}{
		{"nothing pending", nil, alloc.Request{Bytes: page}, -1},
		{"the same", []free{{1, alloc.Lower}}, alloc.Request{Bytes: page}, 0},
		{"a byte is a page", []free{{1, alloc.Lower}}, alloc.Request{Bytes: 1}, 0},
		{"a byte more is the next page", []free{{1, alloc.Lower}, {2, alloc.Lower}}, alloc.Request{Bytes: page + 1}, 1},
		{"not a larger one", []free{{3, alloc.Lower}}, alloc.Request{Bytes: page}, -1},
		{"not two smaller ones", []free{{1, alloc.Lower}, {1, alloc.Lower}}, alloc.Request{Bytes: 2 * page}, -1},
		{"the first freed", []free{{2, alloc.Lower}, {1, alloc.Lower}, {1, alloc.Lower}}, alloc.Request{Bytes: page}, 1},
		{"not the other end's", []free{{1, alloc.Upper}}, alloc.Request{Bytes: page}, -1},
		{"the upper end's", []free{{1, alloc.Lower}, {1, alloc.Upper}}, alloc.Request{Bytes: page, End: alloc.Upper}, 1},
		{"a handle of its own it always has", []free{{1, alloc.Lower}}, alloc.Request{Bytes: page, OneHandle: true}, 0},
		{"aligned to the page", []free{{1, alloc.Lower}}, alloc.Request{Bytes: page, Align: page}, 0},
		{"in another stream", []free{{1, alloc.Lower}}, alloc.Request{Bytes: page, Stream: 1}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := open(t, sim.Config{Total: 1 << 30}, vmm.Config{})
			var blocks []alloc.Block
			for _, f := range tc.frees {
				blocks = append(blocks, b.alloc(alloc.Request{Bytes: f.pages * page, End: f.end}))
			}
			// Work in stream 0 still runs: reuse does not mind.
			for _, k := range blocks {
				b.work(0, k)
			}
			b.free(blocks...)
			b.called()
			got := b.alloc(tc.ask)
			if tc.want < 0 {
				if calls := b.called(); calls != callsFresh {
					t.Errorf("calls %q, want a fresh block", calls)
				}
				return
			}
			if calls := b.called(); calls != "" || got.Addr != blocks[tc.want].Addr {
				t.Errorf("got %v after %q, want %v and no calls", got, calls, blocks[tc.want])
			}
			if err := b.a.Free(blocks[tc.want]); !errors.Is(err, alloc.ErrDoubleFree) {
				t.Errorf("free of its former life: %v", err)
			}
			if err := b.a.FreeAddr(got.Addr); err != nil {
				t.Error(err)
			}
			if err := b.a.FreeAddr(got.Addr); !errors.Is(err, alloc.ErrDoubleFree) {
				t.Errorf("free of a pending address: %v", err)
			}
			if k, err := b.a.BlockAt(got.Addr); !errors.Is(err, alloc.ErrNotAllocated) {
				t.Errorf("block at a pending address: %v, %v", k, err)
			}
		})
	}
}

func TestBadRequest(t *testing.T) {
	b := open(t, sim.Config{Total: 1 << 30}, vmm.Config{Budget: 10*page + 5})
	for _, tc := range []struct {
		name string
		r    alloc.Request
		want error
	}{
		{"alignment above the page", alloc.Request{Bytes: 1, Align: 2 * page}, alloc.ErrBadRequest},
		{"alignment of no power of two", alloc.Request{Bytes: 1, Align: 3}, alloc.ErrBadRequest},
		{"above the budget", alloc.Request{Bytes: 10*page + 1}, alloc.ErrNever},
		{"above 2^64", alloc.Request{Bytes: 1<<64 - 1}, alloc.ErrTooLarge},
	} {
		if k, err := b.a.Alloc(tc.r); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, %v; want %v", tc.name, k, err, tc.want)
		}
	}
	if calls := b.called(); calls != "" {
		t.Errorf("calls %q", calls)
	}
	b.pages(10)
}

func TestTrim(t *testing.T) {
	b := open(t, sim.Config{Total: 1 << 30}, vmm.Config{})
	live := b.pages(4)
	one, two, up := b.pages(1), b.pages(2), b.alloc(alloc.Request{Bytes: 3 * page, End: alloc.Upper})
	b.free(up, one, two)
	for _, tc := range []struct {
		keep, released uint64 // pages
	}{{10, 0}, {8, 3}, {7, 0}, {0, 3}, {0, 0}} {
		n, err := b.a.Trim(tc.keep * page)
		if err != nil || n != tc.released*page {
			t.Errorf("down to %d pages: %d bytes, %v; want %d pages", tc.keep, n, err, tc.released)
		}
		b.check()
	}
	if got := b.a.Stats().PoolBytes; got != live.Size {
		t.Errorf("%d bytes are held, want the live block's", got)
	}
}

func TestStats(t *testing.T) {
	b := open(t, sim.Config{Total: 1 << 30}, vmm.Config{Budget: 100 * page})
	want := func(what string, inUse, pool, largest uint64) {
		t.Helper()
		s := b.a.Stats()
		if s.BytesInUse != inUse*page || s.PoolBytes != pool*page || s.LargestFreeBlock != largest*page || s.BytesLimit != 100*page {
			t.Errorf("%s: %+v; want %d, %d, %d pages", what, s, inUse, pool, largest)
		}
	}
	want("new", 0, 0, 0)
	x, y := b.pages(30), b.pages(50)
	want("two live", 80, 80, 0)
	b.free(x)
	want("one pending", 50, 80, 30)
	b.free(y)
	want("two pending", 0, 80, 50)
	b.pages(30)
	want("one of them again", 30, 80, 50)
	z := b.pages(20)
	b.free(z)
	want("at the budget", 30, 100, 50)
	if s := b.a.Stats(); s.NumAllocs != 4 || s.PeakBytesInUse != 80*page || s.PeakPoolBytes != 100*page || s.LargestAllocSize != 50*page {
		t.Errorf("%+v", s)
	}
	if f := b.a.Stats().Fragmentation(); f != 2.0/7 { // 50 of 70 in one piece
		t.Errorf("fragmentation %g", f)
	}
}

func TestReport(t *testing.T) {
	b := open(t, sim.Config{Total: 50 * page}, vmm.Config{Budget: 100 * page})
	b.pages(30)
	for _, tc := range []struct {
		ask  uint64
		want string
	}{
		{75 * page, "Not enough PA budget: pa_allocated=62914560B, allocation_size=157286400B, pa_budget=209715200B"},
		{75*page - 1, "Not enough PA budget: pa_allocated=62914560B, allocation_size=157286400B, pa_budget=209715200B"},
		{60 * page, "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY: out of memory"},
	} {
		if _, err := b.a.Alloc(alloc.Request{Bytes: tc.ask}); !errors.Is(err, alloc.ErrNoMemory) || errors.Is(err, alloc.ErrNever) {
			t.Errorf("%d bytes: %v", tc.ask, err)
		}
		if got := b.a.Report(alloc.Request{Bytes: tc.ask}).String(); got != "E RESOURCE_EXHAUSTED: "+tc.want+"\n" {
			t.Errorf("%d bytes: %q", tc.ask, got)
		}
	}
	huge := b.a.Report(alloc.Request{Bytes: 1<<64 - 1}).String()
	if !strings.Contains(huge, "allocation_size=18446744073709551615B") {
		t.Errorf("%q", huge)
	}
}

func TestNoGarbage(t *testing.T) {
	if invariants.Enabled {
		t.Skip("the checks of an invariants build allocate")
	}
	b := open(t, sim.Config{Total: 1 << 30}, vmm.Config{})
	k := b.pages(3)
	if n := testing.AllocsPerRun(1000, func() {
		_ = b.a.Free(k)
		k, _ = b.a.Alloc(alloc.Request{Bytes: 3 * page, Stream: 1})
		_ = b.a.FreeAddr(k.Addr)
		k, _ = b.a.Alloc(alloc.Request{Bytes: 3 * page})
	}); n != 0 {
		t.Errorf("%v allocations on the Go heap for 4 operations", n)
	}
}

func TestWhy(t *testing.T) {
	dev, err := sim.New(sim.Config{Total: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	a, err := vmm.New(dev, vmm.Config{Budget: 32 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Alloc(alloc.Request{Bytes: 30<<20 - 5}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		bytes uint64
		free  int64
		want  string
	}{
		{3 << 20, 34 << 20, "It needs 4 MiB of separate memory. Of the budget of 32 MiB, 30 MiB is live, and 0 B freed but not released.\nThe device has 34 MiB free."},
		{3 << 20, -1, "It needs 4 MiB of separate memory. Of the budget of 32 MiB, 30 MiB is live, and 0 B freed but not released."},
		{33 << 20, 1, "It is more than the budget of 32 MiB; no free would help."},
		{1<<64 - 1, 1, "It is more than the budget of 32 MiB; no free would help."},
	} {
		if got := strings.Join(a.Why(alloc.Request{Bytes: tc.bytes}, tc.free), "\n"); got != tc.want {
			t.Errorf("%d bytes, %d free:\n%s\nwant\n%s", tc.bytes, tc.free, got, tc.want)
		}
	}
}
