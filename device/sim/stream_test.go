package sim_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"gpumem/device"
	"gpumem/device/sim"
)

const us = time.Microsecond

// free is a cost table in which no call takes time, only what is queued: a copy
// 2 us and a fill 1 us for each 512 bytes. So a test can tell times by heart.
var freeCalls = sim.Costs{Async: sim.AsyncCosts{CopyPerMiB: 2048 * 2 * us, FillPerMiB: 2048 * us}}

// must is the value of a call that does not fail.
func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// ok fails the test with the first error.
func ok(t testing.TB, errs ...error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
	}
}

// invalid expects every call to be refused as senseless.
func invalid(t *testing.T, errs ...error) {
	t.Helper()
	for i, err := range errs {
		if !errors.Is(err, device.ErrInvalidValue) {
			t.Errorf("call %d: %v, want %v", i, err, device.ErrInvalidValue)
		}
	}
}

// TestWhen: when queued work is done, and what waiting for it takes.
func TestWhen(t *testing.T) {
	type step struct {
		do   string // see below
		s    int    // stream 0-2
		n    int    // us, or the event 0-1
		want int    // us that the host's clock stands at afterwards, or 1 for "done"
	}
	for _, tc := range []struct {
		name  string
		steps []step
	}{
		{"nothing to wait for", []step{{"sync", 0, 0, 0}, {"query", 1, 0, 1}, {"all", 0, 0, 0}}},
		{"one after the other in a stream", []step{
			{"work", 1, 10, 0}, {"work", 1, 5, 0}, {"query", 1, 0, 0}, {"sync", 1, 0, 15}, {"query", 1, 0, 1}, {"sync", 1, 0, 15},
		}},
		{"two streams at a time", []step{{"work", 1, 10, 0}, {"work", 2, 7, 0}, {"sync", 2, 0, 7}, {"query", 1, 0, 0}, {"sync", 1, 0, 10}}},
		{"all of them", []step{{"work", 1, 10, 0}, {"work", 2, 17, 0}, {"work", 0, 1, 0}, {"all", 0, 0, 17}}},
		{"the host is late", []step{{"work", 1, 10, 0}, {"idle", 0, 25, 25}, {"query", 1, 0, 1}, {"work", 1, 10, 25}, {"sync", 1, 0, 35}}},
		{"done just now", []step{{"work", 1, 10, 0}, {"idle", 0, 9, 9}, {"query", 1, 0, 0}, {"idle", 0, 1, 10}, {"query", 1, 0, 1}}},
		{"an event is a mark", []step{
			{"work", 1, 10, 0}, {"record", 1, 0, 0}, {"work", 1, 10, 0}, {"equery", 0, 0, 0}, {"esync", 0, 0, 10}, {"equery", 0, 0, 1}, {"query", 1, 0, 0},
		}},
		{"never recorded", []step{{"work", 1, 10, 0}, {"equery", 0, 0, 1}, {"esync", 0, 0, 0}, {"wait", 2, 0, 0}, {"query", 2, 0, 1}}},
		{"a stream waits", []step{{"work", 1, 10, 0}, {"record", 1, 0, 0}, {"wait", 2, 0, 0}, {"query", 2, 0, 0}, {"work", 2, 5, 0}, {"sync", 2, 0, 15}}},
		{"for what is long done", []step{{"work", 1, 10, 0}, {"record", 1, 0, 0}, {"work", 2, 30, 0}, {"wait", 2, 0, 0}, {"work", 2, 5, 0}, {"sync", 2, 0, 35}}},
		{"recorded again later", []step{
			{"work", 1, 10, 0}, {"record", 1, 0, 0}, {"wait", 2, 0, 0}, {"work", 1, 50, 0}, {"record", 1, 0, 0}, {"sync", 2, 0, 10}, {"esync", 0, 0, 60},
		}},
		{"a chain", []step{
			{"work", 0, 10, 0}, {"record", 0, 0, 0}, {"wait", 1, 0, 0}, {"work", 1, 10, 0}, {"record", 1, 1, 0}, {"wait", 2, 1, 0}, {"work", 2, 10, 0}, {"sync", 2, 0, 30},
		}},
		{"copies and fills", []step{{"fill", 1, 3, 0}, {"copy", 1, 2, 0}, {"sync", 1, 0, 7}}},
		{"no time at all", []step{{"work", 1, 0, 0}, {"query", 1, 0, 1}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDevice(t, sim.Config{Total: gib, Costs: freeCalls})
			r := must[device.Range](t)(d.Alloc(1))
			streams := []device.Stream{0, must[device.Stream](t)(d.StreamCreate()), must[device.Stream](t)(d.StreamCreate())}
			events := []device.Event{must[device.Event](t)(d.EventCreate()), must[device.Event](t)(d.EventCreate())}
			for i, st := range tc.steps {
				s, done, query := streams[st.s], false, false
				var err error
				switch st.do {
				case "work":
					err = d.Work(s, time.Duration(st.n)*us, nil, nil)
				case "fill":
					err = d.FillAsync(r.Addr, uint64(st.n)*512, 1, s)
				case "copy":
					err = d.CopyAsync(r.Addr, r.Addr+mib, uint64(st.n)*512, s)
				case "idle":
					d.Advance(time.Duration(st.n) * us)
				case "record":
					err = d.EventRecord(events[st.n], s)
				case "wait":
					err = d.StreamWaitEvent(s, events[st.n])
				case "sync":
					err = d.StreamSynchronize(s)
				case "esync":
					err = d.EventSynchronize(events[st.n])
				case "all":
					err = d.Synchronize()
				case "query":
					done, err = d.StreamQuery(s)
					query = true
				case "equery":
					done, err = d.EventQuery(events[st.n])
					query = true
				}
				if err != nil {
					t.Fatalf("step %d, %+v: %v", i, st, err)
				}
				if query && done != (st.want == 1) {
					t.Errorf("step %d, %+v: done is %v at %v", i, st, done, d.Now())
				}
				if !query && d.Now() != time.Duration(st.want)*us {
					t.Errorf("step %d, %+v: it is %v", i, st, d.Now())
				}
			}
		})
	}
}

// TestAsyncTimes: what each call takes on the host.
func TestAsyncTimes(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib})
	r := must[device.Range](t)(d.Alloc(8 * mib))
	var s device.Stream
	var e device.Event
	for _, tc := range []struct {
		name string
		call func() error
		want time.Duration // ns
	}{
		{"cuStreamCreate", func() (err error) { s, err = d.StreamCreate(); return }, 5000},
		{"cuEventCreate", func() (err error) { e, err = d.EventCreate(); return }, 600},
		{"cuLaunchKernel", func() error { return d.Work(s, 5*us, nil, nil) }, 2700},
		{"cuMemcpyDtoDAsync", func() error { return d.CopyAsync(r.Addr, r.Addr+mib, mib, s) }, 2700},
		{"cuMemsetD8Async", func() error { return d.FillAsync(r.Addr, mib, 0, s) }, 2700},
		{"cuEventRecord", func() error { return d.EventRecord(e, s) }, 1300},
		{"cuStreamWaitEvent", func() error { return d.StreamWaitEvent(0, e) }, 1000},
		{"cuStreamQuery", func() error { _, err := d.StreamQuery(s); return err }, 500},
		{"cuEventQuery", func() error { _, err := d.EventQuery(e); return err }, 500},
		{"advance", func() error { d.Advance(time.Hour); return nil }, 0},
		{"cuEventSynchronize", func() error { return d.EventSynchronize(e) }, 1000},
		{"cuStreamSynchronize", func() error { return d.StreamSynchronize(s) }, 1000},
		{"cuCtxSynchronize", d.Synchronize, 1000},
		// The device works while the call that waits gets going.
		{"queue a copy of 4 MiB", func() error { return d.CopyAsync(r.Addr, r.Addr+4*mib, 4*mib, s) }, 2700},
		{"wait for it", d.Synchronize, 4 * 750},
		{"queue a fill of 8 MiB", func() error { return d.FillAsync(r.Addr, 8*mib, 1, s) }, 2700},
		{"wait for it", d.Synchronize, 8 * 375},
		{"queue a fill of 1 MiB", func() error { return d.FillAsync(r.Addr, mib, 1, s) }, 2700},
		{"it is done by then", d.Synchronize, 1000},
		{"cuEventDestroy", func() error { return d.EventDestroy(e) }, 350},
		{"cuStreamDestroy", func() error { return d.StreamDestroy(s) }, 5000},
	} {
		before := d.Counters()
		ok(t, tc.call())
		after := d.Counters()
		if got := after.Time - before.Time; got != tc.want {
			t.Errorf("%s took %v, want %v", tc.name, got, tc.want)
		}
		if calls := after.Calls - before.Calls; calls != 1 && tc.name != "advance" {
			t.Errorf("%s counted as %d calls", tc.name, calls)
		}
	}
	if got := d.Now() - d.Counters().Time; got != time.Hour {
		t.Errorf("the clock is %v ahead of the calls", got)
	}
}

// TestHandles: what is not there is refused, stream 0 always is, and no handle
// comes twice.
func TestHandles(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib})
	r := must[device.Range](t)(d.Alloc(1))
	seenS, seenE := map[device.Stream]bool{0: true}, map[device.Event]bool{}
	for i := range 5 {
		s, e := must[device.Stream](t)(d.StreamCreate()), must[device.Event](t)(d.EventCreate())
		if seenS[s] || seenE[e] {
			t.Errorf("round %d: stream %d or event %d was there before", i, s, e)
		}
		seenS[s], seenE[e] = true, true
		ok(t, d.Work(s, us, nil, nil), d.EventRecord(e, s), d.Synchronize(), d.StreamDestroy(s), d.EventDestroy(e))
		_, query := d.StreamQuery(s)
		_, equery := d.EventQuery(e)
		own := must[device.Event](t)(d.EventCreate())
		invalid(t, query, equery, d.StreamDestroy(s), d.EventDestroy(e), d.StreamSynchronize(s), d.EventSynchronize(e),
			d.StreamWaitEvent(s, own), d.StreamWaitEvent(0, e), d.EventRecord(e, 0), d.EventRecord(own, s),
			d.Work(s, 0, nil, nil), d.FillAsync(r.Addr, 1, 0, s), d.CopyAsync(r.Addr, r.Addr+1, 1, s))
	}
	invalid(t, d.StreamDestroy(0), d.StreamDestroy(99), d.EventDestroy(0))
	ok(t, d.Work(0, us, nil, nil), d.StreamSynchronize(0))
}

// TestDestroyed: what is queued in a stream that ends still runs.
func TestDestroyed(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib, Costs: freeCalls})
	r := must[device.Range](t)(d.Alloc(1))
	s, e := must[device.Stream](t)(d.StreamCreate()), must[device.Event](t)(d.EventCreate())
	ok(t, d.FillAsync(r.Addr, 512, 7, s), d.Work(s, 9*us, nil, nil), d.EventRecord(e, s), d.StreamDestroy(s))
	other := must[device.Stream](t)(d.StreamCreate())
	if err := d.FillAsync(r.Addr, 512, 8, other); !errors.Is(err, device.ErrIllegalAddress) {
		t.Errorf("a new stream does not wait for one that has ended: %v", err)
	}
	ok(t, d.StreamWaitEvent(0, e), d.EventDestroy(e))
	if done := must[bool](t)(d.StreamQuery(0)); done {
		t.Error("stream 0 no longer waits for the event, which was destroyed")
	}
	ok(t, d.Synchronize())
	if d.Now() != 10*us {
		t.Errorf("synchronised at %v", d.Now())
	}
	got := make([]byte, 512)
	ok(t, d.Read(r.Addr, got))
	if !bytes.Equal(got, bytes.Repeat([]byte{7}, 512)) {
		t.Errorf("memory has %v", got[:8])
	}
}

// TestCopyAsync: bytes arrive, and what makes no sense is refused.
func TestCopyAsync(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib})
	r := must[device.Range](t)(d.Alloc(4 * mib))
	ok(t, d.FillAsync(r.Addr, 2*mib, 3, 0), d.FillAsync(r.Addr+100, 1, 4, 0), d.CopyAsync(r.Addr+2*mib, r.Addr+99, 3, 0), d.Synchronize())
	got := make([]byte, 4)
	ok(t, d.Read(r.Addr+2*mib, got))
	if !bytes.Equal(got, []byte{3, 4, 3, 0}) {
		t.Errorf("copied %v", got)
	}
	invalid(t, d.CopyAsync(r.Addr, r.Addr, 1, 0), d.CopyAsync(r.Addr, r.Addr+1, 2, 0), d.CopyAsync(r.Addr+1, r.Addr, 2, 0),
		d.CopyAsync(r.Addr, r.Addr+2*mib, 0, 0), d.CopyAsync(r.Addr, r.Addr+4*mib, 1, 0), d.CopyAsync(r.Addr+4*mib, r.Addr, 1, 0),
		d.CopyAsync(1, r.Addr, 1, 0), d.FillAsync(r.Addr+4*mib-1, 2, 0, 0), d.FillAsync(r.Addr, math.MaxUint64, 0, 0), d.FillAsync(r.Addr, 0, 0, 0),
		d.Work(0, -1, nil, nil))
	ok(t, d.CopyAsync(r.Addr+1, r.Addr, 1, 0), d.Work(0, 0, []device.Range{{}}, []device.Range{{Addr: 1}, r}))
	if h := d.Hazards(); len(h) != 0 {
		t.Errorf("hazards: %v", h)
	}
}

// TestEndOfTime: no sum of times overflows.
func TestEndOfTime(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib})
	last := d.Now()
	for i := range 5 {
		d.Advance(math.MaxInt64)
		d.Advance(-time.Hour)
		ok(t, d.Work(0, math.MaxInt64, nil, nil), d.Synchronize())
		if done := must[bool](t)(d.StreamQuery(0)); !done || d.Now() < last {
			t.Errorf("round %d: done is %v at %v, after %v", i, done, d.Now(), last)
		}
		last = d.Now()
	}
}

// asyncScript makes a call of every kind that this file, hazard.go and pool.go
// have, and gives everything back. What fails for a fault is called again. It
// returns what the program saw.
func asyncScript(t *testing.T, d *sim.Device) (saw []string, failed []error) {
	try := func(call func() (any, error)) {
		v, err := call()
		if err != nil {
			failed = append(failed, err)
			if v, err = call(); err != nil {
				t.Fatal(err)
			}
		}
		saw = append(saw, fmt.Sprint(v))
	}
	do := func(call func() error) { try(func() (any, error) { return nil, call() }) }
	var (
		s           device.Stream
		e           device.Event
		own, second device.Pool
		plain       device.Range
		blocks      [3]device.Range
	)
	try(func() (_ any, err error) { plain, err = d.Alloc(1); return plain, err })
	try(func() (_ any, err error) { s, err = d.StreamCreate(); return s, err })
	try(func() (_ any, err error) { e, err = d.EventCreate(); return e, err })
	try(func() (_ any, err error) { own, err = d.DefaultPool(); return own, err })
	try(func() (_ any, err error) { second, err = d.PoolCreate(64 * mib); return second, err })
	do(func() error { return d.PoolSetAttribute(own, device.PoolReleaseThreshold, 32*mib) })
	for i, p := range []device.Pool{own, second, own} {
		try(func() (_ any, err error) { blocks[i], err = d.AllocAsync(p, 3*mib, s); return blocks[i], err })
	}
	do(func() error { return d.FillAsync(blocks[0].Addr, mib, 5, s) })
	do(func() error { return d.CopyAsync(blocks[1].Addr, blocks[0].Addr, mib, s) })
	do(func() error { return d.Work(s, 50*us, blocks[:1], blocks[2:]) })
	do(func() error { return d.EventRecord(e, s) })
	try(func() (any, error) { return d.EventQuery(e) })
	do(func() error { return d.StreamWaitEvent(0, e) })
	do(func() error { return d.FreeAsync(blocks[0].Addr, 0) })
	do(func() error { return d.CopyAsync(plain.Addr, blocks[1].Addr, mib, 0) })
	do(func() error { return d.EventSynchronize(e) })
	try(func() (any, error) { return d.StreamQuery(s) })
	try(func() (_ any, err error) { blocks[0], err = d.AllocAsync(own, 5*mib, s); return blocks[0], err })
	do(func() error { return d.StreamSynchronize(0) })
	got := make([]byte, 2)
	try(func() (any, error) { return got, d.Read(plain.Addr, got) })
	do(func() error { return d.FreeAsync(plain.Addr, s) })
	for _, b := range blocks {
		do(func() error { return d.FreeAsync(b.Addr, s) })
	}
	do(d.Synchronize)
	for a := device.PoolReuseFollowEventDependencies; a <= device.PoolUsedHigh; a++ {
		try(func() (any, error) { return d.PoolGetAttribute(own, a) })
	}
	do(func() error { return d.PoolTrim(own, 0) })
	do(func() error { return d.PoolDestroy(second) })
	do(func() error { return d.EventDestroy(e) })
	do(func() error { return d.StreamDestroy(s) })
	now, peak := d.Held()
	return append(saw, fmt.Sprint(now, peak, d.Hazards())), failed
}

// TestAsyncFaults makes every call of the script fail in turn. Called again it
// succeeds, and everything is as if it had not failed: it took nothing and
// changed nothing.
func TestAsyncFaults(t *testing.T) {
	clean := newDevice(t, sim.Config{Total: gib})
	want, _ := asyncScript(t, clean)
	if last := want[len(want)-1]; last != fmt.Sprint(0, 66*mib, []int{}) {
		t.Fatalf("at the end: %s", last)
	}
	for _, fault := range []error{device.ErrOutOfMemory, device.ErrInvalidValue, errors.New("the tester's own")} {
		for n := uint64(1); n <= clean.Counters().Calls; n++ {
			d := newDevice(t, sim.Config{Total: gib})
			d.SetFaults(sim.Faults{FailAt: n, Err: fault})
			got, failed := asyncScript(t, d)
			if len(failed) != 1 || !errors.Is(failed[0], fault) {
				t.Fatalf("call %d should fail with %v: %v", n, fault, failed)
			}
			for i := range want {
				if got[i] != want[i] {
					t.Errorf("after call %d failed, result %d is %s, want %s", n, i, got[i], want[i])
				}
			}
		}
	}
}

// TestAsyncGone: after the device is lost or closed every call says so.
func TestAsyncGone(t *testing.T) {
	for _, want := range []error{device.ErrLost, device.ErrClosed} {
		d := newDevice(t, sim.Config{Total: gib})
		r := must[device.Range](t)(d.Alloc(1))
		if want == device.ErrLost {
			d.SetFaults(sim.Faults{LoseAt: 2})
		} else {
			ok(t, d.Close())
		}
		_, e1 := d.StreamCreate()
		_, e2 := d.EventCreate()
		_, e3 := d.StreamQuery(0)
		_, e4 := d.DefaultPool()
		_, e5 := d.PoolCreate(0)
		_, e6 := d.AllocAsync(1, 1, 0)
		_, e7 := d.PoolGetAttribute(1, 1)
		for i, err := range []error{
			e1, e2, e3, e4, e5, e6, e7, d.Synchronize(), d.StreamSynchronize(0), d.Work(0, 0, nil, nil),
			d.FillAsync(r.Addr, 1, 0, 0), d.CopyAsync(r.Addr, r.Addr+1, 1, 0), d.FreeAsync(r.Addr, 0),
			d.PoolTrim(1, 0), d.PoolDestroy(1), d.PoolSetAttribute(1, 1, 1), d.StreamDestroy(0),
		} {
			if !errors.Is(err, want) {
				t.Errorf("call %d: %v, want %v", i, err, want)
			}
		}
		d.Advance(time.Second)
	}
}

// TestAsyncGoroutines: several at once, each with a stream of its own, share a
// pool and are in nobody's way. The race detector looks on where it is switched
// on.
func TestAsyncGoroutines(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib})
	p := must[device.Pool](t)(d.DefaultPool())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			s, err1 := d.StreamCreate()
			e, err2 := d.EventCreate()
			if err := errors.Join(err1, err2); err != nil {
				t.Error(err)
				return
			}
			for i := range 100 {
				r, err := d.AllocAsync(p, uint64(1+i*7919%(3*mib)), s)
				if err != nil {
					t.Error(err)
					return
				}
				_, err1 := d.StreamQuery(s)
				_, err2 := d.EventQuery(e)
				err3 := d.FillAsync(r.Addr, r.Bytes, byte(i), s)
				if err := errors.Join(err1, err2, err3, d.FreeAsync(r.Addr, s), d.EventRecord(e, s), d.EventSynchronize(e)); err != nil {
					t.Error(err)
				}
				d.Advance(us)
				d.Now()
			}
		})
	}
	wg.Wait()
	if h := d.Hazards(); len(h) != 0 {
		t.Errorf("hazards: %v", h)
	}
	if now, peak := d.Held(); now != 0 || peak == 0 {
		t.Errorf("%d bytes are held, at most %d were", now, peak)
	}
}
