//go:build linux && (amd64 || arm64) && !nodriver

// Work that does not end, and errors of work that has ended.

package cuda

import (
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"gpumem/device"
)

const century = 100 * 365 * 24 * time.Hour

// soon fails the test if a condition does not come true.
func soon(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !is(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not in 20 seconds", what)
		}
	}
}

// busy makes a stream of d with work that takes so long.
func (f *fake) busy(d *Device, long time.Duration) device.Stream {
	f.t.Helper()
	s, err := d.StreamCreate()
	if err == nil {
		err = f.work(s, long)
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return s
}

// work queues work of the first GPU.
func (f *fake) work(s device.Stream, long time.Duration) error {
	g := f.gpus[0]
	return g.sim.Work(device.Stream(f.handle(g, uint64(s), streamBits)), long, nil, nil)
}

// TestCloseEndsWaits: goroutines that wait for endless work hold no thread in
// the driver (the fake would note it) and end with Close, which gives back what
// there is when the work ends.
func TestCloseEndsWaits(t *testing.T) {
	f := newFake(t)
	d := f.open()
	s := f.busy(d, century)
	e, err := d.EventCreate()
	if err == nil {
		err = d.EventRecord(e, s)
	}
	r, errAlloc := d.Alloc(1 << 20)
	if err := errors.Join(err, errAlloc); err != nil {
		t.Fatal(err)
	}
	gone := f.busy(d, century)
	if err := d.StreamDestroy(gone); err != nil {
		t.Fatal(err)
	}
	ends := make(chan error)
	waits := []func() error{
		func() error { return d.StreamSynchronize(s) },
		func() error { return d.EventSynchronize(e) },
		d.Synchronize,
	}
	const each = 30
	for range each {
		for _, wait := range waits {
			go func() { ends <- wait() }()
		}
	}
	soon(t, "all wait", func() bool { return f.count(cuEventQuery) > 10*each*len(waits) })
	d.patience = time.Millisecond
	err = d.Close()
	if !errors.Is(err, ErrRunning) || !strings.Contains(err.Error(), "NVIDIA Fake") {
		t.Errorf("Close with work under way: %v", err)
	}
	for range each * len(waits) {
		if err := <-ends; !errors.Is(err, device.ErrClosed) {
			t.Errorf("a wait ended with %v", err)
		}
	}
	if err := d.Free(r.Addr); !errors.Is(err, device.ErrClosed) {
		t.Errorf("a call while Close goes on behind: %v", err)
	}
	if err := d.Close(); !errors.Is(err, ErrRunning) {
		t.Errorf("Close again: %v", err)
	}
	f.gpus[0].sim.Advance(century)
	d.patience = patience
	checkClosed(t, f, d)
}

// TestCloseBehindHangingFree: cuMemFree waits in the driver. Few threads do, the
// other calls wait in Go and end with Close, which does not wait for ever.
func TestCloseBehindHangingFree(t *testing.T) {
	f := newFake(t)
	d := f.open()
	const frees = 20
	gate := make(chan struct{})
	f.block["cuMemFree_v2"] = gate
	ends := make(chan error, frees)
	for range frees {
		r, err := d.Alloc(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		go func() { ends <- d.Free(r.Addr) }()
	}
	inside := func() int {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.inside["cuMemFree_v2"]
	}
	soon(t, "threads wait", func() bool { return inside() == maxBlocked })
	d.patience = time.Millisecond
	if err := d.Close(); !errors.Is(err, ErrRunning) {
		t.Errorf("Close behind a Free that hangs: %v", err)
	}
	for range frees - maxBlocked {
		select {
		case err := <-ends:
			if !errors.Is(err, device.ErrClosed) {
				t.Errorf("a Free that waited ended with %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("more threads than may wait in the driver")
		}
	}
	if _, _, err := d.MemInfo(); !errors.Is(err, device.ErrClosed) {
		t.Errorf("a call while Close waits: %v", err)
	}
	close(gate)
	for range maxBlocked {
		if err := <-ends; err != nil {
			t.Errorf("a Free in the driver ended with %v", err)
		}
	}
	d.patience = patience
	checkClosed(t, f, d)
	if f.most["cuMemFree_v2"] != maxBlocked {
		t.Errorf("%d threads waited in the driver at once", f.most["cuMemFree_v2"])
	}
}

// TestWaitEndsThoughWorkIsAdded: a wait is for what is in the stream when it
// begins, also if there is always more.
func TestWaitEndsThoughWorkIsAdded(t *testing.T) {
	f := newFake(t)
	d := f.open()
	s := f.busy(d, 50*time.Millisecond)
	var once sync.Once
	f.asked = func() {
		if err := f.work(s, time.Hour); err != nil {
			once.Do(func() { t.Error(err) })
		}
	}
	for name, wait := range map[string]func() error{
		"StreamSynchronize": func() error { return d.StreamSynchronize(s) },
		"Synchronize":       d.Synchronize,
	} {
		f.gpus[0].sim.Advance(century / 100)
		if err := f.work(s, 50*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		if err := wait(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if done, err := d.StreamQuery(s); done || err != nil {
			t.Errorf("after %s: done %v, %v", name, done, err)
		}
	}
	f.asked = nil
	f.gpus[0].sim.Advance(century / 10)
}

// TestSynchronizeWaitsForDestroyedStream: its work still runs.
func TestSynchronizeWaitsForDestroyedStream(t *testing.T) {
	f := newFake(t)
	d := f.open()
	s := f.busy(d, 50*time.Millisecond)
	e, err := d.EventCreate()
	if err := errors.Join(err, d.EventRecord(e, s), d.StreamDestroy(s)); err != nil {
		t.Fatal(err)
	}
	if done, err := d.EventQuery(e); done || err != nil {
		t.Fatalf("before: done %v, %v", done, err)
	}
	if err := d.Synchronize(); err != nil {
		t.Error(err)
	}
	if done, err := d.EventQuery(e); !done || err != nil {
		t.Errorf("after: done %v, %v", done, err)
	}
}

// TestFreeMeetsErrorOfEarlierWork: the driver returns an error of a launch from
// cuMemFree, having freed the memory or not, and does not say which.
func TestFreeMeetsErrorOfEarlierWork(t *testing.T) {
	for _, code := range []Code{701, 999, outOfMemory, unknownCode} {
		f := newFake(t)
		d := f.open()
		r, err := d.Alloc(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		// Not freed: it fails, and can be done again.
		f.setFail(cuMemFree, code)
		checkRefused(t, d.Free(r.Addr), cuMemFree, code)
		if err := d.StreamSynchronize(0); err != nil {
			t.Errorf("%v is told twice: %v", code, err)
		}
		f.setFail(cuMemFree, 0)
		// Freed: the next wait has the error, once.
		f.late["cuMemFree_v2"] = int32(code)
		if err := d.Free(r.Addr); err != nil {
			t.Errorf("a Free that worked, with %v of earlier work: %v", code, err)
		}
		delete(f.late, "cuMemFree_v2")
		if now, _ := f.gpus[0].sim.Held(); now != 0 {
			t.Errorf("%d bytes are held", now)
		}
		if err := d.StreamSynchronize(0); !errors.Is(err, code) || !strings.Contains(err.Error(), "cuMemFree") {
			t.Errorf("the wait after it: %v, want %v", err, code)
		}
		if err := d.Synchronize(); err != nil {
			t.Errorf("the next wait: %v", err)
		}
		if err := d.Free(r.Addr); !errors.Is(err, device.ErrInvalidValue) {
			t.Errorf("freeing it again: %v", err)
		}
		checkClosed(t, f, d)
	}
}

// TestCloseTellsErrorOfEarlierWork: nothing waited since.
func TestCloseTellsErrorOfEarlierWork(t *testing.T) {
	f := newFake(t)
	d := f.open()
	r, err := d.Alloc(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	f.late["cuMemFree_v2"] = 701
	if err := d.Free(r.Addr); err != nil {
		t.Error(err)
	}
	delete(f.late, "cuMemFree_v2")
	if err := d.Close(); !errors.Is(err, Code(701)) {
		t.Errorf("Close: %v", err)
	}
}

// TestFreeMeetsFatalError: the context is gone and the memory with it.
func TestFreeMeetsFatalError(t *testing.T) {
	f := newFake(t)
	d := f.open()
	r, err := d.Alloc(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	f.setFail(cuMemFree, 700)
	for range 2 {
		checkRefused(t, d.Free(r.Addr), cuMemFree, 700)
	}
	if n := f.count(cuMemFree) + f.count(cuMemGetAddressRange); n != 1 {
		t.Errorf("%d calls about memory of a context that is gone", n)
	}
	if err := d.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// TestFreeOfWhatIsNotGrantedAnyMore: someone freed it past this package.
func TestFreeOfWhatIsNotGrantedAnyMore(t *testing.T) {
	f := newFake(t)
	d := f.open()
	r, err := d.Alloc(1 << 20)
	if err == nil {
		err = f.gpus[0].sim.Free(r.Addr)
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := d.Free(r.Addr); !errors.Is(err, device.ErrInvalidValue) {
			t.Error(err)
		}
	}
	if n := f.count(cuMemFree); n != 1 {
		t.Errorf("the driver was asked %d times to free what is not granted", n)
	}
	checkClosed(t, f, d)
}

// TestFailedEndDoesNotTouchNewHolder: while a call that ends a grant is under
// way the driver gives its address out again; the call then fails.
func TestFailedEndDoesNotTouchNewHolder(t *testing.T) {
	f := newFake(t)
	d := f.open()
	r, err := d.Alloc(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	gate := make(chan struct{})
	f.block["cuMemFree_v2"] = gate
	f.setFail(cuMemFree, 999)
	end := make(chan error)
	go func() { end <- d.Free(r.Addr) }()
	soon(t, "cuMemFree is called", func() bool { return f.count(cuMemFree) > 0 })
	keep(d, d.grants, r.Addr, byAllocAsync)
	close(gate)
	if err := <-end; err == nil {
		t.Error("the failure is lost")
	}
	if from, ok := known(d, d.grants, r.Addr); !ok || from != byAllocAsync {
		t.Errorf("the table has %v, %v", from, ok)
	}
	keep(d, d.grants, r.Addr, byAlloc)
	f.setFail(cuMemFree, 0)
	checkClosed(t, f, d)
}
