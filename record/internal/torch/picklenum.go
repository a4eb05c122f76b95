package torch

// The input of the pickle machine, its numbers and strings, and the opcodes that are refused.
// See pickle.go for an overview.

import (
	"strings"

	"gpumem/internal/input"
)

// pickleInput reads the pickle through one buffer. Its first error stays; after
// it everything reads as zero.
type pickleInput struct {
	file     *input.Reader
	buf      []byte
	pos, end int
	base     int64 // offset of buf[0]
	err      error
}

// pickleBuffer is larger than anything but a string that an opcode reads.
const pickleBuffer = 64 << 10

func (in *pickleInput) offset() int64 { return in.base + int64(in.pos) }

// fill makes at least n unread bytes available, n <= pickleBuffer.
func (in *pickleInput) fill(n int) bool {
	if in.end-in.pos >= n {
		return true
	}
	if in.err != nil {
		return false
	}
	in.base += int64(in.pos)
	in.end = copy(in.buf, in.buf[in.pos:in.end])
	in.pos = 0
	for in.end < n {
		k, err := in.file.Content().Read(in.buf[in.end:])
		in.end += k
		if err != nil && in.end < n {
			in.err = err
			in.pos = in.end // the offset in the message is where the input ends
			return false
		}
	}
	return true
}

func (in *pickleInput) byte() byte {
	if in.pos == in.end && !in.fill(1) {
		return 0
	}
	c := in.buf[in.pos]
	in.pos++
	return c
}

// bytes returns the next n bytes, n <= pickleBuffer, or nil. The slice is good
// until the next call.
func (in *pickleInput) bytes(n int) []byte {
	if !in.fill(n) {
		return nil
	}
	b := in.buf[in.pos : in.pos+n]
	in.pos += n
	return b
}

// uint returns the next n bytes, 8 at most, as a little-endian number.
func (in *pickleInput) uint(n int) uint64 {
	var v uint64
	for i, c := range in.bytes(n) {
		v |= uint64(c) << (8 * i)
	}
	return v
}

// string reads n bytes. n may be a lie: the string grows as bytes arrive.
func (in *pickleInput) string(n uint64) string {
	if n <= uint64(in.end-in.pos) {
		s := string(in.buf[in.pos : in.pos+int(n)])
		in.pos += int(n)
		return s
	}
	var s strings.Builder
	for n > 0 {
		if !in.fill(1) {
			return ""
		}
		k := int(min(n, uint64(in.end-in.pos)))
		s.Write(in.buf[in.pos : in.pos+k])
		in.pos += k
		n -= uint64(k)
		if in.take(2 * k); in.err != nil { // it grows by doubling
			return ""
		}
	}
	in.take(-2 * s.Len()) // the stack counts the text that it keeps
	return s.String()
}

// take counts the memory of long texts.
func (in *pickleInput) take(bytes int) {
	if in.err == nil {
		in.err = in.file.Take(int64(bytes))
	}
}

// longValue reads a little-endian number in two's complement; wideInt if it has more than
// 64 bits.
func longValue(b []byte) any {
	var v uint64
	for i, c := range b[:min(len(b), 8)] {
		v |= uint64(c) << (8 * i)
	}
	switch n := len(b); {
	case n == 0:
		return int64(0)
	case n <= 8:
		unused := 64 - 8*n
		return int64(v<<unused) >> unused // spread the sign
	case n == 9 && b[8] == 0: // 2^63 and above have a ninth byte for the sign
		if v < 1<<63 {
			return int64(v)
		}
		return v
	case n == 9 && b[8] == 0xff && v >= 1<<63:
		return int64(v)
	}
	return wideInt{}
}

// codeOpcodes are the ones that are refused: they import, call, or reach
// outside the pickle.
var codeOpcodes = map[byte]string{
	'c':  "GLOBAL",
	0x93: "STACK_GLOBAL",
	'R':  "REDUCE",
	'b':  "BUILD",
	'i':  "INST",
	'o':  "OBJ",
	0x81: "NEWOBJ",
	0x92: "NEWOBJ_EX",
	0x82: "EXT1",
	0x83: "EXT2",
	0x84: "EXT4",
	'P':  "PERSID",
	'Q':  "BINPERSID",
	0x97: "NEXT_BUFFER",
	0x98: "READONLY_BUFFER",
}
