package trace

// This file is for protocol buffers without generated code. A wire walks a
// message that is too large for memory, a message one that is in memory. The
// encoding is that of protobuf.dev/programming-guides/encoding.

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// wire reads fields from a stream.
type wire struct {
	in   *bufio.Reader
	file string
	off  int64 // of the next byte
	harm int64 // where a conversion to text did its first; 0 if there was none
	odd  bool  // the content does not begin as its format does

	// The current field, after next.
	at  int64 // where it begins
	num protowire.Number
	typ protowire.Type
	v   uint64 // a number, or how many bytes follow, which take or skip must use up
}

const (
	// toEOF is the end of a message that is a whole file.
	toEOF = math.MaxInt64
	// maxTake is how much of a message may be taken into memory: what in can
	// hold at once.
	maxTake = headBytes
)

// newWire returns a wire for the content of in, which has headBytes at least
// for its buffer. looks is that of the format.
func newWire(in *bufio.Reader, file string, looks func(head []byte) bool) *wire {
	head, _ := in.Peek(headBytes)
	return &wire{in: in, file: file, harm: textHarm(head), odd: len(head) == 0 || !looks(head)}
}

// textHarm looks for what an editor or a version control system does to a binary
// file that it takes for text in UTF-8: bytes from 128 on that are not UTF-8
// become U+FFFD. Numbers from 128 on have such bytes, so no file of any size is
// UTF-8 by itself. It returns where the first one is, 0 if there is none.
func textHarm(head []byte) int64 {
	for i := 1; i < utf8.UTFMax && i <= len(head); i++ {
		if last := head[len(head)-i:]; utf8.RuneStart(last[0]) {
			if !utf8.FullRune(last) { // head ends inside a character
				head = head[:len(head)-i]
			}
			break
		}
	}
	if !utf8.Valid(head) {
		return 0
	}
	return int64(max(0, bytes.Index(head, []byte("\ufffd"))))
}

// fail is bad input at a byte.
func (w *wire) fail(at int64, format string, args ...any) error {
	if w.harm > 0 {
		return &Error{File: w.file, Offset: w.harm, Msg: "damaged from here on: the file was taken for text on its way, " +
			"and its bytes above 127 were replaced by EF BF BD; copy the original again as binary"}
	}
	cure := "; copy the file again"
	if w.odd {
		cure = "; it does not begin as a file of this format does, so let the format be recognised"
	}
	return &Error{File: w.file, Offset: at, Msg: fmt.Sprintf(format, args...) + cure}
}

// whole is bad input of no one place.
func (w *wire) whole(msg string) error {
	if w.harm > 0 {
		return w.fail(0, "")
	}
	return &Error{File: w.file, Msg: msg}
}

// broken turns the error of a read into one of the input, if it is the end of
// the file.
func (w *wire) broken(err error) error {
	if err != io.EOF {
		return err
	}
	return w.fail(w.off, "the file is cut short here")
}

// next reads the next field of a message that ends at byte end. It returns false
// at the end.
func (w *wire) next(end int64) (bool, error) {
	if w.off >= end {
		return false, nil
	}
	w.at = w.off
	if end == toEOF {
		if _, err := w.in.Peek(1); err == io.EOF {
			return false, nil
		}
	}
	tag, err := w.varint()
	if err != nil {
		return false, err
	}
	w.num, w.typ = protowire.DecodeTag(tag)
	if !w.num.IsValid() {
		return false, w.fail(w.at, "damaged: no field begins with %d", tag)
	}
	switch w.typ {
	case protowire.VarintType, protowire.BytesType:
		w.v, err = w.varint()
	case protowire.Fixed32Type:
		err = w.fixed(4)
	case protowire.Fixed64Type:
		err = w.fixed(8)
	default:
		err = w.fail(w.at, "damaged: field %d is of the kind %d, which is not in use", w.num, w.typ)
	}
	switch {
	case err != nil:
		return false, err
	case w.off > end, w.typ == protowire.BytesType && w.v > uint64(end-w.off):
		return false, w.fail(w.at, "damaged: field %d goes beyond the message that it is in", w.num)
	}
	return true, nil
}

func (w *wire) varint() (uint64, error) {
	var v uint64
	for i := range 10 {
		c, err := w.in.ReadByte()
		if err != nil {
			return 0, w.broken(err)
		}
		w.off++
		if i == 9 && c > 1 {
			break
		}
		v |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			return v, nil
		}
	}
	return 0, w.fail(w.at, "damaged: a number has more than 64 bits")
}

func (w *wire) fixed(n int) error {
	b, err := w.in.Peek(n)
	if err != nil {
		return w.broken(err)
	}
	w.v = 0
	for i, c := range b {
		w.v |= uint64(c) << (8 * i)
	}
	_, err = w.in.Discard(n)
	w.off += int64(n)
	return err
}

// want checks that the current field is of a kind.
func (w *wire) want(typ protowire.Type) error {
	if w.typ != typ {
		return w.fail(w.at, "damaged: field %d is of the kind %d instead of %d", w.num, w.typ, typ)
	}
	return nil
}

// inner returns where the current field ends, which is a message to be walked.
func (w *wire) inner() (int64, error) { return w.off + int64(w.v), w.want(protowire.BytesType) }

// skip passes over the bytes of the current field. Other fields have none.
func (w *wire) skip() error {
	if w.typ != protowire.BytesType {
		return nil
	}
	return w.skipTo(w.off + int64(w.v))
}

func (w *wire) skipTo(end int64) error {
	for w.off < end {
		n, err := w.in.Discard(int(min(end-w.off, math.MaxInt32)))
		w.off += int64(n)
		if err != nil {
			return w.broken(err)
		}
	}
	return nil
}

// take returns the bytes of the current field, good until the next call. A field
// of more than maxTake is damage: what names it knows that none is so large.
func (w *wire) take(what string) ([]byte, error) {
	if err := w.want(protowire.BytesType); err != nil {
		return nil, err
	}
	if w.v > maxTake {
		return nil, w.fail(w.at, "damaged: %s of %d bytes", what, w.v)
	}
	n := int(w.v)
	b, err := w.in.Peek(n)
	if err != nil {
		w.off += int64(len(b))
		return nil, w.broken(err)
	}
	w.in.Discard(n) // they are in the buffer
	w.off += int64(n)
	return b, nil
}

// small returns the bytes of the current field if they are maxTake at most, and
// else skips them and returns nil.
func (w *wire) small(what string) ([]byte, error) {
	if w.typ == protowire.BytesType && w.v > maxTake {
		return nil, w.skip()
	}
	return w.take(what)
}

// message walks a message in memory.
type message struct {
	b   []byte // what is left
	bad bool   // it is cut short or damaged

	// The current field, after next.
	num  protowire.Number
	typ  protowire.Type
	v    uint64 // a number
	data []byte // bytes
}

// next goes to the next field. It returns false at the end, and sets bad if that
// is not where the message should end.
func (m *message) next() bool {
	if len(m.b) == 0 || m.bad {
		return false
	}
	num, typ, n := protowire.ConsumeTag(m.b)
	if n < 0 {
		m.bad = true
		return false
	}
	m.b = m.b[n:]
	m.num, m.typ, m.v, m.data = num, typ, 0, nil
	switch typ {
	case protowire.VarintType:
		m.v, n = protowire.ConsumeVarint(m.b)
	case protowire.BytesType:
		m.data, n = protowire.ConsumeBytes(m.b)
	case protowire.Fixed64Type:
		m.v, n = protowire.ConsumeFixed64(m.b)
	case protowire.Fixed32Type:
		var v uint32
		v, n = protowire.ConsumeFixed32(m.b)
		m.v = uint64(v)
	default:
		n = -1
	}
	if n < 0 {
		m.bad = true
		return false
	}
	m.b = m.b[n:]
	return true
}

// number reads a number that stands alone.
func (m *message) number() uint64 {
	v, n := protowire.ConsumeVarint(m.b)
	if n < 0 {
		m.bad = true
		return 0
	}
	m.b = m.b[n:]
	return v
}

// startsWith says whether a field with this tag comes next.
func (m *message) startsWith(tag byte) bool { return len(m.b) > 0 && m.b[0] == tag }

// numbers calls f with the numbers of a repeated field, packed or not.
func (m *message) numbers(f func(uint64)) {
	if m.typ == protowire.VarintType {
		f(m.v)
		return
	}
	for b := m.data; len(b) > 0; {
		v, n := protowire.ConsumeVarint(b)
		if n < 0 {
			m.bad = true
			return
		}
		f(v)
		b = b[n:]
	}
}
