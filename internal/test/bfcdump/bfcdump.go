// Package bfcdump writes the binary dump of a bfc pool, for the tests of those who read
// such dumps.
package bfcdump

import (
	"math"
	"math/bits"

	"google.golang.org/protobuf/encoding/protowire"

	"gpumem/alloc"
)

// numBins is the number of bins in the original: 256 B, 512 B ... 256 MiB.
const numBins = 21

// minAllocation is what the original rounds sizes up to.
const minAllocation = 256

// Pool is what a dump is made of.
type Pool interface {
	Name() string
	Stats() alloc.Stats
	Walk(yield func(alloc.Chunk) bool)
}

// binOf returns the bin in which the original keeps chunks of a size.
func binOf(size uint64) int {
	return min(numBins-1, bits.Len64(max(size, minAllocation)>>8)-1)
}

// Marshal returns the pool as the message tensorflow.MemoryDump
// (bfc_memory_map.proto), which TensorFlow and JAX write to the file named by
// TF_BFC_MEMORY_DUMP at every failed attempt, and which their tools read.
// Numbers that are 0 are left out, as proto3 does.
func Marshal(a Pool) []byte {
	var bins [numBins]struct{ used, bytes, inUse, chunks uint64 }
	var list []byte
	for c := range a.Walk {
		inBin := c.Live || c.Tag != "central_gap"
		if inBin {
			b := &bins[binOf(c.Size)]
			b.chunks++
			b.bytes += c.Size
			if c.Live {
				b.inUse++
				b.used += c.Size
			}
		}
		bin := int64(-1)
		if !c.Live && inBin {
			bin = int64(binOf(c.Size))
		}
		var m []byte
		m = number(m, 1, c.Addr)
		m = number(m, 2, c.Size)
		m = number(m, 3, c.Requested)
		m = number(m, 4, uint64(bin))
		if c.Live {
			m = number(m, 8, 1)
		}
		list = message(list, 3, m)
	}
	var out []byte
	out = protowire.AppendTag(out, 1, protowire.BytesType)
	out = protowire.AppendString(out, a.Name())
	for i, b := range bins {
		var m []byte
		m = number(m, 1, uint64(i))
		m = number(m, 2, b.used)
		m = number(m, 3, b.bytes)
		m = number(m, 4, b.inUse)
		m = number(m, 5, b.chunks)
		out = message(out, 2, m)
	}
	return message(append(out, list...), 5, stats(a.Stats()))
}

func stats(s alloc.Stats) []byte {
	var m []byte
	m = number(m, 1, uint64(s.NumAllocs))
	m = number(m, 2, s.BytesInUse)
	m = number(m, 3, s.PeakBytesInUse)
	m = number(m, 4, s.LargestAllocSize)
	if f := float32(s.Fragmentation()); f != 0 {
		m = protowire.AppendTag(m, 5, protowire.Fixed32Type)
		m = protowire.AppendFixed32(m, math.Float32bits(f))
	}
	return m
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
