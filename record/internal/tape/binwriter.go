package tape

// The writers of our own format: Writer, which records a running program, and Save, which
// writes a trace that was read. Both use blockWriter (binblocks.go). See binary.go for the
// format.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"time"

	"gpumem/alloc"
	"gpumem/internal/input"
)

// flushAfter is how long a Writer keeps records before it writes them; see FlushAfter.
const flushAfter = time.Second

// Writer records the allocations of a running program in our own format, for
// Open. Any number of goroutines may use it at once; the order of the events is
// that in which their calls got in.
//
// Records are gathered and written as blocks, each with one Write: when 64 KiB
// are full, which is 10,000 to 20,000 events, when a call comes a second after
// the oldest record that is not written, and on Flush. A program that is killed
// so loses at most 64 KiB, and nothing that is more than a second older than the
// last call; the file is good up to there. With a FlushAfter of 0 it loses nothing. To
// survive the loss of power the file must be synced.
type Writer struct {
	// FlushAfter is how long a record may wait for the next ones, a second unless it is
	// changed before the first call. With 0 each is written at once, in a separate block,
	// which takes two microseconds and three times the bytes.
	FlushAfter time.Duration

	mu    sync.Mutex
	out   blockWriter
	pools map[string]*livePool
	sites map[string]uint32
	lines map[string]uint32 // frame numbers by text

	timed bool
	first uint64 // time of the first event

	now    func() time.Time
	oldest time.Time // when the oldest record that is not written came
}

// livePool is one pool of a Writer.
type livePool struct {
	number uint32
	slots  map[uint64]uint32 // of the live blocks by their IDs
}

// Call describes one allocation or free to be recorded.
type Call = alloc.Call

// NewWriter begins a recording on w. The error is that of writing the first
// bytes.
func NewWriter(w io.Writer) (*Writer, error) {
	out := &Writer{
		FlushAfter: flushAfter,

		out:   blockWriter{w: w},
		pools: make(map[string]*livePool),
		sites: map[string]uint32{"": 0},
		lines: make(map[string]uint32),
		now:   time.Now,
	}
	return out, out.out.begin()
}

// Alloc records an allocation that was served. The error is that of writing,
// which comes again on every later call, or that the pool has a live block of
// this ID; nothing is recorded then.
func (w *Writer) Alloc(c Call) error {
	return w.record(c, func(p *livePool) error {
		if _, live := p.slots[c.ID]; live {
			return fmt.Errorf("trace: block %#x of pool %q is already live; record its free first", c.ID, c.Pool)
		}
		ev, err := w.event(c)
		if err != nil {
			return err
		}
		slot, err := w.out.alloc(p.number, ev, c.Addr)
		if err == nil {
			p.slots[c.ID] = slot
		}
		return err
	})
}

// Refuse records an allocation that was refused for good: a replay tries it, too.
// The error is that of writing, which comes again on every later call.
func (w *Writer) Refuse(c Call) error {
	return w.record(c, func(p *livePool) error {
		ev, err := w.event(c)
		if err != nil {
			return err
		}
		return w.out.refuse(p.number, ev)
	})
}

// Free records a free. The error is as Alloc's, or that the pool has no live
// block of this ID: blocks older than the recording are to be recorded with
// Alloc first.
func (w *Writer) Free(c Call) error {
	return w.record(c, func(p *livePool) error {
		slot, live := p.slots[c.ID]
		if !live {
			return fmt.Errorf("trace: block %#x of pool %q is not live; record its allocation first", c.ID, c.Pool)
		}
		ev, err := w.event(c)
		if err != nil {
			return err
		}
		delete(p.slots, c.ID)
		return w.out.free(p.number, slot, ev)
	})
}

// record calls put with the pool of a call, and then writes what has waited long enough.
func (w *Writer) record(c Call, put func(*livePool) error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, err := w.pool(c.Pool)
	if err != nil {
		return err
	}
	if err := put(p); err != nil {
		return err
	}
	now := w.now()
	if w.oldest.IsZero() || len(w.out.buf) == frameBytes {
		w.oldest = now
	}
	if now.Sub(w.oldest) < w.FlushAfter {
		return nil
	}
	return w.flush()
}

// Flush writes what is recorded so far. Call it at the end; the writer may be
// used on after it.
func (w *Writer) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.flush()
}

func (w *Writer) flush() error {
	w.oldest = time.Time{}
	return w.out.flush()
}

// pool returns the pool of a name, new if need be.
func (w *Writer) pool(name string) (*livePool, error) {
	p := w.pools[name]
	if p == nil {
		if len(w.pools) == maxPools {
			return nil, fmt.Errorf("trace: pool %q is one more than the %d that a recording may have", name, maxPools)
		}
		p = &livePool{number: w.out.newPool(name, 0), slots: make(map[uint64]uint32)}
		w.pools[name] = p
	}
	return p, w.out.err
}

// event returns a call without what Alloc and Free know better.
func (w *Writer) event(c Call) (Event, error) {
	if c.Stream == math.MaxUint32 {
		return Event{}, errors.New("trace: stream 4294967295 is one too many")
	}
	if c.Time != 0 && !w.timed {
		w.timed, w.first = true, c.Time
		w.out.begins()
	}
	origin := w.first
	if origin >= since1970 {
		origin = 0
	}
	return Event{
		Bytes: c.Bytes, Stream: c.Stream, Upper: c.Upper, Site: w.site(c.Site),
		Time: min(max(c.Time, w.first)-origin, math.MaxInt64),
	}, w.out.err
}

// site returns the number of a stack, which is written when it is first seen.
func (w *Writer) site(text string) uint32 {
	n, ok := w.sites[text]
	if ok {
		return n
	}
	var frames []uint32
	for line := range strings.SplitSeq(text, "\n") {
		if len(frames) == MaxFrames {
			break
		}
		f, ok := w.lines[line]
		if !ok {
			f = uint32(len(w.lines))
			w.lines[line] = f
			w.out.text(binNewFrame, input.Cut(input.Printable(line), maxFrameBytes))
		}
		frames = append(frames, f)
	}
	w.out.newSite(frames)
	n = uint32(len(w.sites))
	w.sites[text] = n
	return n
}

// Save writes the recording in our own format, so that it is read faster and
// takes less room. What is read from it is the same recording, with the same format, but for
// the slots, which may be numbered anew, and the order of events of different pools.
// The error is that of w, of the temporary file, or the cause of ctx.
func (t *Trace) Save(ctx context.Context, w io.Writer) error {
	out := &blockWriter{w: w}
	if err := out.begin(); err != nil {
		return err
	}
	for _, f := range t.sites.frames {
		out.text(binNewFrame, f)
	}
	for _, frames := range t.sites.sites {
		out.newSite(frames)
	}
	if t.Format != Binary.Name {
		out.text(binFormat, t.Format)
	}
	if t.Settings != "" {
		out.text(binSettings, t.Settings)
	}
	for _, n := range t.Notes {
		out.text(binNote, n)
	}
	for i, p := range t.Pools {
		out.newPool(p.Name, p.Seeds)
		out.segments(uint32(i), p)
	}
	if t.Timed {
		out.begins()
	}
	if t.origin > 0 {
		out.uvarint(binOrigin, t.origin)
	}
	keepers := keepersOf{}
	for i, p := range t.Pools {
		if err := p.save(ctx, uint32(i), out, keepers); err != nil {
			return err
		}
	}
	out.uvarint(binPeak, t.PeakLive)
	return out.flush()
}

// save writes the events of pool number n.
func (p *Pool) save(ctx context.Context, n uint32, out *blockWriter, keepers keepersOf) error {
	slots := make([]uint32, p.Slots) // the file's by ours
	places := p.Places()
	beside := besideEvents(n, p)
	var done uint64
	err := p.Batches(ctx, nil, func(events []Event) error {
		for _, ev := range events {
			beside.write(out, done, slots)
			done++
			addr, err := places.Of(&ev)
			switch {
			case err != nil:
			case ev.Op == Free:
				err = out.free(n, slots[ev.Slot], ev)
			case ev.Refused:
				err = out.refuse(n, ev)
			default:
				if k, ok := p.Keeper(done); ok {
					keepers.write(out, k)
				}
				slots[ev.Slot], err = out.alloc(n, ev, addr)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	beside.write(out, done, slots)
	return err
}
