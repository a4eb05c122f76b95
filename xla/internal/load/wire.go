package load

// Protocol buffers without generated code: a message is a list of fields.

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"gpumem/xla/internal/hlo"
)

// A field is one of a message: n its number in the .proto file.
type field struct {
	n     no
	typ   protowire.Type
	value uint64 // of varints and fixed numbers
	bytes []byte // of strings, messages and packed lists
}

var errCut = errors.New("the message is cut short or damaged")

// walk goes through the fields of a message in their order.
func walk(b []byte, f func(field) error) error {
	for len(b) > 0 {
		number, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errCut
		}
		b = b[n:]
		x := field{n: number, typ: typ}
		switch typ {
		case protowire.VarintType:
			x.value, n = protowire.ConsumeVarint(b)
		case protowire.Fixed32Type:
			var v uint32
			v, n = protowire.ConsumeFixed32(b)
			x.value = uint64(v)
		case protowire.Fixed64Type:
			x.value, n = protowire.ConsumeFixed64(b)
		case protowire.BytesType:
			x.bytes, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(number, typ, b)
		}
		if n < 0 {
			return errCut
		}
		b = b[n:]
		if err := f(x); err != nil {
			return err
		}
	}
	return nil
}

// fields are those of a message. The first error of reading one, or of reading a message
// in it, stays in err; what is read after it is zero.
type fields struct {
	d    *decoder
	list []field
	read [4]uint64 // a bit for each number below 256 that was read
	err  *error
	own  error // what err points to, but in a message that is in another
}

func (d *decoder) fields(b []byte) *fields {
	f := &fields{d: d}
	f.err = &f.own
	f.fill(b)
	return f
}

func (f *fields) fill(b []byte) {
	f.list = make([]field, 0, min(len(b)/2, 8)) // a field has at least two bytes
	f.fail(walk(b, func(x field) error {
		if f.list = append(f.list, x); len(f.list)%1024 == 0 {
			return f.d.count(1024 * 64)
		}
		return nil
	}))
}

// fail keeps an error if it is the first.
func (f *fields) fail(err error) {
	if *f.err == nil {
		*f.err = err
	}
}

// within puts what was read before the error of reading it.
func (f *fields) within(what string, read func()) {
	if *f.err == nil {
		if read(); *f.err != nil {
			*f.err = fmt.Errorf("%s: %w", what, *f.err)
		}
	}
}

// sub are the fields of a message in this one.
func (f *fields) sub(b []byte) *fields {
	s := &fields{d: f.d, err: f.err}
	s.fill(b)
	return s
}

// each reads all fields of a number.
func (f *fields) each(n no, read func(field)) {
	f.use(n, true)
	for _, x := range f.list {
		if x.n == n && *f.err == nil {
			read(x)
		}
	}
}

// typed is each for a type. want is the type in words.
func (f *fields) typed(n no, typ protowire.Type, want string, read func(field)) {
	f.each(n, func(x field) {
		if x.typ != typ {
			f.wrong(x, want)
			return
		}
		read(x)
	})
}

// wrong is the failure of a field of another type than its number has.
func (f *fields) wrong(x field, want string) {
	f.fail(fmt.Errorf("field %d is %s: expected %s", x.n, kinds[x.typ], want))
}

var kinds = map[protowire.Type]string{
	protowire.VarintType: "a varint", protowire.Fixed32Type: "a fixed number of 32 bits", protowire.Fixed64Type: "a fixed number of 64 bits",
	protowire.BytesType: "bytes", protowire.StartGroupType: "a group", protowire.EndGroupType: "the end of a group",
}

// use notes that a field was read, or that it was not after all.
func (f *fields) use(n no, read bool) {
	if f.read[n/64&3] |= 1 << (n % 64); !read {
		f.read[n/64&3] &^= 1 << (n % 64)
	}
}

func (f *fields) wasRead(n no) bool { return n < 256 && f.read[n/64]>>(n%64)&1 != 0 }

func (f *fields) has(n no) bool {
	return slices.ContainsFunc(f.list, func(x field) bool { return x.n == n })
}

// The last value counts where a number has several that cannot be repeated.

func (f *fields) int(n no) (v int64) {
	f.typed(n, protowire.VarintType, "a varint", func(x field) { v = int64(x.value) })
	return v
}

func (f *fields) bool(n no) bool { return f.int(n) != 0 }

func (f *fields) float32(n no) (v float32) {
	f.typed(n, protowire.Fixed32Type, "a fixed number of 32 bits", func(x field) { v = math.Float32frombits(uint32(x.value)) })
	return v
}

func (f *fields) string(n no) (s string) {
	f.strings(n, func(t string) { s = t })
	return s
}

// strings reads a repeated field.
func (f *fields) strings(n no, read func(s string)) {
	f.typed(n, protowire.BytesType, "a string", func(x field) {
		if !utf8.Valid(x.bytes) {
			f.fail(fmt.Errorf("field %d is no text in UTF-8", n))
		}
		read(string(x.bytes))
	})
}

// eachMessage reads the bytes of a repeated field of messages.
func (f *fields) eachMessage(n no, read func(b []byte)) {
	f.typed(n, protowire.BytesType, "a message", func(x field) { read(x.bytes) })
}

// bytes is a bytes field, or the bytes of a message.
func (f *fields) bytes(n no) (b []byte) {
	f.eachMessage(n, func(last []byte) { b = last })
	return b
}

func (f *fields) message(n no) *fields { return f.sub(f.bytes(n)) }

// messages reads a repeated field of messages.
func (f *fields) messages(n no, read func(m *fields)) {
	f.eachMessage(n, func(b []byte) { read(f.sub(b)) })
}

// texts are those of a repeated field.
func (f *fields) texts(n no, text func(m *fields) string) (texts []string) {
	f.messages(n, func(m *fields) { texts = append(texts, text(m)) })
	return texts
}

// ints is a repeated field of whole numbers, packed or not.
func (f *fields) ints(n no) (list []int64) {
	f.each(n, func(x field) {
		switch x.typ {
		case protowire.VarintType:
			list = append(list, int64(x.value))
		case protowire.BytesType:
			for b := x.bytes; len(b) > 0; {
				v, n := protowire.ConsumeVarint(b)
				if n < 0 {
					f.fail(errCut)
					return
				}
				list = append(list, int64(v))
				b = b[n:]
			}
		default:
			f.wrong(x, "whole numbers")
		}
	})
	return list
}

// fixed is a repeated field of floats of 4 or 8 bytes, packed or not.
func (f *fields) fixed(n no, width int) (list []uint64) {
	f.each(n, func(x field) {
		switch {
		case x.typ == protowire.BytesType && len(x.bytes)%width == 0:
			for b := x.bytes; len(b) > 0; b = b[width:] {
				list = append(list, littleEndianNumber(b[:width]))
			}
		case x.typ == protowire.Fixed32Type && width == 4, x.typ == protowire.Fixed64Type && width == 8:
			list = append(list, x.value)
		default:
			f.wrong(x, "floats")
		}
	})
	return list
}

// littleEndianNumber is a little-endian number.
func littleEndianNumber(b []byte) (v uint64) {
	for k, c := range b {
		v |= uint64(c) << (8 * k)
	}
	return v
}

// shapes reads a repeated field of shapes.
func (f *fields) shapes(n no, read func(s *hlo.Shape)) {
	f.eachMessage(n, func(b []byte) {
		s, err := f.d.shape(b)
		if err != nil {
			f.fail(err)
			return
		}
		read(s)
	})
}
