// Package shim is the pool under a program that knows nothing of it: what each memory
// function of the CUDA driver does on this project's pools.
//
// The library preload/libgpumem stands in the place of libcuda.so.1. Its C front passes the
// calls about memory to a [Pool] of this package, one for each GPU, and all others to
// the driver. This package has no C in it and is tested on the simulated GPU.
//
// # One buffer of a program
//
//	cuMemAllocAsync(n, s)   Pool.AllocAsync: the pool has a block, or takes pages from
//	                        the driver; they are counted in the lease's account before,
//	                        with one call, and refused there if the lease is full
//	kernels in s            not seen
//	cuMemFreeAsync(p, s)    Pool.FreeAsync: the block is free in stream s. A request in
//	                        s gets it at once; in another stream after an event in s
//	                        (package alloc/streams)
//
// Memory of cuMemAlloc belongs to no stream. cuMemFree waits until the GPU has done
// all work that was queued before, and a program may rely on that. So a block that is
// freed so is pending until all work was waited for: by the program itself
// (cuCtxSynchronize), or by the pool when 32 MiB or an eighth of what is in use are
// pending, or when memory is short. With [Config].Ordered it is free at once, which is
// right for programs that use and free all memory in the order of one stream, as XLA
// does. Another process of the lease that asks for memory makes the pool wait for it, too.
//
// # Graphs that are being captured
//
// What the driver does while a graph is captured into a stream, by NVIDIA's guide:
//
//	cuMemAllocAsync, cuMemFreeAsync in it   nodes of the graph; a block from outside of the
//	                                        graph cannot be freed so (CUDA_ERROR_INVALID_VALUE)
//	cuEventRecord in it                     the event becomes a part of the graph: to ask for
//	                                        it or to wait for it outside spoils the capture
//	cuStreamSynchronize, cuStreamQuery of   errors that spoil the capture; so does
//	it, cuCtxSynchronize                    cuCtxSynchronize while any stream is captured
//	cuMemAlloc, cuMemFree                   refused, unless the thread's mode is relaxed
//	anything in the legacy stream           refused while a stream that waits for it is
//	                                        captured, also the question whether it is captured
//
// So the front leaves requests in such a stream to the driver. Memory that was used in the
// stream before is not handed to another one until the capture has ended: what would need an
// event there fails with [ErrCapturing], and the driver serves that request: the front asks
// it for stream-ordered memory, and the pool for memory of cuMemAlloc. Memory of
// cuMemFree stays pending until then, and so does a block of the driver's own pool that is
// freed in another stream while its own is captured. A stream of which the driver does not
// report whether it is captured counts as captured. One that the pool has never seen, and that does not wait
// for the legacy stream, is not noticed by a wait for all work.
//
// # Memory that the program takes past the pool
//
// Managed and pitched memory, arrays, cuMemCreate, pools and contexts of the program are the
// driver's. What it granted counts against the lease, see [Charges]: [Charges.Take] before the
// call, [Charges.Done] or [Charges.Failed] after it, [Charges.Remove] before the release.
//
// # Lock order
//
//	Pool.looking  what look releases for other processes
//	Pool.mu       the table of blocks and what is pending
//	Charges.mu    what was taken past the pool; never with Pool.mu
//	the locks of the pool beneath (package gpumem)
//	gpu.pooled    the growth of the driver's own pool, for the policy async
//	gpu.mu        marks and mappings
//	the account's, the driver's
//
// Only looking, and pooled on its way to a refusal, are held while the driver waits for
// the GPU.
package shim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"gpumem"
	"gpumem/alloc"
	"gpumem/device"
	"gpumem/policy"
	"gpumem/record/trace"
	"gpumem/size"
)

// Config is how a pool is opened.
type Config struct {
	Policy  policy.Policy
	Account Account // nil counts for this process, without a limit
	// Charges counts what the program takes past the pool, in the same account; nil
	// makes one.
	Charges *Charges
	// Ordered says that the program frees plain memory in the order of its one
	// stream.
	Ordered bool
	// Beyond is how many bytes more than its total the driver may grant. The program sees the total.
	Beyond uint64
	Record *trace.Writer // of every allocation and free; nil for none
	Say    func(string)  // one line for a person; nil discards it
	// Before are the figures of an earlier pool of this process on the GPU, which count on.
	Before Figures
	// Addresses is called with the lowest address that a block ever had and the one behind
	// the highest, whenever they change. It must not call the pool.
	Addresses func(low, high uint64)
	// Room returns memory of the host for what lies on the GPU, or why there is none, in a run in
	// which the memory may leave, see [Pool.Leave]; nil is for one in which it stays. Under the
	// policy async it stays, too: the driver's own pool has no pages that could leave.
	Room func(bytes uint64) (HostMemory, error)
	// Pinned keeps pinned memory of the host for what has left once, until the end: copies take less
	// time. Room says then whether there may be so much.
	Pinned bool
	// WaitRoom is a wait for room for bytes that others hold; nil refuses the request. See [Agent.WaitRoom].
	WaitRoom func(bytes uint64) Waiter
	// Pending is called with the bytes that wait for a synchronization, whenever they
	// change. It must not call the pool.
	Pending func(bytes uint64)
}

// Figures are what a pool has done so far, in bytes but for the counts.
type Figures struct {
	Held, PeakHeld   uint64 // of the GPU, by the pool
	InUse, PeakInUse uint64 // of it in blocks of the program
	Charged          uint64 // what the program took past the pool
	Allocs, Refused  uint64 // requests served and refused
	DriverCalls      uint64 // by the pool
}

// Add returns the figures of two pools, one after the other, together.
func (f Figures) Add(g Figures) Figures {
	return Figures{
		g.Held, max(f.PeakHeld, g.PeakHeld), g.InUse, max(f.PeakInUse, g.PeakInUse), g.Charged,
		f.Allocs + g.Allocs, f.Refused + g.Refused, f.DriverCalls + g.DriverCalls,
	}
}

// ErrNotMine is the error of an address that no pool of this package gave out.
var ErrNotMine = errors.New("the address is not of this pool")

// ErrCapturing is the error of a request that would have to wait for a stream in which a
// graph is being captured. Nothing can: the driver is to serve it by itself.
var ErrCapturing = errors.New("a graph is being captured in a stream that used the memory")

// pendingBytes is how much memory of cuMemFree may be pending before the pool waits for
// it, or an eighth of what is in use if that is more. A wait costs what the driver's
// cuMemFree costs each time; the price of fewer waits is memory.
const pendingBytes = 32 << 20

// Pool is one GPU's memory under a program. Any number of goroutines may use it.
type Pool struct {
	dev     *gpu
	pool    *gpumem.Pool
	account Account
	ordered bool
	elastic bool
	before  Figures // of an earlier pool
	record  *trace.Writer
	name    string // in the recording
	say     func(string)
	wait    func(pending uint64)

	waitRoom func(bytes uint64) Waiter // nil: nobody leaves for a request

	mu      sync.Mutex        // guards what follows
	live    map[uint64]block  // by address
	streams map[uint64]uint32 // the pool's number of each stream that the program named
	pending []freed           // by the time of the free

	charges  *Charges
	releases *releases // the charges'

	shared  bool        // other processes can be asked for memory
	watched atomic.Bool // look will be called
	looking sync.Mutex  // held by look; guards what follows
	seen    uint64      // the last announcement that was looked at
	closed  bool

	waiting atomic.Uint64 // bytes of pending
	inUse   atomic.Uint64 // bytes of live
	peak    atomic.Uint64 // of it
	grants  atomic.Uint64 // bytes that the driver granted by itself, pending ones too
	most    atomic.Uint64 // the largest answer of held
	allocs  atomic.Uint64
	refused atomic.Uint64
	told    sync.Once   // that the lease is full
	shown   atomic.Bool // something was published less than publishEvery ago
	changed atomic.Bool // and what has changed since is to be
	ended   atomic.Bool // the figures are the next pool's

	shownInUse atomic.Uint64 // bytes, as published last
}

// A block of the program.
type block struct {
	gpumem.Block
	bytes   uint64 // as requested
	stream  uint32 // that it was requested for
	granted bool   // by the driver itself, see grant
}

// freed is a block whose work may not be done.
type freed struct {
	gpumem.Block
	granted bool
	after   uint64 // it is free when a wait with a higher number has ended
}

// Open makes a pool on a driver's GPU, which it does not close. It takes no memory.
func Open(d Driver, c Config) (*Pool, error) {
	if c.Account == nil {
		c.Account = NewLimit(math.MaxUint64)
	}
	if c.Say == nil {
		c.Say = func(string) {}
	}
	if c.Pending == nil {
		c.Pending = func(uint64) {}
	}
	if c.Charges == nil {
		c.Charges, _ = NewCharges(c.Account, Process{}) // takes nothing
	}
	if c.Policy.Kind == policy.Async {
		c.Ordered = false // the driver's pool knows nothing of the work in one stream
	}
	p := &Pool{
		dev: newGPU(d, c), account: c.Account, charges: c.Charges, releases: &c.Charges.under,
		ordered: c.Ordered, elastic: c.Policy.Kind == policy.Elastic, shared: c.Account.Want(0) == nil,
		before: c.Before, record: c.Record, say: c.Say, wait: c.Pending, waitRoom: c.WaitRoom,
		live: map[uint64]block{}, streams: map[uint64]uint32{},
	}
	p.name = fmt.Sprintf("GPU_%d", p.dev.info.Ordinal)
	var err error
	// Others of the lease ask for idle memory themselves, and the GPU's other users have
	// separate leases: no low water is kept for them.
	if p.pool, err = gpumem.Open(p.dev, c.Policy, gpumem.WithLowWater(0), gpumem.WithStacks(false)); err != nil {
		return nil, err
	}
	if c.Policy.Kind == policy.Async {
		if own, err := d.DefaultPool(); err == nil { // else no request will be served
			p.dev.own = uint64(own)
		}
	}
	c.Charges.begin(p)
	p.seen, _ = p.account.Wanted()
	return p, nil
}

// lookEvery is how often a pool that keeps memory of use to others looks whether another
// process of its lease asks for some.
const lookEvery = 50 * time.Millisecond

// watch has look called while there is something that others could have.
func (p *Pool) watch() {
	if p.shared && !p.watched.Swap(true) {
		time.AfterFunc(lookEvery, p.look)
	}
}

// look releases what is idle if another process of the lease has asked for memory: what
// is pending, which the pool does not know to be free, and under policies other than
// elastic, which sees to it by itself, all that they can release.
func (p *Pool) look() {
	p.looking.Lock()
	defer p.looking.Unlock()
	p.watched.Store(false) // a free from here on has it called again
	if p.closed {
		return
	}
	number, bytes := p.account.Wanted()
	if number != p.seen && bytes > 0 { // it may be this process that asks: a request that waits
		if !p.elastic {
			_ = p.idle() // what cannot be released now stays
		} else if p.waiting.Load() > 0 {
			_ = p.flush()
		}
	}
	p.seen = number
	if p.waiting.Load() > 0 || !p.elastic && p.pool.Stats().PoolBytes > p.inUse.Load() {
		p.watch()
	}
}

// Close releases everything, as the end of the GPU's context does. Work under way is
// waited for as far as the driver still can.
func (p *Pool) Close() error {
	p.looking.Lock()
	p.closed = true
	p.looking.Unlock()
	err := p.pool.Close()
	if p.dev.pages != nil {
		p.dev.pages.close()
	}
	p.mu.Lock()
	var grants []uint64
	for addr, b := range p.live {
		if b.granted {
			grants = append(grants, addr)
		}
	}
	for _, f := range p.pending {
		if f.granted {
			grants = append(grants, f.Addr)
		}
	}
	p.live, p.pending = map[uint64]block{}, nil
	p.mu.Unlock()
	for _, addr := range grants {
		err = errors.Join(err, p.dev.Free(addr))
	}
	p.grants.Store(0)
	p.inUse.Store(0)
	p.waiting.Store(0)
	p.wait(0)
	p.charges.end(p.dev.Context())
	p.ended.Store(true)
	p.account.Publish(p.Figures())
	return err
}

// Alloc is cuMemAlloc. Errors: one that wraps device.ErrOutOfMemory, or the driver's.
func (p *Pool) Alloc(bytes uint64) (addr uint64, err error) {
	if addr, err = p.alloc(bytes, 0); errors.Is(err, ErrCapturing) {
		return p.grant(bytes)
	}
	return addr, err
}

// grant is Alloc by the driver itself, where the pool would have to wait for a capture.
func (p *Pool) grant(bytes uint64) (addr uint64, err error) {
	r, err := p.dev.Alloc(bytes)
	if errors.Is(err, device.ErrOutOfMemory) {
		p.releases.again(func() (refused bool, own uint64) {
			if p.idle() != nil {
				return false, 1
			}
			r, err = p.dev.Alloc(bytes)
			return errors.Is(err, device.ErrOutOfMemory), 1
		})
	}
	request := gpumem.Request{Bytes: bytes}
	if err != nil {
		if errors.Is(err, device.ErrOutOfMemory) {
			err = fmt.Errorf("%w: %w", gpumem.ErrOutOfMemory, err)
		}
		p.refuse(request, err)
		return 0, err
	}
	p.grants.Add(r.Bytes)
	p.held(p.pool.Stats())
	p.enter(block{Block: gpumem.Block{Addr: r.Addr, Size: r.Bytes}, granted: true}, request)
	return r.Addr, nil
}

// AllocAsync is cuMemAllocAsync in a stream of the program.
func (p *Pool) AllocAsync(bytes, stream uint64) (addr uint64, err error) {
	return p.alloc(bytes, p.number(stream))
}

func (p *Pool) alloc(bytes uint64, stream uint32) (uint64, error) {
	r := gpumem.Request{Bytes: bytes, Stream: stream}
	b, err := p.ask(r)
	if p.waitRoom != nil && errors.Is(err, gpumem.ErrOutOfMemory) {
		b, err = p.askAgain(r, err)
	}
	if err != nil {
		if !errors.Is(err, ErrCapturing) { // the driver serves it
			p.refuse(r, err)
		}
		return 0, err
	}
	p.enter(block{Block: b, stream: stream}, r)
	return b.Addr, nil
}

// mostWaits is how often a request may find that others were faster, of those that wait by turns.
const mostWaits = 100

// mostDenials is how often the driver may refuse what the lease has room for: somebody outside of it has
// that, or a process that was killed, which takes a moment.
const mostDenials = 3

// askAgain asks anew after a refusal, as long as others may leave for the request.
func (p *Pool) askAgain(r gpumem.Request, err error) (b gpumem.Block, _ error) {
	page := p.dev.info.Page
	whole := (r.Bytes + page - 1) / page * page // the pool takes no less, and less may be left all the time
	w := p.waitRoom(whole)
	defer w.End()
	waits, denials := 0, 0
	for waits < mostWaits && errors.Is(err, gpumem.ErrOutOfMemory) && p.waitForRoom(w, whole) {
		before := p.dev.denied.Load()
		b, err = p.ask(r)
		if waits++; p.dev.denied.Load() != before {
			denials++
		}
		if denials == mostDenials {
			break
		}
	}
	return b, err
}

// waitForRoom waits for room where a request was refused because of what others hold of the lease,
// in a run in which they may leave, and reports whether it is to be tried again. What the pool has
// idle, or took for the request before it was refused, it releases: for both there may never be room.
func (p *Pool) waitForRoom(w Waiter, bytes uint64) bool {
	_, before := p.account.Limit()
	_ = p.Trim() // what cannot be released now stays idle
	if _, left := p.account.Limit(); before < bytes && bytes <= left {
		return true
	}
	return isOthers(p.account, bytes, p.held(p.pool.Stats())) && w.Again()
}

// isOthers reports whether bytes would fit into the lease if others held nothing of it. pool is what this
// process has in its pool. What is left now says nothing: others may have released it since the refusal, and
// then the wait is short.
func isOthers(a Account, bytes, pool uint64) bool {
	limit, _ := a.Limit()
	return bytes <= less(limit, pool+a.Beside())
}

// ask asks the pool for a block.
func (p *Pool) ask(r gpumem.Request) (gpumem.Block, error) {
	p.dev.begin(r.Bytes)
	seen := p.releases.count()
	b, err := p.pool.TryRequest(r)
	if err != nil {
		b, err = p.retry(r, err, seen)
	}
	p.dev.end()
	if err == nil && r.Stream == 0 {
		if err = p.dev.joined(); err != nil {
			_ = p.later(block{Block: b}) // the first error is the one to report
		}
	}
	return b, err
}

// enter notes a block that the program gets.
func (p *Pool) enter(b block, r gpumem.Request) {
	b.bytes = r.Bytes
	p.mu.Lock()
	p.live[b.Addr] = b
	p.mu.Unlock()
	p.allocs.Add(1)
	advance(&p.peak, p.inUse.Add(b.Size))
	if p.record != nil {
		p.recordAlloc(b.Block, r)
	}
	p.publish()
}

// retry is what follows a first refusal: what is pending is waited for, and what other threads
// are releasing; then others are asked for what is idle with them.
//
// seen are the releases that had ended before the request.
func (p *Pool) retry(r gpumem.Request, err error, seen uint64) (gpumem.Block, error) {
	if !errors.Is(err, gpumem.ErrOutOfMemory) {
		return gpumem.Block{}, err
	}
	if r.Bytes > p.dev.info.Total || errors.Is(err, alloc.ErrNever) { // whatever is released
		return p.pool.Request(context.Background(), r)
	}
	var b gpumem.Block
	try := func() (refused bool, own uint64) {
		if p.waiting.Load() > 0 {
			own = 1
			if err = p.flush(); err != nil && !errors.Is(err, ErrCapturing) {
				return false, own
			}
		}
		b, err = p.pool.TryRequest(r)
		return errors.Is(err, gpumem.ErrOutOfMemory), own
	}
	patient := time.Now().Add(releaseWait)
	if p.waiting.Load() > 0 || p.releases.since(seen, patient) {
		if p.releases.again(try); !errors.Is(err, gpumem.ErrOutOfMemory) {
			return b, err
		}
	}
	seen = p.releases.count()
	b, err = p.pool.Request(context.Background(), r)
	if errors.Is(err, gpumem.ErrOutOfMemory) && p.releases.since(seen, patient) {
		full := err // which has a report
		if p.releases.again(try); errors.Is(err, gpumem.ErrOutOfMemory) {
			err = full
		}
	}
	return b, err
}

// refuse counts a refusal and says once whose limit it was.
func (p *Pool) refuse(r gpumem.Request, err error) {
	p.refused.Add(1)
	p.account.Publish(p.Figures()) // at once: the program may end of it
	if p.record != nil {
		_ = p.record.Refuse(trace.Call{Pool: p.name, Bytes: r.Bytes, Stream: r.Stream, Time: p.now()})
		_ = p.record.Flush() // the program may crash of it
	}
	if !errors.Is(err, device.ErrOutOfMemory) && !errors.Is(err, gpumem.ErrOutOfMemory) {
		return
	}
	p.account.Refused(r.Bytes)
	limit, left := p.account.Limit()
	if limit == math.MaxUint64 {
		return
	}
	p.told.Do(func() {
		f := p.Figures()
		why := fmt.Sprintf("%s are left of the lease of %s", size.Format(left), size.Format(limit))
		switch l, ok := p.account.(*Lease); {
		case !ok:
		case l.Unusable(): // nobody knows what is left
			why = ErrAccount.Error()
		default:
			if shared, others := l.byOthers(r.Bytes); shared > 0 {
				const text = "others hold %s of the %s that programs share by turns"
				why = fmt.Sprintf(text, size.Format(others), size.Format(shared))
			}
		}
		p.say(fmt.Sprintf("GPU %d: out of memory: a request of %s, and %s; the pool of this process holds %s, of which %s are in use",
			p.dev.info.Ordinal, size.Format(r.Bytes), why, size.Format(f.Held), size.Format(f.InUse)))
	})
}

// number returns the pool's number of a stream of the program.
func (p *Pool) number(stream uint64) uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, ok := p.streams[stream]
	if !ok {
		n = p.pool.Stream(p.dev.Adopt(stream))
		p.streams[stream] = n
	}
	return n
}

// take removes a live block from the table.
func (p *Pool) take(addr uint64) (block, error) {
	p.mu.Lock()
	b, ok := p.live[addr]
	delete(p.live, addr)
	p.mu.Unlock()
	if !ok {
		return b, fmt.Errorf("%w: no live block starts at %#x", gpumem.ErrNotAllocated, addr)
	}
	p.inUse.Add(-b.Size)
	p.watch()
	if p.record != nil {
		_ = p.record.Free(trace.Call{Pool: p.name, ID: addr, Stream: b.stream, Time: p.now()})
	}
	p.publish()
	return b, nil
}

// Free is cuMemFree. Errors: ErrNotAllocated, or the driver's.
func (p *Pool) Free(addr uint64) error {
	p.releases.begin()
	defer p.releases.end()
	b, err := p.take(addr)
	if err != nil {
		return err
	}
	if p.ordered && b.stream == 0 && !b.granted {
		return p.kept(b, p.pool.Free(b.Block))
	}
	return p.later(b)
}

// later frees a block when all work is done that is queued now.
func (p *Pool) later(b block) error {
	p.mu.Lock()
	p.pending = append(p.pending, freed{b.Block, b.granted, p.dev.started.Load()})
	n := p.waiting.Add(b.Size)
	p.wait(n)
	p.mu.Unlock()
	if n > max(pendingBytes, p.inUse.Load()/8) {
		if err := p.flush(); !errors.Is(err, ErrCapturing) {
			return err
		} // it waits for the capture's end
	}
	return nil
}

// FreeAsync is cuMemFreeAsync in a stream of the program.
func (p *Pool) FreeAsync(addr, stream uint64) error {
	n := p.number(stream)
	p.releases.begin()
	defer p.releases.end()
	b, err := p.take(addr)
	if err != nil {
		return err
	}
	if b.granted {
		return p.later(b)
	}
	if n != b.stream {
		err = p.pool.RecordStream(b.Block, n)
	}
	if err == nil {
		err = p.pool.Free(b.Block)
	}
	if errors.Is(err, ErrCapturing) { // in the block's own stream, under the policy async
		return p.later(b)
	}
	return p.kept(b, err)
}

// kept puts a block back whose free failed.
func (p *Pool) kept(b block, err error) error {
	if err != nil {
		p.mu.Lock()
		p.live[b.Addr] = b
		p.mu.Unlock()
		p.inUse.Add(b.Size)
	}
	return err
}

// flush waits for all work of the program, after which what was pending is free.
func (p *Pool) flush() error {
	p.releases.begin()
	defer p.releases.end()
	return p.flushed()
}

func (p *Pool) flushed() error {
	if err := p.dev.wait(); err != nil {
		return err
	}
	return p.synchronized(p.dev.completed.Load())
}

// Synchronizing is called before the program waits for its context. If that ends well,
// Synchronized is called with the number that it returns.
func (p *Pool) Synchronizing() uint64 { return p.dev.waits() }

// Synchronized is called when all work is done that was queued before the call of
// Synchronizing which returned number: what was pending then is free.
func (p *Pool) Synchronized(number uint64) error {
	p.releases.begin()
	defer p.releases.end()
	return p.synchronized(number)
}

func (p *Pool) synchronized(number uint64) error {
	p.dev.waited(number)
	p.mu.Lock()
	i := 0
	for i < len(p.pending) && p.pending[i].after < number {
		i++
	}
	done := make([]gpumem.Block, 0, i)
	var grants []gpumem.Block
	bytes := uint64(0)
	for _, f := range p.pending[:i] {
		if f.granted {
			grants = append(grants, f.Block)
		} else {
			done = append(done, f.Block)
		}
		bytes += f.Size
	}
	p.pending = append(p.pending[:0], p.pending[i:]...)
	p.wait(p.waiting.Add(-bytes))
	p.mu.Unlock()
	err := p.pool.FreeBatch(done)
	for _, b := range grants {
		if e := p.dev.Free(b.Addr); e != nil {
			err = errors.Join(err, e)
			continue
		}
		p.grants.Add(-b.Size)
	}
	return err
}

// Pending returns the bytes that wait for a synchronization.
func (p *Pool) Pending() uint64 { return p.waiting.Load() }

// Contains reports whether an address may be that of a block: it is in memory that
// the pool has reserved or taken.
func (p *Pool) Contains(addr uint64) bool { return p.dev.contains(addr) }

// Range is cuMemGetAddressRange: the block that addr lies in, as large as it was requested.
// It takes time in proportion to the live blocks unless addr is a block's first.
func (p *Pool) Range(addr uint64) (base, bytes uint64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b, ok := p.live[addr]; ok {
		return b.Addr, b.bytes, nil
	}
	for _, b := range p.live {
		if addr-b.Addr < b.bytes {
			return b.Addr, b.bytes, nil
		}
	}
	return 0, 0, fmt.Errorf("%w: %#x", ErrNotMine, addr)
}

// Info is cuMemGetInfo: what the program can still get, and the total that it has.
func (p *Pool) Info() (free, total uint64, err error) {
	free, total, err = p.dev.MemInfo()
	held := p.held(p.pool.Stats())
	if p.dev.pages != nil { // a program that sizes itself by it sees the same whoever has the GPU just now
		free = less(total, held+p.account.Beside())
	}
	free = min(free+less(held, p.inUse.Load()), total)
	return free, total, err
}

// Total is cuDeviceTotalMem: at most the lease's limit.
func (p *Pool) Total() uint64 { return p.dev.total }

// StreamDestroyed is called before the program destroys a stream.
func (p *Pool) StreamDestroyed(stream uint64) error {
	p.mu.Lock()
	_, ok := p.streams[stream]
	delete(p.streams, stream)
	p.mu.Unlock()
	if !ok {
		return nil
	}
	return errors.Join(p.pool.RetireStream(device.Stream(stream)), p.dev.Disown(device.Stream(stream)))
}

// Peer lets the GPU with the driver's number peer use the pool's memory.
func (p *Pool) Peer(peer int) error { return p.dev.addPeer(peer) }

// Trim releases idle memory to the driver.
func (p *Pool) Trim() error {
	p.releases.begin()
	defer p.releases.end()
	return p.trim()
}

func (p *Pool) trim() error {
	_, err := p.pool.Trim()
	p.publish()
	return err
}

// Reserved and used are what cuMemPoolGetAttribute tells of a pool, now and at most.
func (p *Pool) Reserved() (now, high uint64) {
	f := p.Figures()
	return f.Held, f.PeakHeld
}

// Used is the memory in blocks of the program, now and at most.
func (p *Pool) Used() (now, high uint64) { return p.inUse.Load(), p.peak.Load() }

// idle releases to the driver what no block needs, but for what waits for the end of a
// capture.
func (p *Pool) idle() error {
	p.releases.begin() // one release, not two: see again
	defer p.releases.end()
	if p.waiting.Load() > 0 {
		if err := p.flushed(); err != nil && !errors.Is(err, ErrCapturing) {
			return err
		}
	}
	if err := p.trim(); !errors.Is(err, ErrCapturing) {
		return err
	}
	return nil
}

func (p *Pool) refusedCharge(bytes uint64, err error) { p.refuse(gpumem.Request{Bytes: bytes}, err) }

// held returns the bytes that the pool and the driver's own grants hold now.
func (p *Pool) held(s gpumem.Stats) uint64 {
	n := s.PoolBytes + p.grants.Load()
	advance(&p.most, n)
	return n
}

// Figures are what the pool has done so far, and the one before it.
func (p *Pool) Figures() Figures {
	s := p.pool.Stats()
	held := p.held(s)
	return p.before.Add(Figures{
		Held: held, PeakHeld: max(s.PeakPoolBytes, p.most.Load()), InUse: p.inUse.Load(), PeakInUse: p.peak.Load(), Charged: p.charges.Bytes(),
		Allocs: p.allocs.Load(), Refused: p.refused.Load(), DriverCalls: p.dev.Counters().Calls,
	})
}

// publishEvery is how late others see what the pool does, and publishRise the bytes, and the
// part, by which what is in use has grown that they see at once.
const (
	publishEvery    = 200 * time.Millisecond
	publishRise     = 1 << 20
	publishRisePart = 8
)

// publish has the figures published: at once, or soon where they were just now.
func (p *Pool) publish() {
	for p.shown.Load() || p.shown.Swap(true) {
		if last := p.shownInUse.Load(); p.inUse.Load() > last+max(publishRise, last/publishRisePart) {
			p.show()
		}
		if !p.changed.Load() {
			p.changed.Store(true)
		}
		if p.shown.Load() {
			return
		} // its time has passed meanwhile, which may not have seen the change
	}
	p.show()
	time.AfterFunc(publishEvery, func() {
		p.shown.Store(false)
		if p.changed.Swap(false) && !p.ended.Load() {
			p.publish()
		}
	})
}

// show publishes the figures.
func (p *Pool) show() {
	f := p.Figures()
	p.shownInUse.Store(f.InUse)
	p.account.Publish(f)
}

// now is nanoseconds since 1970, as the pools of all processes count them.
func (p *Pool) now() uint64 { return uint64(time.Now().UnixNano()) }

func (p *Pool) recordAlloc(b gpumem.Block, r gpumem.Request) {
	_ = p.record.Alloc(trace.Call{Pool: p.name, ID: b.Addr, Addr: b.Addr, Bytes: r.Bytes, Stream: r.Stream, Time: p.now()})
}

// advance makes c at least n.
func advance(c *atomic.Uint64, n uint64) {
	for old := c.Load(); old < n && !c.CompareAndSwap(old, n); old = c.Load() {
	}
}
