//go:build linux && (amd64 || arm64) && !nodriver

// Waiting for the GPU.
//
// The driver's own waits hold a thread until the GPU is done, which it may never
// be: a kernel may hang. So this package asks again and again whether an event
// is done, and sleeps in between; a goroutine that waits costs no thread, and
// Close ends its wait.
//
// The driver also refuses to wait for a whole context in which a graph is being
// captured, and spoils the capture. So to wait for all work is to wait for each
// stream.

package cuda

import (
	"errors"
	"runtime"
	"time"
	"unsafe"

	"gpumem/device"
)

// The way of a wait: it asks without a pause for as long as the driver itself
// is known to (it spins by default), and from then on pauses for an eighth of
// what it has waited, within bounds. So it ends at most an eighth, or a
// millisecond, late.
const (
	spin               = 50 * time.Microsecond
	minPause, maxPause = 20 * time.Microsecond, time.Millisecond
)

// maxBlocked bounds the threads that wait in the driver (cuMemFree, which waits
// for all work): more goroutines wait for one of these to return.
const maxBlocked = 4

// awaitEvent waits until the work before event e is done. If e is recorded anew
// meanwhile, that is waited for.
func (c *call) awaitEvent(e uint64) error {
	if c.err != nil {
		return c.err
	}
	start := time.Since(epoch)
	done, code := c.look(e)
	if code == success && !done {
		code = c.poll(e)
	}
	c.count(start)
	return c.result(code)
}

// awaitStreams waits until the work that is now in all these streams is done.
// It uses the streams until it calls recorded, if that is not nil.
func (c *call) awaitStreams(streams []uint64, recorded func()) error {
	start := time.Since(epoch)
	code := success
	c.marks = c.marks[:0]
	for _, s := range streams {
		if s == 0 { // one of the device's own that Open could not create
			continue
		}
		var e uint64
		if e, code = c.spare(); code != success {
			break
		}
		var done bool
		if done, code = c.mark(e, s); code == success && !done {
			c.marks = append(c.marks, e)
			continue
		}
		keep(c.d, c.d.spares, e, true)
		if code != success {
			break
		}
	}
	if recorded != nil {
		recorded()
	}
	for _, e := range c.marks {
		if code == success && c.err == nil {
			code = c.poll(e)
		}
		// Whoever records it next makes it another mark.
		keep(c.d, c.d.spares, e, true)
	}
	c.count(start)
	return c.result(code)
}

// result ends a wait. A wait is where programs look for errors of their work,
// so it also returns the one of earlier work that a Free met.
func (c *call) result(code Code) error {
	if code != success {
		c.fail(code)
	} else if c.err == nil {
		if earlier := Code(c.d.earlier.Swap(0)); earlier != 0 {
			c.refuse(&earlierError{c.d.m.cause(cuMemFree, earlier)})
		}
	}
	return c.err
}

// earlierError is what a call said of the work before it, having done its own.
type earlierError struct{ err error }

func (e *earlierError) Error() string {
	return "earlier work failed, as cuMemFree told: " + e.err.Error()
}
func (e *earlierError) Unwrap() error { return e.err }

// mark records event e in stream s and looks at it. A stream into which a graph
// is being captured is refused: the mark would be captured, too, and to ask for
// it would spoil the capture.
func (c *call) mark(e, s uint64) (done bool, code Code) {
	if code := c.lock(cuEventQuery); code != success {
		return false, code
	}
	defer c.unlock()
	if code := c.make(cuStreamIsCapturing, s, uint64(uintptr(unsafe.Pointer(&c.status)))); code != success {
		return false, code
	}
	if c.status != captureNone {
		return false, captureForbids
	}
	if code := c.make(cuEventRecord, e, s); code != success {
		return false, code
	}
	return c.ready(e)
}

// look reports whether the work before event e is done.
func (c *call) look(e uint64) (done bool, code Code) {
	if code := c.lock(cuEventQuery); code != success {
		return false, code
	}
	defer c.unlock()
	return c.ready(e)
}

// ready is look on a prepared thread. If the work is done, the driver is asked to
// wait for it, which takes no time, and makes pools release what they should at
// the next synchronise.
func (c *call) ready(e uint64) (done bool, code Code) {
	switch code := c.make(cuEventQuery, e, 0); code {
	case success:
		return true, c.make(cuEventSynchronize, e, 0)
	case notReady:
		return false, success
	default:
		return false, code
	}
}

// poll is look until the work is done, or the device is closed.
func (c *call) poll(e uint64) Code {
	closing := c.closed()
	for start := time.Since(epoch); ; {
		if waited := time.Since(epoch) - start; waited < spin {
			runtime.Gosched()
		} else {
			select {
			case <-closing:
			case <-time.After(min(max(waited/8, minPause), maxPause)):
			}
		}
		select {
		case <-closing:
			c.refuse(device.ErrClosed)
			return success
		default:
		}
		if done, code := c.look(e); done || code != success {
			return code
		}
	}
}

// closed is closed when the call is to wait no longer.
func (c *call) closed() <-chan struct{} {
	if c.closing {
		return nil
	}
	return c.d.begun
}

// spare is an event to wait by, which is put back into spares.
func (c *call) spare() (uint64, Code) {
	d := c.d
	d.mu.Lock()
	for e := range d.spares {
		delete(d.spares, e)
		d.mu.Unlock()
		return e, success
	}
	d.mu.Unlock()
	code := c.lock(cuEventCreate)
	if code == success {
		code = c.make(cuEventCreate, uint64(uintptr(unsafe.Pointer(&c.out[0]))), eventDisableTiming)
		c.unlock()
	}
	return c.out[0], code
}

// awaitAll waits for the work in all streams of the device, the destroyed ones
// included. Where someone else has destroyed one, its work can only be waited
// for together with all others'.
func (c *call) awaitAll() error {
	if c.err != nil {
		return c.err
	}
	d := c.d
	c.handles = true
	d.destroying.RLock()
	d.mu.Lock()
	streams := append(make([]uint64, 0, 8), d.zero, d.ended)
	for s := range d.streams {
		streams = append(streams, s)
	}
	d.mu.Unlock()
	err := c.awaitStreams(streams, d.destroying.RUnlock)
	if errors.Is(err, device.ErrInvalidHandle) {
		c.err, c.f, c.n = nil, cuCtxSynchronize, 0
		if c.block() {
			defer c.unblock()
			c.do()
		}
	}
	return c.err
}

// block waits until one thread more may wait in the driver, and reports whether
// the call can go on.
func (c *call) block() bool {
	if c.err != nil {
		return false
	}
	select {
	case c.d.blocked <- struct{}{}:
	case <-c.closed():
		c.refuse(device.ErrClosed)
	}
	return c.err == nil
}

// unblock ends block.
func (c *call) unblock() { <-c.d.blocked }
