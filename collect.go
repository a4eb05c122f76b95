package gpumem

import (
	"errors"
	"runtime"
	"sync"
	"weak"

	"gpumem/alloc"
)

// Leaked buffers, unreachable and not freed: how they are found, reported and freed.
//
// A table has a weak pointer to each Buffer. It is swept after each collection of
// the Go runtime: what weak pointers no longer lead to is reported, freed, or
// both. That alone would come too late, for the runtime collects when the Go heap
// has doubled, and a GPU full of buffers is some kilobytes of it. So a collecting
// pool counts the bytes of its Buffers and asks for a collection itself, by the
// rule of GOGC=100: when they would be more than twice what was alive after the
// last one; and when a request is refused.
//
// The pool learns of the runtime's own collections by a cleanup of an unreachable
// object, which is made again after each. There is one while the table is not empty; it
// keeps a pool alive, but no longer than its Buffers are. Reading a weak
// pointer while the runtime marks keeps its Buffer for that collection, so that one
// may be found a collection late. In a collection that the pool runs itself no other
// sweep interferes.
//
// Under WithCollect, with 100 MiB of Buffers alive after the last collection, the goal is
// 200 MiB. The program drops 60 of them and allocates 100 more. The next AllocBuffer would
// pass 200 and runs a collection first, which frees the 60.
//
// Locks: collecting before the pool's or the table's; never these two together.
// Nothing is locked during the callback of WithLeaks.

// collectFloor is the least goal in bytes, or a 64th of a device with less than 1 GiB: a
// collection for every megabyte would cost more than the memory is worth. The heap's own
// floor is 4 MiB (GOGC in package runtime's documentation).
const collectFloor = 16 << 20

// Leak is a Buffer that was not freed and has become unreachable.
type Leak struct {
	Block Block
	Bytes uint64 // as requested
	Stack string // of the request, innermost first, a line for each frame; "" if stacks are not kept
	Err   error  // why it could not be freed; under WithCollect that is tried again after the next collection; nil if it was freed, or without WithCollect
}

// WithLeaks calls f once for each [Buffer] that is found unreachable and not freed.
// That happens after a collection of the Go runtime, so some time later (the
// runtime collects every two minutes at least); call [Pool.Collect] to find all
// now. Buffers that exist at Close are not reported. Stacks are kept unless
// WithStacks(false) is given.
//
// f is called by a separate goroutine, or by one that is in AllocBuffer, Alloc,
// Request or Collect, and possibly by several at once. No lock is held, and f may
// use the pool. The memory stays allocated unless the pool has WithCollect.
func WithLeaks(f func(Leak)) Option { return func(c *config) { c.leaks = f } }

// WithCollect frees each [Buffer] that is found unreachable, so that a program
// may drop its Buffers as it does Go memory. The pool asks for a collection
// (runtime.GC) when its Buffers would pass twice what was alive after the last
// such, as GOGC=100 does for the heap, but not below 16 MiB or a 64th of a
// smaller device; and before Alloc, Request and the like give up or wait for room
// (TryAlloc and AllocBatch do not). So Buffers take no more than two live sets,
// where a request larger than a live set counts as a part of it, and so does a dropped
// Buffer that the runtime takes for alive because of what lies on a preempted stack,
// which lasts until the next collection.
//
// A collection delays the caller for as long as marking the Go heap takes: 0.2 ms
// for a small program and 0.3 ms for each MB of objects with pointers, on two idle cores,
// and ten times that on busy ones (docs/performance.md). A program that frees all its
// Buffers by hand runs no collection but the first few.
func WithCollect() Option { return func(c *config) { c.collect = true } }

// Collect runs a collection of the Go runtime, reports and frees the Buffers that it
// finds unreachable, as WithLeaks and WithCollect demand, and returns how many it found.
// Those that the runtime's own collections found before do not count, but are freed
// when Collect returns. Without these options it does nothing.
func (p *Pool) Collect() (found int) {
	if p.buffers == nil {
		return 0
	}
	return p.buffers.collect(func() bool { return true })
}

// buffers is the table of a pool's Buffers.
type buffers struct {
	pool  *Pool
	leaks func(Leak) // nil unless WithLeaks is set
	free  bool       // what is unreachable is freed
	floor uint64     // least value of goal

	collecting sync.Mutex // held through a collection and the frees after it

	mu     sync.Mutex // guards the rest
	table  []entry
	vacant []int   // entries of it that have no Buffer
	live   int     // entries that have one
	bytes  uint64  // of blocks in the table, and of those that a sweep is freeing
	coming uint64  // bytes of requests under way
	goal   uint64  // when bytes and coming would pass it a collection comes first
	cycle  uint32  // collections that this pool began
	armed  bool    // the runtime will tell of its next collection
	owed   []entry // blocks of dropped Buffers that the device did not free, to be tried again; guarded by collecting
	again  bool    // there are owed blocks
	closed bool
}

// entry is a Buffer; without one it is zero.
type entry struct {
	buffer   weak.Pointer[Buffer]
	block    Block
	bytes    uint64 // as asked for
	site     alloc.Site
	cycle    uint32 // in which it was made
	reported bool   // as a leak
}

// newBuffers returns nil unless WithLeaks or WithCollect is set.
func newBuffers(p *Pool, c config) *buffers {
	if c.leaks == nil && !c.collect {
		return nil
	}
	floor := min(collectFloor, p.dev.Info().Total/64)
	return &buffers{pool: p, leaks: c.leaks, free: c.collect, floor: floor, goal: floor}
}

// asked keeps the count from wrapping for requests that cannot be.
func asked(bytes uint64) uint64 { return min(bytes, 1<<48) }

// over reports whether a request would pass the goal. Caller holds t.mu.
func (t *buffers) over(bytes uint64) bool {
	return t.free && t.live > 0 && t.bytes+t.coming+asked(bytes) > t.goal
}

// reserve counts a request before it is made, and collects first if it is time.
func (t *buffers) reserve(bytes uint64) {
	t.mu.Lock()
	for ran := false; !ran && t.over(bytes); { // more than once only if others take the room
		t.mu.Unlock()
		t.collect(func() bool { ran = t.over(bytes); return ran })
		t.mu.Lock()
	}
	t.coming += asked(bytes)
	t.mu.Unlock()
}

// reserved ends a request: b came of it, or nothing if it is nil.
func (t *buffers) reserved(r Request, b *Buffer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.coming -= asked(r.Bytes)
	if b == nil || b.block.IsZero() || t.closed {
		return
	}
	if n := len(t.vacant); n > 0 {
		b.entry = t.vacant[n-1]
		t.vacant = t.vacant[:n-1]
	} else {
		b.entry = len(t.table)
		t.table = append(t.table, entry{})
	}
	t.table[b.entry] = entry{buffer: weak.Make(b), block: b.block, bytes: r.Bytes, site: r.Site, cycle: t.cycle}
	t.bytes += b.block.Size
	// More than the goal, after a collection: a live set that large there was. To
	// free the block and ask for the like of it is no reason to collect again.
	t.goal = max(t.goal, t.bytes)
	t.live++
	if !t.armed {
		t.arm()
	}
}

// remove takes the entry of b, which was freed, out of the table. A finalizer of the
// user's may free b after a sweep has taken the entry, which is another Buffer's by now:
// that is left alone.
func (t *buffers) remove(b *Buffer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b.entry < len(t.table) && t.table[b.entry].block == b.block && !b.block.IsZero() {
		t.vacate(b.entry)
		t.bytes -= b.block.Size
	}
}

// vacate empties an entry. Caller holds t.mu.
func (t *buffers) vacate(i int) {
	t.table[i] = entry{}
	t.vacant = append(t.vacant, i)
	t.live--
}

// refused collects before a request that does not fit waits or fails.
func (t *buffers) refused() {
	t.mu.Lock()
	before, some := t.cycle, t.free && (t.live > 0 || t.again)
	t.mu.Unlock()
	if some {
		// A collection that another began meanwhile has found all there is.
		t.collect(func() bool { return t.cycle == before })
	}
}

// collect runs a collection, sweeps, and says how many Buffers it found: 0 if
// when its turn comes need says that it is not needed any more. need is called
// with t.mu held.
func (t *buffers) collect(need func() bool) (found int) {
	t.collecting.Lock()
	t.mu.Lock()
	if !need() {
		t.mu.Unlock()
		t.collecting.Unlock()
		return 0
	}
	t.cycle++
	t.mu.Unlock()
	runtime.GC()
	dead, alive := t.sweep()
	t.mu.Lock()
	t.goal = max(2*alive, t.floor)
	t.mu.Unlock()
	t.collecting.Unlock()
	t.tell(dead)
	return len(dead)
}

// sweep takes the Buffers that are unreachable out of the table and frees them,
// if that is wanted. Alive are the bytes of those that are not, and that were
// there when the last collection of ours began. Caller holds t.collecting.
func (t *buffers) sweep() (leaks []Leak, alive uint64) {
	dead := t.owed
	t.owed = nil
	t.mu.Lock()
	for i := range t.table {
		e := &t.table[i]
		switch {
		case e.block.IsZero():
		case e.buffer.Value() == nil:
			dead = append(dead, *e)
			t.vacate(i)
		case e.cycle != t.cycle:
			alive += e.block.Size
		}
	}
	t.mu.Unlock()
	if len(dead) == 0 {
		return nil, alive
	}

	errs := make([]error, len(dead))
	if t.free {
		t.pool.quiesce()
		t.pool.mu.Lock()
		for i := range dead {
			errs[i] = t.pool.free(dead[i].block)
		}
		t.pool.wake()
		t.pool.mu.Unlock()
	}
	var bytes uint64
	for i, e := range dead {
		if err := errs[i]; err != nil && !errors.Is(err, ErrDoubleFree) && !errors.Is(err, ErrNotAllocated) && !errors.Is(err, ErrClosed) {
			kept := e
			kept.reported = true
			t.owed = append(t.owed, kept)
		} else {
			bytes += e.block.Size
		}
		if e.reported || errors.Is(errs[i], ErrDoubleFree) { // by a finalizer
			continue
		}
		leaks = append(leaks, Leak{Block: e.block, Bytes: e.bytes, Err: errs[i]})
		if s := t.pool.stacks; s != nil {
			leaks[len(leaks)-1].Stack = s.text(e.site)
		}
	}
	t.mu.Lock()
	t.bytes -= bytes
	t.again = len(t.owed) > 0
	t.mu.Unlock()
	return leaks, alive
}

// tell reports what was found. Caller holds no lock.
func (t *buffers) tell(leaks []Leak) {
	if t.leaks != nil {
		for _, l := range leaks {
			t.leaks(l)
		}
	}
}

// sentinel is an object without references. A pointer in it keeps the runtime from
// putting it into one small block with others, which might live (its tiny allocator).
type sentinel struct{ _ *sentinel }

// arm has the runtime tell of its next collection. Caller holds t.mu.
func (t *buffers) arm() {
	t.armed = true
	// A cleanup holds up all others of the program, so it only starts a goroutine.
	runtime.AddCleanup(new(sentinel), func(t *buffers) { go t.collected() }, t)
}

// collected follows a collection of the runtime's. It does not touch the goal,
// for what was dropped since that collection would count as alive.
func (t *buffers) collected() {
	t.mu.Lock()
	t.armed = false
	if t.live > 0 || t.again {
		t.arm()
	}
	t.mu.Unlock()
	t.collecting.Lock()
	dead, _ := t.sweep()
	t.collecting.Unlock()
	t.tell(dead)
}

// close forgets all Buffers: their memory is the device's again.
func (t *buffers) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	t.table, t.vacant, t.live = nil, nil, 0
}
