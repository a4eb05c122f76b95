package pytorch

// Private pools, which PyTorch keeps for CUDA graphs and for torch.cuda.MemPool. A
// private pool has separate segments, and keeps them until nothing uses the pool.
// See pytorch.go for an overview.

import (
	"cmp"
	"fmt"
	"slices"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
)

// arena is a small and a large pool: the default ones, or those of a private pool.
type arena struct {
	id       uint64
	users    int    // BeginPool less ReleasePool
	freeable bool   // nothing uses it: its segments go back with the others
	ended    bool   // it has no segment either; the place is used again
	made     uint64 // in the order of their making
	segments int
}

// route is a private pool that serves requests now.
type route struct {
	arena int
	uses  func(stream uint32) bool // nil means every stream
}

// poolBound is where the index of a small or private pool changes from exact sizes to
// classes, in bytes. It costs a little host memory for each list.
const poolBound = 2 << 20

// addArena makes an arena and returns its number.
func (a *Allocator) addArena(id uint64) int {
	a.serial++
	for i := range a.arenas {
		if a.arenas[i].ended {
			a.arenas[i] = arena{id: id, made: a.serial}
			return i
		}
	}
	a.arenas = append(a.arenas, arena{id: id, made: a.serial})
	a.pools = append(a.pools, pool{}, pool{small: true})
	return len(a.arenas) - 1
}

// arenaOf is the arena of a list.
func (a *Allocator) arenaOf(l int32) *arena { return &a.arenas[a.lists[l].pool/2] }

// arena is the number of the arena that serves a stream now.
func (a *Allocator) arena(stream uint32) int {
	for _, c := range a.routes {
		if c.uses == nil || c.uses(stream) {
			return c.arena
		}
	}
	return 0
}

// listOf is the list of a stream in a pool, which is made.
func (a *Allocator) listOf(p int, stream uint32) int32 {
	lists := a.pools[p].lists
	i, ok := slices.BinarySearchFunc(lists, stream, func(l int32, stream uint32) int {
		return cmp.Compare(a.lists[l].stream, stream)
	})
	if ok {
		return lists[i]
	}
	bound := uint64(poolBound)
	if p == 0 {
		bound = a.info.Total
	}
	f := freeList{stream: stream, pool: int32(p)}
	if a.cfg.Tie == ByAddress {
		f.mapped = chunks.NewIndex(&a.store, bound)
	} else {
		f.mapped = chunks.NewTieIndex(&a.store, bound, a.before)
	}
	a.lists = append(a.lists, f)
	a.pools[p].lists = slices.Insert(lists, i, int32(len(a.lists)-1))
	return int32(len(a.lists) - 1)
}

// findArena is the number of the private pool with that id, -1 if there is none.
func (a *Allocator) findArena(id uint64) int {
	return slices.IndexFunc(a.arenas[1:], func(x arena) bool { return !x.ended && x.id == id }) + 1
}

// BeginPool has a private pool serve the requests of the streams that uses accepts, or
// of all with a nil uses, until EndPool (the beginning of a capture, or of a with
// torch.cuda.use_mem_pool). The pool is made if there is none of that id, and is used
// once more. With Config.PoolCaptures this is a capture until EndPool, see BeginCapture.
// Error: alloc.ErrClosed.
func (a *Allocator) BeginPool(id uint64, uses func(stream uint32) bool) error {
	if a.closed {
		return alloc.ErrClosed
	}
	i := a.findArena(id)
	if i == 0 {
		i = a.addArena(id)
	}
	a.arenas[i].users++
	a.arenas[i].freeable = false
	a.routes = append(a.routes, route{i, uses})
	if a.cfg.PoolCaptures {
		a.capturing++
	}
	a.near.valid = false
	return nil
}

// EndPool ends what BeginPool began. The pool's blocks stay, and so do its segments.
// Errors: alloc.ErrClosed; alloc.ErrBadRequest if that pool serves no requests.
func (a *Allocator) EndPool(id uint64) error {
	if a.closed {
		return alloc.ErrClosed
	}
	at := slices.IndexFunc(a.routes, func(c route) bool { return a.arenas[c.arena].id == id })
	if at < 0 {
		return fmt.Errorf("%w: end of private pool %d: it serves no requests", alloc.ErrBadRequest, id)
	}
	a.routes = slices.Delete(a.routes, at, at+1)
	if a.cfg.PoolCaptures {
		a.capturing--
	}
	a.near.valid = false
	return nil
}

// BeginCapture says that a CUDA graph is being captured, until EndCapture
// (markCaptureBegin). No event may be looked at then: what is freed and was used in
// several streams waits for the end, and a request that finds no memory is refused
// without a release of the rest. With Config.PoolCaptures it does nothing, for BeginPool
// does it. Error: alloc.ErrClosed.
func (a *Allocator) BeginCapture() error {
	if a.closed {
		return alloc.ErrClosed
	}
	if !a.cfg.PoolCaptures {
		a.capturing++
	}
	return nil
}

// EndCapture ends what BeginCapture began. Errors: alloc.ErrClosed; alloc.ErrBadRequest
// if there is no capture.
func (a *Allocator) EndCapture() error {
	switch {
	case a.closed:
		return alloc.ErrClosed
	case a.cfg.PoolCaptures:
		return nil
	case a.capturing == 0:
		return fmt.Errorf("%w: end of a capture: there is none", alloc.ErrBadRequest)
	}
	a.capturing--
	return nil
}

// ReleasePool says that one user of a private pool less is there, such as a graph that
// was destroyed. After the last one its free segments go back when everything does.
// Errors: alloc.ErrClosed; alloc.ErrBadRequest for a pool that nothing uses.
func (a *Allocator) ReleasePool(id uint64) error {
	if a.closed {
		return alloc.ErrClosed
	}
	i := a.findArena(id)
	if i == 0 || a.arenas[i].users == 0 {
		return fmt.Errorf("%w: release of private pool %d: nothing uses it", alloc.ErrBadRequest, id)
	}
	x := &a.arenas[i]
	x.users--
	x.freeable = x.users == 0
	return nil
}

// freeable are the numbers of the private pools that nothing uses, the oldest first.
func (a *Allocator) freeable() []int {
	var list []int
	for i, x := range a.arenas {
		if x.freeable {
			list = append(list, i)
		}
	}
	slices.SortFunc(list, func(i, j int) int { return cmp.Compare(a.arenas[i].made, a.arenas[j].made) })
	return list
}

// endArena ends a private pool that nothing uses and that has no segment.
func (a *Allocator) endArena(i int) {
	if x := &a.arenas[i]; x.segments == 0 {
		*x = arena{ended: true}
	}
}
