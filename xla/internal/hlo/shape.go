package hlo

import (
	"cmp"
	"errors"
	"math"
	"math/bits"
	"slices"
)

// A Type is an element's type, or tuple, token or opaque.
type Type string

// Types that are no numbers.
const (
	Tuple  Type = "tuple"
	Token  Type = "token"
	Opaque Type = "opaque"
)

// A Shape is the type of a value. Shapes are not changed once they are made:
// instructions share them.
type Shape struct {
	Type Type
	// Dims are the sizes of an array's dimensions. -1 is one without bound ("?").
	Dims []int64
	// Dynamic are the dimensions that may be smaller at run time ("<=N"). It is nil if none may.
	Dynamic []bool
	// Layout is the text between the braces behind the dimensions, and
	// HasLayout says that there were braces: "1,0:T(8,128)S(5)".
	Layout    string
	HasLayout bool
	// Elements are those of a tuple.
	Elements []*Shape
	// Buffer says that the shape stood in b(...).
	Buffer bool
}

// widths are the bits of each type's elements as they lie in memory, without
// E(bits) in the layout: those below a byte take one (xla/primitive_util).
var widths = map[Type]uint64{
	"pred": 8,
	"s1":   8, "s2": 8, "s4": 8, "u1": 8, "u2": 8, "u4": 8, "f4e2m1fn": 8,
	"s8": 8, "u8": 8, "s16": 16, "u16": 16, "s32": 32, "u32": 32, "s64": 64, "u64": 64,
	"f8e3m4": 8, "f8e4m3": 8, "f8e4m3b11fnuz": 8, "f8e4m3fn": 8, "f8e4m3fnuz": 8, "f8e5m2": 8, "f8e5m2fnuz": 8, "f8e8m0fnu": 8,
	"f6e2m3fn": 8, "f6e3m2fn": 8,
	"bf16": 16, "f16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128,
	Token: 0, Opaque: 64,
}

// IsArray reports whether the shape is an array: no tuple, token or opaque.
func (s *Shape) IsArray() bool { return s.Type != Tuple && s.Type != Token && s.Type != Opaque }

// pointerBytes is the width of a tuple's table of elements on GPUs and CPUs.
const pointerBytes = 8

// ErrTooLarge is the error of sizes that 64 bits do not hold.
var ErrTooLarge = errors.New("hlo: a shape of more than 2^64-1 bytes")

// ErrUnbounded is the error of sizes of shapes with a dimension without bound.
var ErrUnbounded = errors.New("hlo: a shape with a dimension without bound (?) has no size")

// Elems is the number of elements of an array, 1 if it has no dimensions. The error is
// ErrUnbounded or ErrTooLarge.
func (s *Shape) Elems() (uint64, error) {
	n := uint64(1)
	for _, d := range s.Dims {
		if d < 0 {
			return 0, ErrUnbounded
		}
	}
	for _, d := range s.Dims {
		high, low := bits.Mul64(n, uint64(d))
		if high > 0 {
			// A later dimension of 0 makes it nothing.
			for _, d := range s.Dims {
				if d == 0 {
					return 0, nil
				}
			}
			return 0, ErrTooLarge
		}
		n = low
	}
	return n, nil
}

// Bytes is what the value itself takes on a GPU, as XLA counts it
// (ShapeUtil::ByteSizeOf with pointers of 8 bytes): of a tuple the table of its
// elements alone, of a shape with dynamic dimensions also 4 bytes for each
// dimension. Tiles do not count. The error is ErrUnbounded or ErrTooLarge.
func (s *Shape) Bytes() (uint64, error) {
	switch s.Type {
	case Tuple:
		return pointerBytes * uint64(len(s.Elements)), nil
	case Token:
		return 0, nil
	case Opaque:
		return pointerBytes, nil
	}
	n, err := s.Elems()
	if err != nil {
		return 0, err
	}
	width := widths[s.Type]
	if width == 0 {
		width = 8
	}
	if e := s.elementBits(); e > 0 {
		width = e
	}
	high, low := bits.Mul64(n, width) // bits, of which the lowest three make no whole byte
	sizes := uint64(0)
	if s.Dynamic != nil {
		sizes = 4 * uint64(len(s.Dims))
	}
	if high >= 8 || high<<61|low>>3 > math.MaxUint64-1-sizes {
		return 0, ErrTooLarge
	}
	return (high<<61 | low>>3) + (low&7+7)/8 + sizes, nil
}

// DenseBytes is what the elements of an array take one behind the other, in bytes: without
// the bits that types below a byte leave unused, the tiles of its layout and the sizes of
// dynamic dimensions. For a table of a tuple it is Bytes. The error is that of Bytes.
func (s *Shape) DenseBytes() (uint64, error) {
	bytes, err := s.Bytes()
	if err != nil || !s.IsArray() {
		return bytes, err
	}
	n, _ := s.Elems() // fits, as Bytes does
	if s.Dynamic != nil {
		bytes -= 4 * uint64(len(s.Dims))
	}
	bits := cmp.Or(narrow[s.Type], widths[s.Type], 8)
	if bits < cmp.Or(s.elementBits(), widths[s.Type], 8) {
		bytes = n/8*bits + (n%8*bits+7)/8
	}
	return bytes, nil
}

// narrow are the bits of the types below a byte.
var narrow = map[Type]uint64{"s1": 1, "u1": 1, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "f4e2m1fn": 4, "f6e2m3fn": 6, "f6e3m2fn": 6}

// TotalBytes is what the value takes with all its elements, tables included. The error is
// that of Bytes.
func (s *Shape) TotalBytes() (uint64, error) {
	sum, err := s.Bytes()
	for _, e := range s.Elements {
		if err != nil {
			return 0, err
		}
		var n uint64
		if n, err = e.TotalBytes(); err == nil {
			if sum > math.MaxUint64-n {
				return 0, ErrTooLarge
			}
			sum += n
		}
	}
	return sum, err
}

// At is the shape at an index into nested tuples, nil if there is none.
func (s *Shape) At(index ...int) *Shape {
	for _, i := range index {
		if s == nil || i < 0 || i >= len(s.Elements) {
			return nil
		}
		s = s.Elements[i]
	}
	return s
}

// part is what a layout says behind a letter, such as 5 of S(5), and 0.
func (s *Shape) part(letter byte) uint64 {
	l := s.Layout
	for i := 0; i+2 < len(l); i++ {
		if l[i] != letter || l[i+1] != '(' || i > 0 && l[i-1] >= 'A' && l[i-1] <= 'Z' {
			continue
		}
		var n uint64
		for _, c := range l[i+2:] {
			if c < '0' || c > '9' || n > 1<<32 {
				break
			}
			n = 10*n + uint64(c-'0')
		}
		return n
	}
	return 0
}

func (s *Shape) elementBits() uint64 { return s.part('E') }

// HostSpace is the memory space of the host: S(5) in a layout.
const HostSpace = 5

// Space is the memory space of the layout, 0 for the device's memory.
func (s *Shape) Space() uint64 { return s.part('S') }

// Compatible reports whether two shapes are of the same type and dimensions, layouts
// aside. A dimension without bound agrees with any.
func (s *Shape) Compatible(t *Shape) bool {
	if s.Type != t.Type || len(s.Elements) != len(t.Elements) || !SameDims(s.Dims, t.Dims) {
		return false
	}
	for n := range s.Elements {
		if !s.Elements[n].Compatible(t.Elements[n]) {
			return false
		}
	}
	return true
}

// SameDims reports whether dimensions agree: those without bound agree with any.
func SameDims(a, b []int64) bool { return slices.EqualFunc(a, b, SameDim) }

// SameDim reports whether two dimensions agree.
func SameDim(a, b int64) bool { return a == b || a < 0 || b < 0 }
