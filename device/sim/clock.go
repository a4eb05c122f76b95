// Simulated time, and vector clocks: what the host and each stream know to come before
// what they do next.
//
// The two are independent on purpose. Simulated time determines when work is done, and so
// what a query returns and how long a wait takes; it
// is one possible run of the program. What is known is what holds in every
// run, however fast the kernels are: a program that keeps two uses of a block
// apart by luck is wrong, and hazard.go reports it.
//
// Stream 1 (lane 1) queues three kernels: its clock is {0, 3}. An event is recorded there,
// and stream 2 (lane 2) waits for it: {0, 3, 0}. After two kernels it is {0, 3, 2}. So work
// 3 of lane 1 comes before what stream 2 does next, and work 4 does not. A synchronise of
// stream 2 teaches the host all of {0, 3, 2}.

package sim

import (
	"slices"
	"time"

	"gpumem/device"
)

// far is the end of simulated time: nothing ends later, so that sums of times
// do not overflow.
const far = 100 * 365 * 24 * time.Hour

// clock is a vector clock: of each lane's work, counted from 1, how much is
// known to come before. Lanes past its end stand at 0.
type clock []uint64

// knows reports whether the n-th work of a lane comes before.
func (c clock) knows(lane int, n uint64) bool { return lane < len(c) && c[lane] >= n }

// learn adds what another clock knows.
func (c *clock) learn(other clock) {
	for lane, n := range other {
		c.set(lane, max(n, c.at(lane)))
	}
}

func (c clock) at(lane int) uint64 {
	if lane < len(c) {
		return c[lane]
	}
	return 0
}

func (c *clock) set(lane int, n uint64) {
	for lane >= len(*c) {
		*c = append(*c, 0)
	}
	(*c)[lane] = n
}

// queue is the work of one stream.
//
// Its lane is its place in the clocks. Once the host knows all work of a
// destroyed stream to be done, no call asks for it any more, and a new stream
// takes over the lane and counts on from there. So the clocks are as long as
// the most streams that ever lived together.
type queue struct {
	stream device.Stream
	id     uint64 // see StreamID
	open   bool   // not destroyed
	lane   int
	last   uint64        // number of the newest work
	ran    uint64        // number of the newest that takes the device: no allocation or free of a pool
	seen   clock         // what comes before the next work here, beside what the host knows
	end    time.Duration // when all that is queued is done
	origin *origin       // of its marks; nil: none since seen has got something from another lane
}

// event is a mark in a stream: what was before it, and when that is done. The
// zero event was never recorded.
type event struct {
	seen clock
	at   time.Duration
}

// work is what is queued on a device, and what its host knows of it.
type work struct {
	away       time.Duration // what the program did between its calls (Advance)
	queues     []*queue      // by lane
	streams    map[device.Stream]*queue
	events     map[device.Event]*event
	lastStream device.Stream   // newest handle
	unused     []device.Stream // handles that may be used again; see Config.ReuseStreams
	lastID     uint64          // of the stream created last
	lastEvent  device.Event
	host       clock // what the host knows to be done
	hazards    []*Hazard
}

// newWork is a device with its stream 0.
func newWork() work {
	q := &queue{id: 1, open: true}
	return work{
		lastID:  1,
		queues:  []*queue{q},
		streams: map[device.Stream]*queue{0: q},
		events:  map[device.Event]*event{},
	}
}

// open makes a stream.
func (w *work) open() device.Stream {
	w.lastID++
	h := w.lastStream + 1
	if n := len(w.unused); n > 0 {
		h = w.unused[n-1]
		w.unused = w.unused[:n-1]
	} else {
		w.lastStream = h
	}
	q := &queue{stream: h, id: w.lastID, open: true, lane: len(w.queues)}
	i := slices.IndexFunc(w.queues, func(q *queue) bool { return !q.open && w.host.at(q.lane) >= q.last })
	if i < 0 {
		w.queues = append(w.queues, q)
	} else {
		q.lane, q.last = i, w.queues[i].last
		w.queues[i] = q
	}
	w.streams[q.stream] = q
	return q.stream
}

// stream is the queue of a stream, nil if there is none.
func (w *work) stream(s device.Stream) *queue {
	if s == 0 {
		return w.queues[0] // always there
	}
	return w.streams[s]
}

// idle reports whether a new allocation in q has nothing to wait for: the host knows that
// all is done that takes the device, in q and before it.
func (w *work) idle(q *queue) bool {
	for lane, n := range q.seen {
		if w.host.at(lane) < min(n, w.queues[lane].ran) {
			return false
		}
	}
	return true
}

// now is the time at the program's host: that of its calls and of what it did
// between them. Caller holds d.mu.
func (d *Device) now() time.Duration { return d.count.Time + d.work.away }

// Advance lets simulated time pass outside driver calls, as when the program loads data.
// It is no driver call and is not part of the time in
// [device.Counters]. A t below 0 counts as 0; time ends after a century.
func (d *Device) Advance(t time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.work.away = min(d.work.away+max(0, min(t, far)), far)
}

// Now returns the simulated time since the device was made.
func (d *Device) Now() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.now()
}

// wait lets time pass until at, in a driver call; from then on the host knows
// what seen knows. Caller holds d.mu.
func (d *Device) wait(at time.Duration, seen clock) {
	d.count.Time += max(0, at-d.now())
	d.work.host.learn(seen)
}

// drain waits for all work on the device; after it the host knows that all is
// done. Caller holds d.mu.
func (d *Device) drain() {
	for _, q := range d.work.queues {
		d.wait(q.end, q.seen)
	}
}
