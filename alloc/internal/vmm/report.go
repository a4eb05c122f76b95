// This file has the statistics, the report on a refusal, and the invariants.

package vmm

import (
	"fmt"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
	"gpumem/size"
)

// Stats returns statistics, which JAX does not have for this allocator. PoolBytes is all
// physical memory that is held, live or pending, and counts against BytesLimit, the
// budget. LargestFreeBlock is the largest block that could be handed out without
// releasing anything first, be it pending or fresh, but no more than is held
// and not live: what may still be taken from the device is not free memory of the pool.
func (a *Allocator) Stats() alloc.Stats {
	s := a.blocks.Count
	if a.blocks.Closed {
		return s
	}
	s.LargestFreeBlock = s.BytesLimit - s.PoolBytes
	for _, k := range a.pending.classes {
		if k.head != 0 {
			s.LargestFreeBlock = max(s.LargestFreeBlock, k.size)
		}
	}
	s.LargestFreeBlock = min(s.LargestFreeBlock, s.PoolBytes-s.BytesInUse)
	return s
}

// Walk visits the live and the pending blocks in address order, each as a separate
// region. Stuck memory, which no block can be had from, is not among them.
func (a *Allocator) Walk(yield func(alloc.Chunk) bool) { a.blocks.Walk(yield) }

// Report returns the status that XLA ends a refused request with: its budget's, or
// the driver's where the budget would have allowed it.
func (a *Allocator) Report(r alloc.Request) alloc.Report {
	p, ok := a.pages(r.Bytes)
	if !ok {
		p = r.Bytes
	}
	text := "RESOURCE_EXHAUSTED: cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY: out of memory"
	if p > a.blocks.Count.BytesLimit-a.blocks.Count.PoolBytes {
		text = fmt.Sprintf("RESOURCE_EXHAUSTED: Not enough PA budget: pa_allocated=%dB, allocation_size=%dB, pa_budget=%dB",
			a.blocks.Count.PoolBytes, p, a.blocks.Count.BytesLimit)
	}
	return alloc.Report{{Severity: alloc.Error, Text: text}}
}

// Why returns what stands in a refused request's way, a sentence a line. Free memory
// between blocks plays no part: a request needs separate memory, or a freed block of
// just its size. deviceFree is the bytes free on the device, negative if unknown.
//
// After a refusal nothing freed is left that could be released, but for blocks
// of the upper end.
func (a *Allocator) Why(r alloc.Request, deviceFree int64) []string {
	s := a.Stats()
	p, ok := a.pages(r.Bytes)
	if !ok || p > s.BytesLimit {
		return []string{fmt.Sprintf("It is more than the budget of %s; no free would help.", size.Format(s.BytesLimit))}
	}
	out := []string{fmt.Sprintf("It needs %s of separate memory. Of the budget of %s, %s is live, and %s freed but not released.",
		size.Format(p), size.Format(s.BytesLimit), size.Format(s.BytesInUse), size.Format(s.PoolBytes-s.BytesInUse))}
	if deviceFree >= 0 {
		out = append(out, fmt.Sprintf("The device has %s free.", size.Format(uint64(deviceFree))))
	}
	return out
}

// Check verifies the whole structure and returns the first thing that does not
// hold: the statistics equal the sums, what is pending is in all its queues in
// one order, and batches count their blocks.
func (a *Allocator) Check() error {
	if a.blocks.Closed {
		return nil
	}
	var live, bytes uint64
	var mapped, stuck int
	for h := range a.held {
		c, r := a.blocks.Store.At(h), &a.more[h]
		if r.has&hasMemory != 0 {
			bytes += c.Size
		}
		if c.State == chunks.Live {
			live += c.Size
		}
		if c.State == chunks.Stuck {
			stuck++
			continue
		}
		if r.has != hasAll {
			return fmt.Errorf("block %d at %#x: not mapped (%b)", h, c.Addr, r.has)
		}
		mapped++
	}
	if s := a.blocks.Count; bytes != s.PoolBytes || live != s.BytesInUse || bytes > s.BytesLimit {
		return fmt.Errorf("statistics say %d bytes in use, %d held, budget %d; a walk counts %d and %d",
			s.BytesInUse, s.PoolBytes, s.BytesLimit, live, bytes)
	}
	if stuck != len(a.stuck) {
		return fmt.Errorf("%d blocks are stuck, the list has %d", stuck, len(a.stuck))
	}
	if err := a.blocks.CheckTable(); err != nil {
		return err
	}
	return a.checkPending(mapped)
}

// checkPending checks what is pending. mapped is how many blocks are mapped in all, live
// ones included.
func (a *Allocator) checkPending(mapped int) error {
	q := &a.pending
	for h := range a.held {
		if a.blocks.Store.At(h).State == chunks.Live {
			mapped--
		}
	}
	// Walked in order, a class's queue advances by the blocks of that class, and
	// batches come one after the other.
	next := make([]chunks.H, len(q.classes))
	for i, k := range q.classes {
		next[i] = k.head
	}
	count := make([]batch, len(q.batches))
	at, n, prev := q.oldest, 0, chunks.H(0)
	for h := q.head; h != 0; h = a.blocks.Store.At(h).Next {
		c, r := a.blocks.Store.At(h), &a.more[h]
		if n++; n > mapped {
			return fmt.Errorf("more than the %d pending blocks are queued", mapped)
		}
		if c.State != chunks.Free || c.Prev != prev {
			return fmt.Errorf("pending block %d is in state %d behind %d, not %d", h, c.State, c.Prev, prev)
		}
		if q.first(c.Size, alloc.End(c.Tag)) == 0 || next[r.class] != h || q.class(c.Size, alloc.End(c.Tag)) != r.class {
			return fmt.Errorf("pending block %d is not the next of class %d", h, r.class)
		}
		for at != r.batch && at != 0 {
			at = q.batches[at].newer
		}
		if at == 0 {
			return fmt.Errorf("pending block %d is out of its batch's order", h)
		}
		count[at].blocks++
		count[at].bytes += c.Size
		next[r.class], prev = r.after, h
	}
	if n != mapped || prev != q.tail {
		return fmt.Errorf("%d pending blocks, %d of them queued, the last is %d and not %d", mapped, n, prev, q.tail)
	}
	for i, h := range next {
		if h != 0 {
			return fmt.Errorf("block %d is in class %d and not pending", h, i)
		}
	}
	batches := 0
	for i := q.oldest; i != 0; i = q.batches[i].newer {
		b := &q.batches[i]
		batches++
		if b.blocks == 0 || b.blocks != count[i].blocks || b.bytes != count[i].bytes || b.wanted {
			return fmt.Errorf("batch %d has %d blocks, %d bytes (wanted: %v); counted are %d, %d",
				i, b.blocks, b.bytes, b.wanted, count[i].blocks, count[i].bytes)
		}
		if open := i == q.open; open && i != q.newest || (len(b.marks) > 0) == (open || b.done) {
			return fmt.Errorf("batch %d (open %d, newest %d, done %v) has %d marks", i, q.open, q.newest, b.done, len(b.marks))
		}
	}
	if batches+len(q.unused)+1 != len(q.batches) {
		return fmt.Errorf("%d batches and %d unused ones of %d", batches, len(q.unused), len(q.batches)-1)
	}
	return nil
}
