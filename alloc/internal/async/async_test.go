package async_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"gpumem/alloc"
	"gpumem/alloc/internal/async"
	"gpumem/alloc/streams"
	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/size"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)

// world is an allocator on a device with four streams, numbers 0 to 3.
type world struct {
	t       testing.TB
	dev     *sim.Device
	a       *async.Allocator
	streams [4]device.Stream
	log     alloc.Report
}

func newWorld(t testing.TB, total uint64, cfg async.Config) *world {
	t.Helper()
	return newWorldOn(t, sim.Config{Total: total}, cfg)
}

func newWorldOn(t testing.TB, on sim.Config, cfg async.Config) *world {
	t.Helper()
	dev, err := sim.New(on)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, dev: dev}
	for i := 1; i < len(w.streams); i++ {
		if w.streams[i], err = dev.StreamCreate(); err != nil {
			t.Fatal(err)
		}
	}
	cfg.Streams = streams.Of(dev, func(n uint32) (device.Stream, error) { return w.streams[n], nil })
	cfg.Log = func(m alloc.Message) { w.log = append(w.log, m) }
	if w.a, err = async.New(dev, cfg); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) alloc(bytes uint64, stream uint32) alloc.Block {
	w.t.Helper()
	b, err := w.a.Alloc(alloc.Request{Bytes: bytes, Stream: stream})
	w.ok(err)
	return b
}

func (w *world) ok(errs ...error) {
	w.t.Helper()
	if err := errors.Join(errs...); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) held() uint64 {
	now, _ := w.dev.Held()
	return now
}

// attribute asks the device, and not the allocator.
func (w *world) attribute(a device.PoolAttribute) uint64 {
	w.t.Helper()
	p, err1 := w.dev.DefaultPool()
	v, err2 := w.dev.PoolGetAttribute(p, a)
	w.ok(err1, err2)
	return v
}

// work is a kernel of a millisecond that writes the block.
func (w *world) work(b alloc.Block, stream uint32) error {
	return w.dev.Work(w.streams[stream], time.Millisecond, nil, []device.Range{{Addr: b.Addr, Bytes: b.Size}})
}

// after makes work in one stream come after what is in another now, as a program
// does that uses a block in two.
func (w *world) after(stream, other uint32) {
	w.t.Helper()
	e, err := w.dev.EventCreate()
	w.ok(err, w.dev.EventRecord(e, w.streams[other]), w.dev.StreamWaitEvent(w.streams[stream], e), w.dev.EventDestroy(e))
}

// TestNew: no driver call and no device without pools.
func TestNew(t *testing.T) {
	w := newWorld(t, gib, async.Config{Reserve: 512 * mib, Preallocate: 512 * mib})
	calls := w.dev.Counters().Calls
	if _, err := async.New(w.dev, async.Config{}); err != nil || w.dev.Counters().Calls != calls {
		t.Errorf("New: %v after %d driver calls", err, w.dev.Counters().Calls-calls)
	}
	if w.a.Name() != "gpu_async_0" {
		t.Errorf("the name is %q", w.a.Name())
	}
	// Never used, it leaves the pool alone.
	w.ok(w.a.Close())
	if w.dev.Counters().Calls != calls {
		t.Errorf("%d driver calls without a request", w.dev.Counters().Calls-calls)
	}
	without, err := sim.New(sim.Config{Total: gib, NoPools: true, Name: "old"})
	w.ok(err)
	_, err = async.New(without, async.Config{})
	const want = "CUDA_ERROR_NOT_SUPPORTED: operation not supported: TF_GPU_ALLOCATOR=cuda_malloc_async isn't currently supported on GPU id 0: " +
		"Possible causes: device not supported (request SM60+), driver too old,  OS not supported, CUDA version too old(request CUDA11.2+). " +
		"Use another policy for old, such as bfc or platform"
	if !errors.Is(err, device.ErrNotSupported) || err.Error() != want {
		t.Errorf("a device without pools: %v", err)
	}
}

// TestCalls: what a request costs in driver calls, and what it answers.
func TestCalls(t *testing.T) {
	for _, tc := range []struct {
		name  string
		r     alloc.Request
		want  error
		calls uint64
	}{
		{"nothing", alloc.Request{}, nil, 0},
		{"a byte", alloc.Request{Bytes: 1}, nil, 1},
		{"all that is left", alloc.Request{Bytes: 32 * mib}, nil, 1},
		{"what never fits", alloc.Request{Bytes: 64*mib + 1}, alloc.ErrNever, 3},
		{"what does not fit now", alloc.Request{Bytes: 48 * mib}, alloc.ErrNoMemory, 3},
		{"2^64-1", alloc.Request{Bytes: math.MaxUint64}, alloc.ErrNever, 3},
		{"past 2^64", alloc.Request{Bytes: math.MaxUint64 - 10, Align: 512}, alloc.ErrTooLarge, 0},
		{"never with its alignment", alloc.Request{Bytes: 1, Align: 1 << 40}, alloc.ErrNever, 0},
		{"no alignment", alloc.Request{Bytes: 1, Align: 24}, alloc.ErrBadRequest, 0},
		{"aligned", alloc.Request{Bytes: 1, Align: 4096}, nil, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, 64*mib, async.Config{})
			w.alloc(100, 0)
			before := w.dev.Counters().Calls
			b, err := w.a.Alloc(tc.r)
			if n := w.dev.Counters().Calls - before; n != tc.calls {
				t.Errorf("%d driver calls, want %d", n, tc.calls)
			}
			if !errors.Is(err, tc.want) || errors.Is(err, alloc.ErrNever) != errors.Is(tc.want, alloc.ErrNever) {
				t.Fatalf("%v, %v; want %v", b, err, tc.want)
			}
			if err != nil && err.Error() != tc.want.Error() && tc.want != alloc.ErrBadRequest {
				t.Errorf("a refusal is not bare: %v", err)
			}
			if err == nil && tc.r.Bytes > 0 && (b.Size != tc.r.Bytes || b.Addr%max(tc.r.Align, 256) != 0) {
				t.Errorf("%v", b)
			}
			before = w.dev.Counters().Calls
			w.ok(w.a.Free(b))
			if n := w.dev.Counters().Calls - before; err == nil && n != min(tc.calls, 1) {
				t.Errorf("%d driver calls for the free", n)
			}
			w.ok(w.a.Check())
		})
	}
}

// TestRetry: a synchronise gives back what another grant needs, and the second
// attempt succeeds.
func TestRetry(t *testing.T) {
	w := newWorld(t, 96*mib, async.Config{})
	a, b := w.alloc(32*mib, 0), w.alloc(32*mib, 0)
	w.ok(w.a.Free(a), w.a.Free(b))
	before := w.dev.Counters().Calls
	// Two free chunks of 32 MiB and 32 MiB of the device: 80 MiB fit in neither.
	w.alloc(80*mib, 0)
	if n := w.dev.Counters().Calls - before; n != 3 || w.held() != 96*mib {
		t.Errorf("%d driver calls, %d MiB held; want 3 and 96", n, w.held()/mib)
	}
}

// TestSetUp: what the first request does to the pool, and Close undoes.
func TestSetUp(t *testing.T) {
	attributes := []device.PoolAttribute{device.PoolReleaseThreshold, device.PoolReuseFollowEventDependencies,
		device.PoolReuseAllowOpportunistic, device.PoolReuseAllowInternalDependencies}
	for _, tc := range []struct {
		name   string
		cfg    async.Config
		before [4]uint64
		during [4]uint64
	}{
		{"plain", async.Config{}, [4]uint64{0, 1, 1, 1}, [4]uint64{0, 1, 1, 1}},
		{"reserve", async.Config{Reserve: 7}, [4]uint64{0, 1, 1, 1}, [4]uint64{7, 1, 1, 1}},
		{"deterministic", async.Config{Deterministic: true}, [4]uint64{0, 1, 1, 1}, [4]uint64{0, 1, 0, 0}},
		{"another's threshold", async.Config{}, [4]uint64{9, 1, 1, 1}, [4]uint64{0, 1, 1, 1}},
		{"another's switches", async.Config{Deterministic: true, Reserve: 9}, [4]uint64{9, 0, 0, 1}, [4]uint64{9, 0, 0, 0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, gib, tc.cfg)
			p, err := w.dev.DefaultPool()
			w.ok(err)
			for i, a := range attributes {
				w.ok(w.dev.PoolSetAttribute(p, a, tc.before[i]))
			}
			is := func(when string, want [4]uint64) {
				t.Helper()
				for i, a := range attributes {
					if v := w.attribute(a); v != want[i] {
						t.Errorf("%s: attribute %d is %d, want %d", when, a, v, want[i])
					}
				}
			}
			_, err = w.a.Alloc(alloc.Request{})
			w.ok(err)
			is("after an empty request", tc.before)
			w.alloc(1, 1)
			is("after the first", tc.during)
			w.ok(w.a.Close())
			is("after Close", tc.before)
			if w.held() != 0 {
				t.Errorf("%d bytes are held after Close", w.held())
			}
		})
	}
}

// TestPreallocate: what is held from the first request on, and what of it stays
// over a synchronise.
func TestPreallocate(t *testing.T) {
	for _, tc := range []struct {
		name                 string
		reserve, preallocate uint64
		first, later         uint64 // MiB
		refused              bool
	}{
		{"JAX without preallocation", 0, 0, 32, 0, false},
		{"JAX", 750 * mib, 750 * mib, 768, 768, false},
		{"JAX without preallocation, a number", 0, 100 * mib, 128, 0, false},
		{"a number that is kept", 100 * mib, 100 * mib, 128, 128, false},
		{"kept as it comes", 750 * mib, 0, 32, 32, false},
		{"more than there is", 2 * gib, 2 * gib, 32, 32, true},
		{"a negative number", 0, math.MaxUint64 - 6, 32, 0, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, gib, async.Config{Reserve: tc.reserve, Preallocate: tc.preallocate})
			if w.held() != 0 {
				t.Errorf("%d bytes are held before the first request", w.held())
			}
			b := w.alloc(mib, 1)
			if w.held() != tc.first*mib {
				t.Errorf("%d MiB are held, want %d", w.held()/mib, tc.first)
			}
			s := w.a.Stats()
			want := alloc.Stats{NumAllocs: 1, BytesInUse: mib, PeakBytesInUse: mib, LargestAllocSize: mib,
				BytesLimit: tc.reserve, PoolBytes: tc.first * mib, PeakPoolBytes: tc.first * mib}
			if s != want {
				t.Errorf("statistics %+v, want %+v", s, want)
			}
			w.ok(w.a.Free(b), w.dev.Synchronize())
			if w.held() != tc.later*mib || w.a.Stats().PoolBytes != tc.later*mib {
				t.Errorf("%d MiB are held after a synchronise, want %d; statistics say %d", w.held()/mib, tc.later, w.a.Stats().PoolBytes)
			}
			w.wantRefused(tc.preallocate, tc.refused)
			w.ok(w.a.Close())
			if w.held() != 0 {
				t.Errorf("%d bytes are held after Close", w.held())
			}
		})
	}
}

// wantRefused checks that the log has one refusal of n bytes and what became of it, or nothing.
func (w *world) wantRefused(n uint64, refused bool) {
	w.t.Helper()
	if !refused {
		if len(w.log) > 0 {
			w.t.Errorf("the log is\n%v", w.log)
		}
		return
	}
	if len(w.log) != 2 || w.log[0].Severity != alloc.Error || w.log[1].Severity != alloc.Info {
		w.t.Fatalf("the log is\n%v", w.log)
	}
	if !strings.HasPrefix(w.log[0].Text, fmt.Sprintf("gpu_async_0 cuMemAllocAsync failed to allocate %d bytes: ", n)) {
		w.t.Errorf("the log begins with %q", w.log[0].Text)
	}
	if want := "gpu_async_0 preallocated nothing: refused " + size.Format(n) + "; it takes memory as it is needed"; w.log[1].Text != want {
		w.t.Errorf("%q, want %q", w.log[1].Text, want)
	}
}

// TestPreallocateWhereLessIsFree: the pool gets all or nothing, and goes on.
func TestPreallocateWhereLessIsFree(t *testing.T) {
	for _, tc := range []struct {
		name string
		ask  uint64
		gets bool
	}{
		{"all that is free", 11 * gib, true},
		{"a byte more", 11*gib + 1, false},
		{"JAX's part of the total", 12 * gib, false},
		{"more than the total", 1024 * gib, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorldOn(t, sim.Config{Total: 16 * gib, Used: 5 * gib}, async.Config{Reserve: tc.ask, Preallocate: tc.ask})
			b := w.alloc(mib, 1)
			want := uint64(32 * mib)
			if tc.gets {
				want = tc.ask
			}
			if w.held() != want {
				t.Errorf("%d bytes are held, want %d", w.held(), want)
			}
			w.wantRefused(tc.ask, !tc.gets)
			if got := w.attribute(device.PoolReleaseThreshold); got != tc.ask {
				t.Errorf("the threshold is %d, want %d", got, tc.ask)
			}
			// What was refused is not asked for again.
			lines := len(w.log)
			rest := w.alloc(10*gib, 1)
			if len(w.log) != lines {
				t.Errorf("the log is\n%v", w.log)
			}
			w.ok(w.a.Free(rest), w.a.Free(b), w.a.Close())
		})
	}
}

// TestPreallocateInvalidValue: a driver may say of more than the GPU has that it makes no
// sense. Of less it is an error.
func TestPreallocateInvalidValue(t *testing.T) {
	for ask, refused := range map[uint64]bool{2 * gib: true, gib: false} {
		w := newWorld(t, gib, async.Config{Preallocate: ask})
		w.dev.OnCall(func(_ uint64, _ string, bytes uint64) error {
			if bytes == ask {
				return device.ErrInvalidValue
			}
			return nil
		})
		_, err := w.a.Alloc(alloc.Request{Bytes: mib, Stream: 1})
		if got := err == nil; got != refused {
			t.Errorf("%d bytes: %v", ask, err)
		}
		w.wantRefused(ask, refused)
	}
}

// TestTrim: what a trim gives back, and what it says.
func TestTrim(t *testing.T) {
	w := newWorld(t, gib, async.Config{Reserve: gib})
	if n, err := w.a.Trim(0); n != 0 || err != nil || w.dev.Counters().Calls != 3 {
		t.Errorf("a trim before the first request: %d, %v", n, err)
	}
	var blocks []alloc.Block
	for range 4 {
		blocks = append(blocks, w.alloc(32*mib, 1))
	}
	for _, tc := range []struct {
		free     int
		keep     uint64
		released uint64
	}{{0, 0, 0}, {2, 64 * mib, 64 * mib}, {0, 0, 0}, {1, 48 * mib, 0}, {0, 0, 32 * mib}, {1, 0, 32 * mib}} {
		for range tc.free {
			w.ok(w.work(blocks[0], 1), w.a.Free(blocks[0]))
			blocks = blocks[1:]
		}
		before := w.held()
		n, err := w.a.Trim(tc.keep)
		if err != nil || n != tc.released || before-w.held() != n {
			t.Errorf("%+v: %d, %v; the device got %d", tc, n, err, before-w.held())
		}
	}
	if s := w.a.Stats(); s.PoolBytes != 0 || s.PeakPoolBytes != 128*mib {
		t.Errorf("%+v", s)
	}
}

// TestPeak: the most that the pool held is not what it held for others before.
func TestPeak(t *testing.T) {
	w := newWorld(t, gib, async.Config{})
	p, err := w.dev.DefaultPool()
	w.ok(err)
	r, err := w.dev.AllocAsync(p, 96*mib, 0)
	w.ok(err, w.dev.FreeAsync(r.Addr, 0), w.dev.Synchronize())
	peak := func(want uint64) {
		t.Helper()
		if s := w.a.Stats(); s.PeakPoolBytes != want*mib {
			t.Errorf("the peak is %d MiB, want %d", s.PeakPoolBytes/mib, want)
		}
	}
	peak(0)
	b := w.alloc(mib, 0)
	peak(32)
	w.ok(w.a.Free(b), w.dev.Synchronize())
	peak(32)
	b = w.alloc(256*mib, 0)
	w.ok(w.a.Free(b), w.dev.Synchronize()) // nobody looked
	peak(256)
	w.ok(w.a.Close())
	peak(256)
}

// TestReport is the report as XLA writes it. The first two lines and the
// histogram's are as in a log of November 2025 (NovaSky-AI/SkyRL#624), the
// table is that of the newest release.
func TestReport(t *testing.T) {
	w := newWorld(t, gib, async.Config{Reserve: 512 * mib})
	for _, n := range []uint64{2097152, 4, 262144, 4, 2, 4} {
		w.alloc(n, 0)
	}
	gone := w.alloc(600*mib, 0)
	w.ok(w.a.Free(gone))
	r := alloc.Request{Bytes: 1225195446464}
	if _, err := w.a.Alloc(r); !errors.Is(err, alloc.ErrNever) {
		t.Fatal(err)
	}
	const want = `E gpu_async_0 cuMemAllocAsync failed to allocate 1225195446464 bytes: RESOURCE_EXHAUSTED: : CUDA_ERROR_OUT_OF_MEMORY: out of memory
 Reported by CUDA: Free memory/Total memory: 402653184/1073741824
E Stats: Limit:                       512.00MiB
InUse:                         2.25MiB
MaxInUse:                    602.25MiB
NumAllocs:                           7
MaxAllocSize:                600.00MiB
Reserved:                           0B
PeakReserved:                       0B
PeakAllocated:                          0B
LargestFreeBlock:                   0B

E Histogram of current allocation: (allocation_size_in_bytes, nb_allocation_of_that_sizes), ...;
E 2, 1
E 4, 3
E 262144, 1
E 2097152, 1
E CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: 671088640
E CU_MEMPOOL_ATTR_USED_MEM_CURRENT: 2361344
E CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: 671088640
E CU_MEMPOOL_ATTR_USED_MEM_HIGH: 631506944
`
	if got := w.a.Report(r).String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	w.dev.SetFaults(sim.Faults{LoseAt: 1})
	got := w.a.Report(r).String()
	if !strings.Contains(got, "Total memory: unknown\n") || strings.Count(got, "E Error while fetching extra cudaMallocAsync pool attribute: cuMemPoolGetAttribute on sim:1GiB: "+device.ErrLost.Error()) != 4 {
		t.Errorf("of a lost device:\n%s", got)
	}
}

// TestLost: a device that is lost is an error, and the statistics go on.
func TestLost(t *testing.T) {
	w := newWorld(t, gib, async.Config{})
	b := w.alloc(40*mib, 0)
	w.dev.SetFaults(sim.Faults{LoseAt: 1})
	if s := w.a.Stats(); s.PoolBytes != 40*mib || s.Fragmentation() != 0 {
		t.Errorf("nobody asked before it was lost: %+v", s)
	}
	_, allocErr := w.a.Alloc(alloc.Request{Bytes: 1})
	_, trimErr := w.a.Trim(0)
	for what, err := range map[string]error{"Alloc": allocErr, "Trim": trimErr, "Free": w.a.Free(b), "Close": w.a.Close()} {
		if !errors.Is(err, device.ErrLost) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestNoStream: a stream that cannot be had is an error of every call that needs
// it, and nothing else changes.
func TestNoStream(t *testing.T) {
	dev, err := sim.New(sim.Config{Total: gib})
	if err != nil {
		t.Fatal(err)
	}
	no := errors.New("no such stream")
	a, err := async.New(dev, async.Config{Streams: streams.Of(dev, func(n uint32) (device.Stream, error) {
		if n == 1 {
			return 0, no
		}
		return 0, nil
	})})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Alloc(alloc.Request{Bytes: 1, Stream: 1}); err != no {
		t.Errorf("Alloc: %v", err)
	}
	b, err := a.Alloc(alloc.Request{Bytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Record(b, 1); err != no {
		t.Errorf("Record: %v", err)
	}
	if err := errors.Join(a.Free(b), a.Check(), a.Close()); err != nil {
		t.Error(err)
	}
}

func TestWhy(t *testing.T) {
	dev, err := sim.New(sim.Config{Total: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	a, err := async.New(dev, async.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Alloc(alloc.Request{Bytes: 30 << 20}); err != nil {
		t.Fatal(err)
	}
	const pool = "The driver's pool holds 32 MiB, of which 30 MiB is allocated; where the rest lies is unknown. It has no piece as large, nor could it grow by that much."
	for _, tc := range []struct {
		bytes uint64
		free  int64
		want  string
	}{
		{40 << 20, 32 << 20, pool + "\nThe device has 32 MiB free beside the pool."},
		{40 << 20, -1, pool},
		{65 << 20, 1, "It is more than the device's 64 MiB; no free would help."},
	} {
		if got := strings.Join(a.Why(alloc.Request{Bytes: tc.bytes}, tc.free), "\n"); got != tc.want {
			t.Errorf("%d bytes, %d free:\n%s\nwant\n%s", tc.bytes, tc.free, got, tc.want)
		}
	}
}

// TestAlignedRequestAboveTheDevice: what the driver is asked for counts, which an alignment
// makes larger. Such a request is never served; one that only others keep from being is.
func TestAlignedRequestAboveTheDevice(t *testing.T) {
	const mib = 1 << 20
	w := newWorld(t, 64*mib, async.Config{})
	if _, err := w.a.Alloc(alloc.Request{Bytes: 62 * mib, Align: 4 * mib}); !errors.Is(err, alloc.ErrNever) {
		t.Errorf("62 MiB aligned to 4: %v", err)
	}
	if _, err := w.a.Alloc(alloc.Request{Bytes: 40 * mib}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.a.Alloc(alloc.Request{Bytes: 40 * mib, Align: 4 * mib}); !errors.Is(err, alloc.ErrNoMemory) || errors.Is(err, alloc.ErrNever) {
		t.Errorf("40 MiB beside 40: %v", err)
	}
}
