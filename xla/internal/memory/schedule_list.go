package memory

// XLA's list scheduler.
//
// Of the instructions that are ready it runs the one that frees most bytes, less those that
// it defines. In
//
//	A = u8[10] custom-call()
//	B = u8[20] custom-call(A)
//	C = u8[10] custom-call(B)
//	D = u8[10] custom-call(A)
//	E = u8[10] custom-call(A)
//	F = u8[20] custom-call(D, E)
//	ROOT G = () custom-call(C, F)
//
// B, D and E are ready after A. B frees nothing and defines 20 bytes, D and E define 10
// each, so B waits: the order is A, E, D, F, B, C, G or that with D before E.
//
// The rank of an instruction changes while it waits: when one of two readers of a value has
// run, the other one would free it. After E above, D frees nothing yet, as B still needs A;
// after B, C is the last to read B and frees its 20 bytes for the 10 that it makes. So when
// an instruction has run, the users of its operands that are ready are ranked again, if one
// of the values has one reader left. Entries of old ranks stay in the heap and are passed
// over: now has the sequence number of the one that counts.

import (
	"cmp"
	"container/heap"
	"math"
	"slices"

	"gpumem/xla/internal/alias"
	"gpumem/xla/internal/hlo"
)

// A ready instruction can run. Of those that free most, and of these with most users, the
// one that became ready last is next, or was ranked anew last. Scalars have the highest rank.
type ready struct {
	i        *hlo.Instruction
	bytes    int64 // freed without those made
	users    int
	sequence int
}

type readyHeap []ready

func (h readyHeap) Len() int      { return len(h) }
func (h readyHeap) Swap(a, b int) { h[a], h[b] = h[b], h[a] }
func (h readyHeap) Less(a, b int) bool {
	x, y := &h[a], &h[b]
	return cmp.Or(cmp.Compare(x.bytes, y.bytes), cmp.Compare(x.users, y.users), cmp.Compare(x.sequence, y.sequence)) > 0
}
func (h *readyHeap) Push(x any) { *h = append(*h, x.(ready)) }
func (h *readyHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}

// lister is the state of list. Beside it, left are the instructions that use a value and
// did not run, and 1 more if it is returned: so the last reader of a result frees nothing.
type lister struct {
	*scheduler
	queue    readyHeap
	uses     [][]int32 // by place: the values that an instruction's operands consist of
	now      []ready   // by place: the entry that counts; sequence 0: not ready
	sequence int
	first    alias.Node // of the computation
	place    func(*hlo.Instruction) int32
}

// list returns the list scheduler's order of a computation.
func (s *scheduler) list(c *hlo.Computation) ([]*hlo.Instruction, error) {
	walk := s.f.FirstWalk[c]
	l := &lister{scheduler: s, first: s.f.Walks[walk].First, place: s.place(c)}
	l.uses, l.now = make([][]int32, len(c.Instructions)), make([]ready, len(c.Instructions))
	// An operand that occurs twice is waited for once: users are listed once each.
	waits := make([]int32, len(c.Instructions)) // for operands and control predecessors
	next := make([][]*hlo.Instruction, len(c.Instructions))
	clear(l.left)
	clear(l.seen)
	seen := l.seen // 1 + the place that used a value last
	for k, i := range c.Instructions {
		for _, u := range i.Users {
			waits[l.place(u)]++
		}
		for _, p := range i.After {
			next[l.place(p)] = append(next[l.place(p)], i)
			waits[k]++
		}
		for _, o := range i.Operands {
			for _, v := range s.f.Parts(l.first + alias.Node(l.place(o))) {
				if seen[v] != int32(k)+1 {
					seen[v] = int32(k) + 1
					l.uses[k] = append(l.uses[k], v)
					l.left[v]++
				}
			}
		}
	}
	clear(seen)
	for _, v := range s.f.Parts(s.f.Root(walk)) {
		if seen[v] == 0 {
			seen[v] = 1
			l.left[v]++
		}
	}
	for k, i := range c.Instructions {
		if len(i.Operands) == 0 && len(i.After) == 0 {
			l.push(int32(k), i)
		}
	}
	// Instructions of a cycle are never ready, so that the order is too short then.
	order := make([]*hlo.Instruction, 0, len(c.Instructions))
	for len(l.queue) > 0 {
		x := heap.Pop(&l.queue).(ready)
		k := l.place(x.i)
		if l.now[k].sequence != x.sequence {
			continue // it was put in again
		}
		l.now[k].sequence = 0
		order = append(order, x.i)
		last := false // something is used for the last time by what is ready
		for _, v := range l.uses[k] {
			l.left[v]--
			last = last || l.left[v] == 1
		}
		for _, list := range [2][]*hlo.Instruction{x.i.Users, next[k]} {
			for _, u := range list {
				q := l.place(u)
				if waits[q]--; waits[q] == 0 {
					l.push(q, u)
				}
			}
		}
		if !last {
			continue
		}
		for _, o := range x.i.Operands {
			for _, u := range o.Users {
				if q := l.place(u); l.now[q].sequence > 0 {
					l.push(q, u)
				}
			}
		}
	}
	if len(order) != len(c.Instructions) {
		return nil, errCycle(c)
	}
	return order, nil
}

// push makes an instruction ready, or moves it if its rank has changed. A scalar goes first: it
// takes next to nothing, and others may wait for it.
func (l *lister) push(k int32, i *hlo.Instruction) {
	x := ready{i: i, bytes: math.MaxInt64, users: math.MaxInt}
	if !scalar(i.Shape) {
		x.bytes, x.users = l.freed(k, i), len(i.Users)
	}
	if old := &l.now[k]; old.sequence > 0 && old.bytes == x.bytes && old.users == x.users {
		return
	}
	l.sequence++
	x.sequence = l.sequence
	l.now[k] = x
	heap.Push(&l.queue, x)
}

// freed is the bytes that die with an instruction without those that it makes. Outfeeds with a
// configuration run as early as they can and infeeds as late: what the host sends should not
// lie there before it is needed.
func (l *lister) freed(k int32, i *hlo.Instruction) int64 {
	if config, ok := i.Attribute("outfeed_config"); ok && config != `""` && i.Opcode == hlo.Outfeed {
		return math.MaxInt32
	}
	if config, ok := i.Attribute("infeed_config"); ok && config != `""` && i.Opcode == hlo.Infeed {
		return math.MinInt32
	}
	var freed int64
	for _, v := range l.uses[k] {
		if l.left[v] == 1 && !ignored(l.f.Values[v].Instruction) {
			freed += int64(l.size[v])
		}
	}
	if !ignored(i) {
		freed -= int64(l.made(l.first + alias.Node(k)))
	}
	return freed
}

// scalar reports whether an array has one element.
func scalar(s *hlo.Shape) bool {
	return s.IsArray() && !slices.ContainsFunc(s.Dims, func(d int64) bool { return d != 1 })
}
