package bfc

import "gpumem/alloc/internal/chunks"

// The timing counter (TensorFlow's experimental timestamped_allocator): memory
// freed by the host may still be used by the GPU. With a counter, a freed chunk
// bears the next count and goes into the index at once, but is not joined with
// its neighbours until the safe frontier, the count up to which the GPU is
// known to be done, passes it. A request may ask for memory freed at or before
// a count.

// stamp is a freed chunk that waits, by its number. Numbers are reused, so what
// is found under it later may be another chunk; the original takes that one
// then, and so do we. The address tells, within one round, a chunk from one
// that was joined into it.
type stamp struct {
	h    chunks.H
	addr uint64
}

// SetSafeFrontier tells the pool that the GPU is done with everything freed
// before count. It never decreases.
func (a *Allocator) SetSafeFrontier(count uint64) {
	a.frontier = max(a.frontier, count)
}

// age is the count at which a free chunk was freed, 0 when that is safe.
func (a *Allocator) age(h chunks.H) uint64 {
	if int(h) < len(a.ages) {
		return a.ages[h]
	}
	return 0
}

func (a *Allocator) setAge(h chunks.H, count uint64) {
	for int(h) >= len(a.ages) {
		a.ages = append(a.ages, 0)
	}
	a.ages[h] = count
}

// stamp puts a freed chunk back alone, with the next count.
func (a *Allocator) stamp(h chunks.H, c *chunks.Chunk) {
	a.setAge(h, a.cfg.Counter())
	a.stamped = append(a.stamped, stamp{h, c.Addr})
	a.putFree(h, c)
}

// joinSafe is join in a pool with a timing counter: chunks that wait for the
// safe frontier are left apart unless force is set.
func (a *Allocator) joinSafe(h chunks.H, c *chunks.Chunk, force bool) (chunks.H, *chunks.Chunk) {
	if a.age(h) > 0 && !force {
		return h, c
	}
	if n := c.Next; n != 0 {
		if d := a.store.At(n); d.State == chunks.Free && (force || a.age(n) == 0) {
			a.takeFree(n, d)
			a.setAge(h, max(a.age(h), a.age(n)))
			a.merge(h, c, d)
			a.store.Drop(n)
		}
	}
	if p := c.Prev; p != 0 {
		if d := a.store.At(p); d.State == chunks.Free && (force || a.age(p) == 0) {
			a.takeFree(p, d)
			a.setAge(p, max(a.age(p), a.age(h)))
			a.merge(p, d, c)
			a.store.Drop(h)
			return p, d
		}
	}
	return h, c
}

// mergeStamped joins what the frontier has passed with its neighbours. With
// need > 0 it also joins what is not safe yet, until a chunk of need bytes has
// come about, and reports whether one has.
func (a *Allocator) mergeStamped(need uint64) bool {
	var ready []stamp
	kept := a.stamped[:0]
	for _, s := range a.stamped {
		c := a.store.At(s.h)
		if c.State != chunks.Free {
			continue // handed out again, or joined with another
		}
		if a.age(s.h) < a.frontier {
			a.setAge(s.h, 0)
		}
		if a.age(s.h) == 0 || need > 0 {
			ready = append(ready, stamp{s.h, c.Addr})
		} else {
			kept = append(kept, s)
		}
	}
	a.stamped = kept
	satisfied := false
	for _, s := range ready {
		c := a.store.At(s.h)
		if c.State != chunks.Free || c.Addr != s.addr {
			continue // joined with one before it in this list
		}
		if satisfied {
			a.stamped = append(a.stamped, s)
			continue
		}
		a.takeFree(s.h, c)
		h, c := a.joinSafe(s.h, c, need > 0)
		a.putFree(h, c)
		if need > 0 {
			if h != s.h && a.age(h) > 0 {
				a.stamped = append(a.stamped, stamp{h, c.Addr})
			}
			satisfied = c.Size >= need
		}
	}
	return satisfied
}
