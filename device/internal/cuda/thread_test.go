//go:build linux && (amd64 || arm64) && !nodriver

// What others in the process do with contexts, graphs and handles, and what
// becomes of it.

package cuda

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"gpumem/device"
)

// stack is the contexts of the calling thread.
func (f *fake) stack() []uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.stacks[syscall.Gettid()])
}

// setThread gives the calling thread contexts and a capture mode.
func (f *fake) setThread(mode int32, contexts ...uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stacks[syscall.Gettid()], f.modes[syscall.Gettid()] = contexts, mode
}

// TestThreadIsAsBeforeAfterEveryCall: contexts and capture modes belong to the
// thread's owner, whether a call works or fails.
func TestThreadIsAsBeforeAfterEveryCall(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, lacks := range []string{"", "cuCtxGetId"} {
		f := newFake(t)
		f.lacks[lacks] = true
		other := f.add(1 << 30)
		other.active = true
		m := f.use()
		ours, others := contextBits+f.gpus[0].id, contextBits+other.id
		for _, contexts := range [][]uint64{nil, {ours}, {others}, {ours, others}, {others, ours}} {
			for _, op := range ops {
				name := cuFunctions[op.f].name()
				same := func(when string) {
					t.Helper()
					if got := f.stack(); !slices.Equal(got, contexts) {
						t.Errorf("after %s, %s: contexts are %#x, were %#x", name, when, got, contexts)
					}
					f.mu.Lock()
					defer f.mu.Unlock()
					if mode := f.modes[syscall.Gettid()]; mode != 1 {
						t.Errorf("after %s, %s: the capture mode is %d, was 1", name, when, mode)
					}
				}
				f.setThread(1, contexts...)
				d, err := m.open(0)
				if err != nil {
					t.Fatal(err)
				}
				x := newThings(t, d)
				same("prepared")
				f.setFail(op.f, 999)
				pushes := f.count(cuCtxPushCurrent)
				mine := len(contexts) != 0 && contexts[len(contexts)-1] == ours
				if err := op.do(x); (err == nil) != (mine && op.f == cuCtxPushCurrent) {
					t.Errorf("%s when it is to fail: %v", name, err)
				}
				same("failed")
				f.setFail(op.f, 0)
				if err := op.do(x); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				same("made")
				if mine && f.count(cuCtxPushCurrent) != pushes {
					t.Errorf("%s pushed the context that was there", name)
				}
				if err := d.Close(); err != nil {
					t.Error(err)
				}
			}
		}
		f.setThread(0)
	}
}

// TestLastPopFailsForGood: the call is over and has worked, so it returns what
// it did; the next one says what happened.
func TestLastPopFailsForGood(t *testing.T) {
	f := newFake(t)
	d := f.open()
	f.setFail(cuCtxPopCurrent, 700)
	if _, _, err := d.MemInfo(); err != nil {
		t.Errorf("a call that worked: %v", err)
	}
	if _, _, err := d.MemInfo(); !errors.Is(err, device.ErrIllegalAddress) {
		t.Errorf("the one after it: %v", err)
	}
	f.setFail(cuCtxPopCurrent, 0)
}

// TestCaptureElsewhereStaysWhole: while another thread captures a graph every
// call works, and Open and Close do, and the capture is not spoilt.
func TestCaptureElsewhereStaysWhole(t *testing.T) {
	f := newFake(t)
	m := f.use()
	capture := &fakeCapture{stream: streamBits + 99}
	f.capture = capture
	for _, op := range ops {
		d, err := m.open(0)
		if err != nil {
			t.Fatal(err)
		}
		if err := op.do(newThings(t, d)); err != nil {
			t.Errorf("%s: %v", cuFunctions[op.f].name(), err)
		}
		checkClosed(t, f, d)
		if capture.broken != "" {
			t.Fatalf("%s: %s spoilt the capture", cuFunctions[op.f].name(), capture.broken)
		}
	}
}

// TestCaptureInOwnStreamIsRefused: to wait for a stream that captures makes no
// sense, and is refused before the driver would spoil the capture.
func TestCaptureInOwnStreamIsRefused(t *testing.T) {
	f := newFake(t)
	d := f.open()
	s, err := d.StreamCreate()
	if err != nil {
		t.Fatal(err)
	}
	f.capture = &fakeCapture{stream: uint64(s)}
	for name, err := range map[string]error{"StreamSynchronize": d.StreamSynchronize(s), "Synchronize": d.Synchronize()} {
		if !errors.Is(err, device.ErrNotPermitted) || !strings.Contains(err.Error(), "end the capture first") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if f.capture.broken != "" {
		t.Errorf("%s spoilt the capture", f.capture.broken)
	}
	f.capture = nil
	if err := errors.Join(d.StreamSynchronize(s), d.Synchronize()); err != nil {
		t.Errorf("after the capture: %v", err)
	}
}

// TestResetContextIsLost: another library resets the primary context, and
// perhaps sets it up again, under the same handle. No call uses a handle from
// before (the fake driver would note it); each says what to do, and that helps.
func TestResetContextIsLost(t *testing.T) {
	for _, tc := range []struct {
		name         string
		lacks        string
		again, there bool // set up again; current on the thread already
	}{
		{"reset", "", false, false},
		{"reset, current", "", false, true},
		{"set up again", "", true, false},
		{"set up again, current", "", true, true},
		{"reset, before CUDA 12", "cuCtxGetId", false, false},
		{"reset, current, before CUDA 12", "cuCtxGetId", false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			f := newFake(t)
			f.lacks[tc.lacks] = true
			m := f.use()
			g := f.gpus[0]
			for _, op := range ops {
				d, err := m.open(0)
				if err != nil {
					t.Fatal(err)
				}
				x := newThings(t, d)
				f.reset(g)
				g.active = tc.again
				if tc.there {
					f.setThread(0, contextBits+g.id)
				}
				name := cuFunctions[op.f].name()
				for range 2 {
					err = op.do(x)
					if !errors.Is(err, contextDestroyed) || !errors.Is(err, device.ErrLost) || !strings.Contains(err.Error(), "close the device and open it again") {
						t.Errorf("%s: %v", name, err)
					}
				}
				f.setThread(0)
				if err := d.Close(); err != nil || g.refs != 0 {
					t.Errorf("%s: Close: %v, %d references", name, err, g.refs)
				}
			}
			d := f.open()
			if r, err := d.Alloc(1 << 20); err != nil || d.Free(r.Addr) != nil {
				t.Errorf("opened again: %v", err)
			}
		})
	}
}

// TestClosesResetContextUntouched: Close is the first to meet the reset.
func TestClosesResetContextUntouched(t *testing.T) {
	f := newFake(t)
	x := newThings(t, f.open())
	f.reset(f.gpus[0])
	f.gpus[0].active = true
	if err := x.d.Close(); err != nil || f.gpus[0].refs != 0 {
		t.Errorf("Close: %v, %d references", err, f.gpus[0].refs)
	}
}

// TestDestroyedElsewhere: someone destroyed a stream and an event past this
// package. The driver says so in two ways; neither ends the device, and what is
// gone is forgotten.
func TestDestroyedElsewhere(t *testing.T) {
	for _, code := range []Code{invalidHandle, contextDestroyed} {
		for _, op := range ops {
			if !op.handle {
				continue
			}
			f := newFake(t)
			x := newThings(t, f.open())
			f.setFail(op.f, code)
			err := op.do(x)
			name := cuFunctions[op.f].name()
			if f.count(cuCtxSynchronize) != 0 {
				if err != nil { // Synchronize waits for all without asking for each
					t.Errorf("%s with %v, in a wait for all: %v", name, code, err)
				}
			} else {
				checkRefused(t, err, op.f, invalidHandle)
			}
			f.setFail(op.f, 0)
			if _, _, err := x.d.MemInfo(); err != nil {
				t.Errorf("after %s with %v: %v", name, code, err)
			}
			calls := f.count(op.f)
			if err := op.do(x); op.f == cuStreamDestroy || op.f == cuEventDestroy {
				if !errors.Is(err, device.ErrInvalidHandle) || f.count(op.f) != calls {
					t.Errorf("%s again: %v", name, err)
				}
			} else if err != nil {
				t.Errorf("%s when it works: %v", name, err)
			}
		}
	}
}
