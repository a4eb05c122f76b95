// This file keeps the pending blocks: freed, still mapped, maybe still in use by
// work on the device. Each is in three places:
//
//   - in the order of all frees, linked by the chunks' Prev and Next: memory
//     is released in this order;
//   - in its class, the pending blocks of the same size and end, in the same
//     order: the first of them serves the next request of that size. XLA looks
//     through all pending blocks for it;
//   - in a batch, which counts its blocks and knows the marks behind their work.
//
// Four frees, of A and C of 2 MiB, and B and D of 64 MiB, all of the lower end:
//
//	free A     batch 1 is opened: 1 block, 2 MiB
//	free B     66 MiB would be above 64: batch 1 is closed, which records marks. Batch 2
//	free C     again above 64: batch 3 has C
//	free D     batch 4 has D
//
// The order is A B C D, the class of 2 MiB has A C, that of 64 MiB has B D. A request of
// 64 MiB takes B: batch 2 is empty and dropped, its marks are released, the class has D.
// A request of 62 MiB takes nothing here.
//
// Chunks, classes and batches are linked by number, so that the garbage collector has
// nothing to follow. Batches of which nothing is pending any more are used again.

package vmm

import (
	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
	"gpumem/alloc/streams"
)

// A batch is closed when the next free finds it with batchBlocks blocks, or
// would bring it above batchBytes; one larger block is a batch by itself. Both
// are XLA's. With pages of 2 MiB, which all NVIDIA GPUs have, a batch has at most 32
// blocks, so that the bytes always come first.
const (
	batchBlocks = 64
	batchBytes  = 64 << 20
)

// pending is the order of all frees, the classes and the batches.
type pending struct {
	head, tail chunks.H // freed first and last
	classOf    map[uint64]int32
	classes    []class // one for each size and end that was ever asked for
	batches    []batch // [0] is none
	oldest     int32
	newest     int32
	open       int32   // the batch for the next free, the newest; 0: none
	unused     []int32 // batches that are none
}

// class is a queue of pending blocks of one size and end.
type class struct {
	size       uint64
	head, tail chunks.H
}

// batch is pending blocks that were freed one after the other. It exists while
// any of them is pending. The newest may be open; all others are closed. A closed batch
// has marks until it is known to be done.
type batch struct {
	blocks       int
	bytes        uint64
	marks        []*streams.Mark // in each stream whose work may use its blocks; from when it is closed until it is known that they have passed
	done         bool            // that is known
	wanted       bool            // by reclaim, until wait
	older, newer int32
}

func newPending() pending {
	return pending{classOf: map[uint64]int32{}, batches: make([]batch, 1)}
}

// key returns the key in classOf of p bytes, whole pages of at least 256 bytes, of an
// end: the low bits of p are free for it.
func key(p uint64, end alloc.End) uint64 { return p | uint64(end) }

// first returns the pending block of that size and end that was freed first, 0 if there
// is none. Its work is the likeliest to be done.
func (q *pending) first(p uint64, end alloc.End) chunks.H {
	if i, ok := q.classOf[key(p, end)]; ok {
		return q.classes[i].head
	}
	return 0
}

// class returns the number of the class of that size and end, and makes it if needed.
// Classes are never removed: a program has as many as it has sizes in pages.
func (q *pending) class(p uint64, end alloc.End) int32 {
	i, ok := q.classOf[key(p, end)]
	if !ok {
		i = int32(len(q.classes))
		q.classes = append(q.classes, class{size: p})
		q.classOf[key(p, end)] = i
	}
	return i
}

// queue makes a live block pending, the last of all. It fails where the open
// batch must be closed and cannot.
func (a *Allocator) queue(h chunks.H) error {
	q, c, r := &a.pending, a.blocks.Store.At(h), &a.more[h]
	if b := &q.batches[q.open]; q.open != 0 && (b.blocks >= batchBlocks || b.bytes+c.Size > batchBytes) {
		if err := a.closeBatch(); err != nil {
			return err
		}
	}
	if q.open == 0 {
		q.openBatch()
	}
	b := &q.batches[q.open]
	b.blocks++
	b.bytes += c.Size
	r.batch = q.open

	c.State = chunks.Free
	c.Prev, c.Next = q.tail, 0
	if q.tail != 0 {
		a.blocks.Store.At(q.tail).Next = h
	} else {
		q.head = h
	}
	q.tail = h

	r.class = q.class(c.Size, alloc.End(c.Tag))
	k := &q.classes[r.class]
	r.before, r.after = k.tail, 0
	if k.tail != 0 {
		a.more[k.tail].after = h
	} else {
		k.head = h
	}
	k.tail = h
	return nil
}

// unqueue takes a block out of what is pending: it becomes live again, or is released.
// In the open batch that makes room for another.
func (a *Allocator) unqueue(h chunks.H) {
	q, c, r := &a.pending, a.blocks.Store.At(h), &a.more[h]
	if c.Prev != 0 {
		a.blocks.Store.At(c.Prev).Next = c.Next
	} else {
		q.head = c.Next
	}
	if c.Next != 0 {
		a.blocks.Store.At(c.Next).Prev = c.Prev
	} else {
		q.tail = c.Prev
	}

	k := &q.classes[r.class]
	if r.before != 0 {
		a.more[r.before].after = r.after
	} else {
		k.head = r.after
	}
	if r.after != 0 {
		a.more[r.after].before = r.before
	} else {
		k.tail = r.before
	}

	b := &q.batches[r.batch]
	b.blocks--
	b.bytes -= c.Size
	if b.blocks == 0 {
		a.releaseMarks(b)
		q.dropBatch(r.batch)
	}
}

// openBatch begins a batch, which is the newest.
func (q *pending) openBatch() {
	n := len(q.unused)
	if n == 0 {
		q.batches = append(q.batches, batch{})
		q.open = int32(len(q.batches) - 1)
	} else {
		q.open = q.unused[n-1]
		q.unused = q.unused[:n-1]
	}
	// The slice of the marks is used again.
	q.batches[q.open] = batch{marks: q.batches[q.open].marks[:0], older: q.newest}
	if q.newest != 0 {
		q.batches[q.newest].newer = q.open
	} else {
		q.oldest = q.open
	}
	q.newest = q.open
}

// dropBatch ends a batch in which nothing is pending. Its number is used again.
func (q *pending) dropBatch(i int32) {
	b := &q.batches[i]
	if b.older != 0 {
		q.batches[b.older].newer = b.newer
	} else {
		q.oldest = b.newer
	}
	if b.newer != 0 {
		q.batches[b.newer].older = b.older
	} else {
		q.newest = b.older
	}
	if q.open == i {
		q.open = 0
	}
	q.unused = append(q.unused, i)
}
