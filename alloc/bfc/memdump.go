package bfc

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"gpumem/alloc/internal/chunks"
)

// MemoryDump is the pool as the message tensorflow.MemoryDump
// (bfc_memory_map.proto), which TensorFlow and JAX write to the file named by
// TF_BFC_MEMORY_DUMP at every failed attempt, and which their tools read.
// Numbers that are 0 are left out, as proto3 does.
func (a *Allocator) MemoryDump() []byte {
	var out []byte
	out = protowire.AppendTag(out, 1, protowire.BytesType)
	out = protowire.AppendString(out, a.name)
	for i, b := range a.binTable() {
		var m []byte
		m = number(m, 1, uint64(i))
		m = number(m, 2, b.used)
		m = number(m, 3, b.bytes)
		m = number(m, 4, uint64(b.inUse))
		m = number(m, 5, uint64(b.chunks))
		out = message(out, 2, m)
	}
	for h, c := range a.chunks() {
		var m []byte
		m = number(m, 1, c.Addr)
		m = number(m, 2, c.Size)
		m = number(m, 3, c.Requested)
		bin := int64(-1)
		if c.State == chunks.Free && h != a.gap {
			bin = int64(binOf(c.Size))
		}
		m = number(m, 4, uint64(bin))
		if c.State == chunks.Live {
			m = number(m, 8, 1)
		}
		out = message(out, 3, m)
	}
	s := a.Stats()
	var m []byte
	m = number(m, 1, uint64(s.NumAllocs))
	m = number(m, 2, s.BytesInUse)
	m = number(m, 3, s.PeakBytesInUse)
	m = number(m, 4, s.LargestAllocSize)
	if f := float32(s.Fragmentation()); f != 0 {
		m = protowire.AppendTag(m, 5, protowire.Fixed32Type)
		m = protowire.AppendFixed32(m, math.Float32bits(f))
	}
	return message(out, 5, m)
}

func number(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	b = protowire.AppendTag(b, field, protowire.VarintType)
	return protowire.AppendVarint(b, v)
}

func message(b []byte, field protowire.Number, m []byte) []byte {
	b = protowire.AppendTag(b, field, protowire.BytesType)
	return protowire.AppendBytes(b, m)
}
