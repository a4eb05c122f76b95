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
// A method of Device makes one with begin, gives it its arguments in the driver's order,
// calls do, reads out, and ends it, all on one goroutine. The first thing that goes wrong
// stays in err, and do then does nothing.
type call struct {
	d       *Device
	f       int    // the function
	bytes   uint64 // that the caller asked for, for the error
	err     error
	alive   bool // Device.alive is held
	closing bool // the call is Close's, which waits although the device is closed
	handles bool // an argument is a stream or event of the caller's

	n    int        // arguments so far
	args [6]uintptr // no function takes more
	thread
	marks []uint64 // events to wait for; see awaitStreams

	// What the arguments point to. host is the caller's memory, which by lying
	// here is moved to the heap and kept alive.
	out    [2]uint64
	props  memProps
	access memAccess
	pool   poolProps
	status int32
	host   unsafe.Pointer
}

var calls = sync.Pool{New: func() any { return new(call) }}

// epoch is what times are measured from: reading the clock against it costs
// half of what time.Now does.
var epoch = time.Now()

// begin starts a call of function f about a number of bytes, and keeps Close away
// until its end. On a device that is closed or lost it is refused already: also
// while Close is still waiting for a call before it, which may be for ever.
func (d *Device) begin(f int, bytes uint64) *call {
	c := calls.Get().(*call)
	c.d, c.f, c.bytes, c.err, c.n, c.handles = d, f, bytes, nil, 0, false
	c.alive = d.alive.TryRLock() // only Close locks it for writing
	if !c.alive || d.closed {
		c.refuse(device.ErrClosed)
	} else if code := Code(d.fatal.Load()); code != 0 {
		c.refuse(code)
	}
	return c
}

// end is the end of a call.
func (c *call) end() {
	if c.alive {
		c.d.alive.RUnlock()
	}
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
func (c *call) check(ok bool) *call {
	if !ok {
		c.refuse(invalidValue)
	}
	return c
}

// handle refuses the call, as the driver does, unless a stream or event is in
// the table of those that this program holds.
func (c *call) handle(table map[uint64]bool, h uint64) *call {
	c.handles = true
	if _, ok := known(c.d, table, h); !ok {
		c.refuse(invalidHandle)
	}
	return c
}

// arg adds numbers.
func (c *call) arg(values ...uint64) *call {
	for _, v := range values {
		c.args[c.n] = uintptr(v)
		c.n++
	}
	return c
}

// ptr adds the address of a field of c, or of c.host.
func (c *call) ptr(p unsafe.Pointer) *call { return c.arg(uint64(uintptr(p))) }

// returns adds the address of out[i].
func (c *call) returns(i int) *call { return c.ptr(unsafe.Pointer(&c.out[i])) }

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
	start := time.Since(epoch)
	code := c.lock(c.f)
	if code == success {
		code = c.invoke()
		c.unlock()
	}
	c.count(start)
	return code
}

// count adds a call that began at start to the device's counters.
func (c *call) count(start time.Duration) {
	c.d.calls.Add(1)
	c.d.nanos.Add(int64(time.Since(epoch) - start))
}

// make calls function f with at most two arguments, and 0 after them, in place
// of the one that the call was begun with, on a thread that lock has prepared.
func (c *call) make(f int, a, b uint64) Code {
	c.f, c.n = f, 0
	return c.arg(a, b, 0).invoke()
}

// invoke calls the function, on a thread that lock has prepared.
func (c *call) invoke() Code {
	at := c.d.m.cuda.at[c.f]
	if at == 0 {
		return missing
	}
	r, _, _ := purego.SyscallN(at, c.args[:c.n]...)
	runtime.KeepAlive(c)
	if Code(r) == contextDestroyed && c.handles && c.current() == success {
		// The context is there, so it is the stream or event that is not: someone
		// destroyed it past this package.
		return invalidHandle
	}
	return Code(r)
}

// fail makes the driver's result the call's error, and remembers one after
// which nothing will work again.
func (c *call) fail(code Code) {
	c.d.remember(code)
	c.refuse(c.d.m.cause(c.f, code))
}

// remember keeps a code after which nothing will work again.
func (d *Device) remember(code Code) {
	if code.fatal() {
		d.fatal.CompareAndSwap(0, int32(code))
	}
}
