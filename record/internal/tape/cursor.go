package tape

// The cursor, which reads a pool's events back.

import (
	"context"
	"io"
	"time"

	"gpumem/record/internal/spool"
)

// block is one encoded block of events.
type block struct {
	spool.Block
	events uint32
	timed  bool
}

// Cursor reads the events of one pool in order. One goroutine uses it at a
// time; cursors of the same pool do not disturb each other.
type Cursor struct {
	pool *Pool
	next int    // number of the block after the current one
	left uint32 // events left in the current block
	rest []byte // the current block from the next event on, padding included
	prev prev   // of the previous event in the block
	buf  []byte // holds a block that came from the file
	err  error  // what every later Next returns

	timed bool // the current block has times
}

// Cursor returns a cursor at the first event. Many may be open at once, also in
// different goroutines.
func (p *Pool) Cursor() *Cursor { return &Cursor{pool: p} }

// Next fills dst with the next events, in order, and returns how many there
// are: fewer than len(dst) only at the end of the pool. At the end it returns 0
// and io.EOF. Any other error is a temporary file that cannot be read, or a
// closed trace; it comes again on every later call.
func (c *Cursor) Next(dst []Event) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	n := 0
	for n < len(dst) {
		if c.left == 0 {
			if c.err = c.load(); c.err != nil {
				break
			}
		}
		part := dst[n:min(len(dst), n+int(c.left))]
		used, last, err := decode(part, c.rest, c.prev, c.pool.Slots, c.timed)
		if err != nil {
			c.err = err
			break
		}
		c.rest, c.prev = c.rest[used:], last
		c.left -= uint32(len(part))
		n += len(part)
	}
	if n > 0 || len(dst) == 0 {
		return n, nil
	}
	return 0, c.err
}

// batchEvents is how many events Batches decodes at a time, and progressEvery how
// often it reports progress at most.
const (
	batchEvents   = 4096
	progressEvery = 200 * time.Millisecond
)

// Batches calls f with the events of the pool in order, a few thousand at a time.
// The slice is valid until f returns. progress, if not nil, is called a few times a
// second at most with the fraction of the events that f has seen. Batches stops with
// the context's cause between two batches, with an error of f, or with one of
// [Cursor.Next].
func (p *Pool) Batches(ctx context.Context, progress func(part float64), f func([]Event) error) error {
	cur := p.Cursor()
	buf := make([]Event, max(1, min(batchEvents, p.Events)))
	var done uint64
	var last time.Time
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := cur.Next(buf)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := f(buf[:n]); err != nil {
			return err
		}
		done += uint64(n)
		if progress == nil {
			continue
		}
		if now := time.Now(); now.Sub(last) > progressEvery {
			last = now
			progress(float64(done) / float64(p.Events))
		}
	}
}

// Recorded returns the number of an event as people count them, from its number with the
// seeds, from 1: the first recorded one is 1, and 0 is a block that is older than the recording.
func (p *Pool) Recorded(event uint64) uint64 { return event - min(p.Seeds, event) }

// load makes the next block the current one.
func (c *Cursor) load() error {
	if c.next > 0 && len(c.rest) != padBytes {
		return spool.ErrDamaged
	}
	if c.next == len(c.pool.blocks) {
		return io.EOF
	}
	blk := c.pool.blocks[c.next]
	data, err := c.pool.trace.spool.Load(blk.Block, &c.buf)
	if err != nil {
		return err
	}
	c.next++
	c.rest, c.left, c.prev, c.timed = data, blk.events, prev{}, blk.timed
	return nil
}
