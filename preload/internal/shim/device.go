// The device beneath a pool: the driver, within a lease, with a stream that means
// "all work of the program".

package shim

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"gpumem/alloc/streams"
	"gpumem/device"
	"gpumem/policy"
)

var _ streams.Quiet = (*gpu)(nil)

// Driver is a GPU as a program uses it that does not know of the pool. Package
// device/internal/cuda's Device is one.
type Driver interface {
	device.GPU
	// Context is the driver's handle of the context whose memory this is.
	Context() uint64
	// Adopt lets a stream that the program made be named in calls, until Disown,
	// which the program's destroying it follows.
	Adopt(handle uint64) device.Stream
	Disown(s device.Stream) error
	// SynchronizeContext waits for all work of the program, also in streams that
	// were never adopted.
	SynchronizeContext() error
	// Capturing reports whether a graph is being captured in a stream of the program's,
	// by its handle. An error stands for yes.
	Capturing(handle uint64) (bool, error)
	// MemSetAccessFrom lets the GPU with the number peer use a mapped range.
	MemSetAccessFrom(peer int, addr, bytes uint64) error
}

// Part is what memory is for.
type Part uint8

// The parts of what a process holds.
const (
	Held    Part = iota // by the pool
	Charged             // by the program, from the driver
	Outside             // by the context and the libraries
	parts               // how many there are
)

// Account counts the memory that this process holds, within the limit of its lease.
// Package node/ledger's Member is one for all processes of a lease. It is safe for
// use by several goroutines.
type Account interface {
	// Take counts bytes more, or returns an error that wraps device.ErrOutOfMemory
	// if that would pass the limit.
	Take(p Part, bytes uint64) error
	// Count counts bytes more that the driver has granted already, also beyond the limit.
	Count(p Part, bytes uint64)
	// Give counts bytes less.
	Give(p Part, bytes uint64)
	// Uncertain tells others that what this process takes beside its pool is not known to
	// the byte, or that it has several contexts.
	Uncertain()
	// Beside is what this process holds beside its pool, in bytes: Charged and Outside.
	Beside() uint64
	// Reachable is the most that this process may ever hold, in bytes: when the memory of all others has
	// left, what stays of them is held still.
	Reachable() uint64
	// Limit is what all processes may hold together, and left what they do not
	// hold of it. A limit of 2^64-1 is none.
	Limit() (limit, left uint64)
	// Publish shows others what the pool does.
	Publish(Figures)
	// Refused tells others that the program was refused a request for bytes, after all
	// that could be released was.
	Refused(bytes uint64)
	device.Sharing
}

// gpu is the device that the pool of this package is built on. It differs from the
// driver's in four ways.
//
// What it takes is counted in the account first, so that a refusal of the lease is
// one of the device, which every policy knows how to meet.
//
// Its total is the lease's limit where that is less, or what the driver grants where that is more.
//
// An event is never recorded in a stream in which a graph is being captured: it would
// become a part of the graph, and to ask for it would spoil the capture. See late.
//
// And its stream 0 is no stream, but all work of the program. Plain memory
// (cuMemAlloc) belongs to no stream: the program may use it anywhere, unseen.
// So a mark in stream 0 has passed when the whole context was waited for
// since, and to make stream 0 wait for something is to wait for it here and now.
// No allocator queries a stream, so StreamQuery stays the driver's.
type gpu struct {
	Driver
	info    device.Info
	total   uint64 // that the program sees, in bytes
	account Account
	ordered bool // plain memory is freed in stream order; else what is freed is out of use, and a mark in stream 0 has passed already

	started   atomic.Uint64 // waits for the context, begun so far
	completed atomic.Uint64 // the last of them that has ended well, and all before it

	charged  *atomic.Uint64 // what is charged, with blocks that the program opened and a grant closes
	requests atomic.Int64   // under way; the last one releases what is left of ahead
	expected atomic.Uint64  // bytes of a request under way
	ahead    atomic.Uint64  // bytes that are counted in the account, and not taken from the driver yet
	denied   atomic.Uint64  // how often the driver refused pages that the account has granted
	pooled   sync.Mutex     // guards counted, and is held while the driver's own pool grows
	counted  uint64         // bytes that are counted for the driver's own pool
	own      uint64         // that pool's handle, for the policy async; else 0

	joins atomic.Uint64 // how often something was ordered in join
	past  atomic.Uint64 // how many of them were waited for
	join  device.Stream // the pool's stream; 0 until it is needed. Guarded by mu

	mu      sync.Mutex              // guards what follows; no driver call is made with it held
	marks   map[device.Event]uint64 // events recorded in stream 0, and how many waits were begun then
	late    map[device.Event]late   // events that are to be recorded when a capture has ended
	sizes   map[device.Handle]uint64
	grants  map[uint64]uint64 // bytes by address
	blocks  *blocks           // that the grants lie in: the charges', too
	mapped  map[uint64]uint64 // bytes by address
	adopted map[device.Stream]bool
	ranges  map[uint64]uint64 // reserved addresses and grants: where blocks may lie
	low     uint64            // the lowest address that was in ranges
	high    uint64            // the address behind the last; 0 while there was none
	peers   []int             // other GPUs that may use the memory
	changed func(low, high uint64)

	pages *pages // the memory of a pool that may leave; nil of one that may not
}

func newGPU(d Driver, c Config) *gpu {
	g := &gpu{
		Driver: d, info: d.Info(), account: c.Account, ordered: c.Ordered, changed: c.Addresses,
		marks: map[device.Event]uint64{}, late: map[device.Event]late{}, adopted: map[device.Stream]bool{},
		sizes: map[device.Handle]uint64{}, grants: map[uint64]uint64{}, mapped: map[uint64]uint64{}, ranges: map[uint64]uint64{},
	}
	g.blocks, g.charged = c.Charges.blocks, &c.Charges.sum
	g.blocks.atLeast(max(g.info.Page, g.info.Granularity))
	limit, _ := c.Account.Limit()
	g.total = min(g.info.Total, limit)
	g.info.Total = g.total + min(c.Beyond, limit-g.total)
	if c.Room != nil && c.Policy.Kind != policy.Async {
		g.pages = newPages(g, &c)
	}
	return g
}

// Info is the driver's, with no more than the lease as the total, and no less than it may grant.
func (g *gpu) Info() device.Info { return g.info }

// MemInfo is what the driver has free and the lease leaves of it.
func (g *gpu) MemInfo() (free, total uint64, err error) {
	free, _, err = g.Driver.MemInfo()
	_, left := g.account.Limit()
	return min(free, left), g.total, err
}

// Want and Wanted pass through the lease's account.
func (g *gpu) Want(bytes uint64) error        { return g.account.Want(bytes) }
func (g *gpu) Wanted() (number, bytes uint64) { return g.account.Wanted() }

// begin and end enclose a request of n bytes. What a pool takes from the driver for
// it, page by page, is counted in the account at once: a lease's is a file that all its
// processes lock by turns. While a request is under way others may see too much.
func (g *gpu) begin(bytes uint64) {
	g.expected.Store(bytes)
	g.requests.Add(1)
}

func (g *gpu) end() {
	if g.requests.Add(-1) > 0 {
		return
	}
	if n := g.ahead.Swap(0); n > 0 {
		g.account.Give(Held, n)
	}
}

// take counts n bytes, and with the first piece of a request all that it may need.
func (g *gpu) take(call string, n uint64) error {
	for {
		ahead := g.ahead.Load()
		if ahead < n {
			break
		}
		if g.ahead.CompareAndSwap(ahead, ahead-n) {
			return nil
		}
	}
	if g.requests.Load() > 0 {
		all := (g.expected.Swap(0) + n - 1) / n * n
		if all > n && g.account.Take(Held, all) == nil {
			g.ahead.Add(all - n)
			return nil
		}
	}
	return g.refused(call, n, g.account.Take(Held, n)) // the rest may be there
}

func (g *gpu) refused(call string, n uint64, err error) error {
	if err == nil {
		return nil
	}
	if !errors.Is(err, device.ErrOutOfMemory) {
		err = fmt.Errorf("%w: %w", device.ErrOutOfMemory, err)
	}
	return &device.CallError{Call: call, Device: g.info.Name, Bytes: n, Err: err}
}

// span adds a range in which blocks may lie, or with 0 bytes removes it, and gives the
// front the lowest and highest address of all that there ever were. Caller holds mu.
func (g *gpu) span(addr, bytes uint64) {
	if bytes == 0 {
		delete(g.ranges, addr)
		return
	}
	g.ranges[addr] = bytes
	if g.high != 0 && addr >= g.low && addr+bytes <= g.high {
		return
	}
	if g.high == 0 {
		g.low = addr
	}
	g.low, g.high = min(g.low, addr), max(g.high, addr+bytes)
	if g.changed != nil {
		g.changed(g.low, g.high)
	}
}

// contains reports whether an address lies where blocks may lie.
func (g *gpu) contains(addr uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for a, n := range g.ranges {
		if addr-a < n {
			return true
		}
	}
	return false
}

// Alloc takes plain memory of the driver, for the policies that are built on it. What
// counts is what the driver makes of the request, see blocks.
func (g *gpu) Alloc(bytes uint64) (device.Range, error) {
	if g.pages != nil {
		return g.pages.alloc(bytes)
	}
	most := g.blocks.most(bytes)
	if err := g.take("cuMemAlloc", most); err != nil {
		return device.Range{}, err
	}
	r, err := g.Driver.Alloc(bytes)
	if err != nil {
		g.account.Give(Held, most)
		return r, err
	}
	n := max(bytes, r.Bytes)
	g.mu.Lock()
	defer g.mu.Unlock()
	settle(g.account, Held, most, g.enter(r.Addr, n))
	return r, nil
}

// enter adds a grant and returns the bytes that the driver has taken for it. Caller holds mu.
func (g *gpu) enter(addr, bytes uint64) uint64 {
	g.grants[addr] = bytes
	g.span(addr, bytes)
	return g.blocks.enter(addr, bytes, Held)
}

// Free releases what Alloc took.
func (g *gpu) Free(addr uint64) error {
	if g.pages != nil {
		return g.pages.free(addr)
	}
	var left closed
	g.mu.Lock()
	bytes, ok := g.grants[addr]
	if ok { // before the driver can give the address to someone else
		delete(g.grants, addr)
		g.span(addr, 0)
		left = g.blocks.leave(addr, bytes, Held)
	}
	g.mu.Unlock()
	err := g.Driver.Free(addr)
	if err != nil && ok {
		g.mu.Lock()
		defer g.mu.Unlock()
		settle(g.account, Held, left[Held], g.enter(addr, bytes))
		left[Held] = 0
	}
	g.charged.Add(-left[Charged])
	left.give(g.account)
	return err
}

// MemCreate takes physical memory.
func (g *gpu) MemCreate(bytes uint64) (device.Handle, error) {
	if g.pages != nil {
		return g.pages.create(bytes)
	}
	if err := g.take("cuMemCreate", bytes); err != nil {
		return 0, err
	}
	h, err := g.Driver.MemCreate(bytes)
	if err != nil {
		g.account.Give(Held, bytes)
		return h, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sizes[h] = bytes
	return h, nil
}

// MemRelease releases it.
func (g *gpu) MemRelease(h device.Handle) error {
	if g.pages != nil {
		return g.pages.release(h)
	}
	g.mu.Lock()
	bytes := g.sizes[h]
	delete(g.sizes, h)
	g.mu.Unlock()
	if err := g.Driver.MemRelease(h); err != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.sizes[h] = bytes
		return err
	}
	g.account.Give(Held, bytes)
	return nil
}

// AllocAsync takes memory of the driver's own pool, for the policy async. What counts is
// what that pool reserves: where it certainly has to grow, what it may grow by is counted
// before, and the truth when it has grown, since only the driver knows by how much. Where the lease has no
// room for the rest the block is released.
func (g *gpu) AllocAsync(pool device.Pool, bytes uint64, s device.Stream) (device.Range, error) {
	g.pooled.Lock()
	defer g.pooled.Unlock()
	reserved, err := g.Driver.PoolGetAttribute(pool, device.PoolReservedCurrent)
	if err != nil {
		return device.Range{}, err
	}
	used, err := g.Driver.PoolGetAttribute(pool, device.PoolUsedCurrent)
	if err != nil {
		return device.Range{}, err
	}
	most := reserved
	if used+min(bytes, g.info.Total) > reserved { // it certainly grows
		most += newBlocks(poolGrowth).most(min(bytes, g.info.Total))
	}
	if err := g.count(most, bytes); err != nil {
		return device.Range{}, err
	}
	if s == 0 { // ready for use in any stream, and so waited for: see joined
		if s, err = g.joining(); err != nil {
			return device.Range{}, err
		}
		defer g.joins.Add(1)
	}
	r, err := g.Driver.AllocAsync(pool, bytes, s)
	reserved = g.counted // if the driver does not say
	if after, e := g.Driver.PoolGetAttribute(pool, device.PoolReservedCurrent); e == nil {
		reserved = after
	}
	if e := g.count(reserved, bytes); e != nil && err == nil {
		err = e
		// The driver releases memory of the pool when the free has passed.
		if undo := errors.Join(g.Driver.FreeAsync(r.Addr, s), g.Driver.StreamSynchronize(s), g.Driver.PoolTrim(pool, 0)); undo != nil {
			err = errors.Join(err, undo)
		}
		if after, e := g.Driver.PoolGetAttribute(pool, device.PoolReservedCurrent); e == nil {
			g.lower(after)
		}
		return device.Range{}, err
	}
	if err == nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.span(r.Addr, r.Bytes)
	}
	return r, err
}

// FreeAsync releases memory to the driver's own pool, which keeps it. What is freed in
// stream 0 is out of use.
func (g *gpu) FreeAsync(addr uint64, s device.Stream) error {
	if s == 0 {
		var err error
		if s, err = g.joining(); err != nil {
			return err
		}
	}
	g.mu.Lock()
	bytes := g.ranges[addr]
	g.span(addr, 0) // before the driver can give the address to someone else
	g.mu.Unlock()
	err := g.Driver.FreeAsync(addr, s)
	if err != nil && bytes > 0 {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.span(addr, bytes)
	}
	return err
}

// PoolGetAttribute asks the driver. What its pool has released since, at a wait of the
// program's, is counted no longer.
func (g *gpu) PoolGetAttribute(pool device.Pool, a device.PoolAttribute) (uint64, error) {
	g.pooled.Lock()
	defer g.pooled.Unlock()
	n, err := g.Driver.PoolGetAttribute(pool, a)
	if err == nil && a == device.PoolReservedCurrent {
		g.lower(n)
	}
	return n, err
}

// count makes bytes the count of the driver's own pool, for one request. Caller
// holds pooled.
func (g *gpu) count(bytes, request uint64) error {
	if bytes > g.counted {
		if err := g.account.Take(Held, bytes-g.counted); err != nil {
			return g.refused("cuMemAllocAsync", request, err)
		}
		g.counted = bytes
	}
	g.lower(bytes)
	return nil
}

// adopt counts what that pool has reserved now, of which bytes are counted as charged already:
// the driver has served the program from it. Where the driver does not say, they stay counted.
func (g *gpu) adopt(pool device.Pool, bytes uint64) error {
	g.pooled.Lock()
	defer g.pooled.Unlock()
	if bytes > 0 {
		g.account.Count(Held, bytes)
		g.account.Give(Charged, bytes)
		g.counted += bytes
	}
	n, err := g.Driver.PoolGetAttribute(pool, device.PoolReservedCurrent)
	if err != nil {
		return nil
	}
	if n > g.counted {
		if err = g.account.Take(Held, n-g.counted); err != nil {
			g.account.Count(Held, n-g.counted)
		}
		g.counted = n
	}
	g.lower(n)
	return err
}

// uncount ends the count of the driver's own pool and returns it. The caller gives it back.
func (g *gpu) uncount() uint64 {
	g.pooled.Lock()
	defer g.pooled.Unlock()
	n := g.counted
	g.counted = 0
	return n
}

// lower makes bytes the count of the driver's own pool if that is less. Caller holds
// pooled.
func (g *gpu) lower(bytes uint64) {
	if bytes < g.counted {
		g.account.Give(Held, g.counted-bytes)
		g.counted = bytes
	}
}

// AddressReserve reserves addresses for blocks.
func (g *gpu) AddressReserve(bytes, align uint64) (uint64, error) {
	addr, err := g.Driver.AddressReserve(bytes, align)
	if err == nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.span(addr, bytes)
	}
	return addr, err
}

// AddressFree ends a reservation.
func (g *gpu) AddressFree(addr, bytes uint64) error {
	err := g.Driver.AddressFree(addr, bytes)
	if err == nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.span(addr, 0)
	}
	return err
}

// MemMap maps memory, and notes where: a peer that is enabled later gets access to it.
func (g *gpu) MemMap(addr, bytes uint64, h device.Handle) error {
	if g.pages != nil {
		return g.pages.bind(addr, bytes, h)
	}
	err := g.Driver.MemMap(addr, bytes, h)
	if err == nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.mapped[addr] = bytes
	}
	return err
}

// MemSetAccess gives access to this GPU and to its peers.
func (g *gpu) MemSetAccess(addr, bytes uint64) error {
	if g.pages != nil {
		return g.pages.access(addr, bytes)
	}
	return g.open(addr, bytes)
}

func (g *gpu) open(addr, bytes uint64) error {
	err := g.Driver.MemSetAccess(addr, bytes)
	g.mu.Lock()
	peers := g.peers
	g.mu.Unlock()
	for _, p := range peers {
		if err == nil {
			err = g.Driver.MemSetAccessFrom(p, addr, bytes)
		}
	}
	return err
}

// MemUnmap unmaps whole mappings.
func (g *gpu) MemUnmap(addr, bytes uint64) error {
	if g.pages != nil {
		return g.pages.unbind(addr, bytes)
	}
	err := g.Driver.MemUnmap(addr, bytes)
	if err == nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		for at := addr; at < addr+bytes; {
			n := g.mapped[at]
			delete(g.mapped, at)
			at += max(n, 1<<16) // no page is smaller
		}
	}
	return err
}

// addPeer lets another GPU use the memory, what is mapped now included.
func (g *gpu) addPeer(peer int) error {
	g.mu.Lock()
	for _, p := range g.peers {
		if p == peer {
			g.mu.Unlock()
			return nil
		}
	}
	g.peers = append(g.peers[:len(g.peers):len(g.peers)], peer)
	var now []device.Range
	for a, n := range g.mapped {
		now = append(now, device.Range{Addr: a, Bytes: n})
	}
	g.mu.Unlock()
	var errs []error
	for _, r := range now {
		errs = append(errs, g.Driver.MemSetAccessFrom(peer, r.Addr, r.Bytes))
	}
	return errors.Join(errs...)
}

// Quiet reports whether memory of stream 0 is out of use when it is freed, see
// [streams.Quiet].
func (g *gpu) Quiet() bool { return !g.ordered }

// waits starts a wait for the context: the number of it, for waited.
func (g *gpu) waits() uint64 { return g.started.Add(1) }

// waited is a wait that has ended well. All work that was queued before its start is done.
func (g *gpu) waited(number uint64) { advance(&g.completed, number) }

// wait waits for all work of the program. While a graph is being captured the driver has no
// such wait, and to ask for it would spoil the capture: of streams that the pool knows, and
// of those that wait for the legacy stream, this is noticed.
func (g *gpu) wait() error {
	streams := []device.Stream{legacyStream}
	g.mu.Lock()
	for s := range g.adopted {
		streams = append(streams, s)
	}
	g.mu.Unlock()
	for _, s := range streams {
		err := g.spoils("cuCtxSynchronize", s)
		destroyed := err != nil && s != legacyStream && !g.isAdopted(s) // by another thread, meanwhile
		if err != nil && !destroyed {
			return err
		}
	}
	n := g.waits()
	err := g.Driver.SynchronizeContext()
	if err == nil {
		g.waited(n)
	}
	return err
}

// mark returns when an event was recorded in stream 0: how many waits had begun.
func (g *gpu) mark(e device.Event) (at uint64, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at, ok = g.marks[e]
	return at, ok
}

// passed reports whether the mark at has passed.
func (g *gpu) passed(at uint64) bool { return !g.ordered || g.completed.Load() > at }

// late is an event that was to be recorded in a stream in which a graph is being captured.
// It has passed when the context was waited for since. Else it is recorded when the
// capture has ended, later than it was asked for, which is safe: no work of the program
// runs in the stream meanwhile.
type late struct {
	stream device.Stream
	at     uint64 // how many waits were begun then
	gone   bool   // the stream is about to be destroyed
}

// spoils returns the error of a call that a capture in a stream would contain, or that would
// end it: ErrCapturing. Without one it is nil, and what the driver says of a context that is
// lost.
func (g *gpu) spoils(call string, s device.Stream) error {
	captured, err := g.Driver.Capturing(uint64(s))
	if captured {
		return &device.CallError{Call: call, Device: g.info.Name, Err: ErrCapturing}
	}
	return err
}

// EventRecord marks a stream; a mark in stream 0 is only noted.
func (g *gpu) EventRecord(e device.Event, s device.Stream) error {
	captured := false
	if s != 0 {
		err := g.spoils("cuEventRecord", s)
		if captured = errors.Is(err, ErrCapturing); err != nil && !captured {
			return err
		}
	}
	g.mu.Lock()
	delete(g.marks, e)
	delete(g.late, e)
	switch {
	case s == 0:
		g.marks[e] = g.started.Load()
	case captured:
		g.late[e] = late{stream: s, at: g.started.Load()}
	}
	g.mu.Unlock()
	if s == 0 || captured {
		return nil
	}
	return g.Driver.EventRecord(e, s)
}

// settle records an event that is late if it can be now. passed is true if nothing is to
// be waited for; the error is that of a capture which is under way.
func (g *gpu) settle(call string, e device.Event) (passed bool, err error) {
	g.mu.Lock()
	l, ok := g.late[e]
	g.mu.Unlock()
	switch {
	case !ok:
		return false, nil
	case g.completed.Load() > l.at:
		return true, nil
	case l.gone:
		return true, g.wait() // nothing else waits for a stream that has ended
	}
	if err := g.spoils(call, l.stream); err != nil {
		return false, err
	}
	if err := g.Driver.EventRecord(e, l.stream); err != nil {
		return false, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.late, e)
	return false, nil
}

// legacyStream is the driver's handle of the stream that other streams wait for.
const legacyStream device.Stream = 1

// Adopt lets a stream of the program's be named in calls.
func (g *gpu) Adopt(handle uint64) device.Stream {
	s := g.Driver.Adopt(handle)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.adopted[s] = true
	return s
}

// isAdopted reports whether a stream is the program's and not about to be destroyed.
func (g *gpu) isAdopted(s device.Stream) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.adopted[s]
}

// Disown forgets a stream that the program is about to destroy.
func (g *gpu) Disown(s device.Stream) error {
	g.mu.Lock()
	delete(g.adopted, s)
	for e, l := range g.late {
		if l.stream == s {
			l.gone = true
			g.late[e] = l
		}
	}
	g.mu.Unlock()
	return g.Driver.Disown(s)
}

// EventQuery reports whether the work before a mark is done.
func (g *gpu) EventQuery(e device.Event) (bool, error) {
	if at, ok := g.mark(e); ok {
		return g.passed(at), nil
	}
	g.mu.Lock()
	l, isLate := g.late[e]
	g.mu.Unlock()
	if isLate && l.gone {
		return g.completed.Load() > l.at, nil
	}
	passed, err := g.settle("cuEventQuery", e)
	if passed || err != nil {
		return passed, err
	}
	return g.Driver.EventQuery(e)
}

// EventSynchronize waits for a mark.
func (g *gpu) EventSynchronize(e device.Event) error {
	if at, ok := g.mark(e); ok {
		if g.passed(at) {
			return nil
		}
		return g.wait()
	}
	if passed, err := g.settle("cuEventSynchronize", e); passed || err != nil {
		return err
	}
	return g.Driver.EventSynchronize(e)
}

// StreamWaitEvent orders streams.
//
// A mark in stream 0 that has not passed is waited for in place: that is memory of a
// program with [Config].Ordered which uses stream-ordered memory as well, so after the
// first wait none is left.
func (g *gpu) StreamWaitEvent(s device.Stream, e device.Event) error {
	if _, ok := g.mark(e); ok {
		return g.EventSynchronize(e)
	}
	if passed, err := g.settle("cuStreamWaitEvent", e); passed || err != nil {
		return err
	}
	if s != 0 {
		if err := g.spoils("cuStreamWaitEvent", s); err != nil { // the wait would become a part of the graph
			return err
		}
		return g.Driver.StreamWaitEvent(s, e)
	}
	if done, err := g.Driver.EventQuery(e); done || err != nil {
		return err
	}
	join, err := g.joining()
	if err != nil {
		return err
	}
	if err := g.Driver.StreamWaitEvent(join, e); err != nil {
		return err
	}
	g.joins.Add(1)
	return nil
}

// joining returns the pool's stream. The caller holds the lock of the pool beneath, so no
// other thread creates it now.
func (g *gpu) joining() (device.Stream, error) {
	g.mu.Lock()
	join := g.join
	g.mu.Unlock()
	if join != 0 {
		return join, nil
	}
	join, err := g.Driver.StreamCreate()
	if err == nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.join = join
	}
	return join, err
}

// joined waits for what stream 0 was made to wait for, by any thread. The caller holds no
// lock.
func (g *gpu) joined() error {
	n := g.joins.Load()
	if g.past.Load() >= n {
		return nil
	}
	g.mu.Lock()
	join := g.join
	g.mu.Unlock()
	if err := g.Driver.StreamSynchronize(join); err != nil {
		return err
	}
	advance(&g.past, n)
	return nil
}

// StreamSynchronize waits for a stream's work.
func (g *gpu) StreamSynchronize(s device.Stream) error {
	if s == 0 {
		return g.wait()
	}
	if err := g.spoils("cuStreamSynchronize", s); err != nil {
		return err
	}
	return g.Driver.StreamSynchronize(s)
}

// Synchronize waits for all work of the program.
func (g *gpu) Synchronize() error { return g.wait() }
