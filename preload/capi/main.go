//go:build libgpumem

// Capi is libgpumem_c.so: the pools for programs that call them by name, in C (see
// ../gpumem.h), Python, or another library's allocator interface. The exported names are
// in capi.c; each function here is behind one of them.
//
// An allocation, from top to bottom: gpumem_alloc (C) refuses in a forked child; gcAlloc
// finds the pool by its number, opens it if it is the shared pool of a GPU that was not
// used yet, and asks package shim's pool, which is package gpumem's on a device on which
// "no stream" means all work of the program.
//
// # Lock order
//
//	opening      one pool at a time is opened or closed; the recording is begun or ended
//	pool.mu      the pool's table of blocks that are used in further streams, and counts
//	package shim's, and below
package main

/*
#cgo CFLAGS: -O2 -fexceptions -fvisibility=hidden
#cgo LDFLAGS: -ldl -lpthread
#include <stdlib.h>
#include "capi.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"gpumem"
	"gpumem/device"
	"gpumem/device/cuda"
	"gpumem/device/open"
	"gpumem/policy"
	"gpumem/policy/frameworks"
	"gpumem/preload/internal/shim"
	"gpumem/record/trace"
	"gpumem/size"
)

func main() {}

// maxPools is the number of pools of a process, the shared ones of GPUs included.
const maxPools = 1024

// pool is one pool with what package shim does not count.
type pool struct {
	*shim.Pool
	driver shim.Driver
	name   string // the device's
	policy string
	limit  uint64 // of the policy, or the device's total if that is less

	mu       sync.Mutex
	blocks   map[uint64]*block // live
	streams  map[uint64]uint64 // of a simulated GPU, by the program's handle
	live     uint64            // bytes of them
	peakLive uint64            // since the last reset
	peakHeld uint64            // what was seen since the last reset, after each allocation
	reset    bool              // peakHeld is to be used instead of the pool's own
	allocs   uint64
	frees    uint64
	refused  uint64
	bytes    uint64 // of all allocations
	record   *trace.Writer
}

type block struct {
	bytes   uint64
	asked   uint64
	further bool // it is used in a stream beside its own
}

var (
	opening sync.Mutex
	pools   [maxPools]atomic.Pointer[pool]
	// asked is how shared pools are to be opened; guarded by opening.
	asked [C.GPUMEM_GPUS]struct{ device, policy string }
)

// Errors of this package; the others are those of packages gpumem and device.
var (
	errClosed   = errors.New("there is no such pool, or no more")
	errNoDevice = errors.New("no GPU")
	errArgument = errors.New("invalid argument")
)

// answer writes an error's text and returns its code. Every function ends with it.
func answer(e *C.gc_error, err error) C.int {
	if err == nil {
		return C.GPUMEM_OK
	}
	write(e, textOf(err))
	var call *device.CallError
	var code cuda.Code
	switch {
	case errors.Is(err, gpumem.ErrOutOfMemory), errors.Is(err, device.ErrOutOfMemory):
		return C.GPUMEM_OUT_OF_MEMORY
	case errors.Is(err, gpumem.ErrNotAllocated), errors.Is(err, gpumem.ErrDoubleFree):
		return C.GPUMEM_NOT_ALLOCATED
	case errors.Is(err, errClosed), errors.Is(err, gpumem.ErrClosed):
		return C.GPUMEM_CLOSED
	case errors.Is(err, errNoDevice), errors.Is(err, cuda.ErrNoDriver):
		return C.GPUMEM_NO_DEVICE
	case errors.Is(err, gpumem.ErrBadRequest), errors.Is(err, errArgument):
		return C.GPUMEM_INVALID
	case errors.As(err, &call), errors.As(err, &code):
		return C.GPUMEM_DEVICE
	}
	return C.GPUMEM_INTERNAL
}

// textOf returns an error's text; of a refusal also why.
func textOf(err error) string {
	var refusal *gpumem.OutOfMemoryError
	if errors.As(err, &refusal) {
		return strings.TrimRight(refusal.Error()+"\n"+refusal.Why(), "\n")
	}
	return err.Error()
}

// write puts a text into a thread's buffer, cut at its end.
func write(e *C.gc_error, text string) {
	to := unsafe.Slice((*byte)(unsafe.Pointer(&e.text[0])), len(e.text))
	to[copy(to[:len(to)-1], text)] = 0
}

// recovered makes a panic an answer: the program is not ended by us.
func recovered(e *C.gc_error, code *C.int) {
	if r := recover(); r != nil {
		if e != nil {
			write(e, fmt.Sprintf("a fault of gpumem: %v\n%s", r, debug.Stack()))
		}
		if code != nil {
			*code = C.GPUMEM_INTERNAL
		}
	}
}

// lookup reads the environment as it is now. Go's own copy is of the start of the
// program: what Python sets in os.environ is not in it.
func lookup(name string) (string, bool) {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	v := C.getenv(c)
	return C.GoString(v), v != nil
}

// find returns a pool. A shared one is opened if that is the first use.
func find(number C.int) (*pool, error) {
	if number < 0 || number >= maxPools {
		return nil, fmt.Errorf("pool %d: %w", number, errClosed)
	}
	if p := pools[number].Load(); p != nil {
		return p, nil
	}
	if number >= C.GPUMEM_GPUS {
		return nil, fmt.Errorf("pool %d: %w", number, errClosed)
	}
	opening.Lock()
	defer opening.Unlock()
	if p := pools[number].Load(); p != nil {
		return p, nil
	}
	words := asked[number].device
	if words == "" {
		words = shared(int(number))
	}
	p, err := openPool(words, asked[number].policy)
	if err == nil {
		pools[number].Store(p)
	}
	return p, err
}

// named returns the device that the environment names; "" for none. In a run of gpumem run
// --simulate that is for the simulated driver, which this library opens as any driver: the
// framework must know its addresses.
func named() string {
	if folder, _ := lookup("GPUMEM_SIM_FOLDER"); folder != "" { // of node/simulate
		return ""
	}
	words, _ := lookup(open.EnvVar)
	return words
}

// shared returns the words of GPU number among the program's. A simulated GPU stands in
// for real ones where the environment names one.
func shared(number int) string {
	words := named()
	switch spec, err := open.Parse(words); {
	case words == "" || err == nil && spec.Kind == open.CUDA:
		return fmt.Sprintf("cuda:%d", number)
	case err == nil && spec.Kind == open.Shared && spec.All:
		return fmt.Sprintf("%s,device=%d", words, number)
	}
	return words
}

// openPool opens a device and a pool on it. The caller holds opening.
func openPool(words, spec string) (*pool, error) {
	if words == "" {
		if words = named(); words == "" {
			words = "cuda:0"
		}
	}
	if spec == "" {
		spec = "elastic"
	}
	how, err := frameworks.Parse(spec)
	if err != nil {
		return nil, fmt.Errorf("%w: policy: %w", errArgument, err)
	}
	which, err := open.Parse(words)
	if err != nil {
		return nil, fmt.Errorf("%w: device: %w", errArgument, err)
	}
	dev, err := which.Device()
	if err != nil {
		return nil, fmt.Errorf("%w %s: %w", errNoDevice, words, err)
	}
	driver, ok := dev.(shim.Driver) // package device/internal/cuda's
	if !ok {
		driver = simulated{dev}
	}
	info := dev.Info()
	limit := min(how.LimitBytes(policy.Device{Total: info.Total, Free: info.Total, Granularity: info.Granularity, CCMajor: info.CCMajor, NoPages: !info.HasPages}), info.Total)
	p := &pool{driver: driver, name: info.Name, policy: spec, limit: limit, blocks: map[uint64]*block{}, streams: map[uint64]uint64{}}
	if p.Pool, err = shim.Open(driver, shim.Config{Policy: how}); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", errArgument, err), dev.Close())
	}
	if record.w != nil {
		p.record = record.w
	}
	return p, nil
}

// simulated is a simulated GPU as a program's driver.
type simulated struct{ device.GPU }

func (s simulated) Context() uint64                            { return 1 }
func (s simulated) SynchronizeContext() error                  { return s.Synchronize() }
func (s simulated) Capturing(uint64) (bool, error)             { return false, nil }
func (s simulated) MemSetAccessFrom(int, uint64, uint64) error { return nil } // it has no other users
func (s simulated) Adopt(handle uint64) device.Stream          { return device.Stream(handle) }
func (s simulated) Disown(stream device.Stream) error          { return s.StreamDestroy(stream) }

// stream returns the driver's handle of a stream of the program. On a simulated GPU,
// where the program cannot have made one, each handle that it names gets a stream.
func (p *pool) stream(handle uint64) (uint64, error) {
	if _, ok := p.driver.(simulated); !ok {
		return max(handle, legacy), nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.streams[max(handle, legacy)]
	if !ok {
		made, err := p.driver.StreamCreate()
		if err != nil {
			return 0, err
		}
		s = uint64(made)
		p.streams[max(handle, legacy)] = s
	}
	return s, nil
}

// ends forgets a stream that the program destroys.
func (p *pool) ends(handle uint64) error {
	s := handle
	if _, ok := p.driver.(simulated); ok {
		p.mu.Lock()
		s, ok = p.streams[handle]
		delete(p.streams, handle)
		p.mu.Unlock()
		if !ok {
			return nil
		}
	}
	return p.StreamDestroyed(s)
}

//export gcConfigure
func gcConfigure(gpu C.int, dev, spec *C.char, e *C.gc_error) (code C.int) {
	defer recovered(e, &code)
	return answer(e, configure(int(gpu), C.GoString(dev), C.GoString(spec)))
}

func configure(gpu int, dev, spec string) error {
	if gpu < 0 || gpu >= C.GPUMEM_GPUS {
		return fmt.Errorf("%w: GPU %d", errArgument, gpu)
	}
	if spec != "" {
		if _, err := frameworks.Parse(spec); err != nil {
			return fmt.Errorf("%w: policy: %w", errArgument, err)
		}
	}
	if dev != "" {
		if _, err := open.Parse(dev); err != nil {
			return fmt.Errorf("%w: device: %w", errArgument, err)
		}
	}
	opening.Lock()
	defer opening.Unlock()
	if p := pools[gpu].Load(); p != nil {
		return fmt.Errorf("%w: the pool of GPU %d is open already, with the policy %s on %s", errArgument, gpu, p.policy, p.name)
	}
	asked[gpu].device, asked[gpu].policy = dev, spec
	return nil
}

//export gcIsOpen
func gcIsOpen(number C.int) C.int {
	if number >= 0 && number < maxPools && pools[number].Load() != nil {
		return 1
	}
	return 0
}

//export gcOpen
func gcOpen(dev, spec *C.char, number *C.int, e *C.gc_error) (code C.int) {
	defer recovered(e, &code)
	if number == nil {
		return answer(e, fmt.Errorf("%w: pool is NULL", errArgument))
	}
	*number = -1
	opening.Lock()
	defer opening.Unlock()
	for i := C.GPUMEM_GPUS; i < maxPools; i++ {
		if pools[i].Load() == nil {
			p, err := openPool(C.GoString(dev), C.GoString(spec))
			if err == nil {
				pools[i].Store(p)
				*number = C.int(i)
			}
			return answer(e, err)
		}
	}
	return answer(e, fmt.Errorf("%w: %d pools are open", errArgument, maxPools-C.GPUMEM_GPUS))
}

//export gcClose
func gcClose(number C.int, e *C.gc_error) (code C.int) {
	defer recovered(e, &code)
	if number >= 0 && number < C.GPUMEM_GPUS {
		return answer(e, fmt.Errorf("%w: pool %d is shared by all of the process, and is not closed", errArgument, number))
	}
	opening.Lock()
	defer opening.Unlock()
	p, err := find(number)
	if err == nil {
		pools[number].Store(nil)
		err = errors.Join(p.Pool.Close(), p.driver.Close())
	}
	return answer(e, err)
}

//export gcAlloc
func gcAlloc(number C.int, bytes C.size_t, stream C.u64, at *C.u64, e *C.gc_error) (code C.int) {
	defer recovered(e, &code)
	if at == nil {
		return answer(e, fmt.Errorf("%w: address is NULL", errArgument))
	}
	p, err := find(number)
	if err == nil && bytes != 0 {
		var addr uint64
		addr, err = p.alloc(uint64(bytes), uint64(stream))
		*at = C.u64(addr)
	}
	return answer(e, err)
}

// The handles of streams with a meaning, as gpumem.h and the driver have them.
const (
	legacy    = 1
	perThread = 2
	unknown   = ^uint64(0)
)

// alloc allocates for a stream.
func (p *pool) alloc(bytes, stream uint64) (addr uint64, err error) {
	if stream == unknown || stream == perThread {
		addr, err = p.Alloc(bytes)
	} else if stream, err = p.stream(stream); err == nil {
		addr, err = p.AllocAsync(bytes, stream)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.refused++
		p.recordRefusal(bytes)
		return 0, err
	}
	size := bytes
	if _, n, err := p.Range(addr); err == nil {
		size = n
	}
	p.blocks[addr] = &block{bytes: size, asked: bytes}
	p.recordAlloc(addr, bytes)
	p.allocs++
	p.bytes += size
	p.live += size
	p.peakLive = max(p.peakLive, p.live)
	if p.reset {
		held, _ := p.Reserved()
		p.peakHeld = max(p.peakHeld, held)
	}
	return addr, nil
}

//export gcFree
func gcFree(number C.int, at, stream C.u64, e *C.gc_error) (code C.int) {
	defer recovered(e, &code)
	p, err := find(number)
	if err == nil {
		err = p.free(uint64(at), uint64(stream))
	}
	return answer(e, err)
}

func (p *pool) free(addr, stream uint64) error {
	p.mu.Lock()
	b := p.blocks[addr]
	delete(p.blocks, addr)
	if b != nil {
		p.recordFree(addr) // before another thread gets the address
	}
	p.mu.Unlock()
	if b == nil {
		return fmt.Errorf("%w: no live block starts at %#x", gpumem.ErrNotAllocated, addr)
	}
	var err error
	if b.further || stream == unknown || stream == perThread {
		err = p.Free(addr)
	} else if stream, err = p.stream(stream); err == nil {
		err = p.FreeAsync(addr, stream)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.blocks[addr] = b
		p.recordAlloc(addr, b.asked)
		return err
	}
	p.frees++
	p.live -= b.bytes
	return nil
}

//export gcRecordStream
func gcRecordStream(number C.int, at, _ C.u64, e *C.gc_error) (code C.int) {
	defer recovered(e, &code)
	p, err := find(number)
	if err == nil && !p.further(uint64(at)) {
		err = fmt.Errorf("%w: no live block starts at %#x", gpumem.ErrNotAllocated, uint64(at))
	}
	return answer(e, err)
}

// further notes that a block is used in another stream than its own. It is then freed as
// memory of no stream is: after all work of the program.
func (p *pool) further(addr uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.blocks[addr]
	if b != nil {
		b.further = true
	}
	return b != nil
}

// gcRecordAnywhere finds the block in the shared pools: PyTorch does not name the GPU.
//
//export gcRecordAnywhere
func gcRecordAnywhere(at, _ C.u64) {
	defer recovered(nil, nil)
	for i := range C.GPUMEM_GPUS {
		if p := pools[i].Load(); p != nil && p.further(uint64(at)) {
			return
		}
	}
}

//export gcStreamEnds
func gcStreamEnds(number C.int, stream C.u64, e *C.gc_error) (code C.int) {
	defer recovered(e, &code)
	p, err := find(number)
	if err == nil {
		err = p.ends(uint64(stream))
	}
	return answer(e, err)
}

//export gcTrim
func gcTrim(number C.int, released *C.u64, e *C.gc_error) (code C.int) {
	defer recovered(e, &code)
	p, err := find(number)
	if err == nil {
		before, _ := p.Reserved()
		if p.Pending() > 0 { // freed, and idle only after the work under way
			n := p.Synchronizing()
			if err = p.driver.SynchronizeContext(); err == nil {
				err = p.Synchronized(n)
			}
		}
		err = errors.Join(err, p.Pool.Trim())
		after, _ := p.Reserved()
		*released = C.u64(before - min(before, after))
	}
	return answer(e, err)
}

//export gcInfo
func gcInfo(number C.int, free, total *C.u64, e *C.gc_error) (code C.int) {
	defer recovered(e, &code)
	p, err := find(number)
	if err == nil {
		var f, t uint64
		f, t, err = p.available()
		*free, *total = C.u64(f), C.u64(t)
	}
	return answer(e, err)
}

// available returns what the program can still get, and the total that it has, within the
// policy's limit.
func (p *pool) available() (free, total uint64, err error) {
	free, total, err = p.Info()
	p.mu.Lock()
	defer p.mu.Unlock()
	return min(free, p.limit-min(p.limit, p.live)), min(total, p.limit), err
}

//export gcStats
func gcStats(number C.int, f *C.gpumem_figures, e *C.gc_error) (code C.int) {
	defer recovered(e, &code)
	p, err := find(number)
	if err == nil {
		*f = p.figures()
	}
	return answer(e, err)
}

func (p *pool) figures() (f C.gpumem_figures) {
	held, peakHeld := p.Reserved()
	calls := p.Pool.Figures().DriverCalls
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reset {
		peakHeld = max(p.peakHeld, held)
	}
	f.bytes_in_use, f.peak_bytes_in_use = C.u64(p.live), C.u64(p.peakLive)
	f.pool_bytes, f.peak_pool_bytes = C.u64(held), C.u64(peakHeld)
	f.live, f.allocs, f.frees, f.refused = C.u64(len(p.blocks)), C.u64(p.allocs), C.u64(p.frees), C.u64(p.refused)
	f.allocated_bytes, f.driver_calls, f.total = C.u64(p.bytes), C.u64(calls), C.u64(p.limit)
	return f
}

//export gcResetPeaks
func gcResetPeaks(number C.int, e *C.gc_error) (code C.int) {
	defer recovered(e, &code)
	p, err := find(number)
	if err == nil {
		held, _ := p.Reserved()
		p.mu.Lock()
		p.reset, p.peakHeld, p.peakLive = true, held, p.live
		p.mu.Unlock()
	}
	return answer(e, err)
}

//export gcReport
func gcReport(number C.int, length *C.int, e *C.gc_error) (text *C.char) {
	defer recovered(e, nil)
	p, err := find(number)
	if err != nil {
		answer(e, err)
		return nil
	}
	report := p.report()
	*length = C.int(len(report))
	return C.CString(report)
}

// report returns some lines about the pool for people.
func (p *pool) report() string {
	f := p.figures()
	s := func(v C.u64) string { return size.Format(uint64(v)) }
	var b strings.Builder
	fmt.Fprintf(&b, "GPU memory pool on %s, policy %s\n", p.name, p.policy)
	fmt.Fprintf(&b, "  in use    %s in %s (peak %s)\n", s(f.bytes_in_use), size.Count(int(f.live), "block"), s(f.peak_bytes_in_use))
	fmt.Fprintf(&b, "  held      %s from the device (peak %s)\n", s(f.pool_bytes), s(f.peak_pool_bytes))
	if free, total, err := p.available(); err == nil {
		fmt.Fprintf(&b, "  available %s of %s\n", size.Format(free), size.Format(total))
	}
	fmt.Fprintf(&b, "  requests  %d served, %d freed, %d refused; %d driver calls\n", f.allocs, f.frees, f.refused, f.driver_calls)
	for _, g := range p.largest(5) {
		fmt.Fprintf(&b, "  %s in %s of %s\n", size.Format(g.bytes*g.count), size.Count(int(g.count), "block"), size.Format(g.bytes))
	}
	return b.String()
}
