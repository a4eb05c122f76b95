package pass

// The buffers that are live while a computation is placed, instruction by instruction.
//
// In the walk of xla.go the sweep places x, b, n and c. now, in KiB, and what is left:
//
//	begin x   0   x is a parameter, which costs nothing
//	begin b   4   b has 2 users left, n and d
//	begin n   8   n has 1, c, which uses it twice
//	begin c  16   over 14: b is cloned for d, so that nothing is left of b: 12
//	end c     8   n was used for the last time
//	begin s   8   and 4 bytes
//	end s     0   c was used for the last time; the 4 bytes of s stay
//	begin b.remat  4
//
// A definition counts from its begin on, even if nothing uses it; then it is taken off at its
// end. So now at an instruction has its operands, its result, and all that waits. The sweep
// compares this figure, with what the instruction calls, with the limit.

import (
	"fmt"
	"slices"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/memory"
)

// A buffer is memory that an item defines. It is live from the placement of its definer to
// the end of its last user. See [memory.Buffer] for index, liveOut and indirect.
//
// uses has one entry for each operand, and left counts users: c, which reads n twice, is two
// uses and one user. account and offload move uses from one buffer to another and keep both
// in step. If they failed to, left would fall below 0, which release reports.
type buffer struct {
	definer int32
	index   []int
	cost    int64 // bytes that it counts for: 0 if it is the caller's
	uses    []memory.Use
	left    int // distinct users that have not ended
	liveOut bool
	// indirect: users reach it by way of more than bitcasts and get-tuple-elements.
	indirect bool
}

// A tracker follows the live buffers of one computation during its sweep. Between calls, now
// is the sum of the costs of live buffers, and of all that the current item defines.
type tracker struct {
	*list
	p       *pass
	buffers []buffer
	now     int64
	current int32 // the item that the sweep is at, or none
	// lane has all placed items with a live buffer, and some that had one, in the order
	// of placement: the candidates of pick.
	lane  []int32
	turns int32
}

func newTracker(p *pass, c *hlo.Computation) (*tracker, error) {
	b, err := p.meter.Buffers(c)
	if err != nil {
		return nil, err
	}
	t := &tracker{list: newList(c), p: p, current: none, buffers: make([]buffer, len(b.List), len(b.List)+len(b.List)/4)}
	// Each computation is swept once, so that its buffers are the tracker's to change.
	// The places of the analysis are the numbers of the items: both count the list.
	for id := range b.List {
		from := &b.List[id]
		t.buffers[id] = buffer{definer: from.Definer, index: from.Index, cost: from.Temp,
			uses: from.Uses[:len(from.Uses):len(from.Uses)], left: from.Users, liveOut: from.LiveOut, indirect: from.Indirect}
	}
	for k := range t.items {
		x := &t.items[k]
		x.defined, x.used, x.output = b.Defined[k], b.Used[k], b.Outputs[k]
		x.denied = !p.effects.Recomputable(x.i)
	}
	return t, nil
}

// newBuffer adds a buffer that nothing outside of the computation uses. What is returned keeps
// its buffer, as values that are returned are not chosen.
func (t *tracker) newBuffer(definer int32, index []int, cost int64, uses ...memory.Use) int32 {
	b := buffer{definer: definer, index: index, cost: cost, uses: uses}
	for k, u := range uses {
		if !slices.ContainsFunc(uses[:k], func(v memory.Use) bool { return v.User == u.User }) {
			b.left++
		}
	}
	t.buffers = append(t.buffers, b)
	return int32(len(t.buffers) - 1)
}

// begin places an item: what it defines is live. Items are placed in the order of the list,
// clones included when their turn comes, and never taken back.
func (t *tracker) begin(k int32) {
	t.current = k
	x := &t.items[k]
	x.placed = true
	t.turns++
	x.turn = t.turns
	if len(x.defined) > 0 {
		t.enlist(k)
	}
	t.now += t.defines(k)
}

// end leaves the current item: what it was the last to use is dead.
func (t *tracker) end() {
	k := t.current
	t.current = none
	t.release(k)
}

// release ends an item: it takes off what it was the last to use, and what it defined for
// nothing.
func (t *tracker) release(k int32) {
	for _, id := range t.items[k].used {
		b := &t.buffers[id]
		if b.left--; b.left < 0 {
			t.p.fail(t.items[k].i, "a buffer of "+t.items[b.definer].i.Name+" is used more often than it has users")
		}
		if b.left == 0 {
			t.now -= b.cost
		}
	}
	for _, id := range t.items[k].defined {
		if t.buffers[id].left == 0 {
			t.now -= t.buffers[id].cost
		}
	}
}

// fail keeps the first error of the pass. It is a fault of this package, not of the module, and
// ends the sweep: what was done so far would be a wrong plan.
func (p *pass) fail(i *hlo.Instruction, problem string) {
	if p.fault == nil {
		p.fault = fmt.Errorf("%s: %s", hlo.Where(i), problem)
	}
}

// defines returns the bytes that an item's own buffers count for: 0 for a parameter, for what
// is returned, and for what only forwards.
func (t *tracker) defines(k int32) (sum int64) {
	for _, id := range t.items[k].defined {
		sum += t.buffers[id].cost
	}
	return sum
}

// inUse reports whether the current item uses a buffer: then it has to be there now, whatever a
// clone would do for later users.
func (t *tracker) inUse(id int32) bool {
	return t.current != none && slices.Contains(t.items[t.current].used, id)
}

// live reports whether a buffer was defined and has users to come.
func (t *tracker) live(id int32) bool {
	b := &t.buffers[id]
	return b.left > 0 && t.items[b.definer].placed
}

// placed reports whether the sweep has reached an instruction.
func (t *tracker) placed(i *hlo.Instruction) bool { return t.items[t.item(i)].placed }

// split returns the uses by items that are placed, and by those that are not: the former stay
// with the original, the latter go to its clone or to what comes back from the host.
func (t *tracker) split(uses []memory.Use) (placed, unplaced []memory.Use) {
	for _, u := range uses {
		if t.items[u.User].placed {
			placed = append(placed, u)
		} else {
			unplaced = append(unplaced, u)
		}
	}
	return placed, unplaced
}

// replace puts buffer id in the place of old, wherever that occurs in a list of an item.
func replace(ids []int32, old, id int32) {
	for n, x := range ids {
		if x == old {
			ids[n] = id
		}
	}
}
