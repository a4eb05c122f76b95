package dump

// This file is for the binary dump, the message tensorflow.MemoryDump of
// bfc_memory_map.proto in XLA's tsl/protobuf.

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// Fields of MemoryDump.
const (
	fieldName  = 1 // string
	fieldBin   = 2 // BinSummary: bin 1, bytes_in_use 2, bytes_in_bin 3, chunks_in_use 4, chunks_in_bin 5
	fieldChunk = 3 // MemChunk: address 1, size 2, requested_size 3, op_name 5, in_use 8
	fieldStats = 5 // MemAllocatorStats: num_allocs 1, bytes_in_use 2, peak_bytes_in_use 3, largest_alloc_size 4
)

// isBinary says whether a file that begins with head is a MemoryDump. A text
// may begin with a newline, which is also the tag of the name; but no text has
// the tag of a bin or a chunk, a control character, right behind as many
// printable characters as the byte before them says.
func isBinary(head []byte) bool {
	const nameTag, binTag, chunkTag, statsTag = fieldName<<3 | 2, fieldBin<<3 | 2, fieldChunk<<3 | 2, fieldStats<<3 | 2
	if len(head) < 2 {
		return false
	}
	switch head[0] {
	case binTag, chunkTag:
		return true
	case nameTag:
	default:
		return false
	}
	n := int(head[1])
	if n > 127 || len(head) < 2+n {
		return false
	}
	for _, c := range head[2 : 2+n] {
		if c < ' ' || c > '~' {
			return false
		}
	}
	if len(head) == 2+n {
		return n > 0
	}
	next := head[2+n]
	return next == binTag || next == chunkTag || next == statsTag
}

var errField = errors.New("damaged")

// readBinary reads a dump field by field. One that breaks off is a dump with a
// note.
func readBinary(in *bufio.Reader) (*Dump, error) {
	b := newBuilder(0)
	var buf []byte
	for {
		tag, err := binary.ReadUvarint(in)
		if err == io.EOF {
			break
		}
		var n uint64
		num, typ := protowire.DecodeTag(tag)
		if err == nil && typ == protowire.BytesType && num.IsValid() {
			n, err = binary.ReadUvarint(in)
		} else if err == nil {
			err = errField // all fields are strings or messages
		}
		if err == nil && n > maxLine {
			// Snapshots of debug builds; nothing else is as large.
			if n > math.MaxInt32 || num == fieldName || num == fieldChunk {
				err = errField
			} else {
				_, err = in.Discard(int(n))
			}
			if err == nil {
				continue
			}
		}
		if err == nil {
			if uint64(cap(buf)) < n {
				buf = make([]byte, n)
			}
			buf = buf[:n]
			_, err = io.ReadFull(in, buf)
		}
		if err == nil {
			err = b.field(num, buf)
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			b.note("The file breaks off in the middle of a field.")
			break
		}
		if err != nil && !isDamage(err) {
			return nil, fmt.Errorf("dump: %w", err)
		}
		if err != nil {
			b.note("The file is damaged; what follows the damage is not read.")
			break
		}
	}
	if len(b.d.Regions) == 0 {
		return nil, ErrNone
	}
	d := b.finish()
	d.Dumps = 1
	return d, nil
}

// errOverflow is what binary.ReadUvarint says of more than ten bytes; it is not
// exported there.
func isDamage(err error) bool {
	return errors.Is(err, errField) || err.Error() == "binary: varint overflows a 64-bit integer"
}

// field takes one field of MemoryDump.
func (b *builder) field(num protowire.Number, m []byte) error {
	switch num {
	case fieldName:
		b.d.Allocator = string(m[:min(len(m), maxName)])
	case fieldBin:
		var v [10]uint64
		if err := numbers(m, &v, nil); err != nil {
			return err
		}
		if v[5] > 0 && v[1] < 48 && len(b.d.Bins) < 64 {
			b.d.Bins = append(b.d.Bins, Bin{Size: MinAllocation << v[1], Chunks: v[5], InUse: v[4], Bytes: v[3], Used: v[2]})
		}
	case fieldChunk:
		var v [10]uint64
		var op []byte
		if err := numbers(m, &v, &op); err != nil {
			return err
		}
		c := Chunk{Addr: v[1], Size: v[2], Requested: v[3], Live: v[8] != 0}
		if c.Size == 0 || c.Size > maxChunk || c.Addr > math.MaxUint64-c.Size || c.Requested > maxChunk {
			return errField
		}
		c.Name = b.name(op)
		b.chunk(c)
	case fieldStats:
		var v [10]uint64
		if err := numbers(m, &v, nil); err != nil {
			return err
		}
		b.d.Stats = Stats{NumAllocs: v[1], InUse: v[2], MaxInUse: v[3], MaxAllocSize: v[4]}
		b.inUse = number{n: v[2], told: true}
	}
	return nil
}

// numbers reads the numeric fields 1 to 9 of a message into v, and the string
// in field 5 into text.
func numbers(m []byte, v *[10]uint64, text *[]byte) error {
	for len(m) > 0 {
		num, typ, n := protowire.ConsumeTag(m)
		if n < 0 {
			return errField
		}
		m = m[n:]
		switch {
		case typ == protowire.VarintType && num < 10:
			v[num], n = protowire.ConsumeVarint(m)
		case typ == protowire.BytesType && num == 5 && text != nil:
			*text, n = protowire.ConsumeBytes(m)
		default:
			n = protowire.ConsumeFieldValue(num, typ, m)
		}
		if n < 0 {
			return errField
		}
		m = m[n:]
	}
	return nil
}
