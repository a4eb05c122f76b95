package trace

// This file is for the encoding of events in the spool.
//
// An event is a tag byte and the bytes that the tag announces. There is nothing
// to search for, so the decoder loads whole words and masks them instead of
// branching on each byte.
//
//	tag   bit 0     1 = Free
//	      bit 1     an ext byte follows the bytes
//	      bits 2-3  bytes of the slot, less 1 (1 to 4)
//	      bits 4-7  bytes of the size (0 to 8; above 8 is damage)
//	slot  zigzag of the difference to the previous slot in this block
//	size  requested bytes
//	ext   bit 0     Upper
//	      bits 1-3  bytes of the stream (0 to 4; above 4 is damage)
//	      bits 4-6  bytes of the site (0 to 4; above 4 is damage)
//	      bit 7     0
//	stream, site
//
// All numbers are little-endian. A block stands alone: its first slot is
// relative to 0. It ends with padBytes zero bytes, so that the decoder's wide
// loads stay inside it.

import (
	"encoding/binary"
	"errors"
	"math/bits"
)

const (
	tagFree = 1 << 0
	tagExt  = 1 << 1

	// maxEvent is the longest event: tag, slot, size, ext, stream, site.
	maxEvent = 1 + 4 + 8 + 1 + 4 + 4
	// padBytes lets an 8-byte load begin anywhere inside the last event.
	padBytes = 24
	// blockBytes is where a block is sealed: large enough that a read of the
	// file is worth its system call, small enough that one block per open
	// cursor does not count.
	blockBytes = 64 << 10
)

// encoder packs the events of one pool into the current block.
type encoder struct {
	buf    []byte // blockBytes + maxEvent + padBytes long once used
	n      int    // bytes filled
	events uint32
	slot   uint32 // of the previous event
}

func (e *encoder) full() bool { return e.n >= blockBytes }

func (e *encoder) put(ev Event) {
	if e.buf == nil {
		e.buf = make([]byte, blockBytes+maxEvent+padBytes)
	}
	b := e.buf[e.n : e.n+maxEvent+padBytes]
	d := int32(ev.Slot - e.slot)
	z := uint32(d<<1) ^ uint32(d>>31)
	e.slot = ev.Slot
	slotBytes := max(1, byteLen(uint64(z)))
	sizeBytes := byteLen(ev.Bytes)
	tag := byte(slotBytes-1)<<2 | byte(sizeBytes)<<4
	if ev.Op == Free {
		tag |= tagFree
	}
	i := 1
	binary.LittleEndian.PutUint32(b[i:], z)
	i += slotBytes
	binary.LittleEndian.PutUint64(b[i:], ev.Bytes)
	i += sizeBytes
	if ev.Upper || ev.Stream != 0 || ev.Site != 0 {
		tag |= tagExt
		streamBytes, siteBytes := byteLen(uint64(ev.Stream)), byteLen(uint64(ev.Site))
		ext := byte(streamBytes)<<1 | byte(siteBytes)<<4
		if ev.Upper {
			ext |= 1
		}
		b[i] = ext
		i++
		binary.LittleEndian.PutUint32(b[i:], ev.Stream)
		i += streamBytes
		binary.LittleEndian.PutUint32(b[i:], ev.Site)
		i += siteBytes
	}
	b[0] = tag
	e.n += i
	e.events++
}

// seal returns the block so far, padding included, and its number of events.
// The slice is good until the next put.
func (e *encoder) seal() ([]byte, uint32) {
	if e.events == 0 {
		return nil, 0
	}
	clear(e.buf[e.n : e.n+padBytes])
	return e.buf[:e.n+padBytes], e.events
}

// reset begins a new block.
func (e *encoder) reset() { e.n, e.events, e.slot = 0, 0, 0 }

// byteLen is how many bytes v needs, 0 for 0.
func byteLen(v uint64) int { return (bits.Len64(v) + 7) / 8 }

// errSpool: the spool is memory or an unlinked file that only this process
// writes, so this is a failing disk or a bug.
var errSpool = errors.New("trace: the spooled recording is damaged; check the disk of the temporary directory")

// Masks by byte count. The entries that no encoder announces are there so that
// an index taken from a tag needs no check; decode refuses those tags.
var (
	mask32 = [8]uint32{0, 1<<8 - 1, 1<<16 - 1, 1<<24 - 1, 1<<32 - 1}
	mask64 = [16]uint64{0, 1<<8 - 1, 1<<16 - 1, 1<<24 - 1, 1<<32 - 1,
		1<<40 - 1, 1<<48 - 1, 1<<56 - 1, 1<<64 - 1}
)

// decode fills dst from b, the rest of a block; slot is the previous one. It
// returns how many bytes it used and the last slot. Every slot is below slots,
// and the block's padding is never read as events, or the answer is errSpool.
func decode(dst []Event, b []byte, slot, slots uint32) (used int, last uint32, err error) {
	i := 0
	for k := range dst {
		if len(b)-i < maxEvent {
			return i, slot, errSpool
		}
		w := b[i : i+maxEvent : i+maxEvent]
		tag := w[0]
		n := int(tag>>2&3) + 1
		z := binary.LittleEndian.Uint32(w[1:]) & mask32[n]
		slot += z>>1 ^ -(z & 1)
		if tag >= 9<<4 || slot >= slots {
			return i, slot, errSpool
		}
		size := int(tag >> 4)
		ev := &dst[k]
		ev.Bytes = binary.LittleEndian.Uint64(w[1+n:]) & mask64[size]
		ev.Slot = slot
		ev.Op = Op(tag & tagFree)
		n += 1 + size
		if tag&tagExt == 0 {
			ev.Site, ev.Stream, ev.Upper = 0, 0, false
			i += n
			continue
		}
		ext := w[n]
		streamBytes, siteBytes := int(ext>>1&7), int(ext>>4)
		if streamBytes > 4 || siteBytes > 4 {
			return i, slot, errSpool
		}
		n++
		ev.Upper = ext&1 != 0
		ev.Stream = binary.LittleEndian.Uint32(w[n:]) & mask32[streamBytes]
		n += streamBytes
		ev.Site = binary.LittleEndian.Uint32(w[n:]) & mask32[siteBytes]
		i += n + siteBytes
	}
	return i, slot, nil
}
