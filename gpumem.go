// Package gpumem allocates GPU memory the way JAX, XLA and TensorFlow do, and explains
// failed allocations.
//
// Open a [Pool] on a device with a policy, allocate, free:
//
//	dev, _ := sim.New(sim.Config{Total: 24 << 30})
//	pool, err := gpumem.Open(dev, frameworks.Default())
//	...
//	defer pool.Close()
//	block, err := pool.Alloc(ctx, 64<<20)
//	if errors.Is(err, gpumem.ErrOutOfMemory) { ... }
//	...
//	err = pool.Free(block)
//
// A policy is what a framework's environment requests. Package policy describes it, and
// package policy/frameworks reads it from the environment or from a line such as
// "jax:fraction=.5". The pool does what the framework would do with it, placement for
// placement.
//
// [Pool.Live] lists what is allocated by place in the program, [Pool.WriteProfile]
// writes it for go tool pprof, and package serve (Profile) serves it beside
// net/http/pprof. They name places if the pool is opened [WithStacks].
//
// A [Block] is a value, and a block that is forgotten is a leak. A [Buffer] is an object
// that owns a block, which the garbage collector sees: [WithLeaks] reports those that
// became unreachable without a Free, [WithCollect] frees them and runs the collector
// before they fill the device.
//
// One allocation under the policy jax on a device of 24 GiB: Alloc of 64 MiB locks the
// pool and asks the allocator, package alloc/internal/bfc. That takes 18 GiB from the device, 75 %,
// since it is the first request, and returns 64 MiB of them. With one stream there
// is nothing to order, and the pool is unlocked. When the 18 GiB are full, Alloc returns
// an [OutOfMemoryError] at once, or waits for a Free if [WithRetry] allows it.
//
// Device memory is addresses (uint64), never Go pointers.
//
// # Lock order
//
//	buffers.collecting   one collection of a pool at a time
//	Pool.mu              the allocator, its streams, idle memory and recording
//	buffers.mu           the table of Buffers; never together with Pool.mu
//	stacks.mu, package reclaim's, a trace.Writer's, the device's
//
// Pool.mu is not held during a wait for the GPU. There is one exception: the driver's own
// free waits for all work. The pool waits before it takes the lock, so only work queued
// after that is waited for with the lock held. The locks of two pools are never held at
// once.
package gpumem

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"gpumem/alloc"
	"gpumem/alloc/build"
	"gpumem/alloc/reclaim"
	"gpumem/alloc/streams"
	"gpumem/device"
	"gpumem/internal/lock"
	"gpumem/policy"
	"gpumem/record/trace"
)

// Errors of a Pool. Each comes wrapped in one that names the block or request.
var (
	ErrOutOfMemory  = alloc.ErrNoMemory     // wrapped in an *OutOfMemoryError
	ErrDoubleFree   = alloc.ErrDoubleFree   // the block was freed before
	ErrNotAllocated = alloc.ErrNotAllocated // no live block of this pool starts there
	ErrTooLarge     = alloc.ErrTooLarge     // the rounded size exceeds 2^64 bytes; also ErrOutOfMemory
	ErrBadRequest   = alloc.ErrBadRequest   // such as an alignment that is not a power of two
	ErrClosed       = alloc.ErrClosed       // the pool was closed
	ErrNoPolicy     = build.ErrNoPolicy
)

// DefaultRetry is how long JAX waits for memory to be freed before it reports
// out of memory (tsl/framework/allocator_retry.h: 10,000 ms). A pool under the
// policy env does the same; under others [WithRetry] sets it.
const DefaultRetry = 10 * time.Second

// fullReports is how many failed allocations of a pool come with the list of all its
// chunks. The original stops at 10 as well: for a pool of 100,000 chunks the list is
// megabytes of text.
const fullReports = 10

// Pool allocates memory of one device under one policy. It is safe for concurrent use.
// Nothing is taken from the device before the first allocation of more than 0 bytes.
//
// One lock guards the allocator, see the lock order of the package.
type Pool struct {
	// First what every operation touches.
	mu          lock.Mutex
	a           alloc.Allocator  // guarded by mu
	streams     *streams.Tracker // guarded by mu
	order       *streams.Guard   // guarded by mu; nil if the driver orders the streams
	idle        *idle            // nil if the policy releases nothing by itself
	record      *recording       // nil if the pool is not recorded; its contents are guarded by mu
	stacks      *stacks          // nil if no stacks are kept
	waiting     int              // goroutines that wait for freed; guarded by mu
	passThrough bool             // each block is a grant of the device
	after       bool             // gone has something to do after a free

	dev       device.GPU
	policy    policy.Policy
	sharing   device.Sharing // nil if no other process can hear that this one waits for memory
	name      string
	retry     time.Duration
	patient   bool          // without WithRetry: waits for other processes to release idle memory
	freeBytes atomic.Uint64 // on the device when a waiter asked last
	polled    atomic.Int64  // when that was, in nanoseconds
	poolBytes uint64        // of the pool when a request was refused last; guarded by mu

	leave   func()        // out of the pools that release memory to each other; nil if it is not one
	owed    []Block       // blocks that no request got and the device did not let go; guarded by mu
	undone  int64         // blocks that were released again because their stream could not be ordered; guarded by mu
	freed   chan struct{} // closed when something was freed while anyone waits; guarded by mu
	closed  bool          // guarded by mu
	refused int           // refusals so far; guarded by mu

	buffers *buffers // nil unless WithLeaks or WithCollect is set

}

type config struct {
	retry         time.Duration
	retrySet      bool
	stacks        *bool
	log           func(Message)
	deterministic bool
	idle          idleConfig
	leaks         func(Leak)
	collect       bool
	record        *trace.Writer
}

// logger returns the callback for the allocator; nil if there is none.
func (c *config) logger() func(alloc.Message) {
	if c.log == nil {
		return nil
	}
	return func(m alloc.Message) { c.log(Message(m)) }
}

// Option changes how a pool works, not where its blocks lie.
type Option func(*config)

// WithRetry sets how long a failed allocation waits for memory to be freed; 0
// means not at all. Without this option it does not wait, except under the policy
// env, which waits [DefaultRetry] as JAX does if its allocator is bfc or platform.
// Without it an allocation still waits up to a second for other processes to release
// idle memory, if they share the device and can be asked.
func WithRetry(d time.Duration) Option {
	return func(c *config) { c.retry, c.retrySet = d, true }
}

// WithStacks sets whether the stack of every allocation is kept, so that reports name
// the code that holds the memory. It costs about a microsecond for each. By default
// stacks are kept under the platform and address policies, which are for debugging and
// whose driver calls cost a hundred times as much, and with [WithLeaks].
func WithStacks(on bool) Option { return func(c *config) { c.stacks = &on } }

// WithLog sets a callback for the events that the framework would log: failed device
// allocations, retries with smaller sizes, garbage collection. The pool is locked
// during the call, so f must not use it.
func WithLog(f func(Message)) Option { return func(c *config) { c.log = f } }

// WithDeterministic makes the same calls return the same blocks in every run: no
// choice depends on whether work on the device happens to be done. It costs
// waits under the policies async and elastic; the others are deterministic anyway.
func WithDeterministic() Option { return func(c *config) { c.deterministic = true } }

// Open makes a pool on dev under the policy p. It takes no memory. Errors: ErrNoPolicy
// for the zero policy, ErrBadRequest for a nil option, device.ErrNotSupported if the
// device lacks what the policy needs. The caller closes the pool.
func Open(dev device.GPU, p policy.Policy, opts ...Option) (*Pool, error) {
	if dev == nil {
		return nil, build.ErrNoDevice
	}
	c := config{idle: defaultIdle(dev.Info().Total)}
	if p.Name == "env" && p.Kind != policy.Async && p.Kind != policy.VMM { // those do not wait in XLA
		c.retry = DefaultRetry
	}
	for i, o := range opts {
		if o == nil {
			return nil, fmt.Errorf("%w: option %d is nil", ErrBadRequest, i)
		}
		o(&c)
	}
	pool := &Pool{dev: dev, policy: p, retry: c.retry, patient: !c.retrySet, name: p.Kind.String(), freed: make(chan struct{}), streams: streams.New(dev)}
	pool.sharing = reclaim.Sharing(dev)
	pool.streams.Defer(c.deterministic)
	a, err := build.New(dev, p, build.Options{Log: c.logger(), Deterministic: c.deterministic, Streams: pool.streams})
	if err != nil {
		return nil, err
	}
	pool.a = a
	switch p.Kind {
	case policy.BFC, policy.VMM, policy.Elastic: // they hand out at once what was freed
		pool.order = streams.NewGuard(pool.streams)
	}
	if p.Kind == policy.Elastic {
		pool.idle = newIdle(pool, c.idle)
		pool.leave = reclaim.Join(dev, pool.idle)
	}
	if n, ok := a.(interface{ Name() string }); ok {
		pool.name = n.Name()
	}
	keep := p.Kind == policy.Platform || p.Kind == policy.Address || c.leaks != nil
	if c.stacks != nil {
		keep = *c.stacks
	}
	if keep {
		pool.stacks = newStacks()
	}
	pool.buffers = newBuffers(pool, c)
	pool.record = newRecording(pool, c.record)
	pool.after = pool.record != nil || p.Eager
	_, pool.passThrough = a.(alloc.PassThrough)
	return pool, nil
}

// Alloc allocates at least bytes of memory. 0 bytes give the zero Block, which
// may be freed like any other.
//
// If there is not enough free memory, other pools of the process release their idle
// memory. Then Alloc waits for blocks to be freed, for at most the time that [WithRetry]
// sets, and no longer than ctx. If no block of the pool is live that could be freed,
// it waits only for other processes to release idle memory. An allocation that need
// not wait does not look at ctx. Errors: *OutOfMemoryError, ErrClosed, the device's, or
// ctx's if that ended a wait for work on the device.
func (p *Pool) Alloc(ctx context.Context, bytes uint64) (Block, error) {
	return p.Request(ctx, Request{Bytes: bytes})
}

// Request is Alloc with all options of a request. The pool sets its Site if it keeps
// stacks.
func (p *Pool) Request(ctx context.Context, r Request) (Block, error) {
	if p.stacks != nil {
		r.Site = p.stacks.caller()
	}
	p.mu.Lock()
	b, err := p.attempt(r)
	if err != nil {
		b, err = p.complete(ctx, b, r, err)
	}
	p.mu.Unlock()
	if err != nil {
		return p.wait(ctx, r, err)
	}
	return b, nil
}

// alloc asks the allocator, and orders the block's stream after those that used
// its memory before. Caller holds p.mu, which is unlocked while the device has to
// be waited for.
func (p *Pool) alloc(ctx context.Context, r Request) (Block, error) {
	b, err := p.attempt(r)
	if err != nil {
		return p.complete(ctx, b, r, err)
	}
	return b, nil
}

// errIncomplete never leaves the pool: it sends an attempt on to complete.
var errIncomplete = errors.New("a block that is not ordered or recorded yet")

// attempt is alloc as far as it goes without waiting; errIncomplete comes with a
// block. It has no context: with one more argument a Request no longer travels in
// registers. Caller holds p.mu.
func (p *Pool) attempt(r Request) (Block, error) {
	if r.Stream != 0 { // which is always valid
		if err := p.streams.Use(r.Stream); err != nil {
			return Block{}, err
		}
	}
	b, err := p.a.Alloc(alloc.Request(r))
	if err == nil && (p.record != nil || p.order != nil && !p.order.Idle(r.Stream)) {
		err = errIncomplete
	}
	return Block(b), err
}

// complete is what follows an attempt that returned err. Caller holds p.mu.
func (p *Pool) complete(ctx context.Context, b Block, r Request, err error) (Block, error) {
	if err == errIncomplete {
		if b, err = p.entered(ctx, b, r); err == nil {
			return b, nil
		}
	}
	if (err == alloc.ErrNoMemory || err == alloc.ErrNever) && len(p.owed) == 0 { // costs nothing
		return Block{}, err
	}
	return p.again(ctx, r, err)
}

// entered is what follows when the allocator has handed out a block.
func (p *Pool) entered(ctx context.Context, b Block, r Request) (Block, error) {
	if p.order != nil && !p.order.Idle(r.Stream) {
		if err := p.ordered(ctx, b, r); err != nil {
			return Block{}, err
		}
	}
	if p.record != nil {
		p.record.alloc(p, b, r)
	}
	return b, nil
}

// again repeats a request after an error, if that is because the device had to be
// waited for, or because blocks that no request got take the memory.
func (p *Pool) again(ctx context.Context, r Request, err error) (b Block, _ error) {
	op := func() error {
		if err := p.streams.Use(r.Stream); err != nil {
			return err
		}
		got, err := p.a.Alloc(alloc.Request(r))
		if err == nil {
			b, err = p.entered(ctx, Block(got), r)
		}
		return err
	}
	if len(p.owed) > 0 {
		p.settle()
		err = op()
	}
	err = p.repeat(ctx, err, op)
	return b, err
}

// ordered makes the block's stream wait for those that used its memory before. A
// block that cannot be ordered is freed.
func (p *Pool) ordered(ctx context.Context, b Block, r Request) error {
	order := func() error { return p.order.Alloc(alloc.Block(b), r.Stream) }
	err := order()
	if err != nil {
		err = p.repeat(ctx, err, order)
	}
	if err != nil && !p.closed {
		p.undone++
		p.owed = append(p.owed, b)
		p.settle()
	}
	return err
}

// settle frees the blocks that no request got. Those that the device does not let
// go yet are tried again after the next free, and before a request is refused.
// Caller holds p.mu.
func (p *Pool) settle() {
	before := len(p.owed)
	p.owed = slices.DeleteFunc(p.owed, func(b Block) bool {
		err := p.a.Free(alloc.Block(b))
		if pending, ok := err.(*streams.Pending); ok {
			pending.Settle(err) // not now
		}
		return err == nil
	})
	if len(p.owed) < before {
		p.wake() // those that were refused while these blocks took the memory
	}
	p.after = p.record != nil || p.policy.Eager || len(p.owed) > 0
}

// repeat waits for the device and repeats op for as long as it returns a
// *streams.Pending, as it just did if err is one. It returns the last error.
// Caller holds p.mu, and has it again afterwards.
func (p *Pool) repeat(ctx context.Context, err error, op func() error) error {
	for {
		var pending *streams.Pending
		if !errors.As(err, &pending) {
			return err
		}
		if err := p.await(ctx, pending); err != nil {
			return err
		}
		p.streams.SetRepeated(true)
		err = op()
		p.streams.SetRepeated(false)
	}
}

// await unlocks the pool and waits for the device. An error means that the
// operation is not to be repeated.
func (p *Pool) await(ctx context.Context, pending *streams.Pending) error {
	p.streams.SetRepeated(false) // what others do meanwhile is not
	p.mu.Unlock()
	var err error
	if ctx.Done() == nil {
		err = pending.Wait()
	} else if err = p.awaitOr(ctx, pending); err != nil && err == ctx.Err() {
		p.mu.Lock()
		return err
	}
	p.mu.Lock()
	pending.Settle(err)
	if p.closed {
		return ErrClosed
	}
	return err
}

// awaitOr waits for the device or for the end of ctx, whose error it returns. The
// device cannot be interrupted: what it answers then is noted when it does.
func (p *Pool) awaitOr(ctx context.Context, pending *streams.Pending) error {
	var ended atomic.Bool // by the device or by ctx, whichever was first
	done := make(chan error, 1)
	go func() {
		err := pending.Wait()
		if ended.CompareAndSwap(false, true) {
			done <- err
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		pending.Settle(err)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		if ended.CompareAndSwap(false, true) {
			return ctx.Err()
		}
		return <-done
	}
}

// free is the counterpart of alloc. Caller holds p.mu, which is unlocked while
// the device has to be waited for.
func (p *Pool) free(b Block) error {
	if p.idle != nil {
		p.idle.used()
	}
	var err error
	if p.order == nil || !p.order.Several() {
		err = p.a.Free(alloc.Block(b))
	} else {
		err = p.release(b)
	}
	if err != nil || p.after {
		return p.afterFree(b, err)
	}
	return nil
}

// afterFree is what follows a free that failed, or that more is to be done after.
func (p *Pool) afterFree(b Block, err error) error {
	if err != nil {
		if err = p.repeat(context.Background(), err, func() error { return p.release(b) }); err != nil {
			return err
		}
	}
	if p.after {
		p.gone(b.Addr)
	}
	return nil
}

func (p *Pool) release(b Block) error {
	if p.order != nil && p.order.Several() {
		return p.order.Free(alloc.Block(b), func() error { return p.a.Free(alloc.Block(b)) })
	}
	return p.a.Free(alloc.Block(b))
}

// freeAddr is free by address, for a pool without a second stream.
func (p *Pool) freeAddr(addr uint64) error {
	if p.idle != nil {
		p.idle.used()
	}
	err := p.a.FreeAddr(addr)
	if err != nil {
		if err = p.repeat(context.Background(), err, func() error { return p.a.FreeAddr(addr) }); err != nil {
			return err
		}
	}
	if p.after {
		p.gone(addr)
	}
	return nil
}

// gone is what follows the free of a block. Caller holds p.mu.
func (p *Pool) gone(addr uint64) {
	if p.record != nil {
		p.record.free(addr)
	}
	if p.policy.Eager {
		p.finish()
	}
	if len(p.owed) > 0 {
		p.settle()
	}
}

// finish has the allocator release the pages of a freed block when the device has
// finished with them. Caller holds p.mu.
func (p *Pool) finish() {
	f, ok := p.a.(interface{ Finish() *streams.Pending })
	for ok && !p.closed {
		pending := f.Finish()
		if pending == nil || p.await(context.Background(), pending) != nil {
			return
		}
	}
}

// trim is Trim of the allocator. Caller holds p.mu, which is unlocked while the
// device has to be waited for.
func (p *Pool) trim(keep uint64) (released uint64, err error) {
	p.settle()
	trim := func() error {
		n, err := p.a.Trim(keep)
		released += n
		return err
	}
	if err = trim(); err != nil {
		err = p.repeat(context.Background(), err, trim)
	}
	return released, err
}

// quiesce waits for the device before the pool is locked, if each free is a call
// of the driver that waits for all work.
func (p *Pool) quiesce() {
	if p.passThrough {
		_ = p.dev.Synchronize() // the free itself says what is wrong
	}
}

// TryAlloc is Alloc for callers that have an alternative when there is not enough
// free memory. It does not wait for blocks to be freed, only for work on the device that
// still uses memory of the pool, and other pools release nothing for it. Out of memory
// is an ErrOutOfMemory without a report, which is cheap; use errors.Is.
func (p *Pool) TryAlloc(bytes uint64) (Block, error) { return p.TryRequest(Request{Bytes: bytes}) }

// TryRequest is TryAlloc with everything that can be asked for.
func (p *Pool) TryRequest(r Request) (Block, error) {
	if p.stacks != nil {
		r.Site = p.stacks.caller()
	}
	p.mu.Lock()
	b, err := p.attempt(r)
	if err != nil {
		if b, err = p.complete(context.Background(), b, r, err); errors.Is(err, ErrOutOfMemory) {
			p.record.refuse(p, r)
		}
	}
	p.mu.Unlock()
	return b, err
}

// wait is what happens after a first refusal. Other pools on the device release
// what is idle in them. Then the request is repeated whenever something was
// freed, until the time is over or there is nothing to wait for.
func (p *Pool) wait(ctx context.Context, r Request, err error) (Block, error) {
	if !errors.Is(err, ErrOutOfMemory) {
		return Block{}, err
	}
	start := time.Now()
	never := errors.Is(err, alloc.ErrNever)
	if p.buffers != nil && !never {
		p.buffers.refused()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	w := waiter{p: p, bytes: r.Bytes, grows: !never && p.grows()}
	defer w.stop()
	if w.grows {
		p.mu.Unlock()
		more, lost := w.ask()
		p.mu.Lock()
		if lost != nil {
			return Block{}, lost
		}
		// What has become free is seen by the first that asks, which may be this request,
		// and elastic keeps the pages that it got before it was refused. Either may be
		// enough for others that wait.
		now := p.a.Stats().PoolBytes
		if more || now > p.poolBytes {
			p.wake()
		}
		p.poolBytes = now
	}
	for {
		// Between the first attempt and now memory may have become free.
		b, err := p.alloc(ctx, r)
		if err == nil {
			return b, nil
		}
		if !errors.Is(err, ErrOutOfMemory) {
			return Block{}, err
		}
		limit := p.retry
		if p.a.Stats().BytesInUse == 0 {
			limit = min(limit, w.patience()) // no goroutine can free a block
		}
		if p.patient {
			limit = max(limit, w.patience())
		}
		limit -= time.Since(start)
		if limit <= 0 || errors.Is(err, alloc.ErrNever) {
			return Block{}, p.outOfMemory(r, err, time.Since(start), nil)
		}
		freed := p.freed
		p.waiting++
		p.mu.Unlock()
		last, stopped := w.wait(ctx, freed, limit)
		if last && p.buffers != nil { // others have dropped some since
			p.buffers.refused()
		}
		p.mu.Lock()
		p.waiting--
		if errors.Is(stopped, device.ErrLost) {
			return Block{}, stopped
		}
		if last {
			if b, err = p.alloc(ctx, r); err == nil {
				return b, nil
			}
			if err == ctx.Err() { // while it waited for the device
				err, stopped = ErrOutOfMemory, err
			}
			if !errors.Is(err, ErrOutOfMemory) {
				return Block{}, err
			}
			return Block{}, p.outOfMemory(r, err, time.Since(start), stopped)
		}
	}
}

// wake makes all waiting allocations try again. Caller holds p.mu.
func (p *Pool) wake() {
	if p.waiting > 0 {
		close(p.freed)
		p.freed = make(chan struct{})
	}
}

// Free releases a block to the pool. Errors: ErrDoubleFree, ErrNotAllocated, ErrClosed,
// or the device's; the block then stays as it was.
func (p *Pool) Free(b Block) error {
	if p.passThrough {
		return p.freeGrant(b)
	}
	p.mu.Lock()
	err := p.free(b)
	if p.waiting > 0 {
		p.wake()
	}
	p.mu.Unlock()
	return err
}

// freeGrant is Free of a block that is a grant of the device.
func (p *Pool) freeGrant(b Block) error {
	p.quiesce()
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.free(b)
	p.wake()
	return err
}

// FreeAddr releases the block that starts at addr, for callers that keep
// only addresses. Free is faster. 0 does nothing. Errors are those of Free.
func (p *Pool) FreeAddr(addr uint64) error {
	p.quiesce()
	p.mu.Lock()
	var err error
	if p.order != nil && p.order.Several() {
		var b alloc.Block
		if b, err = p.a.BlockAt(addr); err == nil {
			err = p.free(Block(b))
		}
	} else {
		err = p.freeAddr(addr)
	}
	if p.waiting > 0 {
		p.wake()
	}
	p.mu.Unlock()
	return err
}

// Stream returns the number to put into a [Request] for a stream of the device. The
// device's zero stream always has number 0. A stream keeps its
// number until it is destroyed; a stream that gets its handle later has another.
//
// Memory freed in one stream can be reused there at once. It can be reused in another
// stream as well: that stream is made to wait for an event recorded at the free. The
// host does not wait.
func (p *Pool) Stream(s device.Stream) uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.streams.Number(s)
}

// RetireStream declares that the program is about to destroy a stream, or just has.
// Blocks used there may still be freed afterwards. Requests that name the
// stream's number return ErrBadRequest from now on. Stream 0 cannot be retired.
//
// A program that destroys a stream without this call stays safe: the pool notices
// when a block of the stream is freed, and then has to wait for all work on the
// device before the memory is used elsewhere. Only a pool that never saw a second stream
// does not notice. So a program with one stream that replaces it must call RetireStream,
// or [Pool.Stream] for the new stream's number.
func (p *Pool) RetireStream(s device.Stream) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	return p.streams.Retire(s)
}

// recorder is an allocator that orders streams itself, or that takes pages away.
type recorder interface {
	Record(b alloc.Block, stream uint32) error
}

// RecordStream declares that a live block is used in another stream than the one it
// was requested for. When the block is freed, its memory is not reused
// before the work that is in that stream by then is done. Errors: ErrDoubleFree or
// ErrNotAllocated for a block that is not live, ErrBadRequest for a stream that has
// ended, ErrClosed, or the device's.
func (p *Pool) RecordStream(b Block, stream uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	record := func() error { return p.recordStream(b, stream) }
	return p.repeat(context.Background(), record(), record)
}

func (p *Pool) recordStream(b Block, stream uint32) error {
	if p.closed {
		return ErrClosed
	}
	if err := p.a.Live(alloc.Block(b)); err != nil {
		return err
	}
	if err := p.streams.Use(stream); err != nil {
		return err
	}
	if r, ok := p.a.(recorder); ok {
		if err := r.Record(alloc.Block(b), stream); err != nil {
			return err
		}
	}
	if p.order != nil {
		return p.order.Use(alloc.Block(b), stream)
	}
	return nil
}

// AllocBatch allocates in order under one lock, without waiting for frees or for
// other pools' idle memory, and puts the blocks into out, which is at least as long as
// reqs. It stops at the first failure and returns how many blocks it allocated; these
// stay allocated. Errors are those of Alloc.
func (p *Pool) AllocBatch(reqs []Request, out []Block) (n int, err error) {
	var site alloc.Site
	if p.stacks != nil {
		site = p.stacks.caller()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, r := range reqs {
		if p.stacks != nil {
			r.Site = site
		}
		if out[i], err = p.alloc(context.Background(), r); err != nil {
			if errors.Is(err, ErrOutOfMemory) {
				err = p.outOfMemory(r, err, 0, nil)
			}
			return i, err
		}
	}
	return len(reqs), nil
}

// FreeBatch releases blocks under one lock. It continues after a failure; the
// errors, which are those of Free, are joined.
func (p *Pool) FreeBatch(blocks []Block) error {
	p.quiesce()
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, b := range blocks {
		if err := p.free(b); err != nil {
			errs = append(errs, err)
		}
	}
	p.wake()
	return errors.Join(errs...)
}

// Stats returns JAX's memory statistics of this pool; after Close, those at the end.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats()
}

// stats is Stats. Caller holds p.mu.
func (p *Pool) stats() Stats {
	s := Stats(p.a.Stats())
	s.NumAllocs -= p.undone
	return s
}

// Trim releases idle memory to the device, as far as the policy can (see its
// allocator), and returns how many bytes it released. It waits for work that still uses
// the memory. JAX's pool never releases any.
func (p *Pool) Trim() (released uint64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.trim(0)
}

// Walk visits every chunk of the pool, live and free, in address order until yield
// returns false. The pool is locked meanwhile; yield must not use it.
func (p *Pool) Walk(yield func(alloc.Chunk) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.a.Walk(yield)
}

// Policy returns the policy that the pool was opened with.
func (p *Pool) Policy() policy.Policy { return p.policy }

// Close waits for work on the device and releases all memory to it, live blocks
// included. Allocations that wait return ErrClosed. So do a second Close and the Free of
// a Buffer that is still held. Close returns the device's errors, and that of the
// recording.
func (p *Pool) Close() error {
	if p.buffers != nil {
		p.buffers.close()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed && p.a.Stats().PoolBytes > 0 {
		// The allocator waits for the device, too, and then does not wait long.
		p.mu.Unlock()
		_ = p.dev.Synchronize()
		p.mu.Lock()
	}
	if p.closed {
		return ErrClosed
	}
	p.closed = true
	if p.idle != nil {
		p.idle.stop()
	}
	if p.leave != nil {
		p.leave()
	}
	err := p.a.Close()
	if p.order != nil {
		p.order.Close()
	}
	err = errors.Join(err, p.streams.Close())
	p.wake()
	return errors.Join(err, p.record.close())
}
