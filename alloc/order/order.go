// Package order makes memory that is handed out again safe for programs of
// several streams.
//
// An allocator that reuses memory hands out at once what was just freed. In one
// stream that is right: the new user's work is queued after the old one's. In
// another stream it is not: the old work may still run. A [Guard] watches the
// blocks that come and go and, where memory passes from one stream to another,
// makes the new stream wait for an event that was recorded at the free. The host
// never waits, and which block is handed out does not change, so that an exact
// allocator stays exact and a run can be repeated.
//
// # The way of one block
//
// Streams 1 and 2, a block A of stream 1.
//
//	Free(A)         an event e is recorded in stream 1, and in each stream that
//	                A was used in as well (Use); A's addresses are noted with it
//	Alloc in 1      gets A's addresses: stream 1 is noted, nothing to do
//	Alloc in 2      gets them: stream 2 is made to wait for e
//
// A program of one stream pays nothing: no events, no notes. When a second
// stream is seen first, whatever was freed before was freed in the first one, so
// the newcomer waits for an event recorded there then.
//
// What an allocator must do itself is not to take pages away under work that
// still runs; see package elastic. Allocators that give each block back to the
// driver need none of this: the driver waits, or orders.
package order

import (
	"slices"

	"gpumem/alloc"
	"gpumem/device"
)

// Guard orders the streams of one pool. It is not safe for concurrent use; the
// pool's lock holds.
type Guard struct {
	dev      device.Streams
	streamOf alloc.StreamOf

	begun bool   // a stream was seen
	first uint32 // that stream
	multi bool   // and another one

	handles map[uint32]device.Stream // of the streams seen
	base    device.Event             // after all that was freed while there was one stream; with multi
	blocks  map[uint64][]uint32      // the streams of live blocks, by address, that are not the first stream's alone
	notes   notes
	spare   []*event // to be recorded again
}

// New makes a guard. streamOf may be nil: then there is one stream.
func New(dev device.Streams, streamOf alloc.StreamOf) *Guard {
	return &Guard{dev: dev, streamOf: streamOf, handles: map[uint32]device.Stream{}, blocks: map[uint64][]uint32{}}
}

// Idle says whether there is nothing to do for a block in this stream: it is
// the only one so far.
func (g *Guard) Idle(stream uint32) bool { return g.begun && !g.multi && stream == g.first }

// Several says whether more than one stream was seen.
func (g *Guard) Several() bool { return g.multi }

// handle is the device's stream for a number. One that is new waits for all that
// was freed before there were several.
func (g *Guard) handle(number uint32) (device.Stream, error) {
	if h, ok := g.handles[number]; ok {
		return h, nil
	}
	h := device.Stream(0)
	if g.streamOf != nil {
		var err error
		if h, err = g.streamOf(number); err != nil {
			return 0, err
		}
	}
	if g.multi {
		if err := g.dev.StreamWaitEvent(h, g.base); err != nil {
			return 0, err
		}
	}
	g.handles[number] = h
	return h, nil
}

// see is told of every stream. From the second one on there is work to do.
func (g *Guard) see(number uint32) error {
	if !g.begun {
		_, err := g.handle(number)
		if err == nil {
			g.begun, g.first = true, number
		}
		return err
	}
	if !g.multi && number != g.first {
		if g.streamOf != nil { // a number that is no stream's changes nothing
			if _, err := g.streamOf(number); err != nil {
				return err
			}
		}
		e, err := g.dev.EventCreate()
		if err != nil {
			return err
		}
		if err := g.dev.EventRecord(e, g.handles[g.first]); err != nil {
			_ = g.dev.EventDestroy(e)
			return err
		}
		g.multi, g.base = true, e
	}
	_, err := g.handle(number)
	return err
}

// Alloc is told of a block that was just handed out in a stream, before anyone
// uses it. After an error the block is to be given back to its allocator.
func (g *Guard) Alloc(b alloc.Block, stream uint32) error {
	if err := g.see(stream); err != nil || !g.multi || b.IsZero() {
		return err
	}
	for _, n := range g.notes.over(b.Addr, b.Size) {
		for _, m := range n.marks {
			if m.stream == stream {
				continue
			}
			if err := g.dev.StreamWaitEvent(g.handles[stream], m.event.handle); err != nil {
				return err
			}
		}
	}
	// From here on what was noted comes before the block's own work.
	g.notes.cut(b.Addr, b.Size, g.retire)
	if stream != g.first {
		g.blocks[b.Addr] = []uint32{stream}
	}
	return nil
}

// Use is told that a live block is used in another stream than its own, too:
// its memory is not used by others before the work that is there when it is
// freed is done. Telling it twice does nothing more.
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
	var marks []mark
	err := func() error {
		for _, s := range g.streams(b) {
			e, err := g.event()
			if err != nil {
				return err
			}
			marks = append(marks, mark{s, e})
			if err := g.dev.EventRecord(e.handle, g.handles[s]); err != nil {
				return err
			}
		}
		return release()
	}()
	if err != nil {
		g.retire(marks)
		return err
	}
	delete(g.blocks, b.Addr)
	g.notes.cut(b.Addr, b.Size, g.retire) // none: whoever got the memory took them
	g.notes.add(note{b.Addr, b.Size, marks})
	if g.notes.many() {
		g.prune()
	}
	return nil
}

// event is one that may be recorded.
func (g *Guard) event() (*event, error) {
	if n := len(g.spare); n > 0 {
		e := g.spare[n-1]
		g.spare = g.spare[:n-1]
		e.notes = 1
		return e, nil
	}
	h, err := g.dev.EventCreate()
	return &event{handle: h, notes: 1}, err
}

// retire keeps the events that no note has any more, to record them again. A
// stream that was made to wait for one still waits for what it was then.
func (g *Guard) retire(gone []mark) {
	for _, m := range gone {
		if m.event.notes--; m.event.notes == 0 {
			g.spare = append(g.spare, m.event)
		}
	}
}

// prune forgets the notes whose events have passed. An event that cannot be
// asked has not: its note stays, which is safe.
func (g *Guard) prune() {
	passed := map[*event]bool{}
	g.notes.drop(func(n note) bool {
		for _, m := range n.marks {
			done, asked := passed[m.event]
			if !asked {
				ok, err := g.dev.EventQuery(m.event.handle)
				done = ok && err == nil
				passed[m.event] = done
			}
			if !done {
				return false
			}
		}
		return true
	}, g.retire)
}

// Close gives the events back. The streams are their owner's.
func (g *Guard) Close() error {
	var first error
	destroy := func(e device.Event) {
		if err := g.dev.EventDestroy(e); err != nil && first == nil {
			first = err
		}
	}
	g.notes.drop(func(note) bool { return true }, g.retire)
	for _, e := range g.spare {
		destroy(e.handle)
	}
	if g.multi {
		destroy(g.base)
	}
	*g = Guard{dev: g.dev, streamOf: g.streamOf, handles: map[uint32]device.Stream{}, blocks: map[uint64][]uint32{}}
	return first
}
