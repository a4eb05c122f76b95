// Releases under way: memory that is about to be free.

package shim

import (
	"sync"
	"sync/atomic"
	"time"
)

// releases are the releases of one GPU's memory that other threads of this process are in
// the middle of: a free, a wait after which what was pending is free, a trim, the end of a
// context. Their memory is counted until the driver has it back, so a request that is
// refused meanwhile waits for them and is tried again.
type releases struct {
	now     atomic.Int64 // under way
	ended   atomic.Uint64
	waiting atomic.Bool // next is there

	mu   sync.Mutex    // guards next
	next chan struct{} // is closed when one ends; nil while nobody waits
}

// The bounds of what a refused request waits for releases: attempts, and the time of all
// waits together. The driver's cuMemFree waits for work of the GPU, and a program may ask for
// memory in a handler of a signal that interrupts it.
const (
	attempts    = 100
	releaseWait = 10 * time.Second
)

// begin is called before a release, and end after it.
func (r *releases) begin() { r.now.Add(1) }

func (r *releases) end() {
	r.ended.Add(1)
	r.now.Add(-1)
	if r.waiting.Load() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.next != nil {
			close(r.next)
			r.next = nil
			r.waiting.Store(false)
		}
	}
}

// count returns how many have ended.
func (r *releases) count() uint64 { return r.ended.Load() }

// since reports whether one has ended since count returned seen. It waits for the next one if
// some are under way, until the deadline.
func (r *releases) since(seen uint64, deadline time.Time) bool {
	if r.ended.Load() != seen {
		return true
	}
	r.mu.Lock()
	if r.next == nil {
		r.next = make(chan struct{})
		r.waiting.Store(true)
	}
	next := r.next
	r.mu.Unlock()
	// One that has ended before it could see that somebody waits is counted by now.
	if none := r.now.Load() == 0; none || r.ended.Load() != seen {
		return r.ended.Load() != seen
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-next:
		return true
	case <-timer.C:
		return false
	}
}

// again calls try until it is not refused, or is while nothing was being released. own are
// the releases that try has ended itself. The caller holds no lock that a release needs.
func (r *releases) again(try func() (refused bool, own uint64)) {
	deadline := time.Now().Add(releaseWait)
	for range attempts {
		seen := r.count()
		refused, own := try()
		if !refused || !r.since(seen+own, deadline) {
			return
		}
	}
}

// Releasing is called before the program's call that makes the driver release memory of which
// it is not known how much, Released after what is left was counted. See [Charges.Remove] for
// memory that has a name.
func (c *Charges) Releasing() { c.under.begin() }

// Released ends what Releasing began.
func (c *Charges) Released() { c.under.end() }

// Releases returns how many releases have ended.
func (c *Charges) Releases() uint64 { return c.under.count() }

// ReleasedSince reports whether one has ended since Releases returned seen, and waits for those
// that are under way.
func (c *Charges) ReleasedSince(seen uint64) bool {
	return c.under.since(seen, time.Now().Add(releaseWait))
}
