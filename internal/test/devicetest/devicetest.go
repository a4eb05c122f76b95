// Package devicetest is the one suite that every [device.GPU] passes: the
// simulated one, private and shared, the CUDA binding over a simulated driver,
// and a real GPU where there is one. What it asserts is what the allocators
// rely on; what only a simulated device can promise (exact counting, an error
// for every address that is not there) is asked for by [Config].Exact.
package devicetest

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"gpumem/device"
)

const mib = 1 << 20

// Config says how to come by a device and what may be asked of it.
type Config struct {
	// Open makes a device for one test, with at least 256 MiB free. The suite
	// closes it.
	Open func(t *testing.T) device.GPU
	// Exact: no other program uses the device, what is free changes by just what is
	// taken, and addresses that are not there are told from those that are.
	Exact bool
}

// Run runs the suite.
func Run(t *testing.T, cfg Config) {
	for _, tc := range []struct {
		name string
		run  func(*testing.T, *suite)
	}{
		{"Info", testInfo},
		{"Grants", testGrants},
		{"Refusals", testRefusals},
		{"Contents", testContents},
		{"Streams", testStreams},
		{"StreamErrors", testStreamErrors},
		{"StreamDestroyed", testStreamDestroyed},
		{"Pool", testPool},
		{"PoolErrors", testPoolErrors},
		{"PoolLimit", testPoolLimit},
		{"Pages", testPages},
		{"PageErrors", testPageErrors},
		{"PagesAliased", testPagesAliased},
		{"Managed", testManaged},
		{"ManagedErrors", testManagedErrors},
		{"ManagedFull", testManagedFull},
		{"Full", testFull},
		{"Goroutines", testGoroutines},
		{"Close", testClose},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := &suite{T: t, GPU: cfg.Open(t), exact: cfg.Exact}
			t.Cleanup(func() {
				if err := s.GPU.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
			tc.run(t, s)
		})
	}
}

// suite is a device under test; its must methods end the test on an error.
type suite struct {
	*testing.T
	device.GPU
	exact bool
}

func (s *suite) ok(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// refused asserts that err is a CallError of the named call with cause want.
func (s *suite) refused(err error, call string, want error) {
	s.Helper()
	var ce *device.CallError
	switch {
	case err == nil:
		s.Errorf("%s succeeded, want %v", call, want)
	case !errors.As(err, &ce):
		s.Errorf("%s: %T %v is no CallError", call, err, err)
	case !errors.Is(err, want):
		s.Errorf("%s: %v, want %v", call, err, want)
	case ce.Call != call || ce.Device == "":
		s.Errorf("the error is of call %q on %q, want %q on the device's name: %v", ce.Call, ce.Device, call, err)
	}
}

func (s *suite) free() uint64 {
	s.Helper()
	free, _, err := s.MemInfo()
	s.ok(err)
	return free
}

// heldExactly asserts what is free where that can be told.
func (s *suite) heldExactly(before, held uint64, when string) {
	s.Helper()
	if free := s.free(); s.exact && free != before-held {
		s.Errorf("%s: %d bytes are held, want %d", when, before-free, held)
	}
}

func testInfo(t *testing.T, s *suite) {
	info := s.Info()
	free, total, err := s.MemInfo()
	s.ok(err)
	if info.Name == "" || info.Total == 0 || info.Granularity == 0 || info.CCMajor == 0 {
		t.Errorf("incomplete: %+v", info)
	}
	if total != info.Total || free > total {
		t.Errorf("MemInfo() = %d free of %d, Info says %d", free, total, info.Total)
	}
	if info.HasPages != (info.Page != 0) || info.Page&(info.Page-1) != 0 && !info.Simulated {
		t.Errorf("HasPages %v with a page of %d bytes", info.HasPages, info.Page)
	}
	before := s.Counters()
	s.free()
	if after := s.Counters(); after.Calls != before.Calls+1 || after.Time < before.Time {
		t.Errorf("one call made the counters go from %+v to %+v", before, after)
	}
}

func testGrants(t *testing.T, s *suite) {
	g := s.Info().Granularity
	before := s.free()
	var live []device.Range
	var held uint64
	for _, n := range []uint64{1, 256, g, g + 1, 3*mib + 5, 64 * mib} {
		r, err := s.Alloc(n)
		s.ok(err)
		if r.Bytes < n || r.Bytes%g != 0 || r.Addr == 0 || r.Addr%256 != 0 {
			t.Errorf("Alloc(%d) = %#x, %d bytes; granularity %d", n, r.Addr, r.Bytes, g)
		}
		for _, o := range live {
			if r.Addr < o.Addr+o.Bytes && o.Addr < r.Addr+r.Bytes {
				t.Errorf("%+v and %+v overlap", r, o)
			}
		}
		live = append(live, r)
		held += r.Bytes
		s.heldExactly(before, held, "after an allocation")
	}
	if free := s.free(); free > before-64*mib {
		t.Errorf("%d bytes free after 64 MiB were taken of %d", free, before)
	}
	// Any order.
	for _, i := range []int{3, 0, 5, 1, 4, 2} {
		s.ok(s.Free(live[i].Addr))
		held -= live[i].Bytes
		s.heldExactly(before, held, "after a free")
	}
}

func testRefusals(t *testing.T, s *suite) {
	before := s.free()
	for _, n := range []uint64{0, s.Info().Total + 1, math.MaxUint64, math.MaxUint64 - 1, 1 << 63} {
		want := device.ErrOutOfMemory
		if n == 0 {
			want = device.ErrInvalidValue
		}
		_, err := s.Alloc(n)
		s.refused(err, "cuMemAlloc", want)
	}
	s.refused(s.Free(0x1234500), "cuMemFree", device.ErrInvalidValue)
	r, err := s.Alloc(4 * mib)
	s.ok(err)
	s.ok(s.Free(r.Addr))
	s.refused(s.Free(r.Addr), "cuMemFree", device.ErrInvalidValue)
	s.heldExactly(before, 0, "after refusals")
	// The device is none the worse.
	r, err = s.Alloc(4 * mib)
	s.ok(err)
	s.ok(s.Free(r.Addr))
}

// pattern is n bytes that depend on the seed.
func pattern(seed uint64, n int) []byte {
	p := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return p
}

// holds asserts that the bytes at addr are want.
func (s *suite) holds(addr uint64, want []byte, what string) {
	s.Helper()
	got := make([]byte, len(want))
	s.ok(s.Read(addr, got))
	if !bytes.Equal(got, want) {
		i := 0
		for got[i] == want[i] {
			i++
		}
		s.Errorf("%s: byte %d of %d is %#x, want %#x", what, i, len(want), got[i], want[i])
	}
}

func testContents(t *testing.T, s *suite) {
	r, err := s.Alloc(8 * mib)
	s.ok(err)
	o, err := s.Alloc(2 * mib)
	s.ok(err)
	s.ok(s.Fill(o.Addr, 2*mib, 0xee))
	a, b := pattern(1, 200_001), pattern(2, 1)
	s.ok(s.Fill(r.Addr, 8*mib, 0x5a))
	s.ok(s.Write(r.Addr, a))
	s.ok(s.Write(r.Addr+8*mib-1, b))
	s.ok(s.Write(r.Addr+3*mib+7, a))
	s.holds(r.Addr, a, "the start")
	s.holds(r.Addr+8*mib-1, b, "the last byte")
	s.holds(r.Addr+3*mib+7, a, "the middle")
	s.holds(r.Addr+200_001, bytes.Repeat([]byte{0x5a}, 1000), "behind the start")
	s.ok(s.Fill(r.Addr+10, 150_000, 0))
	s.holds(r.Addr, slices.Concat(a[:10], make([]byte, 150_000), a[150_010:]), "a hole of zeros")
	s.holds(o.Addr, bytes.Repeat([]byte{0xee}, 2*mib), "the other block")
	if s.exact {
		s.refused(s.Write(r.Addr+8*mib-1, []byte{1, 2}), "cuMemcpyHtoD", device.ErrInvalidValue)
		s.refused(s.Read(r.Addr-1, []byte{1, 2}), "cuMemcpyDtoH", device.ErrInvalidValue)
		s.refused(s.Fill(r.Addr, 8*mib+1, 1), "cuMemsetD8", device.ErrInvalidValue)
		s.holds(r.Addr+8*mib-1, b, "after refused writes")
	}
	s.ok(s.Free(o.Addr))
	s.holds(r.Addr, a[:10], "after the other block's end")
	s.ok(s.Free(r.Addr))
	if s.exact {
		s.refused(s.Read(r.Addr, make([]byte, 1)), "cuMemcpyDtoH", device.ErrInvalidValue)
	}
}

func testStreams(t *testing.T, s *suite) {
	r, err := s.Alloc(4 * mib)
	s.ok(err)
	a, b := r.Addr, r.Addr+2*mib
	one, err := s.StreamCreate()
	s.ok(err)
	two, err := s.StreamCreate()
	s.ok(err)
	e, err := s.EventCreate()
	s.ok(err)
	if done, err := s.EventQuery(e); !done || err != nil {
		t.Errorf("an event never recorded: done %v, %v", done, err)
	}
	s.ok(s.EventSynchronize(e))
	s.ok(s.StreamWaitEvent(two, e))

	// One stream fills, the other copies after it; then the other way round,
	// through the zero stream.
	s.ok(s.FillAsync(a, 2*mib, 7, one))
	s.ok(s.EventRecord(e, one))
	s.ok(s.StreamWaitEvent(two, e))
	s.ok(s.CopyAsync(b, a, 2*mib, two))
	s.ok(s.StreamSynchronize(two))
	for _, h := range []device.Stream{one, two} {
		if done, err := s.StreamQuery(h); !done || err != nil {
			t.Errorf("stream %d after the last work in both: done %v, %v", h, done, err)
		}
	}
	if done, err := s.EventQuery(e); !done || err != nil {
		t.Errorf("event after its stream's work: done %v, %v", done, err)
	}
	s.holds(b, bytes.Repeat([]byte{7}, 2*mib), "copied across streams")

	s.ok(s.FillAsync(b, mib, 9, 0))
	s.ok(s.CopyAsync(a, b, mib, 0))
	s.ok(s.StreamSynchronize(0))
	s.holds(a, append(bytes.Repeat([]byte{9}, mib), 7), "in the zero stream")

	s.ok(s.FillAsync(a, 4*mib, 1, two))
	s.ok(s.Synchronize())
	s.holds(a, bytes.Repeat([]byte{1}, 4*mib), "after waiting for everything")

	s.ok(s.FillAsync(a, 4*mib, 2, two))
	s.ok(s.EventRecord(e, two))
	s.ok(s.EventSynchronize(e))
	s.holds(a, bytes.Repeat([]byte{2}, 4*mib), "after waiting for the event")

	s.ok(s.EventDestroy(e))
	s.ok(s.StreamDestroy(one))
	s.ok(s.StreamDestroy(two))
	s.ok(s.Free(r.Addr))
}

func testStreamErrors(t *testing.T, s *suite) {
	if !s.exact {
		t.Skip("the real driver does not check handles")
	}
	r, err := s.Alloc(2 * mib)
	s.ok(err)
	h, err := s.StreamCreate()
	s.ok(err)
	e, err := s.EventCreate()
	s.ok(err)
	const none = 987654321
	s.refused(s.StreamWaitEvent(h, none), "cuStreamWaitEvent", device.ErrInvalidHandle)
	s.refused(s.EventRecord(none, h), "cuEventRecord", device.ErrInvalidHandle)
	s.noStream(none, e, r.Addr)
	s.noEvent(none, h)
	s.refused(s.FillAsync(r.Addr, r.Bytes+1, 1, h), "cuMemsetD8Async", device.ErrInvalidValue)
	s.refused(s.CopyAsync(r.Addr, r.Addr+r.Bytes, 1, h), "cuMemcpyDtoDAsync", device.ErrInvalidValue)
	s.refused(s.StreamDestroy(0), "cuStreamDestroy", device.ErrInvalidValue)
	s.ok(s.EventDestroy(e))
	s.ok(s.StreamDestroy(h))
}

// testStreamDestroyed asks every call about a stream and an event that are
// destroyed, on a real GPU, too: allocators tell by the error that a stream is
// gone. No other is created meanwhile, which could have the same handle.
func testStreamDestroyed(t *testing.T, s *suite) {
	r, err := s.Alloc(2 * mib)
	s.ok(err)
	h, err := s.StreamCreate()
	s.ok(err)
	e, err := s.EventCreate()
	s.ok(err)
	s.ok(s.FillAsync(r.Addr, mib, 7, h))
	s.ok(s.EventRecord(e, h))
	s.ok(s.StreamDestroy(h))
	s.noStream(h, e, r.Addr)

	// What was queued still runs, and can still be waited for.
	s.ok(s.StreamWaitEvent(0, e))
	s.ok(s.CopyAsync(r.Addr+mib, r.Addr, mib, 0))
	s.ok(s.EventSynchronize(e))
	s.ok(s.Synchronize())
	s.holds(r.Addr+mib, bytes.Repeat([]byte{7}, mib), "copied from what a destroyed stream wrote")
	if done, err := s.EventQuery(e); !done || err != nil {
		t.Errorf("an event of a destroyed stream, after a wait for everything: done %v, %v", done, err)
	}
	s.ok(s.EventDestroy(e))
	s.noEvent(e, 0)
	s.ok(s.Free(r.Addr))
}

// noStream asserts that each call about a stream that is not there says so. e
// is an event, addr a grant of at least 2 MiB.
func (s *suite) noStream(h device.Stream, e device.Event, addr uint64) {
	s.Helper()
	_, err := s.StreamQuery(h)
	s.refused(err, "cuStreamQuery", device.ErrInvalidHandle)
	s.refused(s.StreamSynchronize(h), "cuStreamSynchronize", device.ErrInvalidHandle)
	s.refused(s.StreamWaitEvent(h, e), "cuStreamWaitEvent", device.ErrInvalidHandle)
	s.refused(s.StreamDestroy(h), "cuStreamDestroy", device.ErrInvalidHandle)
	s.refused(s.EventRecord(e, h), "cuEventRecord", device.ErrInvalidHandle)
	s.refused(s.FillAsync(addr, mib, 1, h), "cuMemsetD8Async", device.ErrInvalidHandle)
	s.refused(s.CopyAsync(addr+mib, addr, mib, h), "cuMemcpyDtoDAsync", device.ErrInvalidHandle)
	if s.Info().HasPools {
		p, err := s.DefaultPool()
		s.ok(err)
		_, err = s.AllocAsync(p, mib, h)
		s.refused(err, "cuMemAllocFromPoolAsync", device.ErrInvalidHandle)
		s.refused(s.FreeAsync(addr, h), "cuMemFreeAsync", device.ErrInvalidHandle)
	}
}

// noEvent is the same for an event; h is a stream.
func (s *suite) noEvent(e device.Event, h device.Stream) {
	s.Helper()
	_, err := s.EventQuery(e)
	s.refused(err, "cuEventQuery", device.ErrInvalidHandle)
	s.refused(s.EventSynchronize(e), "cuEventSynchronize", device.ErrInvalidHandle)
	s.refused(s.EventRecord(e, h), "cuEventRecord", device.ErrInvalidHandle)
	s.refused(s.StreamWaitEvent(h, e), "cuStreamWaitEvent", device.ErrInvalidHandle)
	s.refused(s.EventDestroy(e), "cuEventDestroy", device.ErrInvalidHandle)
}

func (s *suite) attribute(p device.Pool, a device.PoolAttribute) uint64 {
	s.Helper()
	v, err := s.PoolGetAttribute(p, a)
	s.ok(err)
	return v
}

func testPool(t *testing.T, s *suite) {
	if !s.Info().HasPools {
		t.Skip("no pools")
	}
	before := s.free()
	p, err := s.PoolCreate(0)
	s.ok(err)
	for a, want := range map[device.PoolAttribute]uint64{
		device.PoolReuseFollowEventDependencies: 1, device.PoolReuseAllowOpportunistic: 1,
		device.PoolReuseAllowInternalDependencies: 1, device.PoolReleaseThreshold: 0,
		device.PoolReservedCurrent: 0, device.PoolUsedCurrent: 0,
	} {
		if v := s.attribute(p, a); v != want {
			t.Errorf("attribute %d of a new pool is %d, want %d", a, v, want)
		}
	}
	h, err := s.StreamCreate()
	s.ok(err)

	// Threshold 0: what is freed is back after the next synchronise.
	r, err := s.AllocAsync(p, 3*mib, h)
	s.ok(err)
	if r.Bytes < 3*mib || r.Addr%256 != 0 {
		t.Errorf("AllocAsync(3 MiB) = %#x, %d bytes", r.Addr, r.Bytes)
	}
	s.ok(s.FillAsync(r.Addr, 3*mib, 3, h))
	s.ok(s.StreamSynchronize(h))
	s.holds(r.Addr, bytes.Repeat([]byte{3}, 3*mib), "in a pool")
	used, reserved := s.attribute(p, device.PoolUsedCurrent), s.attribute(p, device.PoolReservedCurrent)
	if used < 3*mib || reserved < used {
		t.Errorf("%d used of %d reserved after 3 MiB", used, reserved)
	}
	s.heldExactly(before, reserved, "with a block in a pool")
	s.ok(s.FreeAsync(r.Addr, h))
	s.ok(s.StreamSynchronize(h))
	if used, reserved := s.attribute(p, device.PoolUsedCurrent), s.attribute(p, device.PoolReservedCurrent); used != 0 || reserved != 0 {
		t.Errorf("%d used of %d reserved after the last free and a synchronise", used, reserved)
	}
	s.heldExactly(before, 0, "after a synchronise at threshold 0")
	if high := s.attribute(p, device.PoolUsedHigh); high != used {
		t.Errorf("most used is %d, want %d", high, used)
	}
	s.ok(s.PoolSetAttribute(p, device.PoolUsedHigh, 0))
	if high := s.attribute(p, device.PoolUsedHigh); high != 0 {
		t.Errorf("most used is %d after its restart", high)
	}

	// The largest threshold: it stays, and is used again, until a trim.
	s.ok(s.PoolSetAttribute(p, device.PoolReleaseThreshold, math.MaxUint64))
	if v := s.attribute(p, device.PoolReleaseThreshold); v != math.MaxUint64 {
		t.Errorf("threshold %d after it was set to the largest", v)
	}
	r, err = s.AllocAsync(p, 8*mib, h)
	s.ok(err)
	s.ok(s.FreeAsync(r.Addr, h))
	s.ok(s.Synchronize())
	reserved = s.attribute(p, device.PoolReservedCurrent)
	if reserved < 8*mib {
		t.Errorf("%d reserved under the largest threshold", reserved)
	}
	r, err = s.AllocAsync(p, 8*mib, h)
	s.ok(err)
	if v := s.attribute(p, device.PoolReservedCurrent); v != reserved {
		t.Errorf("the pool grew from %d to %d for a block that it had", reserved, v)
	}
	s.ok(s.PoolTrim(p, 0)) // it is in use
	if v := s.attribute(p, device.PoolReservedCurrent); v < 8*mib {
		t.Errorf("a trim left %d with 8 MiB in use", v)
	}
	s.ok(s.FreeAsync(r.Addr, h))
	s.ok(s.StreamSynchronize(h))
	s.ok(s.PoolTrim(p, 0))
	if v := s.attribute(p, device.PoolReservedCurrent); v != 0 {
		t.Errorf("%d reserved after a trim to 0", v)
	}
	s.heldExactly(before, 0, "after a trim")

	// Another stream may have the memory once the two are in order.
	r, err = s.AllocAsync(p, 8*mib, h)
	s.ok(err)
	s.ok(s.FillAsync(r.Addr, 8*mib, 1, h))
	s.ok(s.FreeAsync(r.Addr, h))
	r2, err := s.AllocAsync(p, 8*mib, 0)
	s.ok(err)
	s.ok(s.FillAsync(r2.Addr, 8*mib, 2, 0))
	s.ok(s.Synchronize())
	s.holds(r2.Addr, bytes.Repeat([]byte{2}, 8*mib), "reused across streams")
	s.ok(s.FreeAsync(r2.Addr, 0))
	s.ok(s.Synchronize())
	s.ok(s.PoolDestroy(p))
	s.heldExactly(before, 0, "after the pool's end")

	d, err := s.DefaultPool()
	s.ok(err)
	if again, err := s.DefaultPool(); again != d || err != nil {
		t.Errorf("the default pool is %d and then %d, %v", d, again, err)
	}
	r, err = s.AllocAsync(d, 1, h)
	s.ok(err)
	s.ok(s.FreeAsync(r.Addr, h))
	s.ok(s.StreamSynchronize(h))
	s.ok(s.StreamDestroy(h))
}

func testPoolErrors(t *testing.T, s *suite) {
	if !s.Info().HasPools {
		_, err := s.DefaultPool()
		s.refused(err, "cuDeviceGetDefaultMemPool", device.ErrNotSupported)
		_, err = s.AllocAsync(1, 1, 0)
		s.refused(err, "cuMemAllocFromPoolAsync", device.ErrNotSupported)
		return
	}
	p, err := s.DefaultPool()
	s.ok(err)
	before := s.free()
	_, err = s.AllocAsync(p, s.Info().Total*2, 0)
	s.refused(err, "cuMemAllocFromPoolAsync", device.ErrOutOfMemory)
	_, err = s.AllocAsync(p, 0, 0)
	s.refused(err, "cuMemAllocFromPoolAsync", device.ErrInvalidValue)
	if s.exact {
		_, err = s.AllocAsync(987654321, 1, 0)
		s.refused(err, "cuMemAllocFromPoolAsync", device.ErrInvalidValue)
		s.refused(s.PoolTrim(987654321, 0), "cuMemPoolTrimTo", device.ErrInvalidValue)
		s.refused(s.PoolDestroy(987654321), "cuMemPoolDestroy", device.ErrInvalidValue)
		s.refused(s.PoolDestroy(p), "cuMemPoolDestroy", device.ErrInvalidValue)
		_, err = s.PoolGetAttribute(p, 99)
		s.refused(err, "cuMemPoolGetAttribute", device.ErrInvalidValue)
		s.refused(s.PoolSetAttribute(p, device.PoolUsedCurrent, 0), "cuMemPoolSetAttribute", device.ErrInvalidValue)
		s.refused(s.PoolSetAttribute(p, device.PoolUsedHigh, 5), "cuMemPoolSetAttribute", device.ErrInvalidValue)
	}
	s.refused(s.FreeAsync(0x1234500, 0), "cuMemFreeAsync", device.ErrInvalidValue)
	s.heldExactly(before, 0, "after refusals")
}

func testPoolLimit(t *testing.T, s *suite) {
	if !s.Info().HasPools {
		t.Skip("no pools")
	}
	before := s.free()
	p, err := s.PoolCreate(64 * mib)
	s.ok(err)
	a, err := s.AllocAsync(p, 60*mib, 0)
	s.ok(err)
	_, err = s.AllocAsync(p, 10*mib, 0)
	s.refused(err, "cuMemAllocFromPoolAsync", device.ErrOutOfMemory)
	s.ok(s.FreeAsync(a.Addr, 0))
	b, err := s.AllocAsync(p, 10*mib, 0) // the zero stream freed it
	s.ok(err)
	s.ok(s.PoolDestroy(p)) // what lives in it lives on
	s.ok(s.StreamSynchronize(0))
	s.ok(s.Fill(b.Addr, 10*mib, 4))
	s.holds(b.Addr, bytes.Repeat([]byte{4}, 10*mib), "in a destroyed pool")
	s.ok(s.FreeAsync(b.Addr, 0))
	s.ok(s.Synchronize())
	s.heldExactly(before, 0, "after the last block of a destroyed pool")
}

func testPages(t *testing.T, s *suite) {
	page := s.Info().Page
	if page == 0 {
		t.Skip("no virtual memory")
	}
	before := s.free()
	va, err := s.AddressReserve(16*page, 0)
	s.ok(err)
	s.heldExactly(before, 0, "after a reservation")
	var h [4]device.Handle
	for i := range h {
		h[i], err = s.MemCreate(page)
		s.ok(err)
		s.ok(s.MemMap(va+uint64(i)*page, page, h[i]))
	}
	s.heldExactly(before, 4*page, "with four pages")
	s.ok(s.MemSetAccess(va, 4*page))
	content := pattern(3, int(4*page))
	s.ok(s.Write(va, content))
	s.holds(va, content, "across pages")
	// Contents move with the memory.
	s.ok(s.MemUnmap(va, 4*page))
	s.heldExactly(before, 4*page, "while nothing is mapped")
	for i := range h {
		s.ok(s.MemMap(va+uint64(8+3-i)*page, page, h[i]))
	}
	s.ok(s.MemSetAccess(va+8*page, 4*page))
	for i := range uint64(4) {
		s.holds(va+(8+3-i)*page, content[i*page:(i+1)*page], "a page elsewhere")
	}
	// A handle released while it is mapped lives as long as its mapping.
	for i := range h {
		s.ok(s.MemRelease(h[i]))
	}
	s.heldExactly(before, 4*page, "released but mapped")
	s.holds(va+11*page, content[:page], "released but mapped")
	s.ok(s.MemUnmap(va+8*page, 2*page))
	s.heldExactly(before, 2*page, "two unmapped")
	s.ok(s.MemUnmap(va+10*page, 2*page))
	s.heldExactly(before, 0, "all unmapped")
	s.ok(s.AddressFree(va, 16*page))

	// Alignment, and a handle of several pages.
	va, err = s.AddressReserve(4*page, 64*page)
	s.ok(err)
	if va%(64*page) != 0 {
		t.Errorf("reserved at %#x, want a multiple of %#x", va, 64*page)
	}
	big, err := s.MemCreate(4 * page)
	s.ok(err)
	s.ok(s.MemMap(va, 4*page, big))
	s.ok(s.MemSetAccess(va, 4*page))
	s.ok(s.Write(va, content))
	s.holds(va, content, "one handle")
	s.ok(s.MemUnmap(va, 4*page))
	s.ok(s.MemRelease(big))
	s.ok(s.AddressFree(va, 4*page))
	s.heldExactly(before, 0, "at the end")
}

func testPageErrors(t *testing.T, s *suite) {
	page := s.Info().Page
	if page == 0 {
		_, err := s.AddressReserve(1<<21, 0)
		s.refused(err, "cuMemAddressReserve", device.ErrNotSupported)
		_, err = s.MemCreate(1 << 21)
		s.refused(err, "cuMemCreate", device.ErrNotSupported)
		return
	}
	before := s.free()
	invalid := func(call string, err error) { s.Helper(); s.refused(err, call, device.ErrInvalidValue) }
	_, err := s.AddressReserve(0, 0)
	invalid("cuMemAddressReserve", err)
	_, err = s.AddressReserve(page+1, 0)
	invalid("cuMemAddressReserve", err)
	_, err = s.MemCreate(0)
	invalid("cuMemCreate", err)
	_, err = s.MemCreate(page - 1)
	invalid("cuMemCreate", err)
	_, err = s.MemCreate(s.Info().Total/page*page + page)
	s.refused(err, "cuMemCreate", device.ErrOutOfMemory)

	va, err := s.AddressReserve(4*page, 0)
	s.ok(err)
	h, err := s.MemCreate(2 * page)
	s.ok(err)
	invalid("cuMemMap", s.MemMap(va+1, 2*page, h))
	invalid("cuMemMap", s.MemMap(va+3*page, 2*page, h)) // past the end
	if s.exact {
		invalid("cuMemMap", s.MemMap(va, page, h)) // a part of the handle
		invalid("cuMemMap", s.MemMap(va, 2*page, h+1234567))
	}
	s.ok(s.MemMap(va, 2*page, h))
	invalid("cuMemMap", s.MemMap(va+page, 2*page, h)) // something is there
	invalid("cuMemSetAccess", s.MemSetAccess(va, 3*page))
	if s.exact {
		s.refused(s.Write(va, []byte{1}), "cuMemcpyHtoD", device.ErrInvalidValue) // no access yet
	}
	s.ok(s.MemSetAccess(va, 2*page))
	s.ok(s.Write(va, []byte{1}))
	if s.exact {
		invalid("cuMemUnmap", s.MemUnmap(va, page)) // half a mapping
		invalid("cuMemAddressFree", s.AddressFree(va, 4*page))
		invalid("cuMemAddressFree", s.AddressFree(va, 2*page))
	}
	invalid("cuMemUnmap", s.MemUnmap(va+2*page, 2*page)) // nothing is there
	s.ok(s.MemUnmap(va, 2*page))
	s.ok(s.MemMap(va, 2*page, h))
	if s.exact { // access does not survive
		s.refused(s.Read(va, make([]byte, 1)), "cuMemcpyDtoH", device.ErrInvalidValue)
	}
	s.ok(s.MemUnmap(va, 2*page))
	s.ok(s.MemRelease(h))
	if s.exact {
		invalid("cuMemRelease", s.MemRelease(h))
		invalid("cuMemMap", s.MemMap(va, 2*page, h))
	}
	s.ok(s.AddressFree(va, 4*page))
	if s.exact {
		invalid("cuMemAddressFree", s.AddressFree(va, 4*page))
	}
	s.heldExactly(before, 0, "at the end")
}

func testPagesAliased(t *testing.T, s *suite) {
	page := s.Info().Page
	if page == 0 {
		t.Skip("no virtual memory")
	}
	va, err := s.AddressReserve(2*page, 0)
	s.ok(err)
	h, err := s.MemCreate(page)
	s.ok(err)
	s.ok(s.MemMap(va, page, h))
	s.ok(s.MemMap(va+page, page, h))
	s.ok(s.MemSetAccess(va, 2*page))
	want := pattern(4, 1000)
	s.ok(s.Write(va, want))
	s.holds(va+page, want, "the other address of the same page")
	s.ok(s.MemUnmap(va, page))
	s.holds(va+page, want, "the other address alone")
	s.ok(s.MemUnmap(va+page, page))
	s.ok(s.MemRelease(h))
	s.ok(s.AddressFree(va, 2*page))
}

// testFull takes all there is, each way, and finds the next request refused
// and all of it back.
func testFull(t *testing.T, s *suite) {
	if !s.exact {
		t.Skip("others use this device")
	}
	before := s.free()
	unit := max(s.Info().Granularity, s.Info().Page, 2*mib)
	n := before / 4 / unit * unit
	var grants []uint64
	var handles []device.Handle
	for range 2 {
		r, err := s.Alloc(n)
		s.ok(err)
		grants = append(grants, r.Addr)
	}
	if s.Info().HasPages {
		for range 2 {
			h, err := s.MemCreate(n)
			s.ok(err)
			handles = append(handles, h)
		}
	}
	rest := s.free()
	_, err := s.Alloc(rest + 1)
	s.refused(err, "cuMemAlloc", device.ErrOutOfMemory)
	if s.Info().HasPages {
		_, err = s.MemCreate((rest/unit + 1) * unit)
		s.refused(err, "cuMemCreate", device.ErrOutOfMemory)
	}
	if s.Info().HasPools {
		p, err := s.DefaultPool()
		s.ok(err)
		_, err = s.AllocAsync(p, rest+1, 0)
		s.refused(err, "cuMemAllocFromPoolAsync", device.ErrOutOfMemory)
	}
	if free := s.free(); free != rest {
		t.Errorf("refused requests changed what is free from %d to %d", rest, free)
	}
	for _, a := range grants {
		s.ok(s.Free(a))
	}
	for _, h := range handles {
		s.ok(s.MemRelease(h))
	}
	s.heldExactly(before, 0, "after all went back")
}

// testGoroutines: several goroutines, each with its own blocks, streams and
// pages, see their own contents and leave nothing.
func testGoroutines(t *testing.T, s *suite) {
	before := s.free()
	info := s.Info()
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			try := func(err error) bool {
				if err != nil {
					t.Errorf("goroutine %d: %v", g, err)
				}
				return err == nil
			}
			h, err := s.StreamCreate()
			if !try(err) {
				return
			}
			for i := range 10 {
				want := pattern(uint64(g*100+i), 5000)
				got := make([]byte, len(want))
				r, err := s.Alloc(2 * mib)
				if !try(err) || !try(s.Write(r.Addr, want)) ||
					!try(s.CopyAsync(r.Addr+mib, r.Addr, 5000, h)) || !try(s.StreamSynchronize(h)) ||
					!try(s.Read(r.Addr+mib, got)) || !try(s.Free(r.Addr)) {
					return
				}
				if !bytes.Equal(got, want) {
					t.Errorf("goroutine %d, round %d: another's bytes", g, i)
				}
				if info.HasPages {
					va, err := s.AddressReserve(info.Page, 0)
					if !try(err) {
						return
					}
					m, err := s.MemCreate(info.Page)
					if !try(err) || !try(s.MemMap(va, info.Page, m)) || !try(s.MemSetAccess(va, info.Page)) ||
						!try(s.Write(va, want)) || !try(s.Read(va, got)) || !try(s.MemUnmap(va, info.Page)) ||
						!try(s.MemRelease(m)) || !try(s.AddressFree(va, info.Page)) {
						return
					}
				}
				if info.HasPools {
					p, err := s.DefaultPool()
					if !try(err) {
						return
					}
					r, err := s.AllocAsync(p, 5000, h)
					if !try(err) || !try(s.FillAsync(r.Addr, 5000, byte(g), h)) || !try(s.StreamSynchronize(h)) ||
						!try(s.Read(r.Addr, got)) || !try(s.FreeAsync(r.Addr, h)) {
						return
					}
					if !bytes.Equal(got, bytes.Repeat([]byte{byte(g)}, 5000)) {
						t.Errorf("goroutine %d, round %d: another's bytes in the pool", g, i)
					}
				}
				if info.HasManaged {
					r, err := s.AllocManaged(5000)
					if !try(err) || !try(s.Write(r.Addr, want)) || !try(s.Read(r.Addr, got)) || !try(s.Free(r.Addr)) {
						return
					}
					if !bytes.Equal(got, want) {
						t.Errorf("goroutine %d, round %d: another's managed bytes", g, i)
					}
				}
			}
			try(s.StreamSynchronize(h))
			try(s.StreamDestroy(h))
		})
	}
	wg.Wait()
	s.ok(s.Synchronize())
	s.heldExactly(before, 0, "after all are done")
}

func testClose(t *testing.T, s *suite) {
	r, err := s.Alloc(2 * mib)
	s.ok(err)
	if s.Info().HasPages {
		_, err = s.MemCreate(s.Info().Page)
		s.ok(err)
	}
	if s.Info().HasManaged {
		_, err = s.AllocManaged(4 * mib)
		s.ok(err)
	}
	calls := s.Counters().Calls
	s.ok(s.Close())
	s.ok(s.Close())
	if s.Counters().Calls < calls || s.Info().Name == "" {
		t.Error("a closed device has forgotten its counters or its name")
	}
	closed := func(call string, err error) { s.Helper(); s.refused(err, call, device.ErrClosed) }
	_, _, err = s.MemInfo()
	closed("cuMemGetInfo", err)
	_, err = s.Alloc(1)
	closed("cuMemAlloc", err)
	closed("cuMemFree", s.Free(r.Addr))
	closed("cuMemcpyHtoD", s.Write(r.Addr, []byte{1}))
	closed("cuCtxSynchronize", s.Synchronize())
	_, err = s.StreamCreate()
	closed("cuStreamCreate", err)
	if s.Info().HasPages {
		_, err = s.MemCreate(s.Info().Page)
		closed("cuMemCreate", err)
	}
	if s.Info().HasPools {
		_, err = s.DefaultPool()
		closed("cuDeviceGetDefaultMemPool", err)
	}
	if s.Info().HasManaged {
		_, err = s.AllocManaged(1)
		closed("cuMemAllocManaged", err)
	}
}
