package streams_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"gpumem/alloc"
	"gpumem/alloc/internal/epochs"
	"gpumem/alloc/streams"
	"gpumem/device"
	"gpumem/device/sim"
)

// lab is a tracker on a device that gives handles of streams out again, and the
// names of the calls that it makes.
type lab struct {
	testing.TB
	dev   *sim.Device
	t     *streams.Tracker
	calls []string
}

func newLab(t testing.TB) *lab {
	t.Helper()
	dev, err := sim.New(sim.Config{Total: 64 * mib, ReuseStreams: true})
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{TB: t, dev: dev, t: streams.New(dev)}
	dev.OnCall(func(_ uint64, name string, _ uint64) error {
		l.calls = append(l.calls, name)
		return nil
	})
	return l
}

func (l *lab) must(errs ...error) {
	l.Helper()
	if err := errors.Join(errs...); err != nil {
		l.Fatal(err)
	}
}

func (l *lab) create() device.Stream {
	l.Helper()
	h, err := l.dev.StreamCreate()
	l.must(err)
	return h
}

// busy queues an hour of work.
func (l *lab) busy(h device.Stream) {
	l.Helper()
	l.must(l.dev.Work(h, time.Hour, nil, nil))
}

func (l *lab) mark(n uint32) *streams.Mark {
	l.Helper()
	m, err := l.t.Mark(n)
	l.must(err)
	return m
}

func (l *lab) passed(m *streams.Mark) bool {
	l.t.Look()
	return l.t.Passed(m)
}

// TestNumberUnknownIsRefusedAndForgotten: an unknown number changes nothing.
func TestNumberUnknownIsRefusedAndForgotten(t *testing.T) {
	l := newLab(t)
	for _, n := range []uint32{1, 99, 1<<32 - 1} {
		if err := l.t.Use(n); !errors.Is(err, alloc.ErrBadRequest) {
			t.Errorf("Use(%d): %v", n, err)
		}
	}
	l.must(l.t.Use(0))
	marks, err := l.t.MarkAll(nil, 1<<64-1)
	if len(marks) != 1 || err != nil {
		t.Errorf("%d marks for one stream, %v", len(marks), err)
	}
}

// TestNumberOfReusedHandleIsAnother: what happened to the old stream does not
// count for the new one, nor the other way round.
func TestNumberOfReusedHandleIsAnother(t *testing.T) {
	for _, word := range []string{"none", "before", "after"} {
		t.Run(word, func(t *testing.T) {
			l := newLab(t)
			h := l.create()
			n := l.t.Number(h)
			l.must(l.t.Use(n))
			l.busy(h)
			if word == "before" {
				l.must(l.t.Retire(h))
			}
			l.must(l.dev.StreamDestroy(h))
			if word == "after" {
				l.must(l.t.Retire(h))
			}
			if again := l.create(); again != h {
				t.Fatal("the device does not use the handle again")
			}
			m := l.mark(n) // of a block of the first stream
			if l.passed(m) {
				t.Error("a mark in the new stream stands for work in the old one")
			}
			if k := l.t.Number(h); k == n || l.t.Use(k) != nil {
				t.Errorf("the new stream has number %d, the old one %d", k, n)
			}
			if err := l.t.Use(n); !errors.Is(err, alloc.ErrBadRequest) {
				t.Errorf("the old number is valid: %v", err)
			}
			l.must(l.t.Wait(m))
			if !l.passed(m) || l.dev.Now() < time.Hour {
				t.Errorf("waited %v for an hour's work", l.dev.Now())
			}
			waited := "cuCtxSynchronize"
			if word == "before" {
				waited = "cuEventSynchronize"
			}
			if last := l.calls[len(l.calls)-1]; !strings.Contains(strings.Join(l.calls, " "), waited) {
				t.Errorf("waited with %s, want %s", last, waited)
			}
			l.t.Release(m)
			l.must(l.t.Close())
		})
	}
}

// TestRetireForgetsStreamWhoseWorkIsDone: streams that come and go leave nothing.
func TestRetireForgetsStreamWhoseWorkIsDone(t *testing.T) {
	for _, retire := range []bool{true, false} {
		l := newLab(t)
		for range 500 {
			h := l.create()
			n := l.t.Number(h)
			l.must(l.t.Use(n))
			l.t.Release(l.mark(n))
			if retire {
				l.must(l.t.Retire(h))
			}
			l.must(l.dev.StreamDestroy(h))
		}
		if n := l.t.Events(); n > 40 {
			t.Errorf("retire %v: %d events are left", retire, n)
		}
		marks, err := l.t.MarkAll(nil, 1<<64-1)
		if len(marks) > 140 || err != nil {
			t.Errorf("retire %v: %d streams are kept, %v", retire, len(marks), err)
		}
	}
}

// TestRetireWhat: what can be retired.
func TestRetireWhat(t *testing.T) {
	l := newLab(t)
	if err := l.t.Retire(0); !errors.Is(err, alloc.ErrBadRequest) {
		t.Errorf("stream 0: %v", err)
	}
	h, unused := l.create(), l.create()
	l.must(l.t.Retire(h)) // never seen
	n := l.t.Number(unused)
	l.must(l.t.Retire(unused)) // numbered, never used
	if err := l.t.Use(n); !errors.Is(err, alloc.ErrBadRequest) {
		t.Errorf("retired number: %v", err)
	}
	k := l.t.Number(h)
	l.must(l.t.Use(k))
	no := errors.New("no")
	l.dev.SetFaults(sim.Faults{FailAt: l.dev.Counters().Calls + 1, Err: no})
	if err := l.t.Retire(h); !errors.Is(err, no) {
		t.Errorf("the device fails: %v", err)
	}
	l.must(l.t.Use(k), l.t.Retire(h)) // as it was, and again
	if err := l.t.Use(k); !errors.Is(err, alloc.ErrBadRequest) {
		t.Errorf("the number that was used last: %v", err)
	}
}

// TestWaitDeferred: the wait is the owner's, and marks outlive their users and the
// tracker until it is settled.
func TestWaitDeferred(t *testing.T) {
	l := newLab(t)
	l.t.Defer(false)
	l.busy(0)
	l.must(l.t.Use(0))
	m := l.mark(0)
	var pending *streams.Pending
	if err := l.t.Wait(m); !errors.As(err, &pending) {
		t.Fatalf("Wait: %v", err)
	}
	l.t.Release(m)
	events := l.t.Events()
	k := l.mark(0) // not with m's event
	if l.t.Events() != events+1 {
		t.Error("the event of a mark that is waited for is recorded again")
	}
	l.must(l.t.Close(), pending.Wait())
	if l.dev.Now() < time.Hour {
		t.Errorf("waited %v", l.dev.Now())
	}
	pending.Settle(nil)
	l.t.Release(k)
	if made, ended := strings.Count(strings.Join(l.calls, " "), "cuEventCreate"), strings.Count(strings.Join(l.calls, " "), "cuEventDestroy"); made != ended {
		t.Errorf("%d events were created, %d destroyed", made, ended)
	}
}

// TestPassedAsksOnceForStream: a mark that has not passed stands for the later
// ones, one that has for the earlier ones.
func TestPassedAsksOnceForStream(t *testing.T) {
	l := newLab(t)
	l.must(l.t.Use(0))
	var marks []*streams.Mark
	for range 100 {
		l.busy(0)
		marks = append(marks, l.mark(0))
	}
	l.calls = nil
	l.t.Look()
	for _, m := range marks {
		if l.t.Passed(m) {
			t.Fatal("passed too early")
		}
	}
	l.dev.Advance(50 * time.Hour)
	l.t.Look()
	if !l.t.Passed(marks[48]) || !l.t.Passed(marks[3]) || l.t.Passed(marks[60]) || l.t.Passed(marks[99]) {
		t.Error("of 100 hours 50 are over")
	}
	if n := len(l.calls); n != 3 {
		t.Errorf("%d queries: %v", n, l.calls)
	}
}

// TestEpochs walks epochs through all their states, with one and with several
// streams.
func TestEpochs(t *testing.T) {
	for _, deterministic := range []bool{false, true} {
		t.Run(fmt.Sprint(deterministic), func(t *testing.T) {
			l := newLab(t)
			h := l.create()
			l.must(l.t.Use(0), l.t.Use(l.t.Number(h)))
			renumbered := 0
			e := epochs.New(l.t, deterministic, func() { renumbered++ })
			l.must(e.Close()) // nothing was freed: no call
			if len(l.calls) != 1 || e.Now() != 1 {
				t.Errorf("calls %v, epoch %d", l.calls, e.Now())
			}
			l.busy(h)
			first := e.Stamp()
			l.must(e.Close())
			second := e.Stamp()
			if first != 1 || second != 2 || e.Passed(first) || e.Passed(second) {
				t.Errorf("epochs %d and %d, passed %v", first, second, e.Passed(first))
			}
			l.must(e.Wait(first))
			if !e.Passed(first) || e.Passed(second) || l.dev.Now() < time.Hour {
				t.Error("after a wait for the first epoch")
			}
			l.must(e.Wait(second))
			if !e.Passed(second) || e.Now() != 3 {
				t.Error("after a wait for the open epoch")
			}
			for range 100 { // more than are kept apart
				e.Stamp()
				l.must(e.Close())
			}
			if n := l.t.Events(); n > 40 {
				t.Errorf("%d events", n)
			}
			e.SkipTo(1<<32 - 3)
			last := e.Stamp()
			l.must(e.Close())
			e.Stamp()
			l.must(e.Close())
			if e.Now() != 1 || renumbered != 1 || e.Passed(1) {
				t.Errorf("after epoch %d comes %d, renumbered %d times", last, e.Now(), renumbered)
			}
			l.must(e.Wait(1))
			if !e.Passed(1) {
				t.Error("epoch 1 is not over after a wait")
			}
			e.End()
			l.must(l.t.Close())
		})
	}
}

// TestEpochsWhenMarksFail: an epoch that cannot be closed stays open, and is over
// only when the device has said so.
func TestEpochsWhenMarksFail(t *testing.T) {
	l := newLab(t)
	l.must(l.t.Use(0))
	e := epochs.New(l.t, false, nil)
	n := e.Stamp()
	l.dev.SetFaults(sim.Faults{FailAt: l.dev.Counters().Calls + 1, Err: device.ErrOutOfMemory})
	if err := e.Close(); !errors.Is(err, device.ErrOutOfMemory) || e.Now() != n {
		t.Fatalf("Close: %v, epoch %d", err, e.Now())
	}
	l.dev.SetFaults(sim.Faults{FailAt: l.dev.Counters().Calls + 1, Err: device.ErrOutOfMemory})
	if err := e.Wait(n); !errors.Is(err, device.ErrOutOfMemory) || e.Passed(n) {
		t.Fatalf("Wait: %v", err)
	}
	l.must(e.Wait(n))
	if !e.Passed(n) {
		t.Error("not over after a wait")
	}
}

// TestNotesOfDoneWorkAreForgotten: blocks that are freed and whose memory is not
// used again leave no events when their work is done.
func TestNotesOfDoneWorkAreForgotten(t *testing.T) {
	w := newWorld(t, true)
	var blocks []alloc.Block
	for i := range 3000 {
		blocks = append(blocks, w.alloc(4*kib, uint32(i&1)))
	}
	for _, b := range blocks {
		if err := w.free(b); err != nil {
			t.Fatal(err)
		}
	}
	if n := w.tracker.Events(); n > 1000 {
		t.Errorf("%d events for %d free blocks whose work is done", n, len(blocks))
	}
}

// TestStreamsThatAreNeverUsedAreForgotten: numbers of streams that come and go
// without a block, and without Retire.
func TestStreamsThatAreNeverUsedAreForgotten(t *testing.T) {
	l := newLab(t)
	for range 2000 {
		h, err := l.dev.StreamCreate()
		l.must(err)
		l.t.Number(h)
		l.must(l.dev.StreamDestroy(h))
	}
	if n := streams.Known(l.t); n > 40 {
		t.Errorf("%d streams are kept", n)
	}
}

// TestManyFreesWhileDeviceLags: while the device lags behind each free adds a note,
// and no operation moves more than a leaf.
func TestManyFreesWhileDeviceLags(t *testing.T) {
	w := newWorld(t, true)
	queries := 0
	w.dev.OnCall(func(_ uint64, name string, _ uint64) error {
		if name == "cuEventQuery" {
			queries++
		}
		return nil
	})
	for s := range w.streams {
		if err := w.dev.Work(w.streams[s], time.Hour, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	var blocks []alloc.Block
	for i := range 3000 {
		blocks = append(blocks, w.alloc(4*kib, uint32(i&1)))
	}
	for _, b := range blocks {
		if err := w.free(b); err != nil {
			t.Fatal(err)
		}
	}
	if queries > 40 {
		t.Errorf("%d queries for %d frees", queries, len(blocks))
	}
}

// TestPassedSaysNothingOfEarlierMarks: a mark that has not passed stands for the
// later ones in its stream only, the one right before it included.
func TestPassedSaysNothingOfEarlierMarks(t *testing.T) {
	l := newLab(t)
	l.must(l.t.Use(0))
	l.busy(0)
	first := l.mark(0)
	l.busy(0)
	second := l.mark(0)
	l.dev.Advance(time.Hour + time.Minute)
	l.t.Look()
	if l.t.Passed(second) || !l.t.Passed(first) {
		t.Error("of two hours one is over")
	}
}

// TestSettleAfterFailedWaitPassesNothing: the device did not say that the work is
// done, so memory behind it must not be unmapped.
func TestSettleAfterFailedWaitPassesNothing(t *testing.T) {
	l := newLab(t)
	l.must(l.t.Use(0))
	l.busy(0)
	m := l.mark(0)
	l.t.Defer(false)
	var pending *streams.Pending
	if err := l.t.Wait(m); !errors.As(err, &pending) {
		t.Fatal(err)
	}
	l.dev.SetFaults(sim.Faults{FailAt: l.dev.Counters().Calls + 1, Err: device.ErrNotPermitted})
	err := pending.Wait()
	pending.Settle(err)
	if err == nil || l.passed(m) {
		t.Errorf("%v; the mark has passed: %v", err, l.passed(m))
	}
}

// TestMarkAllMarksOnlyTheSet: an event in a stream that never saw the memory would
// make its release wait for other work.
func TestMarkAllMarksOnlyTheSet(t *testing.T) {
	l := newLab(t)
	n := l.t.Number(l.create())
	l.must(l.t.Use(0), l.t.Use(n))
	bit, err := l.t.Bit(n)
	l.must(err)
	marks, err := l.t.MarkAll(nil, bit)
	if len(marks) != 1 || err != nil {
		t.Errorf("%d marks for one stream of two, %v", len(marks), err)
	}
}

// TestLostStreamsAreWaitedForInBatches: streams that a program destroys without a
// word cost one wait for the device in 64, not one each.
func TestLostStreamsAreWaitedForInBatches(t *testing.T) {
	l := newLab(t)
	for range 256 {
		h := l.create()
		l.must(l.t.Use(l.t.Number(h)), l.dev.StreamDestroy(h))
		l.t.Number(h) // which finds it gone
	}
	waits := strings.Count(strings.Join(l.calls, " "), "cuCtxSynchronize")
	if waits < 1 || waits > 256/64 || streams.Known(l.t) > 200 {
		t.Errorf("%d waits for 256 streams, %d are kept", waits, streams.Known(l.t))
	}
}

// TestBitsOfLivingStreamsDiffer: also after streams that have ended were dropped and
// their bits are given again.
func TestBitsOfLivingStreamsDiffer(t *testing.T) {
	l := newLab(t)
	seen := map[uint64]uint32{}
	bit := func(n uint32) {
		b, err := l.t.Bit(n)
		l.must(err)
		if other, ok := seen[b]; ok {
			t.Errorf("streams %d and %d have the same bit", other, n)
		}
		seen[b] = n
	}
	bit(0)
	bit(l.t.Number(l.create()))
	for range 40 { // more than are kept without a look at them
		h := l.create()
		l.must(l.t.Use(l.t.Number(h)), l.t.Retire(h), l.dev.StreamDestroy(h))
	}
	if n := streams.Known(l.t); n > 20 {
		t.Fatalf("%d streams are kept", n)
	}
	bit(l.t.Number(l.create()))
}
