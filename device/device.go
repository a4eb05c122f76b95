// Package device says what a GPU is to an allocator: so much memory, granted
// in ranges at addresses, by calls that cost time.
//
// Device memory is addresses, never Go pointers: an address here is a uint64
// that this process cannot read through. Everything above this package keeps
// its bookkeeping apart from the memory that it describes.
//
// The interface comes in small groups, named for what one asks of a GPU:
// [Device] (how much is there; plain grants), [Memory] (contents), [Streams]
// (queues of work, and events in them), [Pools] (the driver's own
// stream-ordered allocator), [Pages] (virtual memory: addresses apart from
// the memory behind them) and [Managed] (unified memory, of which there may be
// more than the device has). [GPU] is all of them. An allocator asks for the
// groups that it needs.
//
// Two packages implement [GPU]: sim, a simulated one that needs no hardware,
// private to a process or shared by many, and cuda, the NVIDIA driver. Package
// open makes one from the words of the command line; package devicetest is the
// suite that every implementation passes.
package device

import (
	"errors"
	"fmt"
	"time"
)

// Errors that a driver call returns, wrapped in a [CallError]. They carry the
// driver's own names so that a reader finds them in its manual.
var (
	// ErrOutOfMemory: the device has not that many bytes left.
	ErrOutOfMemory = errors.New("CUDA_ERROR_OUT_OF_MEMORY: out of memory")
	// ErrInvalidValue: an argument that makes no sense, such as freeing an
	// address that was never granted.
	ErrInvalidValue = errors.New("CUDA_ERROR_INVALID_VALUE: invalid argument")
	// ErrInvalidHandle: a stream or event that was never created, or was
	// destroyed. It is an ErrInvalidValue, too: errors.Is reports true for both.
	ErrInvalidHandle error = invalidHandle{}
	// ErrLost: the device fell off the bus or was reset. Every later call
	// fails the same way.
	ErrLost = errors.New("CUDA_ERROR_DEVICE_UNAVAILABLE: the device is lost; restart the program")
	// ErrIllegalAddress: work on the device touched memory that was not there
	// (any more).
	ErrIllegalAddress = errors.New("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered")
	// ErrNotSupported: this device or driver cannot do that at all.
	ErrNotSupported = errors.New("CUDA_ERROR_NOT_SUPPORTED: operation not supported")
	// ErrNotPermitted: it could, but not for this program.
	ErrNotPermitted = errors.New("CUDA_ERROR_NOT_PERMITTED: operation not permitted")
	// ErrClosed: the program has closed this device.
	ErrClosed = errors.New("the device is closed")
)

// invalidHandle is the type of ErrInvalidHandle.
type invalidHandle struct{}

func (invalidHandle) Error() string { return "CUDA_ERROR_INVALID_HANDLE: invalid resource handle" }
func (invalidHandle) Unwrap() error { return ErrInvalidValue }

// CallError is a refused driver call: which call, on which device, why.
type CallError struct {
	Call   string // the call as the driver names it, such as "cuMemAlloc"
	Device string // the device's name
	Bytes  uint64 // bytes asked for; 0 where the call asks for none
	Err    error  // one of the errors above
}

func (e *CallError) Error() string {
	if e.Bytes != 0 {
		return fmt.Sprintf("%s of %d bytes on %s: %v", e.Call, e.Bytes, e.Device, e.Err)
	}
	return fmt.Sprintf("%s on %s: %v", e.Call, e.Device, e.Err)
}

// Unwrap makes errors.Is(err, ErrOutOfMemory) work.
func (e *CallError) Unwrap() error { return e.Err }

// Info is what does not change while a program runs.
type Info struct {
	Name           string // as people know it: "sim:80GiB", "NVIDIA H200"
	Ordinal        int    // number of the device, from 0
	UUID           string // "GPU-..." or "MIG-..."; "" where there is none
	Driver         string // the driver's version, such as "580.82.07"; "" simulated
	Total          uint64 // bytes that the driver reports as the total; of the slice, not its parent, with MIG
	Granularity    uint64 // a plain grant is rounded up to a multiple of this, in bytes; at least 1
	Page           uint64 // recommended unit of [Pages], in bytes: what MemCreate, MemMap and AddressReserve take multiples of; 0 without HasPages
	CCMajor        int    // compute capability, such as 9 of 9.0
	CCMinor        int    // and 0 of 9.0
	Display        bool   // a display is drawn by this GPU
	MIG            string // the slice's name where the device is a slice of a GPU, such as "1g.10gb"
	Unified        bool   // its memory is the host's
	HasPages       bool   // the calls of [Pages] work; some virtual GPUs lack them
	HasPools       bool   // the calls of [Pools] work
	HasManaged     bool   // the call of [Managed] works
	Oversubscribes bool   // and grants more than the device has; not before compute capability 6.0, nor under Windows
	Simulated      bool   // no hardware behind it
	Context        uint64 // bytes that a program takes with its first call, where that is known beforehand: simulated
	Base           uint64 // where the first grant lies, if that is known beforehand; placements are reported relative to it
}

// Range is granted memory: Bytes at Addr. Bytes is what the device gave, which
// may be more than was asked for.
type Range struct {
	Addr  uint64
	Bytes uint64
}

// Counters say what the driver was asked and what that cost so far.
type Counters struct {
	Calls uint64        // driver calls of every kind, refused ones included
	Time  time.Duration // modelled time in them (simulated), or measured (real)
}

// Device is one GPU as one program sees it: how much there is, and plain
// grants. Implementations are safe for use by several goroutines. A call that
// fails takes nothing and releases nothing, and returns a [CallError].
type Device interface {
	// Info never fails and makes no driver call.
	Info() Info
	// MemInfo is what the driver reports as free and total, in bytes. Free
	// takes account of everyone who uses the device.
	MemInfo() (free, total uint64, err error)
	// Alloc grants bytes (at least 1), rounded up to the granularity. A device
	// that has not that much left answers ErrOutOfMemory.
	Alloc(bytes uint64) (Range, error)
	// Free releases a granted range; addr is its start. It waits for all
	// work on the device, as the driver does.
	Free(addr uint64) error
	// Counters may be read at any time.
	Counters() Counters
	// Close releases everything that this program holds on the device. Every
	// later call fails with ErrClosed; closing again does nothing. On a real GPU
	// whose work does not end, Close returns an error after a while and gives
	// back the rest when the work ends.
	Close() error
}

// Memory is what lies in a device's memory, for tests and tools. A range may
// be any part of what is granted, allocated from a pool, or mapped with access;
// anything else answers ErrInvalidValue. What was never written may hold
// anything. The calls wait until they are done, but not for work on streams
// that is under way: that is the caller's to wait for.
type Memory interface {
	// Write copies p to addr (cuMemcpyHtoD).
	Write(addr uint64, p []byte) error
	// Read fills p from addr (cuMemcpyDtoH).
	Read(addr uint64, p []byte) error
	// Fill sets bytes bytes from addr to b (cuMemsetD8).
	Fill(addr, bytes uint64, b byte) error
}

// Stream is a queue of work on a device; work in one runs in order, work in
// two runs in any order but for [Event]. The zero Stream always exists. It
// does not wait for the others nor they for it (they are created with
// CU_STREAM_NON_BLOCKING).
type Stream uint64

// Event is a mark in a stream.
type Event uint64

// Streams are queues of work. A stream or event that was never created, or was
// destroyed, answers ErrInvalidHandle. The driver may use the handle of a
// destroyed stream or event again for a new one; then it is the new one's.
type Streams interface {
	StreamCreate() (Stream, error)
	// StreamDestroy does not wait: what is queued still runs.
	StreamDestroy(s Stream) error
	// StreamID is the stream's identity in this process: unlike the handle, no
	// later stream has it (cuStreamGetId). It is not 0, and makes no driver call.
	StreamID(s Stream) (id uint64, err error)
	// StreamQuery reports whether all work in s is done, without waiting.
	StreamQuery(s Stream) (done bool, err error)
	// StreamSynchronize waits until the work that is in s now is done.
	StreamSynchronize(s Stream) error
	// StreamWaitEvent makes later work in s wait for the event as recorded
	// last; one never recorded counts as done.
	StreamWaitEvent(s Stream, e Event) error

	EventCreate() (Event, error)
	EventDestroy(e Event) error
	// EventRecord puts the mark after the work that is in s now.
	EventRecord(e Event, s Stream) error
	// EventQuery reports whether the work before the mark is done; true for one
	// never recorded.
	EventQuery(e Event) (done bool, err error)
	// EventSynchronize waits for the mark.
	EventSynchronize(e Event) error

	// Synchronize waits for all work that is now in the streams of this device,
	// the destroyed ones included. A real GPU may have other streams, of other
	// libraries in the process; their work is not waited for.
	Synchronize() error

	// CopyAsync queues a copy within the device (cuMemcpyDtoDAsync). The two
	// ranges must not overlap.
	CopyAsync(dst, src, bytes uint64, s Stream) error
	// FillAsync queues a fill (cuMemsetD8Async).
	FillAsync(addr, bytes uint64, b byte, s Stream) error
}

// Pool is a stream-ordered pool of the driver.
type Pool uint64

// PoolAttribute names a property of a pool, by the driver's numbers.
type PoolAttribute int32

// The attributes. The first three are 0 or 1, the others bytes. Only the
// first four may be set, and the two high marks to 0, which restarts them.
const (
	PoolReuseFollowEventDependencies   PoolAttribute = 1 // reuse what was freed in another stream where an event orders it; default 1
	PoolReuseAllowOpportunistic        PoolAttribute = 2 // reuse it where its free happens to be done; default 1
	PoolReuseAllowInternalDependencies PoolAttribute = 3 // reuse it by making the stream wait; default 1
	PoolReleaseThreshold               PoolAttribute = 4 // unused memory above this is released at the next synchronise; default 0
	PoolReservedCurrent                PoolAttribute = 5 // held from the device now
	PoolReservedHigh                   PoolAttribute = 6
	PoolUsedCurrent                    PoolAttribute = 7 // of it in allocations
	PoolUsedHigh                       PoolAttribute = 8
)

// Pools are the driver's stream-ordered allocator. Without Info.HasPools all
// answer ErrNotSupported.
type Pools interface {
	// DefaultPool is the device's own; it cannot be destroyed.
	DefaultPool() (Pool, error)
	// PoolCreate makes another that holds at most max bytes; 0 means no limit.
	PoolCreate(max uint64) (Pool, error)
	// PoolDestroy ends a pool; what is still allocated from it is released to
	// the device as it is freed.
	PoolDestroy(p Pool) error
	PoolGetAttribute(p Pool, a PoolAttribute) (uint64, error)
	PoolSetAttribute(p Pool, a PoolAttribute, v uint64) error
	// PoolTrim releases unused memory, but keeps the pool from holding less
	// than keep bytes. What is allocated, or freed but not known by the host to
	// be done, stays, and so does what shares the driver's unit with it.
	PoolTrim(p Pool, keep uint64) error
	// AllocAsync allocates at least bytes (at least 1); the memory may be used
	// in s from here on, and in other streams after an event.
	AllocAsync(p Pool, bytes uint64, s Stream) (Range, error)
	// FreeAsync frees when the work that is in s now is done. addr may come
	// from AllocAsync or Alloc; for AllocManaged the driver has only Free.
	FreeAsync(addr uint64, s Stream) error
}

// Handle is physical memory without an address.
type Handle uint64

// Pages is virtual memory: addresses are reserved, memory is created, and the
// one is mapped onto the other. Bytes and addresses are multiples of
// Info.Page, else ErrInvalidValue. Without Info.HasPages all answer
// ErrNotSupported. No call waits for work under way.
type Pages interface {
	// AddressReserve reserves addresses; nothing lies behind them yet. align is
	// a power of two, or 0 for the page.
	AddressReserve(bytes, align uint64) (addr uint64, err error)
	// AddressFree ends a reservation, whole, with nothing mapped in it.
	AddressFree(addr, bytes uint64) error
	// MemCreate takes physical memory from the device.
	MemCreate(bytes uint64) (Handle, error)
	// MemRelease releases it once it is mapped nowhere; the handle is gone at
	// once.
	MemRelease(h Handle) error
	// MemMap puts the whole of h at addr, bytes being its size, inside one
	// reservation and where nothing is mapped. It may be mapped several times.
	MemMap(addr, bytes uint64, h Handle) error
	// MemSetAccess lets the device read and write a range, all of which is
	// mapped. A mapping has no access before.
	MemSetAccess(addr, bytes uint64) error
	// MemUnmap takes whole mappings out of a range, all of which is mapped.
	// The handle and its contents stay.
	MemUnmap(addr, bytes uint64) error
}

// Managed is unified memory: the driver moves it between the GPU and the host
// as it is touched. Without Info.HasManaged it answers ErrNotSupported.
type Managed interface {
	// AllocManaged grants bytes (at least 1), rounded up to the granularity
	// (cuMemAllocManaged). It is used as a plain grant is, in all streams, and
	// Free releases it.
	//
	// With Info.Oversubscribes it takes nothing of the device until it is
	// touched, and goes to the host when plain grants need the room. So grants
	// may exceed what the device has; more than the device and the host have
	// together answers ErrOutOfMemory, or fails when it is touched. Without, it
	// takes from the device what a plain grant does.
	AllocManaged(bytes uint64) (Range, error)
}

// GPU is everything that a device does.
type GPU interface {
	Device
	Memory
	Streams
	Pools
	Pages
	Managed
}

// Sharing is a device whose memory other processes use, too, and through which
// they hear of it when one of them waits for memory.
type Sharing interface {
	// Want announces that this process waits until bytes are free. A device that
	// reaches no other process answers ErrNotSupported.
	Want(bytes uint64) error
	// Wanted returns the last announcement on this device, of any process: a
	// number that differs from one to the next, and the bytes. Number 0 means
	// that there was none.
	Wanted() (number, bytes uint64)
}

// Process is one program's use of a device.
type Process struct {
	PID   int    // as the driver sees it, which in a container may be of another namespace
	Start uint64 // of the process, in clock ticks since the machine's, the same in all namespaces; 0 where unknown
	Name  string // of the program; "" where it is unknown
	Kind  string // "compute", "graphics" or "mps"
	Used  uint64 // bytes held, if Known
	Known bool   // false where the driver does not tell (NVML_VALUE_NOT_AVAILABLE)
}

// Status is a device as someone sees it who does not use it: asking takes no
// memory and makes no context.
type Status struct {
	Info
	Free        uint64    // bytes
	Reserved    uint64    // bytes that the driver keeps for itself, part of neither Free nor Used; 0 where unknown
	Used        uint64    // bytes held by all
	DisplayMode bool      // a monitor is plugged in
	Processes   []Process // by PID
	Notes       []string  // what could not be found out, one line each
}
