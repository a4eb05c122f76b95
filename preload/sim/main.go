//go:build libgpumem

// Library libcudasim is the simulated GPU in the place of NVIDIA's driver: a
// libcuda.so.1 with the driver's interface, behind which stands package
// gpumem/device/sim. Unchanged programs, JAX and TensorFlow among them, load it,
// allocate, and run out of memory as they would on such a card. Their kernels do
// nothing. scripts/libcudasim builds it.
//
// One call, cuMemAlloc_v2, from the program to the device:
//
//  1. stubs.c takes its arguments as words, and front.c counts the call, lets a
//     test have it fail, and finds the state of the calling thread.
//  2. simCall below locks the driver and looks up who serves that name.
//  3. The handler of cuMemAlloc_v2 (memory.go) finds the thread's current context and
//     in it the device, asks device/sim for the bytes, and enters the block in the
//     driver's table of blocks, so that pointers can be asked about.
//  4. The address goes to where the first argument points. What cannot be is refused
//     with a CUresult, from wherever that is found; the error of the device becomes
//     one (errors.go).
//
// The environment:
//
//	GPUMEM_DEVICE        the devices, in the command line's words; sim:24GiB unless set
//	GPUMEM_SIM_VISIBLE_N any text: of those, the program sees device N and others that have
//	                     such a variable, numbered anew from 0; all unless one is set
//	CUDA_VISIBLE_DEVICES of those, what CUDA lets the program see, and NVML does not ask for, as
//	                     the real driver reads it (device/open)
//	GPUMEM_SIM_LOG       a file that gets a line for each function that is not served,
//	                     each hazard, and each failure of the library itself
//	GPUMEM_SIM_CALLS     a file that gets, when the program ends, how often it called what
//	GPUMEM_SIM_PEAKS     a file that gets lines for each device that the program uses: its process,
//	                     the device's number in its file, the bytes that it has held at most so far, and those
//	                     that all have held at once, whenever these have grown by a 64th, and
//	                     exactly, with "end", when the program ends; and a line "PID python" from one
//	                     whose start-up file has not run (GPUMEM_SIM_STARTED has its process's number)
//	GPUMEM_SIM_HAZARDS   refuse or report: what becomes of a call that is a hazard; refuse
//	                     unless set. With report it goes on, as it does on a GPU, and the
//	                     first hundred hazards of a device get their lines in the log
//	GPUMEM_SIM_BEYOND    1: what a device of a file has no memory for is granted, as much as the file says
//	                     (sim.Config.Beyond), unless a thread of the program refuses it (gpumemSimBeyond).
//	                     It counts as it is at each such request
//	GPUMEM_SIM_KERNEL    what a kernel takes, such as 2ms: work takes real time then (time.go)
//	GPUMEM_SIM_LINK      bytes a second between host and device, such as 25GB/s, which is what it is unless
//	                     set; work takes real time then, too
//	GPUMEM_SIM_CONTENTS  bytes of the host's memory for what lies in the device's; 256MiB
//	                     unless set, an eighth of it for writes of at most 64 KiB. What does not fit reads as
//	                     zeros
//
// # What is simulated, and what is not
//
// Memory, streams and events are device/sim's, so that misuse of them is found:
// a use of memory that nothing orders after its last free or write is refused
// with CUDA_ERROR_ILLEGAL_ADDRESS, unless hazards are only reported. Stream-ordered memory
// that was allocated where nothing is under way is there for all streams at once, as
// with real drivers; TensorFlow 2.18 depends on it. Streams 0, 1 and 2 keep the driver's rules. A
// capture is on until it ends, and calls that a capture forbids are refused.
// Modules and graphs are handles with nothing behind. Copies move contents as long
// as there is room for them. Two contexts on one device share what it has.
// Reservations and handles of physical memory belong to the device that was
// current, and are mapped there alone. Memory that another process opens (cuIpcOpenMemHandle)
// takes nothing, and reads as zeros.
//
// # Locking
//
// One mutex guards the driver. No call waits under it: those that wait for host
// functions return the number to wait for, and front.c waits. Where work takes time, a call that waits
// unlocks it meanwhile. It comes before the timeline's mutex.
package main

// #cgo LDFLAGS: -ldl
// #include "front.h"
// #include <stdlib.h>
import "C"

import (
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"unsafe"

	"gpumem/preload/internal/guest"
)

func main() {}

// simDeepen is a thread's first call: see package guest.
//
//export simDeepen
func simDeepen() { guest.Grow() }

// call is one driver call under way. The driver is locked.
type call struct {
	*driver
	name      string
	words     *[C.simArgs]uint64         // its arguments
	pointers  *[C.simArgs]unsafe.Pointer // the same, for those that are pointers
	thread    *C.struct_simThread
	perThread bool // a _ptsz or _ptds name: stream 0 is the thread's own
}

// handler serves a call. It succeeds unless it refuses.
type handler func(c *call)

func (c *call) u64(i int) uint64 { return c.words[i] }
func (c *call) u32(i int) uint32 { return uint32(c.words[i]) }
func (c *call) int(i int) int    { return int(int32(c.words[i])) }

// text is a C string; "" for a null pointer.
func (c *call) text(i int) string {
	if c.pointers[i] == nil {
		return ""
	}
	return C.GoString((*C.char)(c.pointers[i]))
}

// need refuses the call if one of these arguments is a null pointer, or 0.
func (c *call) need(arguments ...int) {
	for _, i := range arguments {
		check(c.words[i] != 0, invalidValue)
	}
}

// put stores v where argument i points, unless that is a null pointer.
func put[T any](c *call, i int, v T) {
	if c.words[i] != 0 {
		*(*T)(c.pointers[i]) = v
	}
}

// give is put for a call's result: a null pointer is refused.
func give[T any](c *call, i int, v T) {
	c.need(i)
	put(c, i, v)
}

// at reads a T that lies bytes after what argument i points to.
func at[T any](c *call, i, bytes int) T { return *(*T)(unsafe.Add(c.pointers[i], bytes)) }

// served are the handlers by the function's name. Those of _ptsz and _ptds names
// are the plain name's.
var served = tables(deviceCalls, contextCalls, memoryCalls, arrayCalls, poolCalls, pageCalls, streamCalls, captureCalls, copyCalls, kernelCalls, ipcCalls)

// function is one of the names that the library exports.
type function struct {
	name      string
	serve     handler // nil: not served
	perThread bool
	unsafe    bool // a capture forbids it (capture.go)
	logged    bool
}

// functions are those of front.h, by number.
var functions = sync.OnceValue(func() []function {
	list := make([]function, C.simNameCount)
	for i, n := range unsafe.Slice((*C.struct_simName)(unsafe.Pointer(&C.simNames)), C.simNameCount) {
		f := function{name: C.GoString(n.symbol)}
		plain := f.name
		if len(plain) > 5 && (plain[len(plain)-5:] == "_ptsz" || plain[len(plain)-5:] == "_ptds") {
			plain, f.perThread = plain[:len(plain)-5], true
		}
		f.serve = served[plain]
		f.unsafe = slices.Contains(captureForbids, plain)
		list[i] = f
	}
	return list
})

func tables(all ...map[string]handler) map[string]handler {
	out := make(map[string]handler)
	for _, t := range all {
		for name, h := range t {
			if _, twice := out[name]; twice {
				panic(name + " is served twice")
			}
			out[name] = h
		}
	}
	return out
}

// early are the calls that need no cuInit.
var early = map[string]bool{"cuInit": true, "cuDriverGetVersion": true, "cuGetErrorName": true, "cuGetErrorString": true}

var theDriver driver

//export simCall
func simCall(name C.int, args *C.u64, thread *C.struct_simThread) (result C.int) {
	defer recovered(&result)
	f := &functions()[name]
	theDriver.mu.Lock()
	defer theDriver.mu.Unlock()
	if f.serve == nil {
		if !f.logged {
			f.logged = true
			logf("%s: not served", f.name)
		}
		return C.int(notSupported)
	}
	if !theDriver.initialised && !early[f.name] {
		return C.int(notInitialized)
	}
	words, pointers := (*[C.simArgs]uint64)(unsafe.Pointer(args)), (*[C.simArgs]unsafe.Pointer)(unsafe.Pointer(args))
	c := call{&theDriver, f.name, words, pointers, thread, f.perThread}
	check(!f.unsafe || !c.forbidden(), captureUnsupported)
	theDriver.learn()
	defer theDriver.notePeaks()
	f.serve(&c)
	return C.int(success)
}

//export simUse
func simUse(addr, bytes, stream C.u64, thread *C.struct_simThread) (result C.int) {
	defer recovered(&result)
	theDriver.mu.Lock()
	defer theDriver.mu.Unlock()
	words := [C.simArgs]uint64{uint64(stream)}
	c := call{driver: &theDriver, name: "gpumemSimUse", words: &words, thread: thread}
	theDriver.learn()
	c.use(uint64(addr), uint64(bytes))
	return C.int(success)
}

//export simHazards
func simHazards() (n C.int) {
	defer recovered(new(C.int))
	theDriver.mu.Lock()
	defer theDriver.mu.Unlock()
	return C.int(len(theDriver.hazards()))
}

//export simHazard
func simHazard(i C.int, text *C.char, bytes C.size_t) (result C.int) {
	defer recovered(&result)
	theDriver.mu.Lock()
	defer theDriver.mu.Unlock()
	all := theDriver.hazards()
	if i < 0 || int(i) >= len(all) || text == nil || bytes == 0 {
		return C.int(invalidValue)
	}
	toC(text, uint64(bytes), all[i].Error())
	return 0
}

//export simStatus
func simStatus(ordinal C.int, total, used *C.u64, name, uuid *C.char) (result C.int) {
	defer recovered(&result)
	theDriver.mu.Lock()
	defer theDriver.mu.Unlock()
	g := known(ordinal)
	if g == nil {
		return -1
	}
	s, err := g.status()
	if err != nil {
		return -1
	}
	*total, *used = C.u64(s.Total), C.u64(s.Total-s.Free)
	toC(name, 96, g.info.Name)
	toC(uuid, 96, g.uuid.String())
	return 0
}

//export simAttribute
func simAttribute(ordinal, number C.int) (v C.int) {
	defer recovered(new(C.int))
	theDriver.mu.Lock()
	defer theDriver.mu.Unlock()
	if g := known(ordinal); g != nil {
		v = C.int(g.attribute(int(number)))
	}
	return v
}

// known returns the device that NVML counts so, nil if there is none.
func known(ordinal C.int) *gpu {
	if theDriver.find() != success || ordinal < 0 || int(ordinal) >= len(theDriver.machine) {
		return nil
	}
	return theDriver.machine[ordinal]
}

// wantsPeaks reports whether GPUMEM_SIM_PEAKS names a file.
var wantsPeaks = sync.OnceValue(func() bool { v, _ := environment("GPUMEM_SIM_PEAKS"); return v != "" })

// notePeaks writes the peaks that have grown by a 64th since they were last written, so that they
// are known of a process that is killed, too. The driver is locked.
func (d *driver) notePeaks() {
	if !wantsPeaks() {
		return
	}
	grown := func(now, last uint64) bool { return now > last+last/64 }
	for _, g := range d.gpus {
		if !g.opened {
			continue
		}
		if p := g.peaks(); !g.noted || grown(p.own, g.last.own) || grown(p.all, g.last.all) {
			g.noted, g.last = true, p
			g.writePeaks("")
		}
	}
}

func (g *gpu) writePeaks(end string) {
	p := g.peaks()
	writePeak("%d %d %d %d%s", os.Getpid(), g.info.Ordinal, p.own, p.all, end)
}

// writePeak writes one line of the file of peaks.
func writePeak(format string, args ...any) {
	line := C.CString(fmt.Sprintf(format+"\n", args...))
	defer C.free(unsafe.Pointer(line))
	C.simPeak(line)
}

//export simFiguresAtEnd
func simFiguresAtEnd() {
	defer recovered(new(C.int))
	if !theDriver.mu.TryLock() { // another thread is in a call, which nobody waits for at the end
		return
	}
	defer theDriver.mu.Unlock()
	for _, g := range theDriver.gpus {
		if g.opened && wantsPeaks() {
			g.writePeaks(" end")
		}
		if g.opened && theDriver.line != nil {
			g.noteBusy()
		}
	}
}

//export simProcesses
func simProcesses(ordinal C.int, pids, used *C.u64, room C.int) (n C.int) {
	defer recovered(new(C.int))
	theDriver.mu.Lock()
	defer theDriver.mu.Unlock()
	g := known(ordinal)
	if g == nil {
		return -1
	}
	list, err := g.spec.Status() // as others see it, this program among them
	if err != nil {
		return -1
	}
	processes := list[0].Processes
	for i := range min(int(room), len(processes)) {
		unsafe.Slice(pids, room)[i] = C.u64(processes[i].PID)
		unsafe.Slice(used, room)[i] = C.u64(processes[i].Used)
	}
	return C.int(len(processes))
}

// toC writes a Go string as a C string of at most room bytes, its end included.
func toC(to *C.char, room uint64, s string) {
	out := unsafe.Slice((*byte)(unsafe.Pointer(to)), room)
	n := copy(out[:room-1], s)
	out[n] = 0
}

// recovered ends a call that was refused, and keeps any other panic from leaving the
// library: the call fails.
func recovered(result *C.int) {
	switch r := recover().(type) {
	case nil:
	case code:
		*result = C.int(r)
	default:
		logf("internal error: %v\n%s", r, debug.Stack())
		*result = C.int(unknown)
	}
}

// logf writes a line to the log file.
func logf(format string, args ...any) {
	line := C.CString(fmt.Sprintf("[%d] "+format+"\n", append([]any{os.Getpid()}, args...)...))
	defer C.free(unsafe.Pointer(line))
	C.simLog(line)
}

// environment reads a variable as C sees it, so that what a program set before
// it loaded the library counts.
func environment(name string) (string, bool) {
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	v := C.getenv(n)
	if v == nil {
		return "", false
	}
	return C.GoString(v), true
}
