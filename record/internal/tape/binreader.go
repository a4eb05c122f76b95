package tape

// The reader of our own format. See binary.go for the format.

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"

	"gpumem/internal/input"
	"gpumem/record/internal/sum"
	"gpumem/size"
)

// binaryReader reads one file.
type binaryReader struct {
	file *input.Reader
	in   *bufio.Reader // its content
	b    *Builder
	off  int64 // of the current block in the file

	frame   [frameBytes]byte
	payload []byte

	pools []*readPool
	last  uint32 // pool of the last event in the block
	addr  uint64 // the last one in the block
	// Set by a record in front of an Alloc.
	placed, refused, kept bool

	list    *[]Segment // of which the segments are that follow
	keepers []Keeper
	keeper  uint64 // of the Alloc that follows, if kept

	peak   uint64 // Trace.PeakLive as the file has it
	origin uint64 // Trace.Origin as the file has it
	timed  bool   // the events have times
	saved  bool   // the file has peak
}

// readPool is one pool of the file.
type readPool struct {
	pool  *PoolBuilder
	live  []bool // by slot
	prev  prev   // the last event in the block
	seeds uint64 // events that are still to come as seeds
}

// readBinary reads a whole file into b.
func readBinary(file *input.Reader, b *Builder) error {
	in := file.Content()
	r := &binaryReader{file: file, in: in, b: b, payload: make([]byte, maxPayload)}
	var head [binaryHead]byte
	n, err := io.ReadFull(in, head[:])
	switch {
	case err != nil && err != io.EOF && err != io.ErrUnexpectedEOF:
		return err
	case !looksBinary(head[:n]):
		return file.Fail("does not begin as a recording that --save wrote")
	case n < binaryHead:
		return file.Fail("ends within its first %d bytes: no events", binaryHead)
	case head[n-1] < 1 || head[n-1] > binaryVersion:
		return file.Fail("is in version %d of the format, and this gpumem reads versions 1 to %d; read it with the gpumem that wrote it, or a newer one",
			head[n-1], binaryVersion)
	}
	r.off = int64(binaryHead)
	for {
		payload, err := r.block()
		if err == io.EOF {
			break
		}
		if err == nil {
			err = r.records(payload)
		}
		if err != nil {
			return err
		}
		r.off += frameBytes + int64(len(payload))
	}
	if err := r.checkSegments(); err != nil {
		return err
	}
	if r.origin > 0 {
		r.b.first = r.origin
	}
	return r.setPeak()
}

// isAbout reports whether records are about an Alloc that has yet to follow.
func (r *binaryReader) isAbout() bool { return r.placed || r.refused || r.kept }

// block reads the next block and returns its payload; io.EOF after the last
// whole one.
func (r *binaryReader) block() ([]byte, error) {
	n, err := io.ReadFull(r.in, r.frame[:])
	if err == io.EOF {
		return nil, err
	}
	if err == io.ErrUnexpectedEOF {
		return nil, r.tail(n, "")
	}
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	size := le.Uint32(r.frame[:])
	if crc32.Checksum(r.frame[:8], castagnoli) != le.Uint32(r.frame[8:]) || size == 0 || size > maxPayload {
		return nil, r.tail(n, "the length of the block")
	}
	payload := r.payload[:size]
	n, err = io.ReadFull(r.in, payload)
	switch {
	case err == io.EOF || err == io.ErrUnexpectedEOF:
		return nil, r.tail(frameBytes+n, "")
	case err != nil:
		return nil, err
	case crc32.Checksum(payload, castagnoli) != le.Uint32(r.frame[4:]):
		return nil, r.tail(frameBytes+n, "the block")
	}
	return payload, nil
}

// tail is for a block that is not whole, of which n bytes are read. If nothing
// but zeros follows it, it is the end of a file that was not finished. Else what
// is damaged.
func (r *binaryReader) tail(n int, what string) error {
	lost := int64(n)
	for {
		c, err := r.in.ReadByte()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if c != 0 {
			return r.file.FailAt(r.off, "%s is damaged (its checksum is wrong); copy the file again, or keep what is before with head -c %d", what, r.off)
		}
		lost++
	}
	r.b.Note("the file ends within a block, as when the program that wrote it was killed: the last %s of it %s left out",
		size.Count(uint64(lost), "byte"), size.Are(int(lost)))
	return io.EOF
}

// records plays the records of a block.
func (r *binaryReader) records(payload []byte) error {
	r.last, r.addr = 0, 0
	for _, p := range r.pools {
		p.prev = prev{}
	}
	f := fields{b: payload}
	for f.i < len(payload) {
		start := f.i
		f.i++
		err := r.next(payload[start], &f)
		if f.i == len(payload) && err == nil && r.isAbout() {
			err = recordError("no allocation follows a record about one")
		}
		if err != nil {
			if bad, ok := err.(recordError); ok {
				err = r.file.FailAt(r.off+frameBytes+int64(start), "%v; the file was not written by gpumem", bad)
			}
			return err
		}
	}
	return nil
}

// next plays a record of any kind.
func (r *binaryReader) next(tag byte, f *fields) error {
	if tag&binOther == 0 {
		return r.event(tag, f)
	}
	if r.isAbout() && (tag != binPlace || r.placed) {
		return recordError("no allocation follows a record about one")
	}
	return r.record(tag, f)
}

// recordError is a record that no writer writes.
type recordError string

func (e recordError) Error() string { return string(e) }

// fields reads the numbers and texts of records. After the end of the block all
// are zero, and bad is set.
type fields struct {
	b   []byte
	i   int
	bad bool
}

func (f *fields) uvarint() uint64 {
	if f.i < len(f.b) && f.b[f.i] < 0x80 { // most are short
		f.i++
		return uint64(f.b[f.i-1])
	}
	v, n := binary.Uvarint(f.b[f.i:])
	if n <= 0 {
		f.bad = true
		return 0
	}
	f.i += n
	return v
}

func (f *fields) text() string {
	n := f.uvarint()
	if n > maxText || n > uint64(len(f.b)-f.i) {
		f.bad = true
		return ""
	}
	f.i += int(n)
	return input.Printable(string(f.b[f.i-int(n) : f.i]))
}

// record plays a record that is not an event.
func (r *binaryReader) record(tag byte, f *fields) error {
	sites := &r.b.trace.sites
	switch tag {
	case binNewPool:
		name, seeds := f.text(), f.uvarint()
		if len(r.pools) == maxPools {
			return recordError(fmt.Sprintf("there are more than %d pools", maxPools))
		}
		r.pools = append(r.pools, &readPool{pool: r.b.Pool(name), seeds: seeds})
	case binNewFrame:
		text := f.text()
		sites.frames = append(sites.frames, text)
		if err := r.file.Take(int64(len(text)) + 32); err != nil {
			return err
		}
	case binNewSite:
		n := f.uvarint()
		if n == 0 || n > MaxFrames {
			return recordError("a stack has no frames, or too many")
		}
		frames := make([]uint32, n)
		for i := range frames {
			v := f.uvarint()
			if v >= uint64(len(sites.frames)) {
				return recordError("a stack has a frame that is not known")
			}
			frames[i] = uint32(v)
		}
		sites.sites = append(sites.sites, frames)
		if err := r.file.Take(4*int64(len(frames)) + 48); err != nil {
			return err
		}
	case binNote:
		text := f.text()
		r.b.Note("%s", text)
		if err := r.file.Take(int64(len(text)) + 32); err != nil {
			return err
		}
	case binPeak:
		r.peak, r.saved = f.uvarint(), true
	case binTimed:
		r.timed = true
	case binPlace:
		z := f.uvarint()
		r.addr += z>>1 ^ -(z & 1)
		r.placed = true
	case binRefused:
		r.refused = true
	case binOrigin:
		r.origin = f.uvarint()
	case binFormat:
		r.b.trace.Format = f.text()
	case binSettings:
		r.b.Settings(f.text())
	case binNewKeeper:
		if err := r.newKeeper(f); err != nil {
			return err
		}
	case binKept:
		if r.keeper, r.kept = f.uvarint(), true; r.keeper >= uint64(len(r.keepers)) {
			return recordError("a block has a keeper that is not known")
		}
	case binSegments, binSegment, binSegmentBlock, binReserved, binTrim, binPrivate, binWait:
		if err := r.beside(tag, f); err != nil {
			return err
		}
	default:
		return recordError(fmt.Sprintf("there is no record of kind %#x", tag))
	}
	if f.bad {
		return recordError("a record ends after its block")
	}
	return nil
}

// event plays an event.
func (r *binaryReader) event(tag byte, f *fields) error {
	if tag&binPool != 0 {
		n := f.uvarint()
		if n >= uint64(len(r.pools)) {
			return recordError("an event is of a pool that is not known")
		}
		r.last = uint32(n)
	}
	if len(r.pools) == 0 {
		return recordError("an event is of a pool that is not known")
	}
	p := r.pools[r.last]
	if tag&binTime != 0 {
		d := f.uvarint()
		if tag&binMicro != 0 {
			if d > math.MaxInt64/1000 {
				return recordError("an event is later than 292 years")
			}
			d *= 1000
		}
		if !r.timed || d > math.MaxInt64-p.prev.time {
			return recordError("an event has a time that cannot be")
		}
		p.prev.time += d
	}
	if r.timed {
		if !r.b.trace.Timed && p.prev.time < since1970 {
			r.b.At(0) // the events of one pool come before another's in what Save wrote
		}
		r.b.At(p.prev.time)
	}
	what := f.uvarint()
	var site, stream uint64
	if tag&binSite != 0 {
		site = f.uvarint()
	}
	if tag&binStream != 0 {
		stream = f.uvarint()
	}
	switch {
	case f.bad:
		return recordError("an event ends after its block")
	case site >= uint64(r.b.trace.sites.len()):
		return recordError("an event is of a site that is not known")
	case stream >= math.MaxUint32:
		return recordError("an event is of stream 4294967295 or above")
	}
	if tag&binFree != 0 {
		if r.isAbout() {
			return recordError("no allocation follows a record about one")
		}
		return r.free(p, what, uint32(site), uint32(stream), tag&binUpper != 0)
	}
	return r.alloc(p, Event{Bytes: what, Site: uint32(site), Stream: uint32(stream), Upper: tag&binUpper != 0})
}

// alloc plays an Alloc.
func (r *binaryReader) alloc(p *readPool, ev Event) error {
	var addr uint64
	if r.placed {
		addr = r.addr
	}
	placed, refused, kept := r.placed, r.refused, r.kept
	r.placed, r.refused, r.kept = false, false, false
	if p.seeds > 0 {
		if p.prev.time != 0 {
			return recordError("a block older than the recording has a time")
		}
		if placed || refused {
			return recordError("a block older than the recording has an address, or was refused")
		}
		p.seeds--
		p.pool.p.Seeds++
	}
	ev.Refused = refused
	slot, err := p.pool.Alloc(ev, addr)
	if err != nil {
		return err
	}
	if int(slot) == len(p.live) {
		p.live = append(p.live, false)
	}
	p.live[slot] = !refused
	p.prev.slot = slot
	if kept {
		return r.noteKept(p.pool.p)
	}
	return nil
}

// free plays a Free; z is its slot as the file has it.
func (r *binaryReader) free(p *readPool, z uint64, site, stream uint32, upper bool) error {
	if z > math.MaxUint32 {
		return recordError("a slot is out of range")
	}
	slot := p.prev.slot + (uint32(z)>>1 ^ -(uint32(z) & 1))
	if uint64(slot) >= uint64(len(p.live)) || !p.live[slot] {
		return recordError("a block is freed that is not live")
	}
	if p.seeds > 0 {
		return recordError("a block older than the recording is freed before all of them are there")
	}
	p.live[slot] = false
	p.prev.slot = slot
	return p.pool.Free(Event{Slot: slot, Site: site, Stream: stream, Upper: upper})
}

// setPeak takes over the peak of all pools as the file has it: Save writes the
// pools one after the other, and their order is lost. It must be possible.
func (r *binaryReader) setPeak() error {
	if !r.saved {
		return nil
	}
	var least uint64
	var most sum.Sum
	for _, p := range r.pools {
		least = max(least, p.pool.peak.Cap())
		most.Add(p.pool.peak.Cap())
	}
	if r.peak < least || r.peak > most.Cap() {
		return r.file.FailAt(r.off, "the peak of all pools is %d, and by the events from %d to %d; the file was not written by gpumem", r.peak, least, most.Cap())
	}
	r.b.peak = sum.Of(r.peak)
	return nil
}
