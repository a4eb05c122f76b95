// Package wire reads protocol buffers without generated code. [Read] takes a file into
// memory, and a [Message] walks the fields of a message. The encoding is that of
// protobuf.dev/programming-guides/encoding.
package wire

import (
	"bytes"
	"errors"
	"io"
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"gpumem/internal/input"
)

// A File is a message that is a whole file. It makes errors with the place in the file.
type File struct {
	Data []byte

	in   *input.Reader
	harm int64 // where a conversion to text did its first; 0 if there was none
	odd  bool  // the content does not begin as a file of the format does
}

// maxTake is the most that [Message.Take] returns, in bytes.
const maxTake = input.MaxLine

// Read reads the content of in, and returns it with its message. looks reports whether
// content begins as the format does; it decides what errors advise.
func Read(in *input.Reader, looks func(head []byte) bool) (*File, *Message, error) {
	head, _ := in.Head() // a failed read fails again
	f := &File{in: in, harm: textHarm(head), odd: len(head) == 0 || !looks(head)}
	data, err := in.ReadAll()
	f.Data = data
	return f, &Message{file: f, data: data, end: math.MaxInt64}, err
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

// Fail returns an error of the input at a byte, as [Message.At] has it.
func (f *File) Fail(at int64, format string, args ...any) error {
	if f.harm > 0 {
		return f.in.FailAt(f.harm, "damaged from here on: the file was taken for text on its way, "+
			"and its bytes above 127 were replaced by EF BF BD; copy the original again as binary")
	}
	remedy := "; copy the file again"
	if f.odd {
		remedy = "; it does not begin as a file of this format does, so let the format be recognised"
	}
	return f.in.FailAt(at, format+remedy, args...)
}

// Refuse returns an error of the whole input, which is not damaged.
func (f *File) Refuse(format string, args ...any) error {
	if f.harm > 0 {
		return f.Fail(0, "")
	}
	return f.in.Fail(format, args...)
}

// A Message walks the fields of a message. After the first error it has no more fields,
// and nor have the messages that it is in.
type Message struct {
	// The current field, after Next.
	Num   protowire.Number
	Type  protowire.Type
	Value uint64 // a varint; else 0
	Data  []byte // bytes; else nil
	At    int64  // where the field begins in the file

	file   *File    // nil if there is none
	parent *Message // nil if it is the file's
	data   []byte
	next   int   // in data, of the next field
	begin  int64 // of data in the file
	end    int64 // of the message
	err    error
}

// NewMessage returns a message that is in no file.
func NewMessage(b []byte) Message { return Message{data: b} }

// Message returns the message that the current field is.
func (m *Message) Message() *Message {
	m.want(protowire.BytesType)
	return &Message{file: m.file, parent: m, data: m.Data, begin: m.off() - int64(len(m.Data)), end: m.off(), err: m.err}
}

// Err returns the error that ended the fields: nil if that is the end of the message.
func (m *Message) Err() error { return m.err }

// fail ends the message, and those that it is in.
func (m *Message) fail(at int64, format string, args ...any) {
	err := errBad
	if m.file != nil {
		err = m.file.Fail(at, format, args...)
	}
	for ; m != nil; m = m.parent {
		m.err = err
	}
}

// errBad is the error of a message that is in no file.
var errBad = errors.New("a message is damaged")

// Next goes to the next field. It returns false at the end, and after an error.
func (m *Message) Next() bool {
	if m.next == len(m.data) || m.err != nil {
		return false
	}
	m.At = m.off()
	tag := m.varint()
	if m.err != nil {
		return false
	}
	m.Num, m.Type = protowire.DecodeTag(tag)
	m.Value, m.Data = 0, nil
	var more uint64 // bytes that follow
	switch {
	case !m.Num.IsValid():
		m.fail(m.At, "damaged: no field begins with %d", tag)
	case m.Type == protowire.VarintType:
		m.Value = m.varint()
	case m.Type == protowire.BytesType:
		more = m.varint()
	case m.Type == protowire.Fixed32Type:
		more = 4
	case m.Type == protowire.Fixed64Type:
		more = 8
	default:
		m.fail(m.At, "damaged: field %d is of the kind %d, which is not in use", m.Num, m.Type)
	}
	if m.err == nil && more > uint64(len(m.data)-m.next) {
		m.short(more)
	}
	if m.err != nil {
		return false
	}
	if m.Type == protowire.BytesType {
		m.Data = m.data[m.next : m.next+int(more)]
	}
	m.next += int(more)
	return true
}

// off returns where the next byte is in the file.
func (m *Message) off() int64 { return m.begin + int64(m.next) }

func (m *Message) varint() uint64 {
	if m.next < len(m.data) && m.data[m.next] < 0x80 { // most are short
		m.next++
		return uint64(m.data[m.next-1])
	}
	v, n := protowire.ConsumeVarint(m.data[m.next:])
	switch {
	case n >= 0:
		m.next += n
	case errors.Is(protowire.ParseError(n), io.ErrUnexpectedEOF):
		m.short(0)
	default:
		m.fail(m.At, "damaged: a number has more than 64 bits")
	}
	return v
}

// short fails because more bytes are missing than the message has. If it is the whole
// file, that is cut short.
func (m *Message) short(more uint64) {
	if m.parent == nil && more <= uint64(m.end-m.off()) {
		m.fail(m.begin+int64(len(m.data)), "the file is cut short here")
		return
	}
	m.fail(m.At, "damaged: field %d goes beyond the message that it is in", m.Num)
}

// want fails if the current field is not of a kind.
func (m *Message) want(kind protowire.Type) {
	if m.Type != kind {
		m.fail(m.At, "damaged: field %d is of the kind %d instead of %d", m.Num, m.Type, kind)
	}
}

// Number returns the number that the current field is.
func (m *Message) Number() uint64 {
	m.want(protowire.VarintType)
	return m.Value
}

// Bytes returns the bytes that the current field is.
func (m *Message) Bytes() []byte {
	m.want(protowire.BytesType)
	return m.Data
}

// Take is Bytes for a short text or message. More than 64 KiB are damage; what names the
// field for that error.
func (m *Message) Take(what string) []byte {
	if m.want(protowire.BytesType); len(m.Data) > maxTake {
		m.fail(m.At, "damaged: %s of %d bytes", what, len(m.Data))
	}
	return m.Data
}
