// Package gpumem gives programs memory of a GPU the way JAX, XLA and
// TensorFlow do, and says why when it cannot.
//
// Open a [Pool] on a device with a policy, allocate, free:
//
//	dev, _ := sim.New(sim.Config{Total: 24 << 30})
//	pool, err := gpumem.Open(dev, policy.Default())
//	...
//	defer pool.Close()
//	block, err := pool.Alloc(ctx, 64<<20)
//	if errors.Is(err, gpumem.ErrOutOfMemory) { ... }
//	...
//	err = pool.Free(block)
//
// A policy is what a framework's environment asks for: package policy reads it
// from there or from a line such as "jax:fraction=.5". The pool does what the
// framework would do with it, placement for placement.
//
// Who holds the memory: [Pool.Live] by place in the program, [Pool.WriteProfile]
// for go tool pprof, package pprofhttp beside net/http/pprof. They name places if
// the pool is opened [WithStacks].
//
// A [Block] is a value, and to forget one is a leak. A [Buffer] is a block with an
// owner, which the garbage collector sees: [WithLeaks] reports those that were
// dropped without a Free, [WithCollect] frees them and has the collector run
// before they fill the device.
//
// Device memory is addresses (uint64), never Go pointers.
package gpumem

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"gpumem/alloc"
	"gpumem/alloc/async"
	"gpumem/alloc/bfc"
	"gpumem/alloc/direct"
	"gpumem/alloc/elastic"
	"gpumem/alloc/order"
	"gpumem/alloc/vmm"
	"gpumem/device"
	"gpumem/policy"
	"gpumem/trace"
)

// The words of package alloc that users of a Pool need.
type (
	Block   = alloc.Block   // memory handed out
	Request = alloc.Request // asks for a block
	Stats   = alloc.Stats   // JAX's statistics
	Message = alloc.Message // a record of the log
)

// Errors of a Pool. Each comes wrapped in one that names the block or request.
var (
	ErrOutOfMemory  = alloc.ErrNoMemory     // wrapped in an *OutOfMemoryError
	ErrDoubleFree   = alloc.ErrDoubleFree   // the block was freed before
	ErrNotAllocated = alloc.ErrNotAllocated // no live block of this pool starts there
	ErrTooLarge     = alloc.ErrTooLarge     // the size passes 2^64 when rounded; also ErrOutOfMemory
	ErrBadRequest   = alloc.ErrBadRequest   // such as an alignment that is no power of two
	ErrClosed       = alloc.ErrClosed       // the pool was closed
	ErrNoPolicy     = errors.New("unknown") // the policy asks for no allocator that there is
)

// DefaultRetry is how long JAX waits for memory to be freed before it reports
// that there is none (tsl/framework/allocator_retry.h: 10,000 ms).
const DefaultRetry = 10 * time.Second

// fullReports is how many refusals of a pool come with the list of all its
// chunks. The original stops at 10, too: for a pool of 100,000 chunks it is
// megabytes of text.
const fullReports = 10

// Pool is a policy at work on one device. Any number of goroutines may use it
// at once. Nothing is taken from the device before the first allocation that is
// not empty.
//
// One lock guards the allocator; nothing else is ever locked while it is held,
// but by the device.
type Pool struct {
	dev    device.GPU
	policy policy.Policy
	name   string
	retry  time.Duration
	stacks *stacks // nil: nobody's stacks are kept
	idle   *idle   // nil: nothing goes back by itself

	mu      sync.Mutex
	a       alloc.Allocator // guarded by mu
	order   *order.Guard    // guarded by mu; nil: the driver orders the streams
	streams []device.Stream // by number; guarded by mu
	waiting int             // goroutines that wait for freed; guarded by mu
	freed   chan struct{}   // closed when something was freed while anyone waits; guarded by mu
	closed  bool            // guarded by mu
	refused int             // refusals so far; guarded by mu

	buffers *buffers // nil: nobody asks after dropped Buffers

	record *recording // what it holds is guarded by mu; nil: nobody wants one
}

type config struct {
	retry         time.Duration
	stacks        *bool
	log           func(Message)
	deterministic bool
	idle          idleConfig
	leaks         func(Leak)
	collect       bool
	record        *trace.Writer
}

// Option changes how a pool works, not where its blocks lie.
type Option func(*config)

// WithRetry sets how long an allocation waits for others to free memory; 0
// means not at all. The default is [DefaultRetry]; under the policies async and
// vmm, which in XLA do not wait, 0.
func WithRetry(d time.Duration) Option { return func(c *config) { c.retry = d } }

// WithStacks keeps the stack of every allocation, so that reports name who
// holds the memory. It costs about a microsecond for each. The default is to
// do so under the platform and address policies, whose driver calls cost a
// hundred times as much and which are for finding such things, and with
// [WithLeaks].
func WithStacks(on bool) Option { return func(c *config) { c.stacks = &on } }

// WithLog is told what the framework would log: refusals of the device, the
// back-off after them, garbage collection. f is called while the pool is
// locked and must not use it.
func WithLog(f func(Message)) Option { return func(c *config) { c.log = f } }

// WithDeterministic makes the same calls give the same blocks in every run: no
// choice depends on whether work on the device happens to be done. It costs
// waits, under the policies async and elastic; the others are so anyway.
func WithDeterministic() Option { return func(c *config) { c.deterministic = true } }

// NewAllocator makes the allocator that a policy asks for, without a lock,
// without waiting, without stacks and with nothing that orders its streams: for
// one goroutine that brings its own of these, such as a replay. Most programs
// want [Open]. log may be nil. A stream of the device is made for each number
// in requests; it ends with the device.
//
// ErrNoPolicy: the policy is not known.
func NewAllocator(dev device.GPU, p policy.Policy, log func(Message)) (alloc.Allocator, error) {
	made := map[uint32]device.Stream{0: 0}
	return newAllocator(dev, p, config{log: log}, func(n uint32) (device.Stream, error) {
		if h, ok := made[n]; ok {
			return h, nil
		}
		h, err := dev.StreamCreate()
		if err == nil {
			made[n] = h
		}
		return h, err
	})
}

func newAllocator(dev device.GPU, p policy.Policy, c config, streamOf alloc.StreamOf) (alloc.Allocator, error) {
	limited, err := asPolicySees(dev, p)
	if err != nil {
		return nil, fmt.Errorf("policy %s: the pool is a part of what is free: %w", p.Spec, err)
	}
	if err := p.Check(limited); err != nil {
		return nil, fmt.Errorf("policy %s: %w", p.Spec, err)
	}
	// XLA takes a negative fraction for a limit of nearly 2^64 bytes and backs
	// off; half of that does as well, and leaves room to count.
	limit := min(p.LimitBytes(limited), 1<<63)
	a, err := func() (alloc.Allocator, error) {
		switch p.Kind {
		case policy.Platform, policy.Address:
			return direct.New(capped(dev, p.GrantLimit), direct.Config{Name: p.Kind.String(), Limit: p.Limit}), nil
		case policy.BFC:
			backing := capped(dev, p.GrantLimit)
			if p.Managed {
				if !dev.Info().HasManaged {
					return nil, fmt.Errorf("%s has no unified memory: %w", dev.Info().Name, device.ErrNotSupported)
				}
				backing = unified{dev}
			}
			return made(bfc.New(backing, bfc.Config{
				Limit:         limit,
				Growth:        !p.Preallocate,
				FirstRegion:   p.FirstRegion,
				Spatial:       p.Spatial,
				GC:            p.GC,
				Coalesce:      p.Coalesce,
				Fragmentation: p.Fragmentation,
				Align:         p.Align,
				IgnoreAlign:   p.IgnoreAlign,
				Log:           c.log,
			}))
		case policy.Async:
			keep, first := p.AsyncBytes(limited)
			return made(async.New(dev, async.Config{
				Reserve: keep, Preallocate: first, Deterministic: c.deterministic, StreamOf: streamOf, Log: c.log,
			}))
		case policy.VMM:
			return made(vmm.New(dev, vmm.Config{Budget: limit, StreamOf: streamOf, Log: c.log}))
		case policy.Elastic:
			return made(elastic.New(dev, elastic.Config{
				Limit: limit, Reserve: p.Reserve, Eager: p.Eager, Deterministic: c.deterministic, StreamOf: streamOf, Log: c.log,
			}))
		}
		return nil, fmt.Errorf("the allocator %v is %w", p.Kind, ErrNoPolicy)
	}()
	if err != nil {
		return nil, fmt.Errorf("policy %s: %w", p.Spec, err)
	}
	return a, nil
}

// asPolicySees is what a policy must know of dev. What is free is asked of the
// driver only where the policy goes by it.
func asPolicySees(dev device.GPU, p policy.Policy) (policy.Device, error) {
	info := dev.Info()
	d := policy.Device{Total: info.Total, CCMajor: info.CCMajor}
	if !p.GoesByFree() {
		return d, nil
	}
	var err error
	d.Free, _, err = dev.MemInfo()
	return d, err
}

// capped is dev, or a device like it that grants no more than most bytes at
// once; 0 means as many as there are.
func capped(dev device.GPU, most uint64) device.Device {
	if most == 0 {
		return dev
	}
	return cappedGrants{dev, most}
}

type cappedGrants struct {
	device.GPU
	most uint64
}

func (c cappedGrants) Alloc(bytes uint64) (device.Range, error) {
	if bytes > c.most {
		return device.Range{}, &device.CallError{Call: "grant", Device: c.Info().Name, Bytes: bytes, Err: device.ErrOutOfMemory}
	}
	return c.GPU.Alloc(bytes)
}

// unified is a device whose plain grants are unified memory.
type unified struct{ device.GPU }

func (u unified) Alloc(bytes uint64) (device.Range, error) { return u.AllocManaged(bytes) }

// made keeps a nil pointer from becoming an allocator that is not nil.
func made[A alloc.Allocator](a A, err error) (alloc.Allocator, error) {
	if err != nil {
		return nil, err
	}
	return a, nil
}

// Open makes a pool on dev that does what p asks for. It takes no memory.
func Open(dev device.GPU, p policy.Policy, opts ...Option) (*Pool, error) {
	c := config{retry: DefaultRetry, idle: defaultIdle(dev.Info().Total)}
	if p.Kind == policy.Async || p.Kind == policy.VMM {
		c.retry = 0
	}
	for _, o := range opts {
		o(&c)
	}
	pool := &Pool{dev: dev, policy: p, retry: c.retry, name: p.Kind.String(), freed: make(chan struct{}), streams: []device.Stream{0}}
	a, err := newAllocator(dev, p, c, pool.streamOf)
	if err != nil {
		return nil, err
	}
	pool.a = a
	switch p.Kind {
	case policy.BFC, policy.VMM, policy.Elastic: // they hand out at once what was freed
		pool.order = order.New(dev, pool.streamOf)
	}
	if p.Kind == policy.Elastic {
		pool.idle = newIdle(pool, c.idle)
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
	return pool, nil
}

// Alloc hands out at least bytes of memory. 0 bytes give the zero Block, which
// may be freed like any other.
//
// When there is no room it waits for others to free some, as JAX does: at most
// as long as WithRetry says, no longer than ctx, and not at all if nothing is
// live that could be freed. An allocation that need not wait does not look at
// ctx. Errors: *OutOfMemoryError, ErrClosed, or the device's.
func (p *Pool) Alloc(ctx context.Context, bytes uint64) (Block, error) {
	return p.Request(ctx, Request{Bytes: bytes})
}

// Request is Alloc with everything that can be asked for. Its Site is set by
// the pool if that keeps stacks.
func (p *Pool) Request(ctx context.Context, r Request) (Block, error) {
	if p.stacks != nil {
		r.Site = p.stacks.caller()
	}
	p.mu.Lock()
	b, err := p.alloc(r)
	p.mu.Unlock()
	if err != nil {
		return p.wait(ctx, r, err)
	}
	return b, nil
}

// alloc asks the allocator, and orders the block's stream after those that used
// its memory before. Caller holds p.mu.
func (p *Pool) alloc(r Request) (Block, error) {
	b, err := p.a.Alloc(r)
	if err == nil && p.order != nil && !p.order.Idle(r.Stream) {
		b, err = p.ordered(b, r)
	}
	if err == nil && p.record != nil {
		p.record.alloc(p, b, r)
	}
	return b, err
}

func (p *Pool) ordered(b Block, r Request) (Block, error) {
	if err := p.order.Alloc(b, r.Stream); err != nil {
		return Block{}, errors.Join(err, p.a.Free(b))
	}
	return b, nil
}

// free is the counterpart. Caller holds p.mu.
func (p *Pool) free(b Block) error {
	if p.idle != nil {
		p.idle.used()
	}
	var err error
	if p.order != nil && p.order.Several() {
		err = p.order.Free(b, func() error { return p.a.Free(b) })
	} else {
		err = p.a.Free(b)
	}
	if err == nil && p.record != nil {
		p.record.free(b.Addr)
	}
	return err
}

// TryAlloc is Alloc for callers that have another way when there is no room: it
// does not wait, and a refusal is the bare ErrOutOfMemory, which costs nothing.
func (p *Pool) TryAlloc(bytes uint64) (Block, error) {
	r := Request{Bytes: bytes}
	if p.stacks != nil {
		r.Site = p.stacks.caller()
	}
	p.mu.Lock()
	b, err := p.alloc(r)
	if err != nil && errors.Is(err, ErrOutOfMemory) {
		p.record.refuse(p, r)
	}
	p.mu.Unlock()
	return b, err
}

// wait is what happens after a first refusal: try again whenever something was
// freed, until the time is over or there is nothing to wait for.
func (p *Pool) wait(ctx context.Context, r Request, err error) (Block, error) {
	if !errors.Is(err, ErrOutOfMemory) {
		return Block{}, err
	}
	start := time.Now()
	if p.buffers != nil && !errors.Is(err, alloc.ErrNever) {
		p.buffers.refused()
	}
	var timeout <-chan time.Time
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		// Between the first attempt and now another may have freed.
		b, err := p.alloc(r)
		if err == nil {
			return b, nil
		}
		if !errors.Is(err, ErrOutOfMemory) {
			return Block{}, err
		}
		if p.retry <= 0 || errors.Is(err, alloc.ErrNever) || p.a.Stats().BytesInUse == 0 {
			return Block{}, p.outOfMemory(r, err, time.Since(start), nil)
		}
		if timeout == nil {
			t := time.NewTimer(p.retry)
			defer t.Stop()
			timeout = t.C
		}
		freed := p.freed
		p.waiting++
		p.mu.Unlock()
		var last bool
		var stopped error
		select {
		case <-freed:
		case <-timeout:
			last = true
		case <-ctx.Done():
			last, stopped = true, ctx.Err()
		}
		if last && p.buffers != nil { // others have dropped some since
			p.buffers.refused()
		}
		p.mu.Lock()
		p.waiting--
		if last {
			if b, err = p.alloc(r); err == nil {
				return b, nil
			}
			if !errors.Is(err, ErrOutOfMemory) {
				return Block{}, err
			}
			return Block{}, p.outOfMemory(r, err, time.Since(start), stopped)
		}
	}
}

// wake lets everyone who waits try again. Caller holds p.mu.
func (p *Pool) wake() {
	if p.waiting > 0 {
		close(p.freed)
		p.freed = make(chan struct{})
	}
}

// Free takes a block back. Errors: ErrDoubleFree, ErrNotAllocated, ErrClosed,
// or the device's; then the block is as it was.
func (p *Pool) Free(b Block) error {
	p.mu.Lock()
	err := p.free(b)
	if p.waiting > 0 {
		p.wake()
	}
	p.mu.Unlock()
	return err
}

// FreeAddr takes back the block that starts at addr, for callers that keep
// only addresses. Free is faster. 0 does nothing.
func (p *Pool) FreeAddr(addr uint64) error {
	p.mu.Lock()
	var err error
	if p.order != nil && p.order.Several() {
		var b Block
		if b, err = p.a.BlockAt(addr); err == nil {
			err = p.free(b)
		}
	} else {
		if p.idle != nil {
			p.idle.used()
		}
		if err = p.a.FreeAddr(addr); err == nil && p.record != nil {
			p.record.free(addr)
		}
	}
	if p.waiting > 0 {
		p.wake()
	}
	p.mu.Unlock()
	return err
}

// Stream is the number to put into a [Request] for a stream of the device. The
// device's zero stream is number 0, which needs no asking.
//
// Memory freed in one stream is at once reusable there. A block that takes it
// over in another stream is safe as well: that stream is made to wait for an
// event recorded at the free. The host does not wait.
func (p *Pool) Stream(s device.Stream) uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := slices.Index(p.streams, s)
	if n < 0 {
		n = len(p.streams)
		p.streams = append(p.streams, s)
	}
	return uint32(n)
}

// streamOf is the counterpart. Caller holds p.mu.
func (p *Pool) streamOf(number uint32) (device.Stream, error) {
	if int64(number) >= int64(len(p.streams)) {
		return 0, fmt.Errorf("%w: stream number %d; Pool.Stream gives numbers", ErrBadRequest, number)
	}
	return p.streams[number], nil
}

// recorder is an allocator that orders streams itself, or that takes pages away.
type recorder interface {
	Record(b Block, stream uint32) error
}

// RecordStream says that a live block is used in another stream than the one it
// was asked for in. When the block is freed, its memory is not used by others
// before the work that is in that stream then is done.
func (p *Pool) RecordStream(b Block, stream uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	if r, ok := p.a.(recorder); ok {
		if err := r.Record(b, stream); err != nil {
			return err
		}
	}
	if p.order != nil {
		return p.order.Use(b, stream)
	}
	return nil
}

// AllocBatch serves requests in order under one lock, without waiting, and
// puts the blocks into out, which is at least as long. It stops at the first
// that is refused: n blocks were handed out, and stay so.
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
		if out[i], err = p.alloc(r); err != nil {
			if errors.Is(err, ErrOutOfMemory) {
				err = p.outOfMemory(r, err, 0, nil)
			}
			return i, err
		}
	}
	return len(reqs), nil
}

// FreeBatch takes blocks back under one lock. It goes on after a failure; the
// failures are joined.
func (p *Pool) FreeBatch(blocks []Block) error {
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

// Stats are JAX's memory statistics of this pool. After Close they say what
// was at the end.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.a.Stats()
}

// Trim gives memory that no block needs back to the device, as far as the
// policy can (see its allocator), and says how many bytes. JAX's pool never
// gives any back.
func (p *Pool) Trim() (released uint64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.a.Trim(0)
}

// Walk visits every piece of the pool in address order until yield says no.
// The pool is locked meanwhile; yield must not use it.
func (p *Pool) Walk(yield func(alloc.Chunk) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.a.Walk(yield)
}

// Policy is what the pool was opened with.
func (p *Pool) Policy() policy.Policy { return p.policy }

// Close gives everything back to the device, live blocks included, and lets
// those who wait go with ErrClosed. A second Close says ErrClosed, and so does
// the Free of a Buffer that is still held.
func (p *Pool) Close() error {
	if p.buffers != nil {
		p.buffers.close()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	p.closed = true
	if p.idle != nil {
		p.idle.stop()
	}
	err := p.a.Close()
	if p.order != nil {
		err = errors.Join(err, p.order.Close())
	}
	p.wake()
	return errors.Join(err, p.record.close())
}
