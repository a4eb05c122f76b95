package tape

// The builder of a trace: it names each block by a slot, keeps the sums and hands the
// events to the encoder. Every reader uses it.

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"gpumem/internal/input"
	"gpumem/record/internal/spool"
	"gpumem/record/internal/sum"
	"gpumem/size"
)

// Builder makes one Trace: a format's reader adds pools to it, and to the pools what
// it finds, in the order in which it happened.
type Builder struct {
	siteMaker
	trace *Trace
	in    *input.Reader
	pools []*PoolBuilder
	slots int                 // of all pools
	far   map[uint32]struct{} // streams from maxStreams on
	live  sum.Sum             // over all pools
	peak  sum.Sum
	first uint64 // the time of the first At
	now   uint64 // of the events that follow, from first on
	spool func() *spool.Spool
}

func newBuilder(in *input.Reader, format string, opt Options) *Builder {
	limit := opt.SpoolLimit
	if limit == 0 {
		limit = defaultSpoolLimit
	}
	spools := func() *spool.Spool { return spool.New(max(limit, 0), opt.TempDir) }
	t := &Trace{Source: in.Name(), Format: format, spool: spools(), found: &found{of: map[any]any{}}}
	return &Builder{trace: t, in: in, siteMaker: newSiteMaker(&t.sites, opt.KeepPaths, in.Take), spool: spools}
}

// Spool returns a spool for what a reader must put in order before it is events, with the
// limits of the one for the events. The caller closes it.
func (b *Builder) Spool() *spool.Spool { return b.spool() }

// Note adds a sentence for people: what was dropped or assumed.
func (b *Builder) Note(format string, args ...any) {
	b.trace.Notes = append(b.trace.Notes, fmt.Sprintf(format, args...))
}

// Settings are those of the recorded program's allocator, see [Trace.Settings].
func (b *Builder) Settings(text string) { b.trace.Settings = input.Printable(text) }

// Pool adds a pool. Control characters in its name become blanks, and 200 bytes are kept.
func (b *Builder) Pool(name string) *PoolBuilder {
	name = input.Printable(input.Cut(name, maxNameBytes))
	p := &PoolBuilder{b: b, p: &Pool{Name: name, trace: b.trace, Streams: 1}}
	b.pools = append(b.pools, p)
	b.trace.Pools = append(b.trace.Pools, p.p)
	return p
}

// At sets the time of the events that follow, in nanoseconds from any origin;
// the first call of all makes the origin of the trace, so it must come with the
// recording's earliest event. Within a pool time does not go back: an event with an
// earlier time than the one before it gets that one's time.
func (b *Builder) At(ns uint64) {
	if !b.trace.Timed {
		b.trace.Timed, b.first = true, ns
	}
	b.now = min(max(ns, b.first)-b.first, math.MaxInt64)
}

// finish seals the last blocks and sets the sums of the trace.
func (b *Builder) finish() error {
	if b.err != nil {
		return b.err
	}
	t := b.trace
	for _, p := range b.pools {
		if err := p.seal(); err != nil {
			return err
		}
		if err := p.sealOlder(); err != nil {
			return err
		}
		if err := p.sealPlaces(); err != nil {
			return err
		}
		t.Events += p.p.Events
		t.Allocs += p.p.Allocs
		t.Refused += p.p.Refused
		t.Seeds += p.p.Seeds
		p.p.Slots = uint32(len(p.bytes))
		p.p.PeakLive = p.peak.Cap()
		p.p.PeakLive256 = p.peak256.Cap()
		p.p.EndLive = p.live.Cap()
		p.p.EndBlocks = uint64(len(p.bytes) - len(p.free))
	}
	t.PeakLive, t.origin = b.peak.Cap(), b.first
	if t.Events == 0 {
		return b.in.Fail(NoEvents)
	}
	return nil
}

// NoEvents is the message of the error of a recording without events.
const NoEvents = "the recording has no events"

// PoolBuilder makes one Pool. Its memory is per slot, so per block that was ever
// live at the same time as others; never per event.
type PoolBuilder struct {
	b       *Builder
	p       *Pool
	enc     encoder
	places  placeEncoder
	free    []uint32 // slots without a block, the last one freed on top
	bytes   []uint64 // requested bytes of the block in each slot
	older   []olderBlock
	time    uint64 // of the latest event
	live    sum.Sum
	live256 sum.Sum
	peak    sum.Sum
	peak256 sum.Sum
}

var errTooManyBlocks = errors.New("more than 4294967295 blocks are live at once; this version cannot number them")

// Segments says what the pool held at the first event after the seeds, see
// [Pool.Segments].
func (p *PoolBuilder) Segments(list []Segment) { p.p.segments = list }

// Granted says which segments the pool took from its device, see [Pool.Granted].
func (p *PoolBuilder) Granted(list []Segment) { p.p.granted = list }

// Private says that a private pool serves the requests after the events so far, or that it
// ended, see [Pool.Privates].
func (p *PoolBuilder) Private(pool uint32, ended bool) {
	p.p.privates = append(p.p.privates, Private{p.p.Events, pool, ended})
}

// Waits says which blocks waited for a stream after their free, see [Pool.Waits].
func (p *PoolBuilder) Waits(list []Wait) {
	slices.SortStableFunc(list, func(a, b Wait) int { return cmp.Compare(a.From, b.From) })
	p.p.waits = list
}

// Final says what the pool held when the recording was taken, see [Pool.Final].
func (p *PoolBuilder) Final(list []Segment) { p.p.final = list }

// Keepers says what keeps the blocks of Alloc events, see [Pool.Keeper]. The pool may have no
// blocks that are older than the recording and known from their frees alone.
func (p *PoolBuilder) Keepers(keepers map[uint64]Keeper) { p.p.keepers = keepers }

// Reserved says that the pool held that many bytes from the next event on, see
// [Pool.Reserved]. The first call is for the beginning. Blocks that turn out to be older than
// the recording later move the events on.
func (p *PoolBuilder) Reserved(bytes uint64) {
	list := p.p.reserved
	next := Reserved{p.p.Events + 1 - uint64(len(p.older)), bytes} // sealOlder counts all of those
	switch n := len(list); {
	case n == 0:
		next.Event = 0
	case list[n-1].Event == next.Event:
		list[n-1].Bytes = bytes
		return
	}
	p.p.reserved = append(list, next)
}

// Trim says that the program emptied its cache after the events so far, see [Pool.Trims].
func (p *PoolBuilder) Trim() { p.p.trims = append(p.p.trims, p.p.Events) }

// Note adds a sentence about this pool, see [Builder.Note]. If there are several pools, the
// sentence begins with its name.
func (p *PoolBuilder) Note(format string, args ...any) {
	if len(p.b.pools) > 1 {
		format, args = "%s: "+format, append([]any{p.p.Name}, args...)
	}
	p.b.Note(format, args...)
}

// NoteCount adds "n things text" unless n is 0, with one thing named what.
func (p *PoolBuilder) NoteCount(n int, what, text string) {
	if n > 0 {
		p.Note("%s %s", size.Count(n, what), text)
	}
}

// Events returns how many events were added.
func (p *PoolBuilder) Events() uint64 { return p.p.Events }

// SeedCount returns how many of the events are seeds.
func (p *PoolBuilder) SeedCount() uint64 { return p.p.Seeds }

// Seed adds the Alloc of a block that is older than the recording, see [PoolBuilder.Alloc].
// All seeds come before any other event.
func (p *PoolBuilder) Seed(ev Event) (slot uint32, err error) {
	p.p.Seeds++
	return p.Alloc(ev, 0)
}

// Alloc adds an Alloc in a free slot, and returns that. Of ev it takes Bytes, Site, Stream,
// Upper and Refused. addr is where the block lies, 0 if that is not known.
//
// The slot freed last is used first: it is near the encoder's previous slot, and near
// in the reader's memory. If ev was refused the slot is free again.
func (p *PoolBuilder) Alloc(ev Event, addr uint64) (slot uint32, err error) {
	if p.b.err != nil {
		return 0, p.b.err
	}
	if err := p.b.stream(ev.Stream); err != nil {
		return 0, err
	}
	n := ev.Bytes
	if top := len(p.free) - 1; top >= 0 {
		slot = p.free[top]
		p.free = p.free[:top]
		p.bytes[slot] = n
	} else if slot, err = p.newSlot(n); err != nil {
		return 0, err
	}
	p.p.Events++
	p.p.Allocs++
	p.p.LargestAlloc = max(p.p.LargestAlloc, n)
	p.p.Streams = max(p.p.Streams, ev.Stream+1)
	p.live.Add(n)
	p.peak.Raise(p.live)
	p.live256.Add256(n)
	p.peak256.Raise(p.live256)
	p.b.live.Add(n)
	p.b.peak.Raise(p.b.live)
	if ev.Refused {
		p.p.Refused++
		p.drop(slot)
	}
	ev.Slot = slot
	if err := p.put(ev); err != nil {
		return slot, err
	}
	return slot, p.place(addr)
}

// A slot counts bytesOfSlot: what readers and a replay need for a block that is live, 60 and
// 100 to 500 bytes. It is counted for slotsAtOnce slots at once.
const (
	bytesOfSlot = 400
	slotsAtOnce = 4096
)

// maxStreams bounds the streams of a recording: a simulated GPU knows of each of them what
// every other one knows. CUDA programs have tens.
const maxStreams = 2048

// stream notes a stream.
func (b *Builder) stream(n uint32) error {
	if n < maxStreams {
		return nil
	}
	if b.far == nil {
		b.far = make(map[uint32]struct{})
	}
	b.far[n] = struct{}{}
	if len(b.far) > maxStreams {
		return b.in.Fail("the recording has more than %d streams; it is damaged", maxStreams)
	}
	return nil
}

// newSlot returns a slot that no block had before.
func (p *PoolBuilder) newSlot(n uint64) (uint32, error) {
	if uint64(len(p.bytes)) >= maxSlots {
		return 0, p.b.in.Fail("%v", errTooManyBlocks)
	}
	if p.b.slots++; p.b.slots%slotsAtOnce == 0 {
		if err := p.b.in.Take(slotsAtOnce * bytesOfSlot); err != nil {
			return 0, err
		}
	}
	p.bytes = append(p.bytes, n)
	return uint32(len(p.bytes) - 1), nil
}

// Free adds the Free of ev.Slot, whose block the caller knows to be live. Of ev it takes
// Site, Stream and Upper besides.
func (p *PoolBuilder) Free(ev Event) error {
	if err := p.b.stream(ev.Stream); err != nil {
		return err
	}
	p.drop(ev.Slot)
	p.p.Events++
	p.p.Streams = max(p.p.Streams, ev.Stream+1)
	return p.put(Event{Slot: ev.Slot, Site: ev.Site, Stream: ev.Stream, Upper: ev.Upper, Op: Free})
}

// drop takes the block of a slot out of what is live.
func (p *PoolBuilder) drop(slot uint32) {
	n := p.bytes[slot]
	p.free = append(p.free, slot)
	p.live.Sub(n)
	p.live256.Sub256(n)
	p.b.live.Sub(n)
}

func (p *PoolBuilder) put(ev Event) error {
	if p.b.trace.Timed {
		if !p.enc.timed { // the first event with a time; seeds have none
			if err := p.seal(); err != nil {
				return err
			}
			p.enc.timed = true
		}
		p.time = max(p.time, p.b.now)
		ev.Time = p.time
	}
	p.enc.put(ev)
	if p.enc.full() {
		return p.seal()
	}
	return nil
}

// seal hands the encoder's block to the spool.
func (p *PoolBuilder) seal() error {
	data, events := p.enc.seal()
	if events == 0 {
		return nil
	}
	if err := p.b.in.Stopped(); err != nil {
		return err
	}
	blk, err := p.b.trace.spool.Store(data)
	if err != nil {
		return err
	}
	p.p.blocks = append(p.p.blocks, block{blk, events, p.enc.timed})
	p.enc.reset()
	return nil
}
