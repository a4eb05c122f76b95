package replay

// What the recorded program did with its framework's pool beside allocating and freeing: it
// emptied the cache, and had private pools serve its requests. A policy of PyTorch has a
// pool that this is done with; in the place of another framework's it has no meaning. Where
// several processes share the GPU each has its pool, from its begin to its end.

import (
	"cmp"
	"slices"

	"gpumem/alloc/build"
	"gpumem/policy"
	"gpumem/record/internal/tape"
)

// act is one such thing.
type act struct {
	of    *part
	after uint64 // how many events
	what  doing
	pool  uint64 // private; 0 is none
}

// doing is what is done, in the order in which it is done between two events of one process.
type doing uint8

const (
	ended    doing = iota // a private pool has a user less
	emptied               // the cache is emptied
	served                // a private pool serves the requests from here on, or the default ones
	begun                 // the process begins, see part.begin
	finished              // the process ends
)

// acts are those to come.
type acts []act

// acts returns what the policy's pools are to do.
func (p *Pass) acts() acts {
	if p.only == nil {
		return p.joinedActs()
	}
	var list acts
	a := p.only
	if !p.hasActs() {
		return nil
	}
	for _, n := range p.Pool.Trims() {
		list = append(list, act{of: a, after: n, what: emptied})
	}
	if _, ok := a.allocator.(build.Restorer); ok {
		for _, s := range p.Pool.Privates() {
			what := served
			if s.Ended {
				what = ended
			}
			list = append(list, act{a, s.Event, what, uint64(s.Pool)})
		}
		for _, s := range p.Pool.Segments() {
			if s.Private != 0 && p.recorded != nil && p.recorded.restored {
				a.used[uint64(s.Private)] = true
			}
		}
	}
	slices.SortStableFunc(list, func(a, b act) int { return cmp.Or(cmp.Compare(a.after, b.after), cmp.Compare(a.what, b.what)) })
	return list
}

// hasActs reports whether the policy's pool is one that is emptied as PyTorch's.
func (p *Pass) hasActs() bool {
	return p.Policy.Kind == policy.Caching || p.Policy.Kind == policy.Async && p.Policy.Name == torchPolicy
}

// joinedActs returns those of a joined recording, whose order is that of their times.
func (p *Pass) joinedActs() (list acts) {
	what := map[tape.Doing]doing{tape.Begins: begun, tape.Trims: emptied, tape.Serves: served, tape.Releases: ended, tape.Ends: finished}
	for _, x := range tape.Acts(p.Pool) {
		if x.What == tape.Begins || x.What == tape.Ends || p.hasActs() {
			list = append(list, act{p.parts[x.Part], x.Event, what[x.What], uint64(x.Pool)})
		}
	}
	return list
}

// before reports whether something is to be done before event n, counted from 1.
func (a acts) before(n uint64) bool { return len(a) > 0 && a[0].after < n }

// act does what is to be done before event n, which may be behind the last one.
func (p *Pass) act(list *acts, n uint64, observed bool) error {
	for list.before(n) {
		next := (*list)[0]
		*list = (*list)[1:]
		if err := p.do(next, n, observed); err != nil {
			return err
		}
	}
	return nil
}

func (p *Pass) do(next act, n uint64, observed bool) error {
	a := next.of
	if next.what == begun {
		return p.begin(a, n)
	}
	if a.allocator == nil { // it could not begin
		return nil
	}
	switch next.what {
	case finished:
		a.finish()
		p.Held = p.Stats().PoolBytes
		return nil
	case ended:
		return a.end(next.pool)
	case served:
		return a.serve(next.pool)
	}
	now := a.now
	err := a.serve(0) // nothing is emptied during a capture
	if err == nil {
		err = p.trim(a, observed)
	}
	if err == nil {
		err = a.serve(now)
	}
	return err
}

// serve has a private pool serve the requests, 0 for the default ones.
func (a *part) serve(pool uint64) error {
	r, ok := a.allocator.(build.Restorer)
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
func (a *part) end(pool uint64) error {
	r, ok := a.allocator.(build.Restorer)
	if !ok || !a.used[pool] {
		return nil
	}
	if a.now == pool {
		if err := a.serve(0); err != nil {
			return err
		}
	}
	delete(a.used, pool)
	return r.ReleasePool(pool)
}
