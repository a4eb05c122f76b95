package xla

// The live buffers while a computation is placed, instruction by instruction.

import (
	"fmt"
	"slices"

	"gpumem/hlo"
	"gpumem/hlo/memory"
)

// A bufferUse is an operand of an item through which it uses a buffer; index as in [memory.Use].
type bufferUse struct{ user, operand, index int32 }

type buffer struct {
	definer int32
	shape   *hlo.Shape
	index   []int
	bytes   int64 // its size
	cost    int64 // what it counts for: nothing if it is the caller's
	uses    []bufferUse
	left    int // different users that are not finished
	liveOut bool
	// indirect: see [memory.Buffer].
	indirect bool
}

// A tracker knows what is live.
type tracker struct {
	*list
	p       *pass
	buffers []buffer
	now     int64 // bytes that are live
	current int32 // the item in progress, and none
	// fromPeak is that clones are not to be computed again, and superfluous
	// originals go at once.
	fromPeak bool
	// lean is that candidates are single items that may be computed again: then lane has
	// the placed ones that are live, in their order, and some that were.
	lean  bool
	lane  []int32
	turns int32
}

func newTracker(p *pass, l *list) (*tracker, error) {
	b, err := memory.Analyze(l.c, p.o.Size)
	if err != nil {
		return nil, err
	}
	t := &tracker{list: l, p: p, current: none, lean: p.lean(), buffers: make([]buffer, len(b.List), len(b.List)+len(b.List)/4)}
	total := 0
	for id := range b.List {
		total += len(b.List[id].Uses)
	}
	// The places of the analysis are the numbers of the items: both count the list.
	all := make([]bufferUse, 0, total)
	for id := range b.List {
		from := &b.List[id]
		n := len(all)
		for _, u := range from.Uses {
			all = append(all, bufferUse{u.User, u.Operand, u.Index})
		}
		t.buffers[id] = buffer{definer: from.Definer, shape: from.Shape, index: from.Index, bytes: from.Bytes,
			cost: p.memory.Allocated(b, int32(id)), uses: all[n:len(all):len(all)], left: from.Users, liveOut: from.LiveOut, indirect: from.Indirect}
	}
	for k := range l.items {
		l.items[k].defined, l.items[k].used, l.items[k].output = b.Defined[k], b.Used[k], b.Outputs[k]
	}
	return t, nil
}

// newBuffer adds a buffer that only the computation itself uses.
func (t *tracker) newBuffer(definer int32, shape *hlo.Shape, index []int, uses []bufferUse) (int32, error) {
	n, err := t.p.o.Size(shape)
	if err == nil && n > 1<<59 {
		err = hlo.ErrTooLarge
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", hlo.Where(t.items[definer].i), err)
	}
	b := buffer{definer: definer, shape: shape, index: index, bytes: int64(n), cost: int64(n), uses: uses}
	if t.p.memory.HostFree && shape.Space() == hlo.HostSpace {
		b.cost = 0
	}
	for k, u := range uses {
		if !slices.ContainsFunc(uses[:k], func(v bufferUse) bool { return v.user == u.user }) {
			b.left++
		}
	}
	t.buffers = append(t.buffers, b)
	return int32(len(t.buffers) - 1), nil
}

// begin starts an item: what it defines is live.
func (t *tracker) begin(k int32) {
	t.current = k
	x := &t.items[k]
	x.placed = true
	t.turns++
	x.turn = t.turns
	if len(x.defined) > 0 {
		t.enlist(k)
	}
	t.allocate(k)
}

func (t *tracker) allocate(k int32) {
	for _, id := range t.items[k].defined {
		t.now += t.buffers[id].cost
	}
}

// end finishes it: what it used last is no more.
func (t *tracker) end() error {
	k := t.current
	t.current = none
	return t.release(k)
}

func (t *tracker) release(k int32) error {
	for _, id := range t.items[k].used {
		b := &t.buffers[id]
		if b.left--; b.left < 0 {
			return fmt.Errorf("%s: a buffer of %s has fewer users than used it", hlo.Where(t.items[k].i), t.items[b.definer].i.Name)
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
	return nil
}

// defines is what an item's own buffers count for in bytes.
func (t *tracker) defines(k int32) (sum int64) {
	for _, id := range t.items[k].defined {
		sum += t.buffers[id].cost
	}
	return sum
}

// inUse reports whether the item in progress uses a buffer.
func (t *tracker) inUse(id int32) bool {
	return t.current != none && slices.Contains(t.items[t.current].used, id)
}

func (t *tracker) live(id int32) bool {
	b := &t.buffers[id]
	return b.left > 0 && t.items[b.definer].placed
}

// placed reports whether the sweep has been at an instruction.
func (t *tracker) placed(i *hlo.Instruction) bool { return t.items[t.item(i)].placed }

// hasUnplaced reports whether something still to come uses one of an item's own buffers.
func (t *tracker) hasUnplaced(k int32) bool {
	for _, id := range t.items[k].defined {
		for _, u := range t.buffers[id].uses {
			if !t.items[u.user].placed {
				return true
			}
		}
	}
	return false
}

// split parts uses into those that have been and those still to come.
func (t *tracker) split(uses []bufferUse) (placed, unplaced []bufferUse) {
	for _, u := range uses {
		if t.items[u.user].placed {
			placed = append(placed, u)
		} else {
			unplaced = append(unplaced, u)
		}
	}
	return placed, unplaced
}

// usedBytes is what an item's own buffers with users count for, or only
// those with users still to come.
func (t *tracker) usedBytes(k int32, unplaced bool) (sum int64) {
	for _, id := range t.items[k].defined {
		b := &t.buffers[id]
		if slices.ContainsFunc(b.uses, func(u bufferUse) bool { return !unplaced || !t.items[u.user].placed }) {
			sum += b.cost
		}
	}
	return sum
}

// replace makes the users of buffer id use it instead of old. Lists of the
// analysis may be shared, so they are copied.
func (t *tracker) replace(id, old int32) {
	for _, u := range t.buffers[id].uses {
		t.items[u.user].used = replaced(t.items[u.user].used, old, id)
	}
}

func replaced(ids []int32, old, id int32) []int32 {
	for n, x := range ids {
		if x == old {
			ids[n] = id
		}
	}
	return ids
}
