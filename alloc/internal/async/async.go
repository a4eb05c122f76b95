// Package async leaves memory to the driver's stream-ordered pool, as XLA's
// GpuCudaMallocAsyncAllocator does: JAX's cuda_async, TensorFlow's
// cuda_malloc_async.
//
// Each block is one cuMemAllocFromPoolAsync from the device's default pool, and
// each free one cuMemFreeAsync. The driver decides what is placed where,
// so memory fragments in another way than under bfc, and a program that does
// not fit fails at another request. The pool grows as needed: the first
// iteration of a program pays for that, later ones find the memory there, if the
// pool keeps it (Config.Reserve).
//
// # One block
//
//	first Alloc   finds the pool, sets its release threshold, and takes and gives
//	              back Config.Preallocate bytes, so that the pool holds them
//	Alloc         asks the pool, in the request's stream. Where there is no room
//	              it waits for that stream and asks once more, then refuses
//	Record        notes another stream in which the block is used
//	Free          makes the block's own stream wait for the recorded ones, and
//	              frees in it
//
// With numbers, on a device of 80 GiB with JAX's defaults, fraction 0.75 and
// preallocation: Reserve and Preallocate are 60 GiB. The first Alloc of 1,000 bytes
// makes the pool hold 60 GiB, then 1,000 bytes are in use; the driver rounds them to
// 512s by itself. Without preallocation both are 0, the pool grows by 32 MiB (sim's
// assumption), and the next synchronise after the free releases them.
//
// # When memory is released
//
// The pool releases unused memory above the threshold when someone
// synchronises: a stream, an event or the whole device. This allocator
// synchronises only before it refuses a request, in Trim and in Close. All other
// synchronises are the program's. A program that makes none, as a replay does,
// gets nothing back before Trim, even with a threshold of 0.
//
// # Shared with others
//
// The default pool is the device's: what else uses it in this process shares its
// threshold and is counted in PoolBytes. Two allocators on one device are to be
// closed in the reverse order, since each restores the attributes that it found.
//
// # Locks
//
// None: the owner's lock guards all of it. Where an operation has to wait, and the
// tracker is deferred, it returns a *streams.Pending, has changed nothing that a user
// can see, and is repeated. XLA holds its mutex around the driver's calls.
//
// Files: async.go the blocks, pool.go the pool around them, report.go what is
// logged on a refusal, check.go the invariants.
package async

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
	"gpumem/alloc/streams"
	"gpumem/device"
	"gpumem/internal/invariants"
)

// driverAlign is the alignment of every block of the pool, in bytes. The driver's manual
// promises it; 512 was seen.
const driverAlign = 256

// Device is what the allocator needs of a GPU.
type Device interface {
	device.Device
	device.Pools
	device.Streams
}

// Config says what to make. The zero Config is JAX's without preallocation: the
// pool keeps nothing over a synchronise.
type Config struct {
	// Reserve is the pool's release threshold in bytes, and what the statistics
	// have as limit, though nothing enforces that: the pool may grow to the whole
	// device. In JAX it is total * fraction, cut to whole bytes, with
	// preallocation, and 0 without.
	Reserve uint64
	// Preallocate is the bytes that are allocated and freed by the first request
	// (XLA does so when the client is created, before any). They stay in the pool
	// over a synchronise as far as Reserve allows. 0: none. If the device refuses
	// them the pool takes none, a report is logged, and the request goes on, as in XLA.
	Preallocate uint64
	// Deterministic switches the two kinds of reuse off that depend on how far
	// the device is with its work, so that runs repeat; the pool then takes more.
	// In XLA that is TF_DETERMINISTIC_ALLOCATOR.
	Deterministic bool
	// Streams has the streams that requests name; nil means that all is in
	// stream 0. Close closes it.
	Streams *streams.Tracker
	// Log, if set, is called for what XLA would log, except for refused requests, which
	// Report describes. It must not use the allocator.
	Log func(alloc.Message)
}

// Allocator is one device's default pool. It is not safe for concurrent use.
type Allocator struct {
	dev  Device
	cfg  Config
	info device.Info
	name string

	// Of pool.go.
	pool    device.Pool
	found   bool      // pool is known
	ready   bool      // the pool is as Config wants it
	set     []setting // attributes that were changed, to be put back
	owed    uint64    // address of the preallocation while it is not released; 0: none
	owedIn  uint32    // number of the stream that it was taken in
	mark    uint64    // the pool's high mark before us, in bytes
	final   bool      // closed, and what the pool held then is known
	streams *streams.Tracker

	blocks chunks.Blocks
	extra  map[chunks.H]extra // of the few blocks that have it
}

// extra is what few blocks have: an alignment above the driver's, or a recorded stream.
type extra struct {
	start   uint64   // where the driver's allocation begins, if that is below the block; else 0
	streams []uint32 // that use the block beside its own; of Record
}

var (
	_ alloc.Allocator = (*Allocator)(nil)
	_ alloc.Reporter  = (*Allocator)(nil)
)

// New makes an allocator on dev. It calls no driver. A device without pools
// gives device.ErrNotSupported, in XLA's words.
func New(dev Device, cfg Config) (*Allocator, error) {
	info := dev.Info()
	if !info.HasPools {
		return nil, fmt.Errorf("%w: TF_GPU_ALLOCATOR=cuda_malloc_async isn't currently supported on GPU id %d: "+
			"Possible causes: device not supported (request SM60+), driver too old,  OS not supported, CUDA version too old(request CUDA11.2+). "+
			"Use another policy for %s, such as bfc or platform", device.ErrNotSupported, info.Ordinal, info.Name)
	}
	a := &Allocator{
		dev: dev, cfg: cfg, info: info, name: fmt.Sprintf("gpu_async_%d", info.Ordinal),
		streams: cfg.Streams, extra: map[chunks.H]extra{},
	}
	if a.streams == nil {
		a.streams = streams.Single(dev)
	}
	a.blocks.Init(cfg.Reserve)
	return a, nil
}

// Name is XLA's name for this allocator, gpu_async_ and the device's number.
func (a *Allocator) Name() string { return a.name }

// Alloc asks the pool. The block is as large as the request, and that is what
// the statistics count, as in XLA; the driver's own rounding to 512 bytes is
// seen only in what the pool holds.
//
// XLA ignores alignments. Here one above 256 makes the driver's allocation so
// much larger that an aligned block lies in it.
func (a *Allocator) Alloc(r alloc.Request) (alloc.Block, error) {
	if invariants.Enabled {
		defer func() { invariants.Must(a.Check()) }()
	}
	if done, err := a.blocks.Begin(r, a.info.Total); done {
		return alloc.Block{}, err
	}
	pad := max(r.Align, driverAlign) - driverAlign
	if r.Bytes > math.MaxUint64-pad {
		return alloc.Block{}, alloc.ErrTooLarge
	}
	got, err := a.grant(r.Bytes+pad, r.Stream)
	if err != nil {
		switch {
		case !errors.Is(err, device.ErrOutOfMemory):
			return alloc.Block{}, err
		case r.Bytes+pad > a.info.Total:
			return alloc.Block{}, alloc.ErrNever
		}
		return alloc.Block{}, alloc.ErrNoMemory
	}
	addr := got.Addr
	if pad > 0 && addr%r.Align != 0 {
		addr += r.Align - addr%r.Align
	}
	h, b := a.blocks.Add(r, addr, r.Bytes)
	if addr != got.Addr {
		a.extra[h] = extra{start: got.Addr}
	}
	return b, nil
}

// grant checks the stream of a request, sets the pool up if it is not yet, and takes n bytes
// from it.
func (a *Allocator) grant(n uint64, number uint32) (device.Range, error) {
	if err := a.streams.Use(number); err != nil {
		return device.Range{}, err
	}
	if !a.ready {
		if err := a.open(number); err != nil {
			return device.Range{}, err
		}
	}
	return a.take(n, number)
}

// take asks the pool for n bytes. Where it has no room, waiting for the stream
// lets the driver join what was freed in it and release what is of no use;
// then it is asked once more.
func (a *Allocator) take(n uint64, number uint32) (device.Range, error) {
	s, ok, err := a.streams.Handle(number)
	if err != nil || !ok {
		return device.Range{}, errors.Join(err, a.streams.Use(number)) // Use says why it has ended
	}
	got, err := a.dev.AllocAsync(a.pool, n, s)
	if a.streams.Gone(number, err) {
		return device.Range{}, a.streams.Use(number)
	}
	if !errors.Is(err, device.ErrOutOfMemory) {
		return got, err
	}
	if err := a.drain(number, s); err != nil {
		return device.Range{}, err
	}
	return a.dev.AllocAsync(a.pool, n, s)
}

// drain waits for what is queued in a stream now, unless the operation has done
// so before: others may queue work all the time, so that one wait has to be enough.
func (a *Allocator) drain(number uint32, s device.Stream) error {
	if !a.streams.Deferred() {
		return a.dev.StreamSynchronize(s)
	}
	if a.streams.Repeated() {
		return nil
	}
	m, err := a.streams.Mark(number)
	if err != nil {
		return err
	}
	defer a.streams.Release(m)
	return a.streams.Wait(m)
}

// Record says that a live block is used in another stream, too: at its free,
// that stream's work until then comes first. It does not order the use after the
// allocation; that is the program's to do, with an event. A second call does
// nothing. Errors: those of Free, and those of streams.Tracker.Use.
func (a *Allocator) Record(b alloc.Block, stream uint32) error {
	h, c, err := a.blocks.Find("record", b)
	if c == nil {
		return err
	}
	if err := a.streams.Use(stream); err != nil {
		return err
	}
	if x := a.extra[h]; stream != c.Stream && !slices.Contains(x.streams, stream) {
		x.streams = append(x.streams, stream)
		a.extra[h] = x
	}
	return nil
}

// Live reports why a block is not live.
func (a *Allocator) Live(b alloc.Block) error { return a.blocks.Live(b) }

// BlockAt returns the live block that starts at addr.
func (a *Allocator) BlockAt(addr uint64) (alloc.Block, error) { return a.blocks.BlockAt(addr) }

// Free releases a block to the pool, in the block's stream, or in stream 0
// after the last work of a stream that has ended.
func (a *Allocator) Free(b alloc.Block) error {
	h, c, err := a.blocks.Find("free", b)
	if c == nil {
		return err
	}
	return a.release(h, c)
}

// FreeAddr releases the block that starts at addr, as Free does.
func (a *Allocator) FreeAddr(addr uint64) error {
	h, c, err := a.blocks.FindAddr(addr)
	if c == nil {
		return err
	}
	return a.release(h, c)
}

// start returns where the driver's allocation of a block begins: at the block, or below
// it if an alignment moved it up.
func (a *Allocator) start(h chunks.H, c *chunks.Chunk) uint64 {
	if x := a.extra[h]; x.start != 0 {
		return x.start
	}
	return c.Addr
}

// release releases a live block. If the device does not take it, it stays
// live; that its stream may by then wait for others does no harm.
func (a *Allocator) release(h chunks.H, c *chunks.Chunk) error {
	if invariants.Enabled {
		defer func() { invariants.Must(a.Check()) }()
	}
	if err := a.freeIn(a.start(h, c), c.Stream, a.extra[h].streams); err != nil {
		return err
	}
	delete(a.extra, h)
	a.blocks.Drop(h, c)
	return nil
}

// freeIn frees an allocation after the work that is queued now in its stream and
// in others. A stream that has ended is replaced by stream 0, which waits for the last
// work of the other. That the stream has ended may show only when the driver refuses
// the free; then freeIn begins again.
func (a *Allocator) freeIn(start uint64, own uint32, others []uint32) error {
	in, ok, err := a.streams.Handle(own)
	if err != nil {
		return err
	}
	number := own
	if !ok {
		number = 0 // always exists
		if in, _, err = a.streams.Handle(0); err != nil {
			return err
		}
		others = append(slices.Clip(others), own)
	}
	for _, n := range others {
		m, err := a.streams.Mark(n)
		if err != nil {
			return err
		}
		err = a.streams.After(number, m)
		a.streams.Release(m)
		if err != nil {
			return err
		}
	}
	err = a.dev.FreeAsync(start, in)
	if ok && a.streams.Gone(own, err) {
		return a.freeIn(start, own, others)
	}
	return err
}
