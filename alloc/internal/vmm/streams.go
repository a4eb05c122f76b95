// This file closes batches and finds out which of them are done.
//
// A set of streams is the bits of a word; see streams.Tracker.Bit. A block's set grows:
// with the stream that it is requested in and with those of Record. It is not emptied
// when the block is reused, since the work of its former life may not be done.
//
// A batch is closed by one mark in each stream of the union of its blocks' sets. The
// marks come after all work on the blocks, because the blocks are freed by then. A
// mark in too many streams only makes the batch done later; one too few would have
// memory unmapped under a kernel that runs.

package vmm

import "gpumem/alloc/streams"

// closeBatch marks the end of the work on the open batch's blocks, which is
// queued by now. If the device fails the batch stays open, and no mark of it is left. The
// union of the sets is taken from the blocks that are still there. The blocks of the open batch
// are the last ones in the order of frees, though others may be missing in between that
// were reused.
func (a *Allocator) closeBatch() error {
	q := &a.pending
	if q.open == 0 {
		return nil
	}
	b := &q.batches[q.open]
	used := uint64(0)
	for h := q.tail; h != 0 && a.more[h].batch == q.open; h = a.blocks.Store.At(h).Prev {
		used |= a.more[h].streams
	}
	var err error
	if b.marks, err = a.streams.MarkAll(b.marks[:0], used); err != nil {
		return err
	}
	b.done = len(b.marks) == 0
	q.open = 0
	return nil
}

// releaseMarks releases a batch's marks, and keeps the slice for the next batch that gets
// this number.
func (a *Allocator) releaseMarks(b *batch) {
	a.streams.Release(b.marks...)
	b.marks = b.marks[:0]
}

// finish records that the work on a closed batch's blocks is done: from now on they may be
// unmapped at any time, and their events are free for other marks.
func (a *Allocator) finish(b *batch) {
	b.done = true
	a.releaseMarks(b)
}

// poll finds out which closed batches are done, without waiting. All marks of a batch
// are queried even after one that has not passed: what is known of a stream then holds
// for later batches.
func (a *Allocator) poll() {
	q := &a.pending
	a.streams.Look()
	for i := q.oldest; i != 0 && i != q.open; i = q.batches[i].newer {
		b := &q.batches[i]
		done := true
		for _, m := range b.marks {
			done = a.streams.Passed(m) && done
		}
		if done {
			a.finish(b)
		}
	}
}

// wait closes the open batch and waits for the batches that are wanted, unless
// the operation has waited before: then it finds out which of them are done. A
// mark that has passed stands for the earlier ones in its stream, so in a program
// of one stream this is one wait.
func (a *Allocator) wait() error {
	q := &a.pending
	err := a.closeBatch()
	var marks []*streams.Mark
	for i := q.newest; i != 0; i = q.batches[i].older {
		if b := &q.batches[i]; b.wanted {
			marks = append(marks, b.marks...)
		}
	}
	repeated := a.streams.Repeated()
	switch {
	case err != nil:
	case repeated:
		a.poll()
	default:
		err = a.streams.Wait(marks...)
	}
	for i := q.newest; i != 0; i = q.batches[i].older {
		b := &q.batches[i]
		if b.wanted && err == nil && !repeated {
			a.finish(b)
		}
		b.wanted = false
	}
	return err
}
