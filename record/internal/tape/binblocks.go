package tape

// The blockWriter, which lays out the records of our own format. See binary.go for the
// format.

import (
	"encoding/binary"
	"io"

	"gpumem/internal/input"
)

// blockWriter puts records into blocks and writes those.
type blockWriter struct {
	w   io.Writer
	buf []byte // the frame, not filled in yet, and the payload so far
	err error  // of writing; everything fails after it

	pools []filePool
	last  uint32 // pool of the last event in the block
	addr  uint64 // the last one in the block

	about []byte // a record about the Alloc that follows
}

// filePool is what the reader will know about a pool when it comes to the next
// event: which slots are free, and the last event in the block.
type filePool struct {
	free []uint32 // the last one freed on top
	next uint32   // the first slot that was never used
	prev prev
}

// begin writes what the file begins with.
func (b *blockWriter) begin() error {
	b.buf = make([]byte, frameBytes, frameBytes+maxPayload)
	_, b.err = b.w.Write([]byte(binaryMagic + string(rune(binaryVersion))))
	return b.err
}

// flush ends the block.
func (b *blockWriter) flush() error {
	if b.err != nil || len(b.buf) == frameBytes {
		return b.err
	}
	putFrame(b.buf[:frameBytes], b.buf[frameBytes:])
	_, b.err = b.w.Write(b.buf)
	b.buf = b.buf[:frameBytes]
	b.last, b.addr = 0, 0
	for i := range b.pools {
		b.pools[i].prev = prev{}
	}
	return b.err
}

// room ends the block if it is full. A record begins with it.
func (b *blockWriter) room() {
	if len(b.buf) >= frameBytes+payloadBytes {
		b.flush() // the error stays in b
	}
}

func (b *blockWriter) newPool(name string, seeds uint64) uint32 {
	b.text(binNewPool, input.Cut(input.Printable(name), maxNameBytes))
	b.buf = binary.AppendUvarint(b.buf, seeds)
	b.pools = append(b.pools, filePool{})
	return uint32(len(b.pools) - 1)
}

func (b *blockWriter) newSite(frames []uint32) {
	b.uvarint(binNewSite, uint64(len(frames)))
	for _, f := range frames {
		b.buf = binary.AppendUvarint(b.buf, uint64(f))
	}
}

// begins records that the events that follow have times.
func (b *blockWriter) begins() {
	b.room()
	b.buf = append(b.buf, binTimed)
}

func (b *blockWriter) text(kind byte, s string) {
	if len(s) > maxText {
		s = input.Cut(s, maxText-len("..."))
	}
	b.uvarint(kind, uint64(len(s)))
	b.buf = append(b.buf, s...)
}

func (b *blockWriter) uvarint(kind byte, n uint64) {
	b.room()
	b.buf = append(b.buf, kind)
	b.buf = binary.AppendUvarint(b.buf, n)
}

// alloc writes an Alloc and returns the slot that it has in the file. addr is
// where its block lies, 0 if that is not known.
func (b *blockWriter) alloc(pool uint32, ev Event, addr uint64) (uint32, error) {
	slot, err := b.slot(pool)
	if err != nil {
		return 0, err
	}
	b.room() // one block has all its records
	b.buf = append(b.buf, b.about...)
	b.about = b.about[:0]
	if addr != 0 {
		d := int64(addr - b.addr)
		b.buf = append(b.buf, binPlace)
		b.buf = binary.AppendUvarint(b.buf, uint64(d<<1)^uint64(d>>63))
		b.addr = addr
	}
	b.event(pool, slot, ev, 0, ev.Bytes)
	return slot, b.err
}

// refuse writes an Alloc that was refused.
func (b *blockWriter) refuse(pool uint32, ev Event) error {
	slot, err := b.slot(pool)
	if err != nil {
		return err
	}
	b.room()
	b.buf = append(b.buf, binRefused)
	b.event(pool, slot, ev, 0, ev.Bytes)
	p := &b.pools[pool]
	p.free = append(p.free, slot)
	return b.err
}

// slot takes the slot that the reader will take.
func (b *blockWriter) slot(pool uint32) (uint32, error) {
	p := &b.pools[pool]
	var slot uint32
	if top := len(p.free) - 1; top >= 0 {
		slot = p.free[top]
		p.free = p.free[:top]
	} else {
		if p.next == maxSlots {
			return 0, errTooManyBlocks
		}
		slot = p.next
		p.next++
	}
	return slot, nil
}

// free writes the Free of a slot of the file.
func (b *blockWriter) free(pool, slot uint32, ev Event) error {
	p := &b.pools[pool]
	p.free = append(p.free, slot)
	b.room() // before slots are compared with those of the block
	d := int32(slot - p.prev.slot)
	b.event(pool, slot, ev, binFree, uint64(uint32(d<<1)^uint32(d>>31)))
	return b.err
}

// event writes an event; what is its size or its slot. The caller has made room.
func (b *blockWriter) event(pool, slot uint32, ev Event, tag byte, what uint64) {
	p := &b.pools[pool]
	at := len(b.buf)
	b.buf = append(b.buf, 0)
	if pool != b.last {
		tag |= binPool
		b.buf = binary.AppendUvarint(b.buf, uint64(pool))
		b.last = pool
	}
	if ev.Time > p.prev.time {
		tag |= binTime
		d := ev.Time - p.prev.time
		if us := d / 1000; us*1000 == d {
			tag |= binMicro
			d = us
		}
		b.buf = binary.AppendUvarint(b.buf, d)
		p.prev.time = ev.Time
	}
	b.buf = binary.AppendUvarint(b.buf, what)
	if ev.Site != 0 {
		tag |= binSite
		b.buf = binary.AppendUvarint(b.buf, uint64(ev.Site))
	}
	if ev.Stream != 0 {
		tag |= binStream
		b.buf = binary.AppendUvarint(b.buf, uint64(ev.Stream))
	}
	if ev.Upper {
		tag |= binUpper
	}
	b.buf[at] = tag
	p.prev.slot = slot
}
