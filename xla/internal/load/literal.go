package load

// Values of constants as text (LiteralProto).

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"gpumem/xla/internal/hlo"
)

// shown is how many elements of a constant XLA prints; those with more are {...}
// (print_large_constants_limit of HloPrintOptions).
const shown = 10

const (
	// mostRows is how many rows of no elements are shown.
	mostRows = 1000
	// mostLiteral is how many bytes a value that is shown may have: its elements have 10
	// bytes each at most, and its shape some more.
	mostLiteral = 64 << 10
)

// leftOut is the text of a value that is not shown.
const leftOut = "{...}"

// literal is the text of a value of a shape, a message b in f.
func literal(s *hlo.Shape, b []byte, f *fields) string {
	if !s.IsArray() {
		return leftOut
	}
	n, err := s.Elems()
	f.fail(err)
	if n > shown {
		return leftOut
	}
	// An array without elements may still have many rows of none.
	rows := int64(1)
	for _, size := range s.Dims {
		if rows *= max(size, 1); size > shown || rows > mostRows {
			return leftOut
		}
	}
	if len(b) > mostLiteral {
		f.fail(fmt.Errorf("a value of %d bytes for %s", len(b), s))
		return ""
	}
	f = f.sub(b)
	texts, known := elements(s.Type, f, int(n))
	if !known {
		return leftOut
	}
	if len(texts) != int(n) {
		f.fail(fmt.Errorf("%d elements of %s", len(texts), s))
		return ""
	}
	// The elements lie in the order of the literal's own layout.
	order := make([]int64, len(s.Dims))
	for k := range order {
		order[k] = int64(len(order) - 1 - k)
	}
	if list := f.message(literalShape).message(shapeLayout).ints(layoutMinorToMajor); isOrder(list, len(order)) {
		order = list
	}
	strides := make([]int64, len(order))
	step := int64(1)
	for _, k := range order {
		strides[k] = step
		step *= s.Dims[k]
	}
	var w strings.Builder
	writeNested(&w, s.Dims, strides, texts, nil, 0)
	return w.String()
}

// isOrder reports whether a list has the dimensions of an array, each once.
func isOrder(list []int64, rank int) bool {
	sorted := slices.Sorted(slices.Values(list))
	for n, d := range sorted {
		if d != int64(n) {
			return false
		}
	}
	return len(list) == rank
}

// writeNested writes elements in braces as XLA does: of more than three dimensions all
// but the outermost and the innermost begin with their index.
func writeNested(w *strings.Builder, dims, strides []int64, texts []string, index []int64, place int64) {
	depth := len(index)
	if depth == len(dims) {
		w.WriteString(texts[place])
		return
	}
	inner := depth == len(dims)-1
	w.WriteByte('{')
	if len(dims) > 3 && depth > 0 && !inner {
		fmt.Fprintf(w, " /*i%d=%d*/", depth-1, index[depth-1])
	}
	spaces := len(dims) > 1 && (!inner || dims[depth] > 1)
	if spaces {
		w.WriteByte(' ')
	}
	for n := range dims[depth] {
		if n > 0 {
			w.WriteString(", ")
		}
		writeNested(w, dims, strides, texts, append(index, n), place+n*strides[depth])
	}
	if spaces {
		w.WriteByte(' ')
	}
	w.WriteByte('}')
}

// An elements field is where a LiteralProto has the elements of a type, and how.
type elementsField struct {
	n       no
	packing packing
	bytes   int // of an element, or of half a complex one; of varints those of 0
}

// A packing is how elements lie in their field.
type packing int

const (
	varints      packing = iota
	littleEndian         // in bytes
	floats               // fixed numbers
	nibbles              // 4 bits each
)

// elementFields are those of the types that are shown: not those of floats of 8 bits and less
// and of whole numbers of less than 4 bits.
var elementFields = map[hlo.Type]elementsField{
	"pred": {2, varints, 1}, "s32": {4, varints, 1}, "s64": {5, varints, 1}, "u32": {6, varints, 1}, "u64": {7, varints, 1},
	"s8": {15, littleEndian, 1}, "u8": {3, littleEndian, 1}, "s16": {17, littleEndian, 2}, "u16": {16, littleEndian, 2},
	"f16": {11, littleEndian, 2}, "bf16": {13, littleEndian, 2},
	"f32": {8, floats, 4}, "f64": {9, floats, 8}, "c64": {12, floats, 4}, "c128": {18, floats, 8},
	"s4": {21, nibbles, 1}, "u4": {22, nibbles, 1},
}

// elements are the texts of an array's elements. known is false for types that are not shown.
func elements(t hlo.Type, f *fields, n int) (texts []string, known bool) {
	field, known := elementFields[t]
	if !known {
		return nil, false
	}
	switch field.packing {
	case varints:
		for _, v := range f.ints(field.n) {
			texts = append(texts, wholeNumber(t, v))
		}
		// A single pred is a word, those of an array are digits.
		if t == "pred" && n == 1 && len(texts) == 1 && len(f.message(literalShape).ints(shapeDimensions)) == 0 {
			texts[0] = map[string]string{"0": "false", "1": "true"}[texts[0]]
		}
		return texts, true
	case floats:
		for _, b := range f.fixed(field.n, field.bytes) {
			texts = append(texts, wideFloatText(b, field.bytes == 8))
		}
		if t == "c64" || t == "c128" {
			return complexNumbers(t, f, texts), true
		}
		return texts, true
	}

	b := f.bytes(field.n)
	whole := len(b)%field.bytes == 0
	if field.packing == nibbles {
		whole = len(b) == n || len(b) == (n+1)/2
	}
	if !whole {
		f.fail(fmt.Errorf("%d bytes of %s", len(b), t))
		return nil, true
	}
	if field.packing == nibbles {
		return halfBytes(t, b, n), true
	}
	for ; len(b) > 0; b = b[field.bytes:] {
		texts = append(texts, smallNumber(t, littleEndianNumber(b[:field.bytes])))
	}
	return texts, true
}

// wholeNumber is the text of an element that is a varint.
func wholeNumber(t hlo.Type, v int64) string {
	switch t {
	case "pred":
		v &= 1
	case "u32":
		v = int64(uint32(v))
	case "s32":
		v = int64(int32(v))
	case "u64":
		return strconv.FormatUint(uint64(v), 10)
	}
	return number(v)
}

// complexNumbers joins the texts of halves.
func complexNumbers(t hlo.Type, f *fields, halves []string) (texts []string) {
	if len(halves)%2 != 0 {
		f.fail(fmt.Errorf("%d halves of %s", len(halves), t))
		return nil
	}
	for pair := range slices.Chunk(halves, 2) {
		texts = append(texts, "("+pair[0]+", "+pair[1]+")")
	}
	return texts
}

// halfBytes are the texts of n numbers of 4 bits: one in a byte, or two, the first in the low half.
func halfBytes(t hlo.Type, b []byte, n int) (texts []string) {
	for k := range n {
		v := int64(b[k*len(b)/n])
		if len(b) < n && k%2 == 1 {
			v >>= 4
		}
		v &= 15
		if t == "s4" && v > 7 {
			v -= 16
		}
		texts = append(texts, number(v))
	}
	return texts
}

// smallNumber is a number of one or two bytes.
func smallNumber(t hlo.Type, v uint64) string {
	switch t {
	case "s8":
		return strconv.FormatInt(int64(int8(v)), 10)
	case "s16":
		return strconv.FormatInt(int64(int16(v)), 10)
	case "bf16":
		return floatText(float64(math.Float32frombits(uint32(v)<<16)), v, 7, 16, 4)
	case "f16":
		sign, exponent, fraction := 1.0, int(v>>10&31), float64(v&1023)
		if v>>15 != 0 {
			sign = -1
		}
		value := sign * math.Ldexp(fraction+1024, exponent-25)
		switch {
		case exponent == 31 && fraction == 0:
			value = math.Inf(int(sign))
		case exponent == 31:
			value = math.NaN()
		case exponent == 0:
			value = sign * math.Ldexp(fraction, -24)
		}
		return floatText(value, v, 10, 16, 5)
	}
	return strconv.FormatUint(v, 10)
}

// wideFloatText is a float of 32 or 64 bits: with the digits that always stay, or
// with those that are always enough.
func wideFloatText(bits uint64, wide bool) string {
	if wide {
		v := math.Float64frombits(bits)
		text := floatText(v, bits, 52, 64, 15)
		if back, err := strconv.ParseFloat(text, 64); err == nil && back == v {
			return text
		}
		return floatText(v, bits, 52, 64, 17)
	}
	v := math.Float32frombits(uint32(bits))
	text := floatText(float64(v), bits, 23, 32, 6)
	if back, err := strconv.ParseFloat(text, 32); err == nil && float32(back) == v {
		return text
	}
	return floatText(float64(v), bits, 23, 32, 9)
}

// floatText is a value with that many digits. A NaN that is not the usual one shows
// its payload.
func floatText(v float64, bits uint64, fraction, width, digits int) string {
	switch {
	case math.IsNaN(v):
		text := "nan"
		if bits>>(width-1) != 0 {
			text = "-nan"
		}
		if payload := bits & (1<<fraction - 1); payload != 1<<(fraction-1) {
			text += fmt.Sprintf("(0x%x)", payload)
		}
		return text
	case math.IsInf(v, 1):
		return "inf"
	case math.IsInf(v, -1):
		return "-inf"
	}
	return shortFloat(v, digits)
}

func shortFloat(v float64, digits int) string { return strconv.FormatFloat(v, 'g', digits, 64) }
