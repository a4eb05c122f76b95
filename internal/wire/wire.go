// Package wire reads protocol buffers without generated code. A [Stream] walks a message
// that is too large for memory, a [Message] one that is in memory. The encoding is that of
// protobuf.dev/programming-guides/encoding.
package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"gpumem/internal/input"
)

// A Stream reads the fields of a message that is a whole file.
type Stream struct {
	file *input.Reader
	in   *bufio.Reader // its content
	off  int64         // of the next byte
	harm int64         // where a conversion to text did its first; 0 if there was none
	odd  bool          // the content does not begin as a file of the format does
	held int           // bytes of memory that are not counted yet

	// The current field.
	at    int64 // where it begins
	end   int64 // where it ends
	num   protowire.Number
	kind  protowire.Type
	value uint64 // a number, or how many bytes follow
}

const (
	// toEnd is the end of a message that is a whole file.
	toEnd = math.MaxInt64
	// maxTake is the most of a message that may be taken into memory: what the buffer of
	// the content holds.
	maxTake = input.MaxLine
	// heldStep is how much memory is counted at once.
	heldStep = 64 << 10
)

// ErrSkip is returned by the callback of [Stream.Within] to skip the rest of the message.
var ErrSkip = errors.New("skip the rest of this message")

// NewStream returns a stream of the content of in. looks reports whether content begins
// as the format does; it decides what errors advise.
func NewStream(in *input.Reader, looks func(head []byte) bool) *Stream {
	head, _ := in.Head() // a failed read fails again
	return &Stream{file: in, in: in.Content(), harm: textHarm(head), odd: len(head) == 0 || !looks(head)}
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

// Fail returns an error of the input at a byte, as [Stream.At] returns it.
func (w *Stream) Fail(at int64, format string, args ...any) error {
	if w.harm > 0 {
		return w.file.FailAt(w.harm, "damaged from here on: the file was taken for text on its way, "+
			"and its bytes above 127 were replaced by EF BF BD; copy the original again as binary")
	}
	remedy := "; copy the file again"
	if w.odd {
		remedy = "; it does not begin as a file of this format does, so let the format be recognised"
	}
	return w.file.FailAt(at, format+remedy, args...)
}

// Refuse returns an error of the whole input, which is not damaged.
func (w *Stream) Refuse(format string, args ...any) error {
	if w.harm > 0 {
		return w.Fail(0, "")
	}
	return w.file.Fail(format, args...)
}

// broken turns the error of a read into one of the input, if it is the end of the file.
func (w *Stream) broken(err error) error {
	if err != io.EOF {
		return err
	}
	return w.Fail(w.off, "the file is cut short here")
}

// Hold counts n bytes of memory that the file needs from now on. If that is more than is
// in proportion to the file, the next field is an error.
func (w *Stream) Hold(n int) { w.held += n }

// Fields calls visit with the number of each field of the file. What visit does not read
// of a field is skipped.
func (w *Stream) Fields(visit func(field protowire.Number) error) error { return w.walk(toEnd, visit) }

// Within calls visit with the number of each field of the message that the current field
// is. It may return [ErrSkip].
func (w *Stream) Within(visit func(field protowire.Number) error) error {
	if err := w.want(protowire.BytesType); err != nil {
		return err
	}
	return w.walk(w.end, visit)
}

// walk visits the fields of a message that ends at byte end.
func (w *Stream) walk(end int64, visit func(protowire.Number) error) error {
	for {
		ok, err := w.next(end)
		if err != nil || !ok {
			return err
		}
		fieldEnd := w.end
		switch err := visit(w.num); {
		case err == ErrSkip:
			return w.skipTo(end)
		case err != nil:
			return err
		}
		if err := w.skipTo(fieldEnd); err != nil {
			return err
		}
	}
}

// next reads the next field of a message that ends at byte end. It returns false at the
// end.
func (w *Stream) next(end int64) (bool, error) {
	if w.held >= heldStep {
		if err := w.file.Take(int64(w.held)); err != nil {
			return false, err
		}
		w.held = 0
	}
	if w.off >= end {
		return false, nil
	}
	w.at = w.off
	if end == toEnd {
		if _, err := w.in.Peek(1); err == io.EOF {
			return false, nil
		}
	}
	tag, err := w.varint()
	if err != nil {
		return false, err
	}
	w.num, w.kind = protowire.DecodeTag(tag)
	if !w.num.IsValid() {
		return false, w.Fail(w.at, "damaged: no field begins with %d", tag)
	}
	w.value = 0
	var more uint64 // bytes that follow
	switch w.kind {
	case protowire.VarintType:
		w.value, err = w.varint()
	case protowire.BytesType:
		w.value, err = w.varint()
		more = w.value
	case protowire.Fixed32Type:
		more = 4
	case protowire.Fixed64Type:
		more = 8
	default:
		err = w.Fail(w.at, "damaged: field %d is of the kind %d, which is not in use", w.num, w.kind)
	}
	switch {
	case err != nil:
		return false, err
	case w.off > end, more > uint64(end-w.off):
		return false, w.Fail(w.at, "damaged: field %d goes beyond the message that it is in", w.num)
	}
	w.end = w.off + int64(more)
	return true, nil
}

func (w *Stream) varint() (uint64, error) {
	b, err := w.in.Peek(binary.MaxVarintLen64)
	v, n := protowire.ConsumeVarint(b)
	switch {
	case n >= 0:
		w.off += int64(n)
		w.in.Discard(n) // they are in the buffer
		return v, nil
	case err != nil: // the file ends, or cannot be read
		w.off += int64(len(b))
		return 0, w.broken(err)
	}
	return 0, w.Fail(w.at, "damaged: a number has more than 64 bits")
}

// want checks that the current field is of a kind.
func (w *Stream) want(kind protowire.Type) error {
	if w.kind != kind {
		return w.Fail(w.at, "damaged: field %d is of the kind %d instead of %d", w.num, w.kind, kind)
	}
	return nil
}

func (w *Stream) skipTo(end int64) error {
	for w.off < end {
		n, err := w.in.Discard(int(min(end-w.off, math.MaxInt32)))
		w.off += int64(n)
		if err != nil {
			return w.broken(err)
		}
	}
	return nil
}

// At returns where the current field begins, for [Stream.Fail].
func (w *Stream) At() int64 { return w.at }

// Number returns the number that the current field is.
func (w *Stream) Number() (uint64, error) { return w.value, w.want(protowire.VarintType) }

// Take returns the bytes of the current field, good until the next field. More than 64 KiB
// are damage; what names the field for that error.
func (w *Stream) Take(what string) ([]byte, error) {
	if err := w.want(protowire.BytesType); err != nil {
		return nil, err
	}
	if w.value > maxTake {
		return nil, w.Fail(w.at, "damaged: %s of %d bytes", what, w.value)
	}
	b, err := w.in.Peek(int(w.value))
	w.off += int64(len(b))
	if err != nil {
		return nil, w.broken(err)
	}
	w.in.Discard(len(b)) // they are in the buffer
	return b, nil
}

// Small returns the bytes of the current field as [Stream.Take] does, but nil if they are
// more than 64 KiB.
func (w *Stream) Small() ([]byte, error) {
	if w.kind == protowire.BytesType && w.value > maxTake {
		return nil, nil
	}
	return w.Take("")
}

// A Message walks a message in memory.
type Message struct {
	rest []byte

	// Bad reports whether the message is cut short or damaged.
	Bad bool
	// The current field, after Next.
	Num   protowire.Number
	Type  protowire.Type
	Value uint64 // a varint; else 0
	Data  []byte // bytes; else nil
}

// NewMessage returns a message before its first field.
func NewMessage(b []byte) Message { return Message{rest: b} }

// Next goes to the next field. It returns false at the end, and sets Bad if that is not
// where the message should end.
func (m *Message) Next() bool {
	if len(m.rest) == 0 || m.Bad {
		return false
	}
	num, typ, n := protowire.ConsumeTag(m.rest)
	if n < 0 {
		m.Bad = true
		return false
	}
	m.rest = m.rest[n:]
	m.Num, m.Type, m.Value, m.Data = num, typ, 0, nil
	switch typ {
	case protowire.VarintType:
		m.Value, n = protowire.ConsumeVarint(m.rest)
	case protowire.BytesType:
		m.Data, n = protowire.ConsumeBytes(m.rest)
	default:
		n = protowire.ConsumeFieldValue(num, typ, m.rest)
	}
	if n < 0 {
		m.Bad = true
		return false
	}
	m.rest = m.rest[n:]
	return true
}
