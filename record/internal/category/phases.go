package category

// The passes of a run: from which event to which the program goes forward, backward, updates.

import (
	"slices"
	"sort"
)

// A phase is a pass: events from first to last of one role. Between phases the program does
// other things.
type phase struct {
	role
	first, last uint64
	// Of a backward pass that is known by lifetimes: it begins between these events.
	low, high uint64
}

// phases are the passes of a run, in order.
type phases []phase

// A moment is an event with what the program does at it.
type moment struct {
	event uint64
	role
}

// passes joins moments, which are in order, into phases. In training, what the program does
// between two modules belongs to the forward pass, and what it does beside the engine's
// threads does not end a backward pass. Without any backward pass each call of a model is
// a phase.
func passes(moments []moment) phases {
	has := func(r role) bool { return slices.ContainsFunc(moments, func(m moment) bool { return m.role == r }) }
	trains, modules := has(backward), has(forward)
	var list phases
	apart := false
	for _, m := range moments {
		r := m.role
		switch r {
		case again:
			r = backward
		case plain:
			if trains && !modules { // a model without modules goes forward in the program's own code
				r = forward
				break
			}
			apart = !trains
			continue
		case unsaid, gather, bucket, copied:
			apart = !trains
			continue
		}
		if n := len(list); n > 0 && list[n-1].role == r && !apart {
			list[n-1].last = m.event
			continue
		}
		list, apart = append(list, phase{role: r, first: m.event, last: m.event}), false
	}
	return list
}

// firstOf returns the first phase of a role, nil if there is none.
func (p phases) firstOf(r role) *phase {
	for i := range p {
		if p[i].role == r {
			return &p[i]
		}
	}
	return nil
}

// byRole returns the phases of each role, in order.
func (p phases) byRole() map[role][]*phase {
	of := map[role][]*phase{}
	for i := range p {
		of[p[i].role] = append(of[p[i].role], &p[i])
	}
	return of
}

// at returns the phase that an event is in or, between phases, the last one before; nil
// before the first.
func (p phases) at(event uint64) *phase {
	i := sort.Search(len(p), func(i int) bool { return p[i].first > event })
	if i == 0 {
		return nil
	}
	return &p[i-1]
}

// momentsOf returns the moments of a run, by what the program does when a block is born.
func (s *span) momentsOf(born func(b *block) role) []moment {
	var list []moment
	for i := range s.blocks {
		if b := &s.blocks[i]; !b.seed {
			list = append(list, moment{b.born, born(b)})
		}
	}
	return list
}
