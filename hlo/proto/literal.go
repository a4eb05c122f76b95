package proto

// Values of constants as text (LiteralProto).

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"gpumem/hlo"
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

// literal is the text of a value of a shape.
func (d *decoder) literal(s *hlo.Shape, b []byte) (string, error) {
	if s.Type == hlo.Tuple {
		return leftOut, nil
	}
	n, err := s.Elems()
	if err != nil || n > shown || !s.IsArray() {
		return leftOut, err
	}
	// An array without elements may still have many rows of none.
	rows := int64(1)
	for _, size := range s.Dims {
		if rows *= max(size, 1); size > shown || rows > mostRows {
			return leftOut, nil
		}
	}
	if len(b) > mostLiteral {
		return "", fmt.Errorf("a value of %d bytes for %s", len(b), s)
	}
	f := fieldsOf(b)
	texts, err := elements(s.Type, f, int(n))
	if err != nil {
		return "", err
	}
	if texts == nil {
		return leftOut, nil
	}
	if len(texts) != int(n) {
		return "", fmt.Errorf("%d elements of %s", len(texts), s)
	}
	// The elements lie in the order of the literal's own layout.
	order := make([]int64, len(s.Dims))
	for k := range order {
		order[k] = int64(len(order) - 1 - k)
	}
	own := fieldsOf(f.bytes(1))
	if list := fieldsOf(own.bytes(5)).ints(1); isOrder(list, len(order)) {
		order = list
	}
	strides := make([]int64, len(order))
	step := int64(1)
	for _, k := range order {
		strides[k] = step
		step *= s.Dims[k]
	}
	var w strings.Builder
	nested(&w, s.Dims, strides, texts, nil, 0)
	return w.String(), f.err
}

// isOrder says whether a list has the dimensions of an array, each once.
func isOrder(list []int64, rank int) bool {
	sorted := slices.Sorted(slices.Values(list))
	for n, d := range sorted {
		if d != int64(n) {
			return false
		}
	}
	return len(list) == rank
}

// nested writes elements in braces as XLA does: of more than three dimensions all
// but the outermost and the innermost begin with their index.
func nested(w *strings.Builder, dims, strides []int64, texts []string, index []int64, place int64) {
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
		nested(w, dims, strides, texts, append(index, n), place+n*strides[depth])
	}
	if spaces {
		w.WriteByte(' ')
	}
	w.WriteByte('}')
}

// repeated are the fields of types whose elements are varints.
var repeated = map[hlo.Type]protowire.Number{"pred": 2, "s32": 4, "s64": 5, "u32": 6, "u64": 7}

// packed are those of types whose elements are little-endian bytes.
var packed = map[hlo.Type]struct {
	n     protowire.Number
	width int
}{"s8": {15, 1}, "u8": {3, 1}, "s16": {17, 2}, "u16": {16, 2}, "f16": {11, 2}, "bf16": {13, 2}}

// nibbles are those of types of 4 bits.
var nibbles = map[hlo.Type]protowire.Number{"s4": 21, "u4": 22}

// elements are the texts of an array's elements, and nil for types that are not
// shown: floats of 8 bits and less, whole numbers of less than 4 bits.
func elements(t hlo.Type, f *fields, n int) ([]string, error) {
	texts := make([]string, 0, n)
	if number, ok := repeated[t]; ok {
		for _, v := range f.ints(number) {
			switch t {
			case "pred":
				// A single one is a word, those of an array are digits.
				texts = append(texts, strconv.FormatInt(v&1, 10))
			case "u32":
				texts = append(texts, strconv.FormatUint(uint64(uint32(v)), 10))
			case "u64":
				texts = append(texts, strconv.FormatUint(uint64(v), 10))
			case "s32":
				texts = append(texts, strconv.FormatInt(int64(int32(v)), 10))
			default:
				texts = append(texts, strconv.FormatInt(v, 10))
			}
		}
		if t == "pred" && n == 1 && len(texts) == 1 && f.scalar() {
			texts[0] = map[string]string{"0": "false", "1": "true"}[texts[0]]
		}
		return texts, f.err
	}
	if p, ok := packed[t]; ok {
		b := f.bytes(p.n)
		if len(b)%p.width != 0 {
			return nil, fmt.Errorf("%d bytes of %s", len(b), t)
		}
		for ; len(b) > 0; b = b[p.width:] {
			v := uint64(b[0])
			if p.width == 2 {
				v |= uint64(b[1]) << 8
			}
			texts = append(texts, small(t, v))
		}
		return texts, f.err
	}
	if number, ok := nibbles[t]; ok {
		b := f.bytes(number)
		if len(b) != n && len(b) != (n+1)/2 {
			return nil, fmt.Errorf("%d bytes of %s", len(b), t)
		}
		for k := range n {
			// One in a byte, or two, the first in the low half.
			v := int64(b[k*len(b)/n])
			if len(b) < n && k%2 == 1 {
				v >>= 4
			}
			v &= 15
			if t == "s4" && v > 7 {
				v -= 16
			}
			texts = append(texts, strconv.FormatInt(v, 10))
		}
		return texts, f.err
	}
	var bits []uint64
	switch t {
	case "f32":
		f.each(8, func(x field) error { return x.fixed(4, &bits) })
	case "f64":
		f.each(9, func(x field) error { return x.fixed(8, &bits) })
	case "c64":
		f.each(12, func(x field) error { return x.fixed(4, &bits) })
	case "c128":
		f.each(18, func(x field) error { return x.fixed(8, &bits) })
	default:
		return nil, nil
	}
	wide := t == "f64" || t == "c128"
	for _, b := range bits {
		texts = append(texts, wideFloat(b, wide))
	}
	if t == "c64" || t == "c128" {
		if len(texts)%2 != 0 {
			return nil, fmt.Errorf("%d halves of %s", len(texts), t)
		}
		var pairs []string
		for ; len(texts) > 0; texts = texts[2:] {
			pairs = append(pairs, "("+texts[0]+", "+texts[1]+")")
		}
		texts = slices.Clip(pairs)
	}
	if texts == nil {
		texts = []string{}
	}
	return texts, f.err
}

// scalar says whether a literal's own shape has no dimensions.
func (f *fields) scalar() bool { return len(fieldsOf(f.bytes(1)).ints(3)) == 0 }

// small is a number of one or two bytes.
func small(t hlo.Type, v uint64) string {
	switch t {
	case "s8":
		return strconv.FormatInt(int64(int8(v)), 10)
	case "s16":
		return strconv.FormatInt(int64(int16(v)), 10)
	case "bf16":
		return float(float64(math.Float32frombits(uint32(v)<<16)), v, 7, 16, 4)
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
		return float(value, v, 10, 16, 5)
	}
	return strconv.FormatUint(v, 10)
}

// wideFloat is a float of 32 or 64 bits: with the digits that always stay, or
// with those that are always enough.
func wideFloat(bits uint64, wide bool) string {
	if wide {
		v := math.Float64frombits(bits)
		text := float(v, bits, 52, 64, 15)
		if back, err := strconv.ParseFloat(text, 64); err == nil && back == v {
			return text
		}
		return float(v, bits, 52, 64, 17)
	}
	v := math.Float32frombits(uint32(bits))
	text := float(float64(v), bits, 23, 32, 6)
	if back, err := strconv.ParseFloat(text, 32); err == nil && float32(back) == v {
		return text
	}
	return float(float64(v), bits, 23, 32, 9)
}

// float is a value with that many digits. A NaN that is not the usual one shows
// its payload.
func float(v float64, bits uint64, fraction, width, digits int) string {
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
