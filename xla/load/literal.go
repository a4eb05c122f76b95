package load

// Values of constants as text (LiteralProto).

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"gpumem/xla/hlo"
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
	if list := f.message(1).message(5).ints(1); isOrder(list, len(order)) {
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

// A packing is a field, and the bytes that an element, or half a complex one, has in it.
type packing struct {
	n     protowire.Number
	width int
}

// packed are those of types whose elements are little-endian bytes, floats those of types
// whose elements are fixed numbers.
var packed = map[hlo.Type]packing{"s8": {15, 1}, "u8": {3, 1}, "s16": {17, 2}, "u16": {16, 2}, "f16": {11, 2}, "bf16": {13, 2}}

var floats = map[hlo.Type]packing{"f32": {8, 4}, "f64": {9, 8}, "c64": {12, 4}, "c128": {18, 8}}

// nibbles are those of types of 4 bits.
var nibbles = map[hlo.Type]protowire.Number{"s4": 21, "u4": 22}

// elements are the texts of an array's elements. known is false for types that are not
// shown: floats of 8 bits and less, whole numbers of less than 4 bits.
func elements(t hlo.Type, f *fields, n int) (texts []string, known bool) {
	if field, ok := repeated[t]; ok {
		for _, v := range f.ints(field) {
			switch t {
			case "pred":
				v &= 1
			case "u32":
				v = int64(uint32(v))
			case "s32":
				v = int64(int32(v))
			}
			if t == "u64" {
				texts = append(texts, strconv.FormatUint(uint64(v), 10))
			} else {
				texts = append(texts, number(v))
			}
		}
		// A single pred is a word, those of an array are digits.
		if t == "pred" && n == 1 && len(texts) == 1 && len(f.message(1).ints(3)) == 0 {
			texts[0] = map[string]string{"0": "false", "1": "true"}[texts[0]]
		}
		return texts, true
	}
	if p, ok := packed[t]; ok {
		b := f.bytes(p.n)
		if len(b)%p.width != 0 {
			f.fail(fmt.Errorf("%d bytes of %s", len(b), t))
			return nil, true
		}
		for ; len(b) > 0; b = b[p.width:] {
			texts = append(texts, small(t, little(b[:p.width])))
		}
		return texts, true
	}
	if field, ok := nibbles[t]; ok {
		b := f.bytes(field)
		if len(b) != n && len(b) != (n+1)/2 {
			f.fail(fmt.Errorf("%d bytes of %s", len(b), t))
			return nil, true
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
			texts = append(texts, number(v))
		}
		return texts, true
	}
	p, ok := floats[t]
	if !ok {
		return nil, false
	}
	for _, b := range f.fixed(p.n, p.width) {
		texts = append(texts, wideFloat(b, p.width == 8))
	}
	if t == "c64" || t == "c128" {
		if len(texts)%2 != 0 {
			f.fail(fmt.Errorf("%d halves of %s", len(texts), t))
			return nil, true
		}
		for k := range len(texts) / 2 {
			texts[k] = "(" + texts[2*k] + ", " + texts[2*k+1] + ")"
		}
		texts = texts[:len(texts)/2]
	}
	return texts, true
}

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
