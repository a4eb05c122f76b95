// The streams and events of a device.
//
// Work that is queued is done at once, as far as what it writes goes: what the
// program calls is in an order that its streams and events allow, so no other
// order could show. When it is done is another matter. It starts at the latest
// of now, the end of the work before it in its stream, and the events that the
// stream waits for; until it has ended a query says that it is not done, and a
// synchronise takes that much longer.
//
// One copy, from the call to the wait:
//
//  1. CopyAsync finds the memory behind both ranges (behind), and has it checked
//     that nothing that is not ordered before the copy touches it (check).
//  2. commit gives the copy its number in its stream, moves the stream's end,
//     and leaves a note of it in both memories for those who come later.
//  3. EventRecord in that stream keeps what the stream knows, the copy included;
//     StreamWaitEvent lets another stream know it; so work there passes check.
//  4. StreamSynchronize moves the clock to the stream's end, and lets the host
//     know. What the host knows comes before all that it queues from then on, so
//     these notes are dropped.

package sim

import (
	"slices"
	"time"

	"gpumem/device"
)

const callKernel = "cuLaunchKernel"

// StreamCreate makes a stream.
func (d *Device) StreamCreate() (s device.Stream, err error) {
	err = d.do("cuStreamCreate", 0, d.costs.Async.StreamCreate, func() error {
		s = d.work.open()
		return nil
	})
	return s, err
}

// StreamDestroy ends a stream; what is queued in it still runs. Stream 0 cannot
// be destroyed.
func (d *Device) StreamDestroy(s device.Stream) error {
	return d.onStream("cuStreamDestroy", d.costs.Async.StreamDestroy, s, func(q *queue) error {
		if s == 0 {
			return device.ErrInvalidValue
		}
		q.open = false
		delete(d.work.streams, s)
		if d.cfg.ReuseStreams {
			d.work.unused = append(d.work.unused, s)
		}
		return nil
	})
}

// StreamID returns the number of the stream's creation, from 1 for stream 0.
func (d *Device) StreamID(s device.Stream) (uint64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	q, ok := d.work.streams[s]
	if !ok {
		return 0, &device.CallError{Call: "cuStreamGetId", Device: d.info.Name, Err: device.ErrInvalidHandle}
	}
	return q.id, nil
}

// StreamQuery reports whether all work in s is done now. If it is, the host knows.
func (d *Device) StreamQuery(s device.Stream) (done bool, err error) {
	err = d.onStream("cuStreamQuery", d.costs.Async.Query, s, func(q *queue) error {
		done = d.query(q.end, q.seen)
		return nil
	})
	return done, err
}

// StreamSynchronize waits until all work in s is done. Then pools release
// what is above their release threshold.
func (d *Device) StreamSynchronize(s device.Stream) error {
	return d.onStream("cuStreamSynchronize", d.costs.Async.Synchronize, s, func(q *queue) error {
		d.wait(q.end, q.seen)
		return d.releaseUnused()
	})
}

// StreamWaitEvent makes later work in s wait for the event as recorded last.
func (d *Device) StreamWaitEvent(s device.Stream, e device.Event) error {
	return d.onStream("cuStreamWaitEvent", d.costs.Async.WaitEvent, s, func(q *queue) error {
		ev, ok := d.work.events[e]
		if !ok {
			return device.ErrInvalidHandle
		}
		q.await(ev.at, ev.seen)
		return nil
	})
}

// EventCreate makes an event that was never recorded.
func (d *Device) EventCreate() (e device.Event, err error) {
	err = d.do("cuEventCreate", 0, d.costs.Async.EventCreate, func() error {
		d.work.lastEvent++
		e = d.work.lastEvent
		d.work.events[e] = &event{}
		return nil
	})
	return e, err
}

// EventDestroy ends an event. Streams that were made to wait for it still do.
func (d *Device) EventDestroy(e device.Event) error {
	return d.onEvent("cuEventDestroy", d.costs.Async.EventDestroy, e, func(*event) error {
		delete(d.work.events, e)
		return nil
	})
}

// EventRecord puts the mark after the work that is in s now.
func (d *Device) EventRecord(e device.Event, s device.Stream) error {
	return d.onEvent("cuEventRecord", d.costs.Async.EventRecord, e, func(ev *event) error {
		q, ok := d.work.streams[s]
		if !ok {
			return device.ErrInvalidHandle
		}
		*ev = event{seen: slices.Clone(q.seen), at: q.end}
		return nil
	})
}

// EventQuery reports whether the work before the mark is done now. If it is, the
// host knows.
func (d *Device) EventQuery(e device.Event) (done bool, err error) {
	err = d.onEvent("cuEventQuery", d.costs.Async.Query, e, func(ev *event) error {
		done = d.query(ev.at, ev.seen)
		return nil
	})
	return done, err
}

// EventSynchronize waits for the mark. Then pools release what is above their
// release threshold.
func (d *Device) EventSynchronize(e device.Event) error {
	return d.onEvent("cuEventSynchronize", d.costs.Async.Synchronize, e, func(ev *event) error {
		d.wait(ev.at, ev.seen)
		return d.releaseUnused()
	})
}

// Synchronize waits for all work, that of destroyed streams included. Then
// pools release what is above their release threshold.
func (d *Device) Synchronize() error {
	return d.do("cuCtxSynchronize", 0, d.costs.Async.Synchronize, func() error {
		d.drain()
		return d.releaseUnused()
	})
}

// CopyAsync queues a copy within the device.
func (d *Device) CopyAsync(dst, src, bytes uint64, s device.Stream) error {
	const call = "cuMemcpyDtoDAsync"
	return d.onStream(call, d.costs.Async.Launch, s, func(q *queue) error {
		if max(dst, src)-min(dst, src) < bytes { // they overlap
			return d.refuse(call, bytes, device.ErrInvalidValue)
		}
		from, to := []device.Range{{Addr: src, Bytes: bytes}}, []device.Range{{Addr: dst, Bytes: bytes}}
		all, err := d.submit(call, q, byMiB(d.costs.Async.CopyPerMiB, bytes), from, to)
		if err == nil {
			copyPieces(all[1].pieces, all[0].pieces)
		}
		return err
	})
}

// FillAsync queues a fill.
func (d *Device) FillAsync(addr, bytes uint64, b byte, s device.Stream) error {
	const call = "cuMemsetD8Async"
	return d.onStream(call, d.costs.Async.Launch, s, func(q *queue) error {
		all, err := d.submit(call, q, byMiB(d.costs.Async.FillPerMiB, bytes), nil, []device.Range{{Addr: addr, Bytes: bytes}})
		if err != nil {
			return err
		}
		for _, p := range all[0].pieces {
			p.mem.fill(p.off, p.bytes, b)
		}
		return nil
	})
}

// Work queues a kernel in s that runs for t, at least 0, and reads and writes
// these ranges; what is in them stays as it is. The caller lists all that a
// kernel touches: what is not listed is not checked. A range that is not there
// is a [Hazard], as it is for a kernel on a GPU; ranges of 0 bytes are passed
// over.
func (d *Device) Work(s device.Stream, t time.Duration, reads, writes []device.Range) error {
	return d.onStream(callKernel, d.costs.Async.Launch, s, func(q *queue) error {
		if t < 0 {
			return device.ErrInvalidValue
		}
		_, err := d.submit(callKernel, q, t, someBytes(reads), someBytes(writes))
		return err
	})
}

// someBytes is the ranges that are not empty.
func someBytes(ranges []device.Range) []device.Range {
	return slices.DeleteFunc(slices.Clone(ranges), func(r device.Range) bool { return r.Bytes == 0 })
}

// submit queues work in q that reads and writes these ranges, and returns the
// memory behind them, those that are read first. It is refused where the memory
// is not there, or is used by earlier work that nothing orders before it. Caller
// holds d.mu.
func (d *Device) submit(call string, q *queue, takes time.Duration, reads, writes []device.Range) ([]access, error) {
	var all []access
	for i, r := range append(slices.Clip(reads), writes...) {
		a, err := d.behind(call, q, r, i >= len(reads))
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	if err := d.check(call, q, all...); err != nil {
		return nil, err
	}
	d.commit(call, q, takes, all...)
	q.ran = q.last
	return all, nil
}

// onStream is do for a call that is about a stream.
func (d *Device) onStream(call string, cost time.Duration, s device.Stream, body func(*queue) error) error {
	return d.do(call, 0, cost, func() error {
		q, ok := d.work.streams[s]
		if !ok {
			return device.ErrInvalidHandle
		}
		return body(q)
	})
}

// onEvent is do for a call that is about an event.
func (d *Device) onEvent(call string, cost time.Duration, e device.Event, body func(*event) error) error {
	return d.do(call, 0, cost, func() error {
		ev, ok := d.work.events[e]
		if !ok {
			return device.ErrInvalidHandle
		}
		return body(ev)
	})
}

// query reports whether what ends at that time is done; then the host knows what
// seen knows. Caller holds d.mu.
func (d *Device) query(at time.Duration, seen clock) bool {
	if at > d.now() {
		return false
	}
	d.work.host.learn(seen)
	return true
}

// await makes what is queued later start at that time at the earliest, and
// after all that seen knows.
func (q *queue) await(at time.Duration, seen clock) {
	q.seen.learn(seen)
	q.origin = nil
	q.end = max(q.end, at)
}

// commit queues work that check let pass. Caller holds d.mu.
func (d *Device) commit(call string, q *queue, takes time.Duration, all ...access) {
	q.last++
	q.seen.set(q.lane, q.last)
	q.end = min(max(q.end, d.now())+min(takes, far), far)
	d.note(call, q, all)
}
