package proto

// Protocol buffers without generated code: a message is walked field by field.

import (
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// A field is one of a message: n its number in the .proto file.
type field struct {
	n     protowire.Number
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

// wrong is the error of a field of another kind than its number has.
func (x field) wrong(want string) error {
	return fmt.Errorf("field %d is %s: expected %s", x.n, kinds[x.typ], want)
}

var kinds = map[protowire.Type]string{
	protowire.VarintType: "a varint", protowire.Fixed32Type: "a fixed number of 32 bits", protowire.Fixed64Type: "a fixed number of 64 bits",
	protowire.BytesType: "bytes", protowire.StartGroupType: "a group", protowire.EndGroupType: "the end of a group",
}

func (x field) int(to *int64) error {
	if x.typ != protowire.VarintType {
		return x.wrong("a varint")
	}
	*to = int64(x.value)
	return nil
}

func (x field) float32(to *float32) error {
	if x.typ != protowire.Fixed32Type {
		return x.wrong("a fixed number of 32 bits")
	}
	*to = math.Float32frombits(uint32(x.value))
	return nil
}

func (x field) string(to *string) error {
	if x.typ != protowire.BytesType {
		return x.wrong("a string")
	}
	if !utf8.Valid(x.bytes) {
		return fmt.Errorf("field %d is no text in UTF-8", x.n)
	}
	*to = string(x.bytes)
	return nil
}

// message gives the bytes of a message or of a bytes field.
func (x field) message(to *[]byte) error {
	if x.typ != protowire.BytesType {
		return x.wrong("a message")
	}
	*to = x.bytes
	return nil
}

// ints appends to a repeated field of whole numbers, packed or not.
func (x field) ints(to *[]int64) error {
	switch x.typ {
	case protowire.VarintType:
		*to = append(*to, int64(x.value))
	case protowire.BytesType:
		for b := x.bytes; len(b) > 0; {
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return errCut
			}
			*to = append(*to, int64(v))
			b = b[n:]
		}
	default:
		return x.wrong("whole numbers")
	}
	return nil
}

// fixed appends to a repeated field of floats: of 4 or 8 bytes.
func (x field) fixed(width int, to *[]uint64) error {
	switch {
	case x.typ == protowire.BytesType && len(x.bytes)%width == 0:
		for b := x.bytes; len(b) > 0; b = b[width:] {
			if width == 4 {
				v, _ := protowire.ConsumeFixed32(b)
				*to = append(*to, uint64(v))
			} else {
				v, _ := protowire.ConsumeFixed64(b)
				*to = append(*to, v)
			}
		}
	case x.typ == protowire.Fixed32Type && width == 4, x.typ == protowire.Fixed64Type && width == 8:
		*to = append(*to, x.value)
	default:
		return x.wrong("floats")
	}
	return nil
}
