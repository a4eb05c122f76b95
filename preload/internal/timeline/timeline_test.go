package timeline

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const ms = time.Millisecond

// engine is one that this process has for itself.
type engine struct {
	mu  sync.Mutex
	end time.Duration
}

func (e *engine) occupy(_, ready, takes time.Duration) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.end = max(e.end, ready) + takes
	return e.end
}

// on runs a test in time of its own, which begins at 0 and goes on only where all wait.
func on(t *testing.T, test func(t *testing.T, line *Timeline, now func() time.Duration)) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		now := func() time.Duration { return time.Since(start) }
		test(t, New(now), now)
	})
}

// is checks a time.
func is(t *testing.T, what string, got, want time.Duration) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestOperationsOfAQueueRunOneAfterTheOther(t *testing.T) {
	on(t, func(t *testing.T, line *Timeline, now func() time.Duration) {
		var q Queue
		var e engine
		var seen []time.Duration
		finish := func() { seen = append(seen, now()) }
		first := line.Add(&q, &Op{Occupy: e.occupy, Takes: 2 * ms, Finish: finish})
		line.Add(&q, &Op{})
		long := line.Add(&q, &Op{Occupy: e.occupy, Takes: 23 * ms, Finish: finish}) // several slices
		if line.Ended(first) || line.Last(&q) != long || !line.Begun(first) || line.Begun(long) {
			t.Error("all have ended, or begun, at once")
		}
		line.Wait(first)
		is(t, "the first", now(), 2*ms)
		if !line.Ended(first) || line.Ended(long) || !line.Begun(long) {
			t.Error("the last has ended with the first, or is not begun then")
		}
		line.Wait(long, nil)
		is(t, "the last", now(), 25*ms)
		is(t, "the last by its own account", line.At(long), 25*ms)
		if line.Last(&q) != nil || !slices.Equal(seen, []time.Duration{2 * ms, 25 * ms}) {
			t.Errorf("finished at %v", seen)
		}
		time.Sleep(10 * ms) // idle
		is(t, "after a pause", line.At(line.Add(&q, &Op{})), 35*ms)
	})
}

// TestAnEngineDoesOneThingAtATimeAndOthersBesideIt, in turns of a slice.
func TestAnEngineDoesOneThingAtATimeAndOthersBesideIt(t *testing.T) {
	on(t, func(t *testing.T, line *Timeline, now func() time.Duration) {
		var a, b, c Queue
		var shared, other engine
		first := line.Add(&a, &Op{Occupy: shared.occupy, Takes: 10 * ms})
		second := line.Add(&b, &Op{Occupy: shared.occupy, Takes: 10 * ms})
		third := line.Add(&c, &Op{Occupy: other.occupy, Takes: 10 * ms})
		line.Wait(first, second, third)
		is(t, "first", line.At(first), 15*ms)
		is(t, "second", line.At(second), 20*ms)
		is(t, "third", line.At(third), 10*ms)
	})
}

// TestALateLoopMakesNothingSlower: Finish takes 7 ms of the loop's time, and what comes after is ready at the time at
// which the work was done.
func TestALateLoopMakesNothingSlower(t *testing.T) {
	on(t, func(t *testing.T, line *Timeline, now func() time.Duration) {
		var q Queue
		var e engine
		line.Add(&q, &Op{Occupy: e.occupy, Takes: 2 * ms, Finish: func() { time.Sleep(7 * ms) }})
		last := line.Add(&q, &Op{Occupy: e.occupy, Takes: 8 * ms})
		line.Wait(last)
		is(t, "the last", now(), 10*ms)
	})
}

func TestAnOperationWaitsForThoseOfOtherQueues(t *testing.T) {
	on(t, func(t *testing.T, line *Timeline, now func() time.Duration) {
		var a, b Queue
		var one, two engine
		first := line.Add(&a, &Op{Occupy: one.occupy, Takes: 3 * ms})
		second := line.Add(&b, &Op{Occupy: two.occupy, Takes: ms}, first, nil)
		line.Wait(second)
		is(t, "behind the other queue's", now(), 4*ms)
		third := line.Add(&b, &Op{Occupy: two.occupy, Takes: ms}, first) // which has ended
		line.Wait(third)
		is(t, "behind nothing", now(), 5*ms)
	})
}

// TestAFunctionBlocksItsQueueAlone, and it counts from its return; values likewise.
func TestAFunctionBlocksItsQueueAlone(t *testing.T) {
	on(t, func(t *testing.T, line *Timeline, now func() time.Duration) {
		var a, b, c Queue
		var e engine
		var there atomic.Bool
		call := line.Add(&a, &Op{Call: func() { time.Sleep(20 * ms); there.Store(true) }})
		behind := line.Add(&a, &Op{Occupy: e.occupy, Takes: 2 * ms})
		beside := line.Add(&b, &Op{Occupy: e.occupy, Takes: 2 * ms})
		value := line.Add(&c, &Op{Ready: there.Load})
		last := line.Add(&c, &Op{Occupy: e.occupy, Takes: 3 * ms})
		line.Wait(beside)
		is(t, "the other queue", now(), 2*ms)
		if line.Ended(call) || !line.Begun(call) || line.Begun(behind) || !line.Begun(value) || line.Ended(value) {
			t.Error("the function has returned, or did not begin, or is not waited for")
		}
		line.Wait(behind, last)
		is(t, "behind the function", line.At(behind), 22*ms)
		if at := line.At(value); at < 20*ms || at > 20*ms+look {
			t.Errorf("the value was seen at %v", at)
		}
		is(t, "behind the value", line.At(last), 25*ms)

		there.Store(false)
		time.AfterFunc(4500*time.Microsecond, func() { there.Store(true) }) // while nothing else happens
		value = line.Add(&c, &Op{Ready: there.Load})
		line.Wait(value)
		if after := line.At(value) - 29500*time.Microsecond; after < 0 || after > look {
			t.Errorf("the value was seen %v after it was there", after)
		}
	})
}

// TestFinishMayAddAndIsSeenByThoseWhoWait: it is called with nothing locked, and before Wait returns.
func TestFinishMayAddAndIsSeenByThoseWhoWait(t *testing.T) {
	on(t, func(t *testing.T, line *Timeline, now func() time.Duration) {
		var a, b Queue
		var e engine
		var more *Op
		first := line.Add(&a, &Op{Finish: func() { more = line.Add(&b, &Op{Occupy: e.occupy, Takes: ms}) }})
		line.Wait(first)
		line.Wait(more)
		is(t, "what it added", now(), ms)
	})
}

// TestManyThreadsKeepTheOrderOfEachQueue, in real time.
func TestManyThreadsKeepTheOrderOfEachQueue(t *testing.T) {
	start := time.Now()
	line := New(func() time.Duration { return time.Since(start) })
	engines := make([]engine, 2)
	queues := make([]Queue, 4)
	var wait sync.WaitGroup
	for i := range queues {
		wait.Go(func() { // one thread a queue, as a caller with its own lock has it
			r := rand.New(rand.NewPCG(1, uint64(i)))
			var order []int
			var mu sync.Mutex
			var last *Op
			for n := range 300 {
				note := func() {
					mu.Lock()
					order = append(order, n)
					mu.Unlock()
				}
				op := &Op{Finish: note}
				switch r.IntN(4) {
				case 0:
					op = &Op{Call: note}
				case 1:
					asked := 0
					op.Ready = func() bool { asked++; return asked > 1 }
				case 2:
					op.Occupy, op.Takes = engines[r.IntN(2)].occupy, time.Duration(r.IntN(50))*time.Microsecond
				}
				if last = line.Add(&queues[i], op); r.IntN(20) == 0 {
					line.Wait(last)
				}
			}
			line.Wait(last)
			if len(order) != 300 || !slices.IsSorted(order) {
				t.Error(fmt.Sprint("queue ", i, ": ", order))
			}
		})
	}
	wait.Wait()
}
