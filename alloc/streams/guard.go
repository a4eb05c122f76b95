package streams

import (
	"slices"

	"gpumem/alloc"
)

// Guard makes memory that is reused safe for programs of several
// streams.
//
// An allocator that reuses memory hands out at once what was just freed. In one
// stream that is right: the new user's work is queued after the old one's. In
// another stream it is not: the old work may still run. A Guard watches the
// blocks that come and go and, where memory passes from one stream to another,
// makes the new stream wait for an event that was recorded at the free. Which
// block is handed out does not change, so that an exact allocator stays exact and
// a run can be repeated.
//
// One block, with streams 1 and 2 and a block A of stream 1:
//
//	Free(A)         a mark m is made in stream 1, and in each stream that A was
//	                used in as well (Use); A's addresses are noted with it
//	Alloc in 1      gets A's addresses: stream 1 is noted, nothing to do
//	Alloc in 2      gets them: stream 2 is made to wait for m
//
// A program of one stream pays nothing: no events, no notes. When a second
// stream is first seen, whatever was freed before was freed in the first one, so
// the newcomer waits for an event recorded there then.
//
// An allocator that takes pages away needs Epochs as well. Allocators that give
// each block back to the driver need neither: the driver waits, or orders.
//
// A Guard is not safe for concurrent use; the pool's lock guards it.
type Guard struct {
	t     *Tracker
	quiet bool // see [Quiet]

	begun bool   // a stream was seen
	first uint32 // that stream
	multi bool   // and another one

	base   *Mark               // after all that was freed while there was one stream; with multi
	blocks map[uint64][]uint32 // the streams of live blocks, by address, that are not the first stream's alone
	notes  notes
}

// Quiet is a device whose stream 0 stands for no stream: its memory may be used
// anywhere, and when it is freed all work on it is done. So nothing is noted when it
// is freed, and what takes it over waits for nothing; but such memory itself must be
// ordered after all earlier work, in whatever stream. The device's StreamWaitEvent for
// stream 0 sees to that.
type Quiet interface {
	Quiet() bool
}

// NewGuard makes a guard over the tracker's streams.
func NewGuard(t *Tracker) *Guard {
	q, ok := t.dev.(Quiet)
	return &Guard{t: t, quiet: ok && q.Quiet(), blocks: map[uint64][]uint32{}}
}

// none reports whether a number stands for no stream.
func (g *Guard) none(stream uint32) bool { return g.quiet && stream == 0 }

// Idle reports whether there is nothing to do for a block in this stream: it is
// the only one so far.
func (g *Guard) Idle(stream uint32) bool {
	if g.none(stream) {
		return !g.begun
	}
	return g.begun && !g.multi && stream == g.first
}

// Several reports whether more than one stream was seen.
func (g *Guard) Several() bool { return g.multi }

// see notes a stream that is about to be used. From the second one on there is
// work to do; each waits for what was freed before there were several.
func (g *Guard) see(number uint32) error {
	s, err := g.t.use(number)
	if err != nil {
		return err
	}
	switch {
	case g.none(number):
		if g.begun && !g.multi { // what was freed in the only stream has no notes
			m, err := g.t.Mark(g.first)
			if err == nil {
				err = g.t.After(number, m)
				g.t.Release(m)
			}
			return err
		}
	case !g.begun:
		g.begun, g.first = true, number
	case !g.multi && number != g.first:
		base, err := g.t.Mark(g.first)
		if err != nil {
			return err
		}
		g.multi, g.base = true, base
	}
	if g.multi && !s.joined {
		if err := g.t.After(number, g.base); err != nil {
			return err
		}
		s.joined = true
	}
	return nil
}

// Alloc orders a block that was just handed out in a stream after the work that
// may still use its memory. It is called before anyone uses the block. After an
// error, which may be a *Pending, it can be called again, or the block is given
// back to its allocator.
func (g *Guard) Alloc(b alloc.Block, stream uint32) error {
	if err := g.see(stream); err != nil || !g.multi || b.IsZero() {
		return err
	}
	var err error
	g.notes.over(b.Addr, b.Size, func(n note) bool {
		for _, m := range n.marks {
			if err = g.t.After(stream, m); err != nil {
				return false
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	// From here on what was noted comes before the block's own work.
	g.notes.cut(b.Addr, b.Size, g.t.Release)
	delete(g.blocks, b.Addr)
	if stream != g.first || g.none(stream) {
		g.blocks[b.Addr] = []uint32{stream}
	}
	return nil
}

// Use notes that a live block is used in another stream than its own, too: its
// memory is not used by others before the work that is there when it is freed is
// done. A second call for the same stream does nothing.
func (g *Guard) Use(b alloc.Block, stream uint32) error {
	if err := g.see(stream); err != nil || !g.multi || b.IsZero() {
		return err
	}
	streams := g.streams(b)
	if !slices.Contains(streams, stream) {
		g.blocks[b.Addr] = append(slices.Clone(streams), stream)
	}
	return nil
}

// streams are where a live block is used, its own first.
func (g *Guard) streams(b alloc.Block) []uint32 {
	if s := g.blocks[b.Addr]; s != nil {
		return s
	}
	return []uint32{g.first}
}

// Free has a block taken back by release, and notes when its work is done. After
// an error, of release's or the device's, the block is as it was.
func (g *Guard) Free(b alloc.Block, release func() error) error {
	if !g.multi || b.IsZero() {
		return release()
	}
	var marks []*Mark
	err := func() error {
		for _, s := range g.streams(b) {
			if g.none(s) {
				continue
			}
			m, err := g.t.Mark(s)
			if err != nil {
				return err
			}
			if m != nil {
				marks = append(marks, m)
			}
		}
		return release()
	}()
	if err != nil {
		g.t.Release(marks...)
		return err
	}
	delete(g.blocks, b.Addr)
	g.notes.cut(b.Addr, b.Size, g.t.Release) // none: the new owner took them
	if len(marks) > 0 {
		g.notes.add(note{b.Addr, b.Size, marks})
	}
	if g.notes.many() {
		g.prune()
	}
	return nil
}

// prune forgets the notes whose marks have passed. Without it a program that frees much
// and allocates little would keep an event for each block.
func (g *Guard) prune() {
	g.t.Look()
	g.notes.drop(func(n note) bool {
		for _, m := range n.marks {
			if !g.t.Passed(m) {
				return false
			}
		}
		return true
	}, g.t.Release)
}

// Close releases all marks. The guard is not used afterwards.
func (g *Guard) Close() {
	g.notes.drop(func(note) bool { return true }, g.t.Release)
	g.t.Release(g.base)
}
