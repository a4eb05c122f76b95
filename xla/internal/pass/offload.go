package pass

// Offloading: a value waits in the host's memory between two uses.
//
// A value of 4 KiB is used early and then again four instructions later, each of which takes
// half a second, and the link carries 4 KiB a second each way. The pause is 2 s, and the copy
// out and the copy back take 1 s each: they fit, just. The value costs what recomputing it
// would: the limit divided by its bytes. Four instructions are added:
//
//	copy-start, copy-done    to the host, S(5), right after the definition and as long as
//	                         it takes later
//	copy-start, copy-done    back, which ends before the next user and begins as long as it
//	                         takes earlier
//
// XLA compares one value's two copies with its pause, as if no other copy were under way:
// of many values each may fit and all together not. remat.Run warns of that; package host
// plans with one copy at a time.

import (
	"slices"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/host"
	"gpumem/xla/internal/memory"
)

// offloadCost returns the cost of moving item k to the host. ok is false if that is not
// possible, or if the copies there and back do not fit beside what is computed meanwhile.
func (t *tracker) offloadCost(k int32, limit int64) (cost int64, ok bool) {
	x := &t.items[k]
	if len(x.output) != 1 || len(x.defined) != 1 || !slices.ContainsFunc(x.i.Users, func(u *hlo.Instruction) bool { return !t.placed(u) }) {
		return 0, false
	}
	// XLA moves no value that is looked through: a bitcast or a tuple of it would have to be
	// made again of the copy. Nor one that is used right now.
	b := &t.buffers[x.defined[0]]
	for _, u := range b.uses {
		if op := t.items[u.User].i.Opcode; op == hlo.Bitcast || op == hlo.TupleOp || u.User == t.current {
			return 0, false
		}
	}
	if b.cost == 0 { // a parameter or a result, or on the host already
		return 0, false
	}
	from, to := t.around(k, b.uses)
	var pause float32 // XLA calculates with single precision
	for at := from; at != to; at = t.items[at].next {
		if at == none {
			return 0, false
		}
		pause += t.seconds(at)
	}
	if pause < float32(b.cost)/t.p.o.Host.ToHost+float32(b.cost)/t.p.o.Host.FromHost {
		return 0, false
	}
	return limit / b.cost, true
}

// around returns the last placed item among those that use item k, or k itself, and the
// first one that is not placed, or none. Between the two lies the pause.
func (t *tracker) around(k int32, uses []memory.Use) (from, to int32) {
	t.marks++
	for _, u := range uses {
		t.items[u.User].mark = t.marks
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

// seconds returns the seconds that an item takes, 0 or more. XLA calculates with single
// precision, and so does this file: a sum that is rounded otherwise may choose otherwise.
func (t *tracker) seconds(k int32) float32 {
	return max(0, float32(t.p.o.Host.Seconds(t.items[k].i)))
}

// contextBytes is the size of the third result of a copy-start, a u32. It counts while the copy
// is under way.
const contextBytes = 4

// offload copies item best to the host after its definition, and back before its first user
// that is not placed. It returns how many instructions that adds.
func (t *tracker) offload(best int32) (added int) {
	i := t.items[best].i
	id := t.items[best].output[0]
	bytes := t.buffers[id].cost
	m := t.c.Module
	device, away := i.Shape, host.Space(i.Shape)
	// The start of a copy returns (to, from, context), and the done what lies at its end.
	pair := func(to, from *hlo.Shape, o *hlo.Instruction) (start, done *hlo.Instruction) {
		result := &hlo.Shape{Type: hlo.Tuple, Elements: []*hlo.Shape{to, from, {Type: "u32"}}}
		start = m.NewInstruction(t.p.names.free("copy-start"), hlo.CopyStart, result, o)
		done = m.NewInstruction(t.p.names.free("copy-done"), hlo.CopyDone, to, start)
		return start, done
	}
	var users []memory.Use
	for _, u := range i.Users {
		users = append(users, memory.Use{User: t.item(u)})
	}
	_, first := t.around(best, users)
	outStart, outDone := pair(away, device, i)
	backStart, backDone := pair(device, away, outDone)
	var k [4]int32
	for n, c := range []*hlo.Instruction{outStart, outDone, backStart, backDone} {
		k[n] = t.add(c)
		t.items[k[n]].denied = true
	}
	// The copy out begins as early as possible and the copy back ends as late as possible.
	// Each gets as much time as it takes, if there is so much.
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

	// The buffers: what lies on the host counts for nothing. XLA counts the result of each
	// copy's start as large as the value and its context, and that of the done anew, but for
	// the copy out, whose done owns nothing. Only the buffer that comes back has the users
	// that are not placed.
	placed, unplaced := t.split(t.buffers[id].uses)
	t.buffers[id].uses, t.buffers[id].left = append(placed, memory.Use{User: k[0], Index: -1}), 1
	out, back := memory.Use{User: k[1], Index: -1}, memory.Use{User: k[3], Index: -1}
	t.own(k[0], []int32{id}, t.newBuffer(k[0], nil, bytes, out), t.newBuffer(k[0], nil, contextBytes, out))
	t.own(k[1], t.items[k[0]].defined)
	t.own(k[2], nil, t.newBuffer(k[2], nil, bytes, back), t.newBuffer(k[2], nil, contextBytes, back))
	returned := t.newBuffer(k[3], nil, bytes, unplaced...)
	t.own(k[3], t.items[k[2]].defined, returned)
	for _, u := range unplaced {
		replace(t.items[u.User].used, id, returned)
	}
	for _, n := range k {
		if !t.items[n].placed {
			break
		}
		t.now += t.defines(n)
		t.release(n)
	}
	return len(k)
}

// own sets what a new item uses and defines. Its result consists of what it defines.
func (t *tracker) own(k int32, used []int32, defined ...int32) {
	x := &t.items[k]
	x.used, x.defined, x.output = used, defined, defined
}

// wait returns the item up to which what runs after start, or before it, takes the given
// seconds, or the last one before end.
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
