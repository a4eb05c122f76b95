//go:build linux && (amd64 || arm64) && !nodriver

// Preparation of a thread for a driver call: the device's context,
// and the leave to make it while other threads capture graphs. Both belong to
// the thread's owner, who has them back after the call.

package cuda

import (
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"
)

// thread is what a call has changed about its thread, and where the driver
// answers the questions about it.
type thread struct {
	pushed  bool  // the device's context lies on top of the caller's
	relaxed bool  // mode is the caller's, to be restored
	mode    int32 // CUstreamCaptureMode
	flags   uint32
	active  int32
	seen    uint64     // a context, or the id of one
	asked   [3]uintptr // arguments
}

// ask calls a function that is not the one that the call is about. Functions
// that take fewer arguments do not see the others.
func (c *call) ask(f int, args [3]uintptr) Code {
	c.asked = args
	r, _, _ := purego.SyscallN(c.d.m.cuda.at[f], c.asked[:]...)
	runtime.KeepAlive(c)
	return Code(r)
}

// lock ties the goroutine to its thread and prepares that for function f, until
// unlock. If it fails there is nothing to undo.
//
// The caller's context is put back after every call: it may belong to another
// GPU, and a thread without one would get another's. Where it is this device's
// already nothing is changed, which saves three of five calls. Push and pop are
// used, and not cuCtxSetCurrent, because they also bring back a context that
// was destroyed meanwhile, which nothing can make current again.
func (c *call) lock(f int) Code {
	c.f = f
	if c.d.m.cuda.at[f] == 0 {
		return missing
	}
	runtime.LockOSThread()
	c.pushed, c.relaxed = false, false
	if c.current() != success {
		if code := c.ask(cuCtxPushCurrent, [3]uintptr{c.d.ctx}); code != success {
			c.f = cuCtxPushCurrent
			c.unlock()
			return gone(code)
		}
		c.pushed = true
		if code := gone(c.current()); code != success {
			c.unlock()
			return code
		}
	}
	if cuFunctions[f].ordered {
		return success
	}
	c.mode = captureRelaxed
	if code := c.ask(cuThreadExchangeStreamCaptureMode, [3]uintptr{uintptr(unsafe.Pointer(&c.mode))}); code != success {
		c.f = cuThreadExchangeStreamCaptureMode
		c.unlock()
		return code
	}
	c.relaxed = true
	return success
}

// unlock undoes lock. A failure there is no failure of the call, which is over.
func (c *call) unlock() {
	if c.relaxed {
		c.d.remember(c.ask(cuThreadExchangeStreamCaptureMode, [3]uintptr{uintptr(unsafe.Pointer(&c.mode))}))
	}
	if c.pushed {
		c.d.remember(c.ask(cuCtxPopCurrent, [3]uintptr{uintptr(unsafe.Pointer(&c.seen))}))
	}
	runtime.UnlockOSThread()
}

// current is success if the thread's context is the one that was opened.
//
// A primary context that another library resets (cudaDeviceReset) keeps its
// handle, also when it is set up again, but everything in it is gone: streams
// and events are pointers to nothing. Its id is a new one then. Before CUDA 12.0
// there are no ids; there a reset is seen as long as nobody has set the context
// up again.
func (c *call) current() Code {
	d := c.d
	if d.m.cuda.at[cuCtxGetId] != 0 {
		code := c.ask(cuCtxGetId, [3]uintptr{0, uintptr(unsafe.Pointer(&c.seen))})
		if code == success && c.seen != d.generation {
			return invalidContext
		}
		return code
	}
	if code := c.ask(cuCtxGetCurrent, [3]uintptr{uintptr(unsafe.Pointer(&c.seen))}); code != success {
		return code
	}
	if c.seen != uint64(d.ctx) {
		return invalidContext
	}
	code := c.ask(cuDevicePrimaryCtxGetState, [3]uintptr{uintptr(d.id), uintptr(unsafe.Pointer(&c.flags)), uintptr(unsafe.Pointer(&c.active))})
	if code == success && c.active == 0 {
		return contextDestroyed
	}
	return code
}

// gone makes of a code that says that the device's context is not one, which it
// was when it was opened, the code that says why.
func gone(code Code) Code {
	if code == invalidContext {
		return contextDestroyed
	}
	return code
}
