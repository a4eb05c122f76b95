package xla

// Offload: values in the host's memory between two uses.

import (
	"fmt"
	"slices"

	"gpumem/hlo"
	"gpumem/remat/host"
)

// offloadCost is the limit divided by what it frees to move item k to the host, and
// whether that can be done while other things are computed.
func (t *tracker) offloadCost(k int32, limit int64) (int64, bool) {
	x := &t.items[k]
	if len(x.output) != 1 || len(x.defined) != 1 || !t.neededLater(x.i) {
		return 0, false
	}
	for _, u := range t.buffers[x.defined[0]].uses {
		if op := t.items[u.user].i.Opcode; op == hlo.Bitcast || op == hlo.TupleOp {
			return 0, false
		}
	}
	b := &t.buffers[x.output[0]]
	if b.liveOut {
		return 0, false
	}
	for _, u := range b.uses {
		if u.user == t.current {
			return 0, false
		}
	}
	bytes := t.usedBytes(k, true)
	if bytes == 0 {
		return 0, false
	}
	from, to := t.around(k, b.uses)
	if to == none {
		return 0, false
	}
	var pause float32
	for at := from; at != to; at = t.items[at].next {
		if at == none {
			return 0, false
		}
		pause += t.seconds(at)
	}
	if pause <= 0 || pause < float32(bytes)/t.p.o.Host.ToHost+float32(bytes)/t.p.o.Host.FromHost {
		return 0, false
	}
	return limit / bytes, true
}

// around are the last item that used item k, or k, and the first that will, or none.
func (t *tracker) around(k int32, uses []bufferUse) (from, to int32) {
	t.marks++
	for _, u := range uses {
		t.items[u.user].mark = t.marks
	}
	from, to = k, none
	for at := t.first; at != none; at = t.items[at].next {
		if t.items[at].mark != t.marks {
			continue
		}
		if !t.items[at].placed {
			return from, at
		}
		from = at
	}
	return from, to
}

// seconds is what an item takes at best. XLA calculates with single precision.
func (t *tracker) seconds(k int32) float32 {
	return max(0, float32(t.p.o.Host.Seconds(t.items[k].i)))
}

// offload moves item best to the host behind its definition, and back before
// its first user still to come. It adds 4 instructions.
func (t *tracker) offload(best int32) (added int, err error) {
	i := t.items[best].i
	m := t.c.Module
	device, host := i.Shape, host.Space(i.Shape)
	context := &hlo.Shape{Type: "u32"}
	pair := func(to, from *hlo.Shape, o *hlo.Instruction) (start, done *hlo.Instruction) {
		start = m.NewInstruction(t.p.names.free("copy-start"), hlo.CopyStart, &hlo.Shape{Type: hlo.Tuple, Elements: []*hlo.Shape{to, from, context}}, o)
		done = m.NewInstruction(t.p.names.free("copy-done"), hlo.CopyDone, to, start)
		return start, done
	}
	bytes := t.usedBytes(best, false)
	var users []bufferUse
	for _, u := range i.Users {
		users = append(users, bufferUse{user: t.item(u)})
	}
	_, first := t.around(best, users)
	if first == none {
		return 0, fmt.Errorf("%s: nothing uses it later", hlo.Where(i))
	}
	outStart, outDone := pair(host, device, i)
	backStart, backDone := pair(device, host, outDone)
	var k [4]int32
	for n, c := range []*hlo.Instruction{outStart, outDone, backStart, backDone} {
		k[n] = t.addInstruction(c)
		t.items[k[n]].denied = true
	}
	// As early and as late as may be, and the two in between as far from these as
	// the copies take.
	t.insertAfter(k[0], best)
	t.insert(k[3], first)
	t.insertAfter(k[1], t.wait(k[0], k[3], float32(bytes)/t.p.o.Host.ToHost, func(k int32) int32 { return t.items[k].next }))
	t.insert(k[2], t.wait(k[3], k[1], float32(bytes)/t.p.o.Host.FromHost, func(k int32) int32 { return t.items[k].prev }))
	for at := t.first; at != none && at != t.current; at = t.items[at].next {
		if slices.Contains(k[:], at) {
			t.items[at].placed = true
		}
	}
	i.ReplaceUses(backDone, func(u *hlo.Instruction) bool { return t.placed(u) || u == outStart })
	return 4, t.accountOffload(best, k)
}

// wait is the item from which on what runs after (or before) start takes the
// seconds, the one before end at the latest.
func (t *tracker) wait(start, end int32, seconds float32, next func(int32) int32) int32 {
	var sum float32
	for sum < seconds {
		n := next(start)
		if n == end || n == none {
			break
		}
		start = n
		sum += t.seconds(start)
	}
	return start
}

// accountOffload brings what is live up to date: k are start and end of the
// copy to the host, and of the one back. The host's memory is not counted.
func (t *tracker) accountOffload(best int32, k [4]int32) error {
	id := t.items[best].output[0]
	placed, unplaced := t.split(t.buffers[id].uses)
	t.buffers[id].uses, t.buffers[id].left = append(placed, bufferUse{k[0], 0, -1}), 1
	var made [5]int32
	for n, b := range []struct {
		definer int32
		part    int // of the start's shape
		uses    []bufferUse
	}{
		{k[0], 1, []bufferUse{{k[1], 0, -1}}}, {k[0], 2, []bufferUse{{k[1], 0, -1}}},
		{k[2], 0, []bufferUse{{k[3], 0, -1}}}, {k[2], 2, []bufferUse{{k[3], 0, -1}}},
		{k[3], -1, unplaced},
	} {
		shape := t.items[b.definer].i.Shape
		if b.part >= 0 {
			shape = shape.Elements[b.part]
		}
		var err error
		if made[n], err = t.newBuffer(b.definer, shape, nil, b.uses); err != nil {
			return err
		}
	}
	t.own(k[0], []int32{id}, made[0], made[1])
	t.own(k[1], []int32{made[0], made[1]})
	t.own(k[2], nil, made[2], made[3])
	t.own(k[3], []int32{made[2], made[3]}, made[4])
	t.replace(made[4], id)
	for _, n := range k {
		if !t.items[n].placed {
			break
		}
		t.allocate(n)
		if err := t.release(n); err != nil {
			return err
		}
	}
	return nil
}
