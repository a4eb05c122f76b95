package replay

// What the recorded program did with its framework's pool beside allocating and freeing: it
// emptied the cache, and had private pools serve its requests. A policy of PyTorch has a
// pool that this is done with; in the place of another framework's it has no meaning.

import (
	"cmp"
	"slices"

	"gpumem/alloc/build"
	"gpumem/policy"
)

// act is one such thing.
type act struct {
	after uint64 // how many events
	what  doing
	pool  uint64 // private; 0 is none
}

// doing is what is done, in the order in which it is done between two events.
type doing uint8

const (
	ended   doing = iota // a private pool has a user less
	emptied              // the cache is emptied
	served               // a private pool serves the requests from here on, or the default ones
)

// acts are those to come, and which private pool serves now.
type acts struct {
	list []act
	now  uint64
	used map[uint64]bool // private pools that have a user
}

// acts returns what the policy's pool is to do.
func (p *Pass) acts() *acts {
	list := &acts{used: map[uint64]bool{}}
	if p.Policy.Kind != policy.Caching && (p.Policy.Kind != policy.Async || p.Policy.Name != torchPolicy) {
		return list
	}
	for _, n := range p.Pool.Trims() {
		list.list = append(list.list, act{after: n, what: emptied})
	}
	if _, ok := p.Allocator.(build.Restorer); ok {
		for _, s := range p.Pool.Privates() {
			what := served
			if s.Ended {
				what = ended
			}
			list.list = append(list.list, act{s.Event, what, uint64(s.Pool)})
		}
		for _, s := range p.Pool.Segments() {
			if s.Private != 0 && p.recorded != nil && p.recorded.restored {
				list.used[uint64(s.Private)] = true
			}
		}
	}
	slices.SortStableFunc(list.list, func(a, b act) int { return cmp.Or(cmp.Compare(a.after, b.after), cmp.Compare(a.what, b.what)) })
	return list
}

// before reports whether something is to be done before event n, counted from 1.
func (a *acts) before(n uint64) bool { return len(a.list) > 0 && a.list[0].after < n }

// act does what is to be done before event n.
func (p *Pass) act(a *acts, n uint64, observed bool) error {
	for a.before(n) {
		next := a.list[0]
		a.list = a.list[1:]
		var err error
		switch next.what {
		case ended:
			err = p.end(a, next.pool)
		case emptied:
			now := a.now
			if err = p.serve(a, 0); err == nil { // nothing is emptied during a capture
				err = p.trim(observed)
			}
			if err == nil {
				err = p.serve(a, now)
			}
		case served:
			err = p.serve(a, next.pool)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// serve has a private pool serve the requests, 0 for the default ones.
func (p *Pass) serve(a *acts, pool uint64) error {
	r, ok := p.Allocator.(build.Restorer)
	if !ok || pool == a.now {
		return nil
	}
	if a.now != 0 {
		if err := r.EndPool(a.now); err != nil {
			return err
		}
	}
	if a.now = pool; pool == 0 {
		return nil
	}
	if err := r.BeginPool(pool, nil); err != nil {
		return err
	}
	if a.used[pool] { // it has its user
		return r.ReleasePool(pool)
	}
	a.used[pool] = true
	return nil
}

// end ends a private pool: its memory goes back with the rest.
func (p *Pass) end(a *acts, pool uint64) error {
	r, ok := p.Allocator.(build.Restorer)
	if !ok || !a.used[pool] {
		return nil
	}
	if a.now == pool {
		if err := p.serve(a, 0); err != nil {
			return err
		}
	}
	delete(a.used, pool)
	return r.ReleasePool(pool)
}
