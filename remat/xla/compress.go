package xla

// Compression: values kept in a layout that takes less memory.

import (
	"fmt"

	"gpumem/hlo"
)

// compressionCost is the limit divided by what it frees to keep item k compressed, and the
// compressed shape; nil where it is not worth it.
func (t *tracker) compressionCost(k int32, limit, peak int64) (int64, *hlo.Shape, error) {
	x := &t.items[k]
	if len(x.output) != 1 || t.buffers[x.output[0]].liveOut || !x.i.Shape.IsArray() {
		return 0, nil, nil
	}
	compact := x.i.Shape
	if t.p.o.Compact != nil {
		var err error
		if compact, err = t.p.o.Compact(x.i.Shape); err != nil {
			return 0, nil, fmt.Errorf("%s: %w", hlo.Where(x.i), err)
		}
	}
	small, err := t.p.o.Size(compact)
	if err != nil {
		return 0, nil, fmt.Errorf("%s: %w", hlo.Where(x.i), err)
	}
	full, err := t.p.o.Size(x.i.Shape)
	if err != nil {
		return 0, nil, fmt.Errorf("%s: %w", hlo.Where(x.i), err)
	}
	id := x.output[0]
	if !t.live(id) || t.inUse(id) || !t.neededLater(x.i) {
		return 0, nil, nil
	}
	freed := t.buffers[id].bytes - int64(min(small, 1<<60))
	// While it is compressed and expanded, both are live.
	if freed <= 0 || int64(full+small) >= peak {
		return 0, nil, nil
	}
	return limit / freed, compact, nil
}

// neededLater reports whether an instruction has a user still to come.
func (t *tracker) neededLater(i *hlo.Instruction) bool {
	for _, u := range i.Users {
		if !t.placed(u) {
			return true
		}
	}
	return false
}

// compress puts a copy into the compact shape behind item best, and a copy
// back before its first user still to come. It adds 2 instructions.
func (t *tracker) compress(best int32, compact *hlo.Shape) (added int, err error) {
	i := t.items[best].i
	m := t.c.Module
	small := m.NewInstruction(t.p.names.free(i.Name+".remat_compressed"), hlo.Copy, compact, i)
	full := m.NewInstruction(t.p.names.free(i.Name+".remat_uncompressed"), hlo.Copy, i.Shape, small)
	s := t.addInstruction(small)
	t.items[s].placed = true
	f := t.addInstruction(full)
	i.ReplaceUses(full, func(u *hlo.Instruction) bool { return t.placed(u) })

	id := t.items[best].output[0]
	placed, unplaced := t.split(t.buffers[id].uses)
	full64, err := t.p.o.Size(i.Shape)
	if err != nil {
		return 0, err
	}
	small64, err := t.p.o.Size(compact)
	if err != nil {
		return 0, err
	}
	t.now += int64(small64) - int64(full64)
	b := &t.buffers[id]
	b.uses, b.left = append(placed, bufferUse{s, 0, -1}), 0
	index := b.index
	smallID, err := t.newBuffer(s, compact, index, []bufferUse{{f, 0, -1}})
	if err != nil {
		return 0, err
	}
	fullID, err := t.newBuffer(f, i.Shape, index, unplaced)
	if err != nil {
		return 0, err
	}
	t.own(s, []int32{id}, smallID)
	t.own(f, []int32{smallID}, fullID)
	t.replace(fullID, id)

	var before []int32
	for _, u := range full.Users {
		before = append(before, t.item(u))
	}
	t.items[s].denied, t.items[f].denied = true, true
	if len(before) == 0 {
		return 0, fmt.Errorf("%s: nothing uses it later", hlo.Where(i))
	}
	t.insertBeforeFirst(f, before)
	t.insertAfter(s, best)
	return 2, nil
}

// own says what an item uses, and that it defines a buffer.
func (t *tracker) own(k int32, used []int32, defined ...int32) {
	x := &t.items[k]
	x.used, x.defined, x.output = used, defined, defined
}
