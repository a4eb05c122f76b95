// Package owned finds objects that own memory outside of the Go heap, and that became
// unreachable without having released it.
//
// A [Table] has a weak pointer to each owner. It is swept after each collection of the Go
// runtime: what weak pointers no longer lead to is reported, freed, or both. That alone
// would come too late, for the runtime collects when the Go heap has doubled, and a GPU full
// of buffers is some kilobytes of it. So a table that frees counts the bytes of its owners
// and runs a collection itself, by the rule of GOGC=100: when they would be more than twice
// what was alive after the last one, and when a request is refused.
//
// The table learns of the runtime's own collections by a cleanup of an unreachable object,
// which is made again after each. There is one while the table is not empty. It keeps the
// table's memory alive, but no longer than the owners are. Reading a weak pointer while the
// runtime marks keeps its owner for that collection, so that one may be found a collection
// late. In a collection that the table runs itself no other sweep interferes.
//
// With 100 MiB of owners alive after the last collection, the goal is 200 MiB. The program
// drops 60 of them and allocates 100 more. The next Reserve would pass 200 and runs a
// collection first, which frees the 60.
package owned

import (
	"runtime"
	"sync"
	"weak"
)

// Config is what a table does with the owners that it finds. Either function may be nil.
type Config[B comparable] struct {
	// Free frees what unreachable owners own, and sets Err, Again and Gone of each. It is
	// called with no lock of the table but the one that orders collections.
	Free func([]Found[B])
	// Report is called for each unreachable owner, once, with no lock held.
	Report func(Found[B])
	// Floor is the least goal, in bytes.
	Floor uint64
}

// Holding is what an owner owns: a block of type B, and what the table has to know of it.
type Holding[B comparable] struct {
	Block B
	Size  uint64 // bytes that the block takes
	Bytes uint64 // as requested
	Site  uint32 // of the request
}

// Found is an owner that is unreachable, by what it owns.
type Found[B comparable] struct {
	Holding[B]

	Err   error // why it could not be freed
	Again bool  // it was not freed: try after the next collection
	Gone  bool  // it had been freed before, by a finalizer: nothing to report

	reported bool
}

// Handle is what an owner embeds, by value, so that a table can find it. An owner must not be
// copied.
type Handle struct{ place int } // in the table

// Table is a table of owners, each of which owns a block of type B. The zero block is none. It is safe for concurrent use.
//
// Locks: collecting before mu, and before those of Config.Free. Nothing is locked during
// Config.Report.
type Table[B comparable] struct {
	cfg Config[B]

	collecting sync.Mutex // held through a collection and the frees after it

	mu     sync.Mutex // guards the rest
	table  []entry[B]
	vacant []int      // entries of it that have no owner
	live   int        // entries that have one
	bytes  uint64     // of blocks in the table, and of those that a sweep is freeing
	coming uint64     // bytes of requests under way
	goal   uint64     // when bytes and coming would pass it a collection comes first
	cycle  uint32     // collections that this table began
	armed  bool       // the runtime will tell of its next collection
	owed   []Found[B] // blocks to be tried again; guarded by collecting
	again  bool       // there are owed blocks
	closed bool
}

// entry is an owner; without one it is zero.
type entry[B comparable] struct {
	owner weak.Pointer[Handle]
	owns  Holding[B]
	cycle uint32 // in which it was made
}

func (e *entry[B]) vacant() bool { return e.owns.Block == *new(B) }

// New returns an empty table.
func New[B comparable](cfg Config[B]) *Table[B] {
	return &Table[B]{cfg: cfg, goal: cfg.Floor}
}

// counted keeps the count from wrapping for requests that cannot be.
func counted(bytes uint64) uint64 { return min(bytes, 1<<48) }

// passesGoal reports whether a request would pass the goal. Caller holds t.mu.
func (t *Table[B]) passesGoal(bytes uint64) bool {
	return t.cfg.Free != nil && t.live > 0 && t.bytes+t.coming+counted(bytes) > t.goal
}

// Reserve counts a request before it is made, and collects first if it is time.
func (t *Table[B]) Reserve(bytes uint64) {
	t.mu.Lock()
	for ran := false; !ran && t.passesGoal(bytes); { // more than once only if others take the room
		t.mu.Unlock()
		t.collect(func() bool { ran = t.passesGoal(bytes); return ran })
		t.mu.Lock()
	}
	t.coming += counted(bytes)
	t.mu.Unlock()
}

// Reserved ends a request that Reserve began: the owner that has h embedded owns the block. If
// h is nil, or the block is zero, nothing came of the request.
func (t *Table[B]) Reserved(h *Handle, b Holding[B]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.coming -= counted(b.Bytes)
	if h == nil || b.Block == *new(B) || t.closed {
		return
	}
	if n := len(t.vacant); n > 0 {
		h.place = t.vacant[n-1]
		t.vacant = t.vacant[:n-1]
	} else {
		h.place = len(t.table)
		t.table = append(t.table, entry[B]{})
	}
	t.table[h.place] = entry[B]{owner: weak.Make(h), owns: b, cycle: t.cycle}
	t.bytes += b.Size
	// More than the goal, after a collection: a live set that large there was. To free the
	// block and ask for the like of it is no reason to collect again.
	t.goal = max(t.goal, t.bytes)
	t.live++
	if !t.armed {
		t.arm()
	}
}

// Remove takes the owner of a block, which was freed, out of the table. A finalizer of the
// user's may free a block after a sweep has taken the entry, which is another owner's by
// now: that is left alone.
func (t *Table[B]) Remove(h *Handle, block B) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h.place >= len(t.table) {
		return
	}
	if e := &t.table[h.place]; !e.vacant() && e.owns.Block == block {
		t.bytes -= e.owns.Size
		t.vacate(h.place)
	}
}

// vacate empties an entry. Caller holds t.mu.
func (t *Table[B]) vacate(place int) {
	t.table[place] = entry[B]{}
	t.vacant = append(t.vacant, place)
	t.live--
}

// Refused collects before a request that does not fit waits or fails.
func (t *Table[B]) Refused() {
	t.mu.Lock()
	before, some := t.cycle, t.cfg.Free != nil && (t.live > 0 || t.again)
	t.mu.Unlock()
	if some {
		// A collection that another began meanwhile has found all there is.
		t.collect(func() bool { return t.cycle == before })
	}
}

// Collect runs a collection, sweeps, and returns how many owners it found.
func (t *Table[B]) Collect() (found int) {
	return t.collect(func() bool { return true })
}

// collect is Collect unless need reports, when its turn comes, that it is not needed any
// more. need is called with t.mu held.
func (t *Table[B]) collect(need func() bool) (found int) {
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
	t.goal = max(2*alive, t.cfg.Floor)
	t.mu.Unlock()
	t.collecting.Unlock()
	t.report(dead)
	return len(dead)
}

// sweep takes the owners that are unreachable out of the table and frees what they own, if
// that is wanted. It returns those that were not reported yet. alive are the bytes of owners
// that are reachable, and that were there when the last collection of the table's began.
// Caller holds t.collecting.
func (t *Table[B]) sweep() (news []Found[B], alive uint64) {
	dead := t.owed
	t.owed = nil
	t.mu.Lock()
	for place := range t.table {
		e := &t.table[place]
		switch {
		case e.vacant():
		case e.owner.Value() == nil:
			dead = append(dead, Found[B]{Holding: e.owns})
			t.vacate(place)
		case e.cycle != t.cycle:
			alive += e.owns.Size
		}
	}
	t.mu.Unlock()
	if len(dead) == 0 {
		return nil, alive
	}

	if t.cfg.Free != nil {
		t.cfg.Free(dead)
	}
	var freed uint64
	for _, f := range dead {
		if f.Again {
			t.owed = append(t.owed, Found[B]{Holding: f.Holding, reported: true})
		} else {
			freed += f.Size
		}
		if !f.reported && !f.Gone {
			news = append(news, f)
		}
	}
	t.mu.Lock()
	t.bytes -= freed
	t.again = len(t.owed) > 0
	t.mu.Unlock()
	return news, alive
}

// report reports what was found. Caller holds no lock.
func (t *Table[B]) report(found []Found[B]) {
	if t.cfg.Report != nil {
		for _, f := range found {
			t.cfg.Report(f)
		}
	}
}

// sentinel is an object without references. A pointer in it keeps the runtime from putting
// it into one small block with others, which might live (its tiny allocator).
type sentinel struct{ _ *sentinel }

// arm has the runtime tell of its next collection. Caller holds t.mu.
func (t *Table[B]) arm() {
	t.armed = true
	// A cleanup holds up all others of the program, so it only starts a goroutine.
	runtime.AddCleanup(new(sentinel), func(t *Table[B]) { go t.collected() }, t)
}

// collected follows a collection of the runtime's. It does not touch the goal, for what was
// dropped since that collection would count as alive.
func (t *Table[B]) collected() {
	t.mu.Lock()
	t.armed = false
	if t.live > 0 || t.again {
		t.arm()
	}
	t.mu.Unlock()
	t.collecting.Lock()
	dead, _ := t.sweep()
	t.collecting.Unlock()
	t.report(dead)
}

// Close forgets all owners: their memory is released without them.
func (t *Table[B]) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	t.table, t.vacant, t.live = nil, nil, 0
}
