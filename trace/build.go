package trace

// This file is for what every reader does with the events it finds: name each
// block by a slot, keep the sums, hand the event to the encoder.

import (
	"errors"
	"fmt"
	"math"
	"math/bits"

	"gpumem/internal/input"
)

// builder makes one Trace.
type builder struct {
	trace *Trace
	input *input.Reader // nil in tests
	sites *siteMaker
	pools []*poolBuilder
	slots int                 // of all pools
	far   map[uint32]struct{} // streams from maxStreams on
	live  sum                 // over all pools
	peak  sum
	first uint64 // the first time that at was told
	now   uint64 // of the events that follow, from first on
}

func newBuilder(name, format string, opt Options) *builder {
	limit := opt.SpoolLimit
	switch {
	case limit == 0:
		limit = defaultSpoolLimit
	case limit < 0:
		limit = 0
	}
	t := &Trace{
		Source: name,
		Format: format,
		spool:  &spool{limit: limit, dir: opt.TempDir},
	}
	b := &builder{trace: t, sites: newSiteMaker(&t.sites, opt.KeepPaths)}
	b.sites.hold = b.hold
	return b
}

// hold counts n bytes of memory that the recording needs. The error says that it is more
// than is in proportion to the file.
func (b *builder) hold(n int) error {
	if b.input == nil {
		return nil
	}
	return b.input.Take(int64(n))
}

// pool adds a pool.
func (b *builder) pool(name string) *poolBuilder {
	p := &poolBuilder{b: b, p: &Pool{Name: name, trace: b.trace, Streams: 1}}
	b.pools = append(b.pools, p)
	b.trace.Pools = append(b.trace.Pools, p.p)
	return p
}

// at sets the time of the events that follow, in nanoseconds from any origin;
// the first call of all makes the origin of the trace, so it must come with the
// recording's earliest event. Within a pool time does not go back: events that
// are told earlier than one before them get that one's time.
func (b *builder) at(ns uint64) {
	if !b.trace.Timed {
		b.trace.Timed, b.first = true, ns
	}
	b.now = min(max(ns, b.first)-b.first, math.MaxInt64)
}

// finish seals the last blocks and sets the sums of the trace.
func (b *builder) finish() error {
	if b.sites.err != nil {
		return b.sites.err
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
		p.p.PeakLive = p.peak.cap()
		p.p.PeakLive256 = p.peak256.cap()
		p.p.EndLive = p.live.cap()
		p.p.EndBlocks = uint64(len(p.bytes) - len(p.free))
	}
	t.PeakLive = b.peak.cap()
	if t.Events == 0 {
		return &Error{File: t.Source, Msg: "the recording has no events"}
	}
	return nil
}

// discard gives back what a failed reading has spooled.
func (b *builder) discard() {
	b.trace.spool.close() // the reading's own error is the one to report
}

// poolBuilder makes one Pool. Its memory is per slot, so per block that was ever
// live at the same time as others; never per event.
type poolBuilder struct {
	b       *builder
	p       *Pool
	enc     encoder
	places  placeEncoder
	free    []uint32 // slots without a block, the last one freed on top
	bytes   []uint64 // requested bytes of the block in each slot
	older   []olderBlock
	time    uint64 // of the latest event
	live    sum
	live256 sum
	peak    sum
	peak256 sum
}

var errTooManyBlocks = errors.New("more than 4294967295 blocks are live at once; this version cannot number them")

// alloc adds an Alloc and returns its slot.
func (p *poolBuilder) alloc(n uint64, site, stream uint32, upper bool) (uint32, error) {
	return p.take(Event{Bytes: n, Site: site, Stream: stream, Upper: upper})
}

// refuse adds an Alloc that the recorded program was refused.
func (p *poolBuilder) refuse(n uint64, site, stream uint32, upper bool) error {
	_, err := p.take(Event{Bytes: n, Site: site, Stream: stream, Upper: upper, Refused: true})
	return err
}

// take adds an Alloc in a free slot, and returns that. The slot freed last is
// used first: it is near the encoder's previous slot, and near in the reader's
// memory. If ev was refused the slot is free again.
func (p *poolBuilder) take(ev Event) (slot uint32, err error) {
	if p.b.sites.err != nil {
		return 0, p.b.sites.err
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
	p.live.add(n)
	p.peak.raise(p.live)
	p.live256.add256(n)
	p.peak256.raise(p.live256)
	p.b.live.add(n)
	p.b.peak.raise(p.b.live)
	if ev.Refused {
		p.p.Refused++
		p.drop(slot)
	}
	ev.Slot = slot
	return slot, p.put(ev)
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
func (b *builder) stream(n uint32) error {
	if n < maxStreams {
		return nil
	}
	if b.far == nil {
		b.far = make(map[uint32]struct{})
	}
	b.far[n] = struct{}{}
	if len(b.far) > maxStreams {
		return &Error{File: b.trace.Source, Msg: fmt.Sprintf("the recording has more than %d streams; it is damaged", maxStreams)}
	}
	return nil
}

// newSlot returns a slot that no block had before.
func (p *poolBuilder) newSlot(n uint64) (uint32, error) {
	if uint64(len(p.bytes)) >= maxSlots {
		return 0, &Error{File: p.b.trace.Source, Msg: errTooManyBlocks.Error(), Err: errTooManyBlocks}
	}
	if p.b.slots++; p.b.slots%slotsAtOnce == 0 {
		if err := p.b.hold(slotsAtOnce * bytesOfSlot); err != nil {
			return 0, err
		}
	}
	p.bytes = append(p.bytes, n)
	return uint32(len(p.bytes) - 1), nil
}

// release adds the Free of a live slot. The caller knows that it is live.
func (p *poolBuilder) release(slot, site, stream uint32, upper bool) error {
	if err := p.b.stream(stream); err != nil {
		return err
	}
	p.drop(slot)
	p.p.Events++
	p.p.Streams = max(p.p.Streams, stream+1)
	return p.put(Event{Slot: slot, Site: site, Stream: stream, Upper: upper, Op: Free})
}

// drop takes the block of a slot out of what is live.
func (p *poolBuilder) drop(slot uint32) {
	n := p.bytes[slot]
	p.free = append(p.free, slot)
	p.live.sub(n)
	p.live256.sub256(n)
	p.b.live.sub(n)
}

func (p *poolBuilder) put(ev Event) error {
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
func (p *poolBuilder) seal() error {
	data, events := p.enc.seal()
	if events == 0 {
		return nil
	}
	blk, err := p.b.trace.spool.store(data)
	if err != nil {
		return err
	}
	blk.events, blk.timed = events, p.enc.timed
	p.p.blocks = append(p.p.blocks, blk)
	p.enc.reset()
	return nil
}

// sum is a 128-bit count of bytes. A recording may ask for 2^64-1 bytes more
// than once (a wrong length, recorded faithfully), and the running sum must come
// back down exactly when such blocks are freed.
type sum struct{ hi, lo uint64 }

func (s *sum) add(n uint64) {
	var c uint64
	s.lo, c = bits.Add64(s.lo, n, 0)
	s.hi += c
}

func (s *sum) sub(n uint64) {
	var c uint64
	s.lo, c = bits.Sub64(s.lo, n, 0)
	s.hi -= c
}

// add256 adds n rounded up to 256, which may be 2^64 itself.
func (s *sum) add256(n uint64) {
	r, c := bits.Add64(n, 255, 0)
	s.add(r &^ 255)
	s.hi += c
}

func (s *sum) sub256(n uint64) {
	r, c := bits.Add64(n, 255, 0)
	s.sub(r &^ 255)
	s.hi -= c
}

// raise makes s at least o.
func (s *sum) raise(o sum) {
	if o.hi > s.hi || (o.hi == s.hi && o.lo > s.lo) {
		*s = o
	}
}

// cap is s as 64 bits: the largest uint64 if it is more.
func (s sum) cap() uint64 {
	if s.hi != 0 {
		return math.MaxUint64
	}
	return s.lo
}

// note adds a sentence for people.
func (b *builder) note(s string) { b.trace.Notes = append(b.trace.Notes, s) }
