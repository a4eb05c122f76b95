// Package timeline runs the work of a simulated GPU's streams in real time.
//
// A [Queue] is a stream: its operations run one after the other. An [Op] waits for the one before it and for
// those of other queues that it was told to, then for a value or a function of the program if it has one, then
// takes its time on an engine, and at last does what others can see of it. A thread that waits for it wakes then.
//
// One copy of 50 MB at 25 GB/s behind a kernel of 2 ms, queued at 100 ms in two queues:
//
//	100  the kernel is begun: the engine for kernels is given 2 ms of work, and is done with it at 102
//	102  the loop wakes. The kernel has ended; the copy, which waits for it, is ready since 102
//	102  the engine for copies is given 2 ms of work, and is done with it at 104
//	104  the loop wakes, the bytes move, the copy has ended
//
// A loop that wakes late makes nothing slower: what waited is ready when the work before it was done, not when that was
// noticed. Only what happens at no known time, a value that appears or a function that returns, counts from when it is
// seen. An engine is given at most a slice of work at a time, since other processes use it too.
//
// # Lock order
//
// A caller's lock, then Timeline.mu, then those of the engines. Finish and Ready are called with none held, so they
// may take the caller's lock.
package timeline

import (
	"container/heap"
	"math"
	"sync"
	"time"
)

const (
	// slice is the most that an engine is given at a time, so that the streams and processes of a GPU take turns
	// at it, and one that is killed has no more than that to come. Chosen: a few kernels.
	slice = 5 * time.Millisecond
	// look is how often values that operations wait for are looked at. Chosen: the host may write one at any time.
	look = 200 * time.Microsecond
)

// Op is one operation. Its fields are set before it is added to a queue.
type Op struct {
	// Ready, if it is not nil, is asked again and again until it is true; then the operation goes on. It must not wait.
	Ready func() bool
	// Call, if it is not nil, is a function of the program: it runs in a separate goroutine, and the operation goes
	// on when it returns. An operation has Ready or Call, not both.
	Call func()
	// Occupy, if it is not nil, gives an engine work that is ready at a time, and returns when that is done.
	Occupy func(now, ready, takes time.Duration) (end time.Duration)
	Takes  time.Duration // of that work
	// Finish, if it is not nil, is called at the end, before anybody sees that the operation has ended. It must
	// not wait.
	Finish func()

	before int           // operations that it waits for and that have not ended
	next   []*Op         // those that wait for it
	left   time.Duration // of Takes
	at     time.Duration // when it was ready, then when what it was given is done, at last when it ended
	begun  bool          // waits for no operation
	ended  bool
}

// Queue is the operations of a stream. The zero Queue is empty.
type Queue struct{ last *Op }

// Timeline runs queues. It is safe for use by several goroutines.
type Timeline struct {
	now func() time.Duration

	mu      sync.Mutex
	change  sync.Cond // an operation has ended
	wake    chan struct{}
	looping bool
	running running // on engines, the first to be done first
	asked   []*Op   // whose Ready is asked
	over    []*Op   // that are to be finished
	ready   []*Op   // that wait for nothing any more
}

// New makes a timeline by a clock.
func New(now func() time.Duration) *Timeline {
	t := &Timeline{now: now, wake: make(chan struct{}, 1)}
	t.change.L = &t.mu
	return t
}

// Add puts an operation at the end of a queue. It waits for all in there, and for these of other queues; nil
// ones are passed over.
func (t *Timeline) Add(q *Queue, op *Op, after ...*Op) *Op {
	t.mu.Lock()
	defer t.mu.Unlock()
	op.at, op.left = t.now(), op.Takes
	for _, other := range append(after, q.last) {
		if other != nil && !other.ended {
			op.before++
			other.next = append(other.next, op)
		}
	}
	q.last = op
	if op.before == 0 {
		t.ready = append(t.ready, op)
		t.begin()
	}
	return op
}

// Last returns the newest operation of a queue, nil if all have ended.
func (t *Timeline) Last(q *Queue) *Op {
	t.mu.Lock()
	defer t.mu.Unlock()
	if q.last != nil && q.last.ended {
		q.last = nil
	}
	return q.last
}

// Ended reports whether an operation has ended; nil has.
func (t *Timeline) Ended(op *Op) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return op == nil || op.ended
}

// Begun reports whether all that an operation waits for has ended.
func (t *Timeline) Begun(op *Op) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return op == nil || op.begun
}

// At returns when an operation has ended.
func (t *Timeline) At(op *Op) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return op.at
}

// Wait returns when these operations have ended; nil ones are passed over.
func (t *Timeline) Wait(ops ...*Op) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, op := range ops {
		for op != nil && !op.ended {
			t.change.Wait()
		}
	}
}

// begin begins what is ready, and what becomes so by that. Caller holds t.mu.
func (t *Timeline) begin() {
	for i := 0; i < len(t.ready); i++ {
		op := t.ready[i]
		op.begun = true
		switch {
		case op.Ready != nil:
			t.asked = append(t.asked, op)
			t.stir()
		case op.Call != nil:
			go func() {
				op.Call()
				t.mu.Lock()
				defer t.mu.Unlock()
				op.at = t.now()
				t.work(op)
				t.begin()
			}()
		default:
			t.work(op)
		}
	}
	clear(t.ready)
	t.ready = t.ready[:0]
}

// work gives an engine the next of an operation's work, or ends it. Caller holds t.mu and calls begin.
func (t *Timeline) work(op *Op) {
	switch {
	case op.left > 0:
		takes := min(op.left, slice)
		op.left -= takes
		op.at = op.Occupy(t.now(), op.at, takes)
		heap.Push(&t.running, op)
		t.stir()
	case op.Finish != nil:
		t.over = append(t.over, op)
		t.stir()
	default:
		t.end(op)
	}
}

// end ends an operation. Caller holds t.mu and calls begin.
func (t *Timeline) end(op *Op) {
	op.ended = true
	for _, n := range op.next {
		n.at = max(n.at, op.at)
		if n.before--; n.before == 0 {
			t.ready = append(t.ready, n)
		}
	}
	op.next = nil
	t.change.Broadcast()
}

// stir has the loop look what there is. Caller holds t.mu.
func (t *Timeline) stir() {
	if !t.looping {
		t.looping = true
		go t.loop()
	}
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// loop does what is due, sleeps until more is, and ends when there is nothing to come.
func (t *Timeline) loop() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for sleep := t.step(); sleep >= 0; sleep = t.step() {
		timer.Reset(sleep)
		select {
		case <-t.wake:
		case <-timer.C:
		}
	}
}

// step does what is due and returns how long to sleep; below 0 the loop ends.
func (t *Timeline) step() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		for len(t.running) > 0 && t.running[0].at <= t.now() {
			t.work(heap.Pop(&t.running).(*Op))
			t.begin()
		}
		if len(t.over) == 0 {
			break
		}
		t.finish()
	}
	t.ask()
	if len(t.over) > 0 {
		return 0
	}
	if t.looping = len(t.asked)+len(t.running) > 0; !t.looping {
		return -1
	}
	sleep := time.Duration(math.MaxInt64)
	if len(t.asked) > 0 {
		sleep = look
	}
	if len(t.running) > 0 {
		sleep = min(sleep, max(0, t.running[0].at-t.now()))
	}
	return sleep
}

// finish ends what is over. Caller holds t.mu, which is released meanwhile.
func (t *Timeline) finish() {
	over := t.over
	t.over = nil
	t.mu.Unlock()
	for _, op := range over {
		op.Finish()
	}
	t.mu.Lock()
	for _, op := range over {
		t.end(op)
	}
	t.begin()
}

// ask asks whether what operations wait for is there. Caller holds t.mu, which is released meanwhile.
func (t *Timeline) ask() {
	asked := t.asked
	if len(asked) == 0 {
		return
	}
	t.asked = nil
	t.mu.Unlock()
	var there, not []*Op
	for _, op := range asked {
		if op.Ready() {
			there = append(there, op)
		} else {
			not = append(not, op)
		}
	}
	t.mu.Lock()
	t.asked = append(t.asked, not...)
	for _, op := range there {
		op.at = t.now()
		t.work(op)
	}
	t.begin()
}

// running is the operations on engines, a heap.
type running []*Op

func (r running) Len() int           { return len(r) }
func (r running) Less(i, j int) bool { return r[i].at < r[j].at }
func (r running) Swap(i, j int)      { r[i], r[j] = r[j], r[i] }
func (r *running) Push(op any)       { *r = append(*r, op.(*Op)) }
func (r *running) Pop() any {
	old := *r
	op := old[len(old)-1]
	old[len(old)-1] = nil
	*r = old[:len(old)-1]
	return op
}
