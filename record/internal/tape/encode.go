package tape

// The encoding of events in the spool.
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
//	      bit 7     Refused
//	stream, site
//	time  in a timed block alone, see putTime
//
// All numbers are little-endian. A block stands alone: its first slot and its
// first time are relative to 0. It ends with padBytes zero bytes, so that the
// decoder's wide loads stay inside it.
//
// A block is timed or not as a whole. So a recording without times pays nothing
// for those of others, and the decoder's one branch for them always goes the
// same way.

import (
	"encoding/binary"
	"math/bits"

	"gpumem/record/internal/spool"
)

const (
	tagFree = 1 << 0
	tagExt  = 1 << 1

	// maxEvent is the longest event without its time: tag, slot, size, ext,
	// stream, site.
	maxEvent = 1 + 4 + 8 + 1 + 4 + 4
	// maxTime is the longest time.
	maxTime = 9
	// padBytes lets an 8-byte load begin anywhere inside the last event.
	padBytes = 24
	// blockBytes is where a block is sealed: large enough that a read of the
	// file is worth its system call, small enough that one block per open
	// cursor does not count.
	blockBytes = 64 << 10
)

// encoder packs the events of one pool into the current block.
type encoder struct {
	buf    []byte // blockBytes + maxEvent + maxTime + padBytes long once used
	n      int    // bytes filled
	events uint32
	prev   prev
	timed  bool // of the current block; changed only while it is empty
}

// prev is what an event is relative to: the one before it in its block.
type prev struct {
	time uint64
	slot uint32
}

func (e *encoder) full() bool { return e.n >= blockBytes }

func (e *encoder) put(ev Event) {
	if e.buf == nil {
		e.buf = make([]byte, blockBytes+maxEvent+maxTime+padBytes)
	}
	b := e.buf[e.n : e.n+maxEvent+maxTime+padBytes]
	d := int32(ev.Slot - e.prev.slot)
	z := uint32(d<<1) ^ uint32(d>>31)
	e.prev.slot = ev.Slot
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
	if ev.Upper || ev.Refused || ev.Stream != 0 || ev.Site != 0 {
		tag |= tagExt
		streamBytes, siteBytes := byteLen(uint64(ev.Stream)), byteLen(uint64(ev.Site))
		ext := byte(streamBytes)<<1 | byte(siteBytes)<<4
		if ev.Upper {
			ext |= 1
		}
		if ev.Refused {
			ext |= 1 << 7
		}
		b[i] = ext
		i++
		binary.LittleEndian.PutUint32(b[i:], ev.Stream)
		i += streamBytes
		binary.LittleEndian.PutUint32(b[i:], ev.Site)
		i += siteBytes
	}
	b[0] = tag
	if e.timed {
		i += putTime(b[i:], ev.Time-e.prev.time)
		e.prev.time = ev.Time
	}
	e.n += i
	e.events++
}

// putTime writes d, the nanoseconds since the previous event, below 2^63, and
// returns how many bytes it took.
//
// Most clocks count microseconds, so the number that is written is d/1000 or d,
// and its lowest bit is 1 for microseconds. As many zero bits as further
// bytes follow, a one, and the number from the next bit on. So one byte holds 7
// bits, two 14, eight 56. Where that is not enough a zero byte is followed by
// the number in eight.
func putTime(b []byte, d uint64) int {
	z := d << 1
	if us := d / 1000; us*1000 == d {
		z = us<<1 | 1
	}
	n := max(1, (bits.Len64(z)+6)/7)
	if n > 8 {
		b[0] = 0
		binary.LittleEndian.PutUint64(b[1:], z)
		return maxTime
	}
	binary.LittleEndian.PutUint64(b, (z<<1|1)<<(n-1))
	return n
}

// takeTime reads what putTime wrote from the start of b, which is maxTime bytes
// long at least, and returns how many bytes it took.
func takeTime(b []byte) (d uint64, n int) {
	w := binary.LittleEndian.Uint64(b)
	n = bits.TrailingZeros8(b[0]) + 1
	z := w >> n & (1<<(7*n) - 1)
	if n == maxTime {
		z = binary.LittleEndian.Uint64(b[1:])
	}
	d = z >> 1
	if z&1 != 0 {
		d *= 1000
	}
	return d, n
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
func (e *encoder) reset() { e.n, e.events, e.prev = 0, 0, prev{} }

// byteLen is how many bytes v needs, 0 for 0.
func byteLen(v uint64) int { return (bits.Len64(v) + 7) / 8 }

// Masks by byte count. The entries that no encoder announces are there so that
// an index taken from a tag needs no check; decode refuses those tags.
var (
	mask32 = [8]uint32{0, 1<<8 - 1, 1<<16 - 1, 1<<24 - 1, 1<<32 - 1}
	mask64 = [16]uint64{0, 1<<8 - 1, 1<<16 - 1, 1<<24 - 1, 1<<32 - 1,
		1<<40 - 1, 1<<48 - 1, 1<<56 - 1, 1<<64 - 1}
)

// decode fills dst from b, the rest of a block, which is timed or not; last is
// the event before. It returns how many bytes it used and the new last event.
// Every slot is below slots, and the block's padding is never read as events, or
// the answer is spool.ErrDamaged.
func decode(dst []Event, b []byte, last prev, slots uint32, timed bool) (used int, _ prev, err error) {
	i, slot, now := 0, last.slot, last.time
	for k := range dst {
		if len(b)-i < maxEvent {
			return i, prev{now, slot}, spool.ErrDamaged
		}
		w := b[i : i+maxEvent : i+maxEvent]
		tag := w[0]
		n := int(tag>>2&3) + 1
		z := binary.LittleEndian.Uint32(w[1:]) & mask32[n]
		slot += z>>1 ^ -(z & 1)
		if tag >= 9<<4 || slot >= slots {
			return i, prev{now, slot}, spool.ErrDamaged
		}
		size := int(tag >> 4)
		ev := &dst[k]
		ev.Bytes = binary.LittleEndian.Uint64(w[1+n:]) & mask64[size]
		ev.Slot = slot
		ev.Op = Op(tag & tagFree)
		n += 1 + size
		if tag&tagExt == 0 {
			ev.Site, ev.Stream, ev.Upper, ev.Refused = 0, 0, false, false
		} else {
			ext := w[n]
			streamBytes, siteBytes := int(ext>>1&7), int(ext>>4&7)
			if streamBytes > 4 || siteBytes > 4 {
				return i, prev{now, slot}, spool.ErrDamaged
			}
			n++
			ev.Upper = ext&1 != 0
			ev.Refused = ext>>7 != 0
			ev.Stream = binary.LittleEndian.Uint32(w[n:]) & mask32[streamBytes]
			n += streamBytes
			ev.Site = binary.LittleEndian.Uint32(w[n:]) & mask32[siteBytes]
			n += siteBytes
		}
		i += n
		if timed {
			if len(b)-i < maxTime {
				return i, prev{now, slot}, spool.ErrDamaged
			}
			d, n := takeTime(b[i:])
			now += d
			i += n
		}
		ev.Time = now
	}
	return i, prev{now, slot}, nil
}
