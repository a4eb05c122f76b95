// Package hlointerp runs small HLO modules, one element at a time. It is there to
// show that a change of a module does not change its results: so each
// instruction is a pure function of its operands, the order of additions is
// fixed, and results are compared bit by bit.
//
// It is not XLA: sums are added in the order of the elements, transcendental
// functions are those of Go's math package, and random bits come from a generator
// of its own.
package hlointerp

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"gpumem/xla/internal/hlo"
)

// A Value is what an instruction gives. Values are not changed once they are made.
type Value struct {
	Shape *hlo.Shape
	// Bits are an array's elements, each one's bit pattern in the low bits, the
	// last dimension fastest whatever the layout says.
	Bits []uint64
	// Elements are those of a tuple.
	Elements []Value
}

// Equal reports whether two values have the same bits. Shapes may differ in layout.
func Equal(a, b Value) bool {
	return a.Shape.Compatible(b.Shape) && slices.Equal(a.Bits, b.Bits) && slices.EqualFunc(a.Elements, b.Elements, Equal)
}

// count is how many elements an array may have, and an error for shapes that the
// interpreter does not have.
func count(s *hlo.Shape) (int, error) {
	if s.Dynamic != nil && slices.Contains(s.Dynamic, true) {
		return 0, fmt.Errorf("%s: dynamic dimensions are not interpreted", s)
	}
	if s.Type != hlo.Token && kindOf(s.Type) == none {
		return 0, fmt.Errorf("%s: the type is not interpreted", s)
	}
	n, err := s.Elems()
	if err != nil {
		return 0, err
	}
	if n > maxElements {
		return 0, fmt.Errorf("%s: %d elements, the interpreter takes %d", s, n, maxElements)
	}
	return int(n), nil
}

// maxElements keeps one value below 128 MiB.
const maxElements = 1 << 24

// Literal is the value of a text as constants have it: a number, lists of them in
// braces, true and false, inf and nan, tuples in parentheses. The error says what
// does not fit the shape; values left out ("{...}") are an error.
func Literal(s *hlo.Shape, text string) (Value, error) {
	l := literal{text: text}
	v, err := l.value(s)
	if err == nil && l.token() != "" {
		err = fmt.Errorf("literal %s: more than the shape %s has", cut(text), s)
	}
	return v, err
}

type literal struct {
	text string
	at   int
	last string // the token at at, if it was looked at
}

// token is the next word or bracket without taking it; commas, spaces and
// comments are passed over.
func (l *literal) token() string {
	if l.last != "" {
		return l.last
	}
	for l.at < len(l.text) {
		rest := l.text[l.at:]
		if strings.HasPrefix(rest, "/*") {
			end := strings.Index(rest, "*/")
			if end < 0 {
				end = len(rest) - 2
			}
			l.at += end + 2
			continue
		}
		if !strings.ContainsRune(" \t\r\n,", rune(rest[0])) {
			break
		}
		l.at++
	}
	rest := l.text[l.at:]
	end := strings.IndexAny(rest, " \t\r\n,{}()")
	switch {
	case rest == "":
		return ""
	case end == 0:
		end = 1
	case end < 0:
		end = len(rest)
	case rest[end] == '(' && strings.HasSuffix(rest[:end], "nan"):
		if close := strings.IndexByte(rest, ')'); close > 0 {
			end = close + 1
		}
	}
	l.last = rest[:end]
	return l.last
}

func (l *literal) take() string {
	t := l.token()
	l.at += len(t)
	l.last = ""
	return t
}

func (l *literal) value(s *hlo.Shape) (Value, error) {
	if s.Type == hlo.Tuple {
		v := Value{Shape: s}
		if t := l.take(); t != "(" {
			return v, fmt.Errorf("literal: %s, expected ( for %s", cut(t), s)
		}
		for _, e := range s.Elements {
			element, err := l.value(e)
			if err != nil {
				return v, err
			}
			v.Elements = append(v.Elements, element)
		}
		if t := l.take(); t != ")" {
			return v, fmt.Errorf("literal: %s, expected ) behind %s", cut(t), s)
		}
		return v, nil
	}
	n, err := count(s)
	if err != nil {
		return Value{}, err
	}
	v := Value{Shape: s, Bits: make([]uint64, 0, min(n, len(l.text)))}
	// Braces only show the dimensions: they are counted, not compared.
	for depth := 0; ; {
		switch t := l.token(); t {
		case "{":
			l.take()
			depth++
			continue
		case "}":
			l.take()
			if depth--; depth < 0 {
				return v, fmt.Errorf("literal of %s: } without {", s)
			}
			if depth > 0 {
				continue
			}
		case "...":
			return v, fmt.Errorf("literal of %s: its values are left out ({...})", s)
		case "", "(", ")":
			return v, fmt.Errorf("literal of %s: %d elements, expected %d", s, len(v.Bits), n)
		default:
			bits, err := parse(s.Type, l.take())
			if err != nil {
				return v, err
			}
			v.Bits = append(v.Bits, bits)
			if depth > 0 {
				continue
			}
		}
		if len(v.Bits) != n {
			return v, fmt.Errorf("literal of %s: %d elements, expected %d", s, len(v.Bits), n)
		}
		return v, nil
	}
}

// parse reads one element.
func parse(t hlo.Type, text string) (uint64, error) {
	switch kindOf(t) {
	case boolean:
		switch text {
		case "true", "1":
			return 1, nil
		case "false", "0":
			return 0, nil
		}
	case signed:
		if n, err := strconv.ParseInt(text, 10, bitsOf(t)); err == nil {
			return uint64(n) & mask(t), nil
		}
	case unsigned:
		if n, err := strconv.ParseUint(text, 10, bitsOf(t)); err == nil {
			return n, nil
		}
	case float:
		if payload, ok := strings.CutPrefix(strings.TrimPrefix(text, "-"), "nan(0x"); ok {
			n, err := strconv.ParseUint(strings.TrimSuffix(payload, ")"), 16, 64)
			if err != nil {
				break
			}
			bits := encode(t, math.Inf(1)) | n&mask(t)
			if text[0] == '-' {
				bits |= 1 << (bitsOf(t) - 1)
			}
			return bits, nil
		}
		if text == "-nan" {
			return encode(t, math.NaN()) | 1<<(bitsOf(t)-1), nil
		}
		size := 64
		if t == "f32" {
			size = 32
		}
		// Of what is too large to be held ParseFloat gives infinity, as XLA does.
		if f, err := strconv.ParseFloat(text, size); err == nil || math.IsInf(f, 0) {
			return encode(t, f), nil
		}
	}
	return 0, fmt.Errorf("literal: %s is no %s", cut(text), t)
}

func cut(s string) string {
	if len(s) > 40 {
		return s[:40] + "..."
	}
	if s == "" {
		return "the end"
	}
	return s
}

// String is the value as a literal. Arrays of more than 64 elements are cut
// short with "...".
func (v Value) String() string {
	if v.Shape.Type == hlo.Tuple {
		parts := make([]string, len(v.Elements))
		for n, e := range v.Elements {
			parts[n] = e.String()
		}
		return "(" + strings.Join(parts, ", ") + ")"
	}
	next := 0
	var b strings.Builder
	v.write(&b, v.Shape.Dims, &next)
	return b.String()
}

func (v Value) write(b *strings.Builder, dims []int64, next *int) {
	if len(dims) == 0 {
		if *next < len(v.Bits) {
			b.WriteString(format(v.Shape.Type, v.Bits[*next]))
		}
		*next++
		return
	}
	b.WriteByte('{')
	for n := range dims[0] {
		if n > 0 {
			b.WriteString(", ")
		}
		if *next >= 64 || *next >= len(v.Bits) {
			b.WriteString("...")
			break
		}
		v.write(b, dims[1:], next)
	}
	b.WriteByte('}')
}

// format is one element as text.
func format(t hlo.Type, bits uint64) string {
	switch kindOf(t) {
	case boolean:
		return strconv.FormatBool(bits != 0)
	case signed:
		return strconv.FormatInt(extend(t, bits), 10)
	case unsigned:
		return strconv.FormatUint(bits, 10)
	}
	f := decode(t, bits)
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 0):
		return strings.ToLower(strings.TrimPrefix(strconv.FormatFloat(f, 'g', -1, 64), "+"))
	case t == "f64":
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	return strconv.FormatFloat(f, 'g', -1, 32)
}

// Arguments are values for the entry's parameters that hang on nothing but the
// seed and the shapes: floats from -1 to 1, whole numbers from 0 to 7.
func Arguments(m *hlo.Module, seed uint64) ([]Value, error) {
	var list []Value
	for n, p := range m.Entry.Parameters() {
		if p == nil {
			return nil, fmt.Errorf("parameter %d is missing", n)
		}
		v, err := sample(p.Shape, &seed)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", hlo.Where(p), err)
		}
		list = append(list, v)
	}
	return list, nil
}

func sample(s *hlo.Shape, seed *uint64) (Value, error) {
	v := Value{Shape: s}
	if s.Type == hlo.Tuple {
		for _, e := range s.Elements {
			element, err := sample(e, seed)
			if err != nil {
				return v, err
			}
			v.Elements = append(v.Elements, element)
		}
		return v, nil
	}
	n, err := count(s)
	if err != nil || s.Type == hlo.Token {
		return v, err
	}
	v.Bits = make([]uint64, n)
	for k := range v.Bits {
		*seed++
		r := mix(*seed)
		switch kindOf(s.Type) {
		case float:
			v.Bits[k] = encode(s.Type, float64(r>>40)/(1<<23)-1)
		case boolean:
			v.Bits[k] = r & 1
		default:
			v.Bits[k] = r & 7 & (mask(s.Type) >> 1)
		}
	}
	return v, nil
}

// mix spreads a number over 64 bits (the finishing steps of SplitMix64, Steele,
// Lea and Flood 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
