//go:build linux && (amd64 || arm64) && !nodriver

// One driver call on a device: arguments, thread, context, time, result.

package cuda

import (
	"runtime"
	"sync"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"

	"gpumem/device"
)

// call is a driver call in the making. It lives on the heap, in a pool: the
// driver is given addresses in it, and a call allocates nothing.
//
// A method of Device makes one with begin, gives it its arguments, calls do,
// reads out, and ends it, all on one goroutine. The first thing that goes wrong
// stays in err, and do then does nothing.
type call struct {
	d     *Device
	f     int    // the function
	bytes uint64 // that the caller asked for, for the error
	err   error

	n    int        // arguments so far
	args [6]uintptr // no function takes more
	ctx  [1]uintptr // the argument of cuCtxSetCurrent

	// What the arguments point to. host is the caller's memory, which by lying
	// here is moved to the heap and kept alive.
	out    [2]uint64
	props  memProps
	access memAccess
	pool   poolProps
	host   unsafe.Pointer
}

var calls = sync.Pool{New: func() any { return new(call) }}

// epoch is what times are measured from: reading the clock against it costs
// half of what time.Now does.
var epoch = time.Now()

// begin starts a call of function f about so many bytes, and keeps Close away
// until its end. On a device that is closed or lost it is refused already.
func (d *Device) begin(f int, bytes uint64) *call {
	c := calls.Get().(*call)
	c.d, c.f, c.bytes, c.err, c.n = d, f, bytes, nil, 0
	d.alive.RLock()
	if d.closed {
		c.refuse(device.ErrClosed)
	} else if code := Code(d.fatal.Load()); code != 0 {
		c.refuse(code)
	}
	return c
}

// end is the end of a call.
func (c *call) end() {
	c.d.alive.RUnlock()
	c.d, c.host, c.err = nil, nil, nil
	calls.Put(c)
}

// refuse makes the call fail with err, unless it has failed already.
func (c *call) refuse(err error) {
	if c.err == nil {
		c.err = &device.CallError{Call: cuFunctions[c.f].name(), Device: c.d.info.Name, Bytes: c.bytes, Err: err}
	}
}

// check refuses the call as the driver refuses an argument that makes no sense,
// unless ok.
func (c *call) check(ok bool) {
	if !ok {
		c.refuse(Code(1))
	}
}

// handle refuses the call, as the driver does, unless a handle is in the table
// of those that this program holds.
func (c *call) handle(table map[uint64]bool, h uint64) {
	if _, ok := known(c.d, table, h); !ok {
		c.refuse(Code(400))
	}
}

// arg adds a number.
func (c *call) arg(v uint64) {
	c.args[c.n] = uintptr(v)
	c.n++
}

// ptr adds the address of a field of c, or of c.host.
func (c *call) ptr(p unsafe.Pointer) { c.arg(uint64(uintptr(p))) }

// do makes the call and returns why it failed.
func (c *call) do() error {
	if c.err == nil {
		if code := c.run(); code != success {
			c.fail(code)
		}
	}
	return c.err
}

// query is do for a question whether work is done.
func (c *call) query() (done bool, err error) {
	if c.err != nil {
		return false, c.err
	}
	switch code := c.run(); code {
	case success:
		return true, nil
	case notReady:
		return false, nil
	default:
		c.fail(code)
		return false, c.err
	}
}

// run makes the call, on a thread that has the device's context.
func (c *call) run() Code {
	d, at := c.d, c.d.m.cuda.at
	if at[c.f] == 0 {
		return missing
	}
	start := time.Since(epoch)
	runtime.LockOSThread()
	c.ctx[0] = d.ctx
	r, _, _ := purego.SyscallN(at[cuCtxSetCurrent], c.ctx[:]...)
	if Code(r) == success {
		r, _, _ = purego.SyscallN(at[c.f], c.args[:c.n]...)
	} else {
		c.f = cuCtxSetCurrent
	}
	runtime.UnlockOSThread()
	runtime.KeepAlive(c)
	d.calls.Add(1)
	d.nanos.Add(int64(time.Since(epoch) - start))
	return Code(r)
}

// fail makes the driver's result the call's error, and remembers one after
// which nothing will work again.
func (c *call) fail(code Code) {
	if code.fatal() {
		c.d.fatal.CompareAndSwap(0, int32(code))
	}
	c.refuse(c.d.m.cause(c.f, code))
}

// then makes a second call, of function f with the given argument, on behalf of
// the first.
func (c *call) then(f int, arg uint64) error {
	if c.err == nil {
		c.f, c.n = f, 0
		c.arg(arg)
		c.do()
	}
	return c.err
}
