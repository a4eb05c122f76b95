package dump

// The reader of binary dumps: the message tensorflow.MemoryDump of bfc_memory_map.proto
// in XLA's tsl/protobuf.

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"gpumem/internal/input"
	"gpumem/record/internal/wire"
)

// Fields of MemoryDump.
const (
	fieldName     = 1 // string
	fieldBin      = 2 // BinSummary: bin 1, bytes_in_use 2, bytes_in_bin 3, chunks_in_use 4, chunks_in_bin 5
	fieldChunk    = 3 // MemChunk: address 1, size 2, requested_size 3, op_name 5, action_count 7, in_use 8
	fieldSnapshot = 4 // SnapShot; it names no block
	fieldStats    = 5 // MemAllocatorStats: num_allocs 1, bytes_in_use 2, peak_bytes_in_use 3, largest_alloc_size 4
)

// isBinary reports whether a file that begins with head is a MemoryDump. head is at least
// its first 130 bytes, or all of it. A text may begin with a newline, which is also the
// tag of the name. But in no text is that followed by a byte N, N printable characters,
// and the control character that is the tag of a bin or a chunk.
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

// readBinary reads a dump. After an error the builder has what came before it.
func readBinary(file *input.Reader) (*builder, error) {
	b := newBuilder(0)
	f, m, err := wire.Read(file, isBinary)
	if err != nil {
		return b, err
	}
	for m.Next() {
		what := "statistics"
		switch m.Num {
		case fieldName:
			name := m.Take("a name")
			b.d.Allocator = string(name[:min(len(name), maxName)])
			continue
		case fieldBin:
			what = "a bin"
		case fieldChunk:
			what = "a chunk"
			if err := file.Take(64); err != nil {
				return b, err
			}
		case fieldStats:
		case fieldSnapshot:
			b.d.Snapshots++
			continue
		default:
			continue
		}
		data := m.Take(what)
		if m.Err() == nil && !b.message(m.Num, data) {
			return b, f.Fail(m.At, "damaged: %s that does not end where it should, or with a size that cannot be", what)
		}
	}
	return b, m.Err()
}

// message takes a bin, a chunk or the statistics, and reports whether it is one.
func (b *builder) message(field protowire.Number, data []byte) bool {
	var v [10]uint64
	var op []byte
	m := wire.NewMessage(data)
	for m.Next() {
		switch {
		case m.Num == 5 && field == fieldChunk:
			op = m.Data
		case m.Type == protowire.VarintType && m.Num < 10:
			v[m.Num] = m.Value
		}
	}
	if m.Err() != nil {
		return false
	}
	switch field {
	case fieldBin:
		if v[5] > 0 && v[1] < 48 && len(b.d.Bins) < 64 {
			b.d.Bins = append(b.d.Bins, bin{Size: MinAllocation << v[1], Chunks: v[5], InUse: v[4], Bytes: v[3], Used: v[2]})
		}
	case fieldChunk:
		c := Chunk{Addr: v[1], Size: v[2], Requested: v[3], Live: v[8] != 0}
		if c.Size == 0 || c.Size > maxChunk || c.Addr > math.MaxUint64-c.Size || c.Requested > maxChunk {
			return false
		}
		c.Name = b.name(op)
		if v[7] != 0 {
			if b.d.actions == nil {
				b.d.actions = make(map[uint64]uint64)
			}
			b.d.actions[c.Addr] = v[7]
		}
		b.chunk(c)
	case fieldStats:
		b.d.Stats = stats{NumAllocs: v[1], InUse: v[2], MaxInUse: v[3], MaxAllocSize: v[4]}
		b.inUse = number{n: v[2], known: true}
	}
	return true
}
