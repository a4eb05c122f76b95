package tape

// Our own format: what is in it, and how its blocks are framed.
// binwriter.go and binblocks.go write it, binreader.go reads it; binbeside.go has both sides of
// what a pool has beside its events.
//
// # The file
//
// The 7 bytes 89 "gpumem", a byte with the version, and then blocks, one after
// the other, only ever appended:
//
//	4 bytes  length of the payload, 1 to maxPayload
//	4 bytes  CRC-32C of the payload
//	4 bytes  CRC-32C of the 8 bytes before
//	payload  whole records
//
// Fixed numbers are little-endian. The second sum is for telling a file that
// ends early from a damaged one: only with a length that is known to be right
// can it be said that the file ends before the block does.
//
// A program that is killed leaves a file that ends within a block, and a machine
// that loses power one that ends in zeros. So a block that is not whole is left
// out, with a note, if nothing but zeros follows it. Damage before that is an
// error.
//
// # Records
//
// A record begins with a byte. If its high bit is 0, it is an event:
//
//	bit 0  Free              else Alloc
//	bit 1  time              follows: since the last event of the pool
//	bit 2  in microseconds   of that time; else nanoseconds
//	bit 3  site              follows
//	bit 4  stream            follows
//	bit 5  pool              follows; else that of the last event
//	bit 6  Upper
//
// then pool, time, size (Alloc) or slot (Free), site, stream, in this order, each
// as an unsigned varint (encoding/binary). The slot is the difference to the one
// of the last event of the pool, zigzag.
//
// An Alloc does not say its slot, since that follows from what was before: the
// slot freed last, or a new one (see PoolBuilder.Alloc). Pools, sites and frames
// are numbered from 0, 1 and 0 in the order of their records, which come before
// their first use. "Last" is within the block: at its start the pool is 0, and
// all times and slots are relative to 0. So damage does not spread. Times count from the first
// event, or from 1970, if the Writer's calls have such times: the first is the origin then.
//
// If its high bit is 1, it is one of the kinds below. A text is its length as a
// varint, and its bytes.
//
// # Versions
//
// Version 1 has no binPlace and no binRefused, version 2 none of the kinds that stand behind
// those. They are read as version 3 is; what is written is version 3. A kind of a later version
// could be part of any figure, so a reader refuses what is newer than itself.

import (
	"encoding/binary"
	"hash/crc32"
)

const (
	binaryMagic   = "\x89gpumem"
	binaryVersion = 3
	// binaryHead is the magic and the version.
	binaryHead = len(binaryMagic) + 1
	// frameBytes is the length and the two sums.
	frameBytes = 12
	// since1970 is less than any time of today in nanoseconds since then, and more than a program
	// runs.
	since1970 = 1 << 60
	// payloadBytes is where a writer ends a block, and maxPayload is the longest:
	// it has room for one more record, whatever that is.
	payloadBytes = 64 << 10
	maxPayload   = payloadBytes + maxRecord
	// maxPools bounds what a damaged file can ask for: a pool has buffers. A program has
	// an allocator for each GPU, and some for the host.
	maxPools = 1024
	// maxText is the longest text of a record; writers cut what is longer. Notes
	// may list many things.
	maxText = 4 << 10
	// maxFrameBytes is the longest line of a stack; those of PyTorch are shorter
	// (maxNameBytes, maxFileBytes).
	maxFrameBytes = 1000
	// maxRecord is the longest record: kind, length, text, number.
	// A site is shorter: maxFrames varints of 5 bytes at most. So is an event with
	// the record in front of it.
	maxRecord = 1 + 2 + maxText + binary.MaxVarintLen64
)

// The bits of an event.
const (
	binFree = 1 << iota
	binTime
	binMicro
	binSite
	binStream
	binPool
	binUpper
	binOther // not an event
)

// The other kinds.
const (
	binNewPool      = binOther | iota // text: the name; varint: how many of its first events are seeds, at time 0
	binNewFrame                       // text: a line of a stack
	binNewSite                        // varint: how many frames; varints: their numbers, innermost first
	binNote                           // text
	binPeak                           // varint: Trace.PeakLive, where the order across pools is lost
	binTimed                          // nothing: the events that follow have times
	binPlace                          // varint: the address of the Alloc that follows, as the zigzag difference to the last one in the block
	binRefused                        // nothing: the Alloc that follows was refused
	binFormat                         // text: Trace.Format, where it is not our own
	binSettings                       // text: Trace.Settings
	binNewKeeper                      // two texts: a Keeper's, numbered from 0
	binKept                           // varint: the number of the keeper of the Alloc that follows
	binSegments                       // varints: pool, which of its lists: the segments that follow are of it
	binSegment                        // varints: address, bytes, stream, private pool, base, 1 if small
	binSegmentBlock                   // varints: address in the segment before, bytes, requested, site
	binReserved                       // varints: pool, bytes: held from the pool's next event on
	binTrim                           // varint: pool, which was emptied here
	binPrivate                        // varints: pool, private pool, 1 if it ended here
	binWait                           // varints: pool, slot, how many events later its Free is, 0 if there is none
	binOrigin                         // varint: Trace.Origin
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// putFrame fills in the frame of a block.
func putFrame(frame, payload []byte) {
	binary.LittleEndian.PutUint32(frame, uint32(len(payload)))
	binary.LittleEndian.PutUint32(frame[4:], crc32.Checksum(payload, castagnoli))
	binary.LittleEndian.PutUint32(frame[8:], crc32.Checksum(frame[:8], castagnoli))
}

// Binary is our own format.
var Binary = Format{Name: "gpumem", What: "our own, which --save writes", Looks: looksBinary, Read: readBinary}

// looksBinary: the magic number.
func looksBinary(head []byte) bool {
	return len(head) >= len(binaryMagic) && string(head[:len(binaryMagic)]) == binaryMagic
}
