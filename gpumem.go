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
// an [OutOfMemoryError] at once, or waits for a Free if [WithRetry] allows it: see state.
//
// Device memory is addresses (uint64), never Go pointers.
//
// # Lock order
//
//	the table of Buffers    one collection of a pool at a time (internal/owned)
//	Pool.mu                 the allocator, its streams, idle memory and recording
//	the entries of Buffers  never together with Pool.mu
//	the call sites', package reclaim's, the Recorder's, the device's
//
// Pool.mu is not held during a wait for the GPU. There is one exception: the driver's own
// free waits for all work. The pool waits before it takes the lock, so only work queued
// after that is waited for with the lock held. The locks of two pools are never held at
// once.
package gpumem

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"gpumem/alloc"
	"gpumem/alloc/build"
	"gpumem/alloc/reclaim"
	"gpumem/alloc/streams"
	"gpumem/device"
	"gpumem/internal/callsite"
	"gpumem/internal/lock"
	"gpumem/internal/owned"
	"gpumem/policy"
	"gpumem/size"
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
	idle        *reclaim.Idle    // guarded by mu; nil if the policy releases nothing by itself
	record      *alloc.Recording // nil if the pool is not recorded; its contents are guarded by mu
	stacks      *callsite.Table  // nil if no stacks are kept
	waiting     int              // goroutines that wait for freed; guarded by mu
	passThrough bool             // each block is a grant of the device
	after       bool             // afterFree has something to do; guarded by mu

	dev       device.GPU
	policy    policy.Policy
	sharing   device.Sharing // nil if no other process can hear that this one waits for memory
	name      string
	retry     time.Duration
	patient   bool          // without WithRetry: waits for other processes to release idle memory
	freeBytes atomic.Uint64 // on the device when a waiter asked last
	polled    atomic.Int64  // when that was, in nanoseconds
	poolBytes uint64        // of the pool when a request was refused last; guarded by mu

	leave     func()        // out of the pools that release memory to each other; nil if it is not one
	timer     *time.Timer   // of the next look at idle memory; nil if there is none; guarded by mu
	releasing bool          // a goroutine waits for the device to release more; guarded by mu
	owed      []Block       // blocks that no request got and the device did not let go; guarded by mu
	undone    int64         // blocks that were released again because their stream could not be ordered; guarded by mu
	freed     chan struct{} // closed when something was freed while anyone waits; guarded by mu
	closed    bool          // guarded by mu
	refused   int           // refusals so far; guarded by mu

	owners *owned.Table[Block] // nil unless WithLeaks or WithCollect is set
}

type config struct {
	retry         time.Duration
	retrySet      bool
	stacks        *bool
	log           func(Message)
	deterministic bool
	idleAfter     time.Duration // 0: never
	lowWater      uint64        // bytes free on the device; 0: none
	leaks         func(Leak)
	collect       bool
	record        Recorder
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

// DefaultIdleTrim is how long the elastic policy keeps idle memory.
const DefaultIdleTrim = reclaim.DefaultIdle

// WithIdleTrim sets the time without a free after which the elastic policy releases idle
// memory; 0 means never. The default is [DefaultIdleTrim].
func WithIdleTrim(after time.Duration) Option { return func(c *config) { c.idleAfter = after } }

// WithLowWater sets how many bytes the elastic policy keeps free on the device for others,
// by releasing idle memory. 0 means none. The default is a 64th of the device, 1.25 GiB of
// 80: what a small program and its context need to begin.
func WithLowWater(bytes uint64) Option { return func(c *config) { c.lowWater = bytes } }

// WithRecord passes every block that is handed out and every free to r, so that the run can
// be replayed, drawn and searched for leaks afterwards: gpumem replay, leaks and advise read
// what a record/trace.Writer wrote. It has allocation sites if the pool keeps stacks (see
// [WithStacks]). A failed allocation is recorded once, when the pool has given up waiting.
// Several pools may have the same recorder; each is a pool of the recording, by its name and
// the device's number.
//
// With a trace.Writer it costs about 0.15 microseconds a call, and twice that with stacks.
// The pool is locked meanwhile, also while a block of 64 KiB is written. An error of r ends
// the recording, not the program: Close returns it. Close also flushes r; who made the file
// closes it.
func WithRecord(r Recorder) Option { return func(c *config) { c.record = r } }

// Open makes a pool on dev under the policy p. It takes no memory. Errors: ErrNoPolicy
// for the zero policy, ErrBadRequest for a nil option, device.ErrNotSupported if the
// device lacks what the policy needs. The caller closes the pool.
func Open(dev device.GPU, p policy.Policy, opts ...Option) (*Pool, error) {
	if dev == nil {
		return nil, build.ErrNoDevice
	}
	c := config{idleAfter: DefaultIdleTrim, lowWater: dev.Info().Total / 64}
	if p.Name == "env" && p.Kind != policy.Async && p.Kind != policy.VMM { // those do not wait in XLA
		c.retry = DefaultRetry
	}
	for i, o := range opts {
		if o == nil {
			return nil, fmt.Errorf("%w: option %d is nil", ErrBadRequest, i)
		}
		o(&c)
	}
	pool := &Pool{
		dev: dev, policy: p, name: p.Kind.String(),
		retry: c.retry, patient: !c.retrySet,
		freed: make(chan struct{}), streams: streams.New(dev),
	}
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
		pool.idle = reclaim.NewIdle(dev, pool.sharing, c.idleAfter, c.lowWater)
		pool.leave = reclaim.Join(dev, idleMember{pool})
	}
	if n, ok := a.(interface{ Name() string }); ok {
		pool.name = n.Name()
	}
	keep := p.Kind == policy.Platform || p.Kind == policy.Address || c.leaks != nil
	if c.stacks != nil {
		keep = *c.stacks
	}
	if keep {
		pool.stacks = callsite.New("gpumem.(*Pool).")
	}
	pool.owners = pool.newOwners(c.leaks, c.collect)
	pool.record = pool.newRecording(c.record)
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
		r.Site = alloc.Site(p.stacks.Caller())
	}
	p.mu.Lock()
	b, err := p.attempt(r)
	if err != nil {
		b, err = p.resolve(ctx, r, b, err, true)
	}
	p.mu.Unlock()
	return b, err
}

// TryAlloc is Alloc for callers that have an alternative when there is not enough
// free memory. It does not wait for blocks to be freed, only for work on the device that
// still uses memory of the pool, and other pools release nothing for it. Out of memory
// is an ErrOutOfMemory without a report, which is cheap; use errors.Is.
func (p *Pool) TryAlloc(bytes uint64) (Block, error) { return p.TryRequest(Request{Bytes: bytes}) }

// TryRequest is TryAlloc with all options of a request.
func (p *Pool) TryRequest(r Request) (Block, error) {
	if p.stacks != nil {
		r.Site = alloc.Site(p.stacks.Caller())
	}
	p.mu.Lock()
	b, err := p.attempt(r)
	if err != nil {
		if b, err = p.resolve(context.Background(), r, b, err, false); errors.Is(err, ErrOutOfMemory) {
			p.record.Refuse(alloc.Request(r))
		}
	}
	p.mu.Unlock()
	return b, err
}

// AllocBatch allocates in order under one lock, without waiting for frees or for
// other pools' idle memory, and puts the blocks into out, which is at least as long as
// reqs. It stops at the first failure and returns how many blocks it allocated; these
// stay allocated. Errors are those of Alloc.
func (p *Pool) AllocBatch(reqs []Request, out []Block) (n int, err error) {
	var site alloc.Site
	if p.stacks != nil {
		site = alloc.Site(p.stacks.Caller())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, r := range reqs {
		if p.stacks != nil {
			r.Site = site
		}
		if out[i], err = p.attempt(r); err == nil {
			continue
		}
		if out[i], err = p.resolve(context.Background(), r, out[i], err, false); err != nil {
			if errors.Is(err, ErrOutOfMemory) {
				err = p.outOfMemory(r, err, 0, nil)
			}
			return i, err
		}
	}
	return len(reqs), nil
}

// errIncomplete never leaves the pool: it sends an attempt on to resolve.
var errIncomplete = errors.New("a block that is not ordered or recorded yet")

// attempt asks the allocator, without waiting. errIncomplete comes with a block. It has no
// context: with one more argument a Request no longer travels in registers. Caller holds
// p.mu.
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

// enter orders the stream of a block that was handed out after those that used its memory
// before, and records it. Caller holds p.mu.
func (p *Pool) enter(b Block, r Request) error {
	if p.order != nil && !p.order.Idle(r.Stream) {
		if err := p.order.Alloc(alloc.Block(b), r.Stream); err != nil {
			return err
		}
	}
	if p.record != nil {
		p.record.Alloc(alloc.Block(b), alloc.Request(r))
	}
	return nil
}

// A state is what a request does next that the allocator did not serve at once. The pool is
// locked between states, and unlocked in those that wait.
type state uint8

const (
	attempt       state = iota // ask the allocator again
	orderStream                // a block was handed out: its stream follows those that used the memory
	waitForDevice              // work on the device has to end before what was tried is tried again
	askOthers                  // refused: others release idle memory
	waitForFree                // refused: until a block is freed, others have released memory, or the time is over
	giveUp                     // refused for good
	served
	failed
)

// unserved is a request on its way through the states.
type unserved struct {
	p     *Pool
	ctx   context.Context
	r     Request
	block Block
	err   error
	waits bool // after a refusal, for memory

	pending *streams.Pending // what waitForDevice waits for
	back    state            // what was tried before it
	settled bool             // owed blocks were freed for this attempt
	asked   time.Time        // when others were asked; zero: not yet
	grows   bool             // memory that others release could serve it
	last    bool             // the next attempt is the last
	stopped error            // why: the error of ctx, or nil if the time is over
	timer   *time.Timer
	ticker  *time.Ticker
}

// resolve is what follows an attempt that returned b and err. With waits it waits for memory
// after a refusal, and the error is an *OutOfMemoryError; else a refusal is the allocator's
// error. Caller holds p.mu, which is unlocked meanwhile where something is waited for.
func (p *Pool) resolve(ctx context.Context, r Request, b Block, err error, waits bool) (Block, error) {
	next := attempt
	if err == errIncomplete {
		if err = p.enter(b, r); err == nil {
			return b, nil
		}
		next = orderStream
	}
	if (err == alloc.ErrNoMemory || err == alloc.ErrNever) && !waits && len(p.owed) == 0 { // costs nothing
		return Block{}, err
	}
	u := unserved{p: p, ctx: ctx, r: r, block: b, err: err, waits: waits}
	defer u.stop()
	for next = u.after(next); ; {
		switch next {
		case attempt:
			u.block, u.err = p.attempt(r)
			next = u.after(attempt)
		case orderStream:
			u.err = p.enter(u.block, r)
			next = u.after(orderStream)
		case waitForDevice:
			next = u.waitForDevice()
		case askOthers:
			next = u.askOthers()
		case waitForFree:
			next = u.waitForFree()
		case giveUp:
			return Block{}, p.outOfMemory(r, u.err, u.waited(), u.stopped)
		case served:
			return u.block, nil
		case failed:
			return Block{}, u.err
		}
	}
}

// after returns the state that follows an attempt, or an order, which ended with u.err.
func (u *unserved) after(tried state) state {
	p := u.p
	if u.err == errIncomplete {
		return orderStream
	}
	if errors.As(u.err, &u.pending) {
		u.back = tried
		return waitForDevice
	}
	p.streams.SetRepeated(false)
	if u.err == nil {
		return served
	}
	if tried == orderStream {
		u.disown()
	}
	if len(p.owed) > 0 && !u.settled {
		u.settled = true
		p.settle()
		return attempt
	}
	switch {
	case !u.waits || !errors.Is(u.err, ErrOutOfMemory):
		return failed
	case u.last || errors.Is(u.err, alloc.ErrNever):
		return giveUp
	case u.asked.IsZero():
		return askOthers
	}
	return waitForFree
}

// disown frees a block whose stream could not be ordered.
func (u *unserved) disown() {
	if p := u.p; !p.closed {
		p.undone++
		p.owed = append(p.owed, u.block)
		p.settle()
	}
}

func (u *unserved) waitForDevice() state {
	err := u.p.await(u.ctx, u.pending)
	if err == nil {
		u.p.streams.SetRepeated(true)
		return u.back
	}
	if u.back == orderStream {
		u.disown()
	}
	u.err = err
	if u.last && err == u.ctx.Err() {
		u.err, u.stopped = ErrOutOfMemory, err
		return giveUp
	}
	return failed
}

// askOthers has the program's dropped Buffers, other pools on the device and other processes
// release memory.
func (u *unserved) askOthers() state {
	p := u.p
	u.asked = time.Now()
	u.grows = p.grows(u.r)
	p.mu.Unlock()
	if p.owners != nil {
		p.owners.Refused()
	}
	more, lost := false, error(nil)
	if u.grows {
		more, lost = p.askOthers(u.r.Bytes, true)
	}
	p.mu.Lock()
	if lost != nil {
		u.err = lost
		return failed
	}
	if u.grows {
		// What has become free is seen by the first that asks, which may be this request, and
		// elastic keeps the pages that it got before it was refused. Either may be enough for
		// others that wait.
		now := p.a.Stats().PoolBytes
		if more || now > p.poolBytes {
			p.wake()
		}
		p.poolBytes = now
	}
	return attempt // between the first attempt and now memory may have become free
}

// waitForFree waits until the request is worth another attempt, for no longer than the pool
// and ctx allow.
func (u *unserved) waitForFree() state {
	p := u.p
	limit := p.retry
	if p.a.Stats().BytesInUse == 0 {
		limit = min(limit, u.patience()) // no goroutine can free a block
	}
	if p.patient {
		limit = max(limit, u.patience())
	}
	if limit -= u.waited(); limit <= 0 {
		return giveUp
	}
	freed := p.freed
	p.waiting++
	p.mu.Unlock()
	u.last, u.stopped = u.wait(freed, limit)
	if u.last && p.owners != nil { // others have dropped some since
		p.owners.Refused()
	}
	p.mu.Lock()
	p.waiting--
	if errors.Is(u.stopped, device.ErrLost) {
		u.err = u.stopped
		return failed
	}
	u.settled = false
	return attempt
}

// waited returns the time since others were asked; 0 if they were not.
func (u *unserved) waited() time.Duration {
	if u.asked.IsZero() {
		return 0
	}
	return time.Since(u.asked)
}

const (
	// poll is how often a waiter looks whether another pool has released memory.
	poll = 20 * time.Millisecond
	// patience is how long a waiter gives other processes to release idle memory
	// if no block of the pool could be freed. They look for waiters every
	// 50 ms, and may have to wait for their device first.
	patience = time.Second
)

// patience returns how long other processes may take to release memory; 0 if none can be
// asked. It asks them.
func (u *unserved) patience() time.Duration {
	if !u.grows || u.p.sharing == nil || u.p.sharing.Want(u.r.Bytes) != nil {
		return 0
	}
	return patience
}

// wait returns when the request is to be attempted again: a block was freed, or others
// released memory. last is true if that is for the last time, because the limit is over or
// ctx ended; then stopped is ctx's error, or that of a lost device. The pool is unlocked.
func (u *unserved) wait(freed <-chan struct{}, limit time.Duration) (last bool, stopped error) {
	p := u.p
	if u.timer == nil {
		u.timer = time.NewTimer(limit)
		u.ticker = time.NewTicker(poll)
	} else {
		u.timer.Reset(limit)
	}
	for {
		select {
		case <-freed:
			return false, nil
		case <-u.ticker.C:
			// One of the pool's waiters asks for all of them.
			now, before := time.Now().UnixNano(), p.polled.Load()
			if now-before < int64(poll)/2 || !p.polled.CompareAndSwap(before, now) {
				continue
			}
			more, lost := p.askOthers(u.r.Bytes, u.grows)
			if lost != nil {
				return true, lost
			}
			if more {
				p.mu.Lock()
				p.wake()
				p.mu.Unlock()
			}
		case <-u.timer.C:
			return true, nil
		case <-u.ctx.Done():
			return true, u.ctx.Err()
		}
	}
}

func (u *unserved) stop() {
	if u.timer != nil {
		u.timer.Stop()
		u.ticker.Stop()
	}
}

// grows reports whether the pool could take more memory from the device for a request,
// which a pool that grows in reserved addresses never does for collective memory. Caller
// holds p.mu.
func (p *Pool) grows(r Request) bool {
	s := p.a.Stats()
	if p.policy.Grows() && r.End == alloc.Upper && s.PoolBytes > 0 {
		return false
	}
	return p.policy.Kind == policy.Async || s.PoolBytes < s.BytesLimit
}

// askOthers has the other pools on the device release idle memory for a request, if that
// could be served so, and asks the device what is free. more reports whether that is more
// than the last time; lost is the error of a device that is lost. It waits for no work.
// Caller does not hold p.mu.
func (p *Pool) askOthers(bytes uint64, grows bool) (more bool, lost error) {
	released := uint64(0)
	if grows {
		var self reclaim.Member
		if p.idle != nil {
			self = idleMember{p}
		}
		released = reclaim.Ask(p.dev, bytes, self)
		if p.sharing != nil {
			_ = p.sharing.Want(bytes) // others release nothing then
		}
	}
	free, _, err := p.dev.MemInfo()
	if errors.Is(err, device.ErrLost) {
		return false, err
	}
	return released > 0 || err == nil && free > p.freeBytes.Swap(free), nil
}

// OutOfMemoryError is a failed allocation: the request, the state of the pool, and the
// cause. errors.Is(err, ErrOutOfMemory) is true for it, and also errors.Is of the
// context's error if that ended the wait.
type OutOfMemoryError struct {
	Request Request
	Policy  string        // as it was asked for, such as "jax"
	Pool    string        // the pool's name, such as GPU_0_bfc
	Device  int           // its ordinal
	Waited  time.Duration // for memory to be freed
	Stats   Stats         // when the allocation failed
	Cause   alloc.Cause   // our own account
	Stack   string        // of this request, a line for each frame; "" unless stacks are kept
	Live    []Use         // what is allocated by allocation site, largest first; nil unless stacks are kept

	// Layout is the original's report, record for record. Only the first ten
	// errors of a pool have it.
	Layout alloc.Report

	reason error // why the allocator refused
	ended  error // the context's error, if that ended the wait
}

// Error returns the line that a JAX user sees.
func (e *OutOfMemoryError) Error() string {
	return fmt.Sprintf("RESOURCE_EXHAUSTED: Out of memory while trying to allocate %s with allocator %s on device %d.",
		size.XLA(int64(min(e.Request.Bytes, math.MaxInt64))), e.Pool, e.Device)
}

// Unwrap returns ErrOutOfMemory (or ErrTooLarge, which wraps it, for a size near 2^64),
// and the context's error if there is one.
func (e *OutOfMemoryError) Unwrap() []error {
	if e.ended != nil {
		return []error{e.reason, e.ended}
	}
	return []error{e.reason}
}

// Report returns everything: the original's report, record for record, then Error,
// then Why.
func (e *OutOfMemoryError) Report() string {
	text := e.Error() + "\n" + e.Why()
	if len(e.Layout) > 0 {
		text = e.Layout.String() + "\n" + text
	}
	return text
}

// Why returns our own account, some ten lines: the stack of the request, the largest
// free block and the allocation that blocks it, what would have served the request, and
// what is allocated by allocation site.
func (e *OutOfMemoryError) Why() string {
	var b strings.Builder
	if e.Waited >= time.Millisecond {
		fmt.Fprintf(&b, "Waited %v for memory to be freed.\n", e.Waited.Round(time.Millisecond))
	}
	if e.Stack != "" {
		b.WriteString("Asked for by\n" + indent(e.Stack))
	}
	stacks := map[alloc.Site]string{}
	for _, u := range e.Live {
		stacks[u.Site] = u.Stack
	}
	b.WriteString(e.Cause.Text(func(s alloc.Site) string { return stacks[s] }))
	if len(e.Live) > 0 {
		b.WriteString("Alive, by who asked for it:\n")
		for _, u := range e.Live {
			fmt.Fprintf(&b, "  %s (%d x), asked for by\n%s", size.Format(u.Bytes), u.Blocks, indent(u.Stack))
		}
	}
	return b.String()
}

func indent(s string) string {
	return "    " + strings.ReplaceAll(strings.TrimSuffix(s, "\n"), "\n", "\n    ") + "\n"
}

// outOfMemory makes the error for a request that is given up. Caller holds
// p.mu.
func (p *Pool) outOfMemory(r Request, reason error, waited time.Duration, ended error) error {
	deviceFree := int64(-1)
	if free, _, err := p.dev.MemInfo(); err == nil {
		deviceFree = int64(min(free, math.MaxInt64))
	}
	e := &OutOfMemoryError{
		Request: r,
		Policy:  p.policy.Spec,
		Pool:    p.name,
		Device:  p.dev.Info().Ordinal,
		Waited:  waited,
		Stats:   p.stats(),
		Cause:   alloc.Explain(p.a, alloc.Request(r), deviceFree),
		reason:  reason,
		ended:   ended,
	}
	if rep, ok := p.a.(alloc.Reporter); ok && p.refused < fullReports {
		e.Layout = rep.Report(alloc.Request(r))
	}
	p.refused++
	p.record.Refuse(alloc.Request(r))
	if p.stacks != nil {
		e.Stack = p.stacks.Text(uint32(r.Site))
		e.Live = p.named(p.live())
	}
	return e
}

// wake makes all waiting allocations try again. Caller holds p.mu.
func (p *Pool) wake() {
	if p.waiting > 0 {
		close(p.freed)
		p.freed = make(chan struct{})
	}
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

// free is Free without waking those that wait for memory. Caller holds p.mu, which is unlocked while
// the device has to be waited for.
func (p *Pool) free(b Block) error {
	if p.idle != nil && p.idle.Freed() && p.timer == nil {
		p.timer = time.AfterFunc(p.idle.Every, p.lookAtIdle)
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
	if p.idle != nil && p.idle.Freed() && p.timer == nil {
		p.timer = time.AfterFunc(p.idle.Every, p.lookAtIdle)
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
		p.record.Free(addr)
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

// quiesce waits for the device before the pool is locked, if each free is a call
// of the driver that waits for all work.
func (p *Pool) quiesce() {
	if p.passThrough {
		_ = p.dev.Synchronize() // the free itself says what is wrong
	}
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

// lookAtIdle releases idle memory, if it is time, and sets the timer for the next look.
func (p *Pool) lookAtIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.timer = nil // until the next free, unless it is set below
	if a, ok := p.a.(interface{ Idle() uint64 }); ok && a.Idle() == 0 {
		return
	}
	if keep := p.idle.Keep(p.a.Stats().PoolBytes); keep != reclaim.KeepAll {
		released, err := p.trim(keep)
		if p.closed || err == nil && p.idle.Done(keep, released) {
			return
		}
		// What could not be released now is tried again at the next look.
	}
	if p.timer == nil {
		p.timer = time.AfterFunc(p.idle.Every, p.lookAtIdle)
	}
}

// idleMember is a pool among those that release idle memory to each other.
type idleMember struct{ pool *Pool }

// Release releases bytes of idle memory, or all there is, and returns how many.
// It does not wait for the device.
func (m idleMember) Release(bytes uint64) uint64 {
	p := m.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	held := p.a.Stats().PoolBytes
	keep := held - min(held, bytes)
	released, err := p.a.Trim(keep)
	if pending, ok := err.(*streams.Pending); ok {
		// The rest is released when the device has finished with it. The caller
		// does not wait for that here.
		pending.Settle(err)
		if !p.releasing {
			p.releasing = true
			go p.releaseLater(keep)
		}
	}
	return released
}

func (p *Pool) releaseLater(keep uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = p.trim(keep) // what the device does not take stays with the pool
	p.releasing = false
}

// newRecording returns nil if the pool is not recorded.
func (p *Pool) newRecording(to Recorder) *alloc.Recording {
	if to == nil {
		return nil
	}
	name := p.name
	if n := p.dev.Info().Ordinal; n > 0 {
		name = fmt.Sprintf("%s on device %d", name, n)
	}
	site := func(alloc.Site) string { return "" }
	if p.stacks != nil {
		site = func(s alloc.Site) string { return strings.TrimSuffix(p.stacks.Text(uint32(s)), "\n") }
	}
	return &alloc.Recording{To: to, Pool: name, Site: site}
}

// Live returns what is allocated by allocation site, largest first. Without stacks
// (see WithStacks) it is one entry for all.
func (p *Pool) Live() []Use {
	p.mu.Lock()
	live := p.live()
	p.mu.Unlock()
	return p.named(live)
}

// live is Live without the stacks' texts. Caller holds p.mu.
func (p *Pool) live() []Use {
	uses := map[alloc.Site]*Use{}
	p.a.Walk(func(c alloc.Chunk) bool {
		if !c.Live {
			return true
		}
		u := uses[c.Site]
		if u == nil {
			u = &Use{Site: c.Site}
			uses[c.Site] = u
		}
		u.Blocks++
		u.Bytes += c.Size
		return true
	})
	out := make([]Use, 0, len(uses))
	for _, u := range uses {
		out = append(out, *u)
	}
	slices.SortFunc(out, func(a, b Use) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Site, b.Site))
	})
	return out
}

// named fills in the stacks' texts. It needs no lock of the pool.
func (p *Pool) named(uses []Use) []Use {
	if p.stacks != nil {
		for i := range uses {
			uses[i].Stack = p.stacks.Text(uint32(uses[i].Site))
		}
	}
	return uses
}

// WriteProfile writes what is allocated now as a profile for go tool pprof, gzipped:
//
//	go tool pprof -top gpu.pb.gz
//	go tool pprof -top -sample_index=allocations -tagfocus=device=cuda:0 gpu.pb.gz
//
// There is a sample for each stack whose allocations are live: the number of
// blocks (allocations) and the bytes of whole blocks (space). Their
// sums are those of Live. The labels are kind, always "buffer", and device:
// "cuda:0", or "sim:0" for the simulated one. Free memory of the pool is in Stats and in
// no sample, as in JAX: it would count as allocated.
//
// Samples have stacks if the pool keeps them (see WithStacks), without the frames
// of the runtime and of the pool. Otherwise all is one sample, whose function's name
// says so.
//
// All samples are of one moment. The pool is locked while its blocks are
// counted, some 2 ms for 100,000, and no longer. Of a closed pool the profile is
// empty. Errors: w's.
func (p *Pool) WriteProfile(w io.Writer) error {
	p.mu.Lock()
	now := time.Now()
	live := p.live()
	p.mu.Unlock()

	uses := make([]callsite.Use, len(live))
	for i, u := range live {
		uses[i] = callsite.Use{Site: uint32(u.Site), Blocks: u.Blocks, Bytes: u.Bytes}
	}
	return p.stacks.WriteProfile(w, now, p.deviceLabel(), uses)
}

// deviceLabel returns JAX's name for the device.
func (p *Pool) deviceLabel() string {
	info := p.dev.Info()
	if info.Simulated {
		return fmt.Sprintf("sim:%d", info.Ordinal)
	}
	return fmt.Sprintf("cuda:%d", info.Ordinal)
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
	if p.owners != nil {
		p.owners.Close()
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
	if p.timer != nil {
		p.timer.Stop() // one look may still be under way; it finds the pool closed
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
	return errors.Join(err, p.record.Close())
}
