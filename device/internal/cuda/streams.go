//go:build linux && (amd64 || arm64) && !nodriver

// Streams and events. A handle is the driver's own (CUstream, CUevent), but for
// stream 0, which is a stream of the Device; see Device.zero.

package cuda

import (
	"gpumem/device"
)

// stream adds s to the call, which is refused where there is no such stream.
func (c *call) stream(s device.Stream) *call {
	if s == 0 {
		return c.arg(c.d.zero)
	}
	return c.handle(c.d.streams, uint64(s)).arg(uint64(s))
}

// event adds e to the call, which is refused where there is no such event.
func (c *call) event(e device.Event) *call { return c.handle(c.d.events, uint64(e)).arg(uint64(e)) }

// StreamCreate makes a stream that neither waits for the null stream nor keeps
// it waiting.
func (d *Device) StreamCreate() (device.Stream, error) {
	c := d.begin(cuStreamCreate, 0)
	defer c.end()
	if err := c.returns(0).arg(streamNonBlocking).do(); err != nil {
		return 0, err
	}
	d.created(c.out[0])
	return device.Stream(c.out[0]), nil
}

// StreamDestroy ends a stream, whose work still runs. Stream 0 has no end.
func (d *Device) StreamDestroy(s device.Stream) error {
	c := d.begin(cuStreamDestroy, 0)
	defer c.end()
	c.check(s != 0).handle(d.streams, uint64(s))
	d.destroying.Lock()
	defer d.destroying.Unlock()
	c.handOver(uint64(s))
	c.f, c.n = cuStreamDestroy, 0
	c.arg(uint64(s))
	return forget(c, d.streams, uint64(s))
}

// StreamID is the number of the stream's creation: the driver uses handles again.
func (d *Device) StreamID(s device.Stream) (uint64, error) {
	if s == 0 {
		return 1, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.streams[uint64(s)]; !ok {
		return 0, &device.CallError{Call: "cuStreamGetId", Device: d.info.Name, Err: device.ErrInvalidHandle}
	}
	return d.ids[uint64(s)], nil
}

// created notes a stream that the driver created. 1 is stream 0's number.
func (d *Device) created(s uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lastID++
	d.streams[s], d.ids[s] = true, d.lastID+1
}

// handOver makes the stream ended wait for the work that is in s now, for
// nothing can be recorded in s later.
func (c *call) handOver(s uint64) {
	if c.err != nil {
		return
	}
	e, code := c.spare()
	if code == success {
		if code = c.lock(cuEventRecord); code == success {
			if code = c.make(cuEventRecord, e, s); code == success {
				code = c.make(cuStreamWaitEvent, c.d.ended, e)
			}
			c.unlock()
		}
		keep(c.d, c.d.spares, e, true)
	}
	if code != success {
		c.fail(code)
	}
}

// StreamQuery reports whether all work in s is done.
func (d *Device) StreamQuery(s device.Stream) (done bool, err error) {
	c := d.begin(cuStreamQuery, 0)
	defer c.end()
	return c.stream(s).query()
}

// StreamSynchronize waits until the work that is in s now is done.
func (d *Device) StreamSynchronize(s device.Stream) error {
	c := d.begin(cuStreamSynchronize, 0)
	defer c.end()
	if c.stream(s).err != nil {
		return c.err
	}
	return c.awaitStreams([]uint64{uint64(c.args[0])}, nil)
}

// StreamWaitEvent makes later work in s wait for e.
func (d *Device) StreamWaitEvent(s device.Stream, e device.Event) error {
	c := d.begin(cuStreamWaitEvent, 0)
	defer c.end()
	return c.stream(s).event(e).arg(0).do() // no flags
}

// EventCreate makes an event without a time, which is the cheaper kind.
func (d *Device) EventCreate() (device.Event, error) {
	c := d.begin(cuEventCreate, 0)
	defer c.end()
	c.returns(0).arg(eventDisableTiming)
	return create[device.Event](c, d.events, true)
}

// EventDestroy ends an event; who waits for it still does.
func (d *Device) EventDestroy(e device.Event) error {
	c := d.begin(cuEventDestroy, 0)
	defer c.end()
	c.event(e)
	return forget(c, d.events, uint64(e))
}

// EventRecord puts e after the work that is in s now.
func (d *Device) EventRecord(e device.Event, s device.Stream) error {
	c := d.begin(cuEventRecord, 0)
	defer c.end()
	return c.event(e).stream(s).do()
}

// EventQuery reports whether the work before e is done.
func (d *Device) EventQuery(e device.Event) (done bool, err error) {
	c := d.begin(cuEventQuery, 0)
	defer c.end()
	return c.event(e).query()
}

// EventSynchronize waits for e. Recorded anew meanwhile, it is waited for anew.
func (d *Device) EventSynchronize(e device.Event) error {
	c := d.begin(cuEventSynchronize, 0)
	defer c.end()
	return c.event(e).awaitEvent(uint64(e))
}

// Synchronize waits for all work in the streams of this device, the destroyed
// ones included. It does not wait for the streams of other libraries in the
// process, as cuCtxSynchronize would: that fails while one of them captures a
// graph, and spoils the graph.
func (d *Device) Synchronize() error {
	c := d.begin(cuCtxSynchronize, 0)
	defer c.end()
	return c.awaitAll()
}

// CopyAsync queues a copy within the device.
func (d *Device) CopyAsync(dst, src, bytes uint64, s device.Stream) error {
	c := d.begin(cuMemcpyDtoDAsync, bytes)
	defer c.end()
	return c.arg(dst, src, bytes).stream(s).unlessEmpty()
}

// FillAsync queues a fill.
func (d *Device) FillAsync(addr, bytes uint64, b byte, s device.Stream) error {
	c := d.begin(cuMemsetD8Async, bytes)
	defer c.end()
	return c.arg(addr, uint64(b), bytes).stream(s).unlessEmpty()
}

// unlessEmpty is do where there are bytes. The driver need not be asked about none.
func (c *call) unlessEmpty() error {
	if c.bytes == 0 {
		return c.err
	}
	return c.do()
}
