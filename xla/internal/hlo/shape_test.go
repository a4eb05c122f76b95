package hlo_test

import (
	"errors"
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"

	. "gpumem/xla/internal/hlo"
	"gpumem/xla/internal/test/hlotest"
)

func TestShapeBytes(t *testing.T) {
	for _, c := range []struct {
		text         string
		bytes, total uint64
		err          error
	}{
		{"f32[]", 4, 4, nil},
		{"f32[2,3]{1,0}", 24, 24, nil},
		{"pred[5]", 5, 5, nil},
		{"bf16[7]{0:T(128)}", 14, 14, nil},
		{"c64[2]", 16, 16, nil},
		{"c128[2]", 32, 32, nil},
		{"f64[3]", 24, 24, nil},
		{"f8e4m3fn[3]", 3, 3, nil},
		{"f6e2m3fn[3]", 3, 3, nil},
		{"s4[5]{0}", 5, 5, nil},
		{"s4[5]{0:E(4)}", 3, 3, nil},
		{"u2[5]{0:T(8,128)E(2)S(5)}", 2, 2, nil},
		{"s4[4]{0:E(4)}", 2, 2, nil},
		{"pred[9]{0:E(1)}", 2, 2, nil},
		{"f32[<=10,2]{1,0}", 88, 88, nil},
		{"f32[0,9223372036854775807]", 0, 0, nil},
		{"f32[9223372036854775807,9223372036854775807,0]", 0, 0, nil},
		{"token[]", 0, 0, nil},
		{"opaque[]", 8, 8, nil},
		{"b(f32[2]{0})", 8, 8, nil},
		{"()", 0, 0, nil},
		{"(f32[2], s8[3])", 16, 27, nil},
		{"((f32[2], ()), token[])", 16, 16 + 16 + 8, nil},
		{"f32[?]", 0, 0, ErrUnbounded},
		{"f32[?,0]", 0, 0, ErrUnbounded},
		{"u8[9223372036854775807]", math.MaxInt64, math.MaxInt64, nil},
		{"u8[9223372036854775807,2]", math.MaxUint64 - 1, math.MaxUint64 - 1, nil},
		{"u16[9223372036854775807]", math.MaxUint64 - 1, math.MaxUint64 - 1, nil},
		{"u16[9223372036854775807,2]", 0, 0, ErrTooLarge},
		{"u8[9223372036854775807,3]", 0, 0, ErrTooLarge},
		{"u8[9223372036854775807,<=2]", 0, 0, ErrTooLarge},
		{"f32[9223372036854775807,9223372036854775807]", 0, 0, ErrTooLarge},
	} {
		s := hlotest.Shape(t, c.text)
		bytes, err := s.Bytes()
		if bytes != c.bytes || !errors.Is(err, c.err) {
			t.Errorf("%s: %d bytes, %v; expected %d, %v", c.text, bytes, err, c.bytes, c.err)
		}
		total, err := s.TotalBytes()
		if total != c.total || !errors.Is(err, c.err) {
			t.Errorf("%s: %d bytes in all, %v; expected %d, %v", c.text, total, err, c.total, c.err)
		}
	}
	pair := hlotest.Shape(t, "(u8[9223372036854775807], (u8[9223372036854775807], u8[2]))")
	if _, err := pair.TotalBytes(); err != ErrTooLarge {
		t.Error(err)
	}
	if n, err := pair.Bytes(); n != 16 || err != nil {
		t.Error(n, err)
	}
	if _, err := hlotest.Shape(t, "(f32[2], (f32[?]))").TotalBytes(); err != ErrUnbounded {
		t.Error(err)
	}
}

// What an array's elements take by themselves, without what lies between them.
func TestShapeDenseBytes(t *testing.T) {
	for text, want := range map[string]uint64{
		"f32[3,5]{1,0}": 60, "s4[3]": 2, "s4[3]{0:E(4)}": 2, "u1[9]": 2, "f6e2m3fn[4]": 3, "pred[7]": 7, "pred[7]{0:E(32)}": 7,
		"bf16[<=8,4]": 64, "f32[3,5]{1,0:T(8,128)}": 60, "(f32[2], f32[2])": 16, "token[]": 0, "f32[0]": 0,
	} {
		if got, err := hlotest.Shape(t, text).DenseBytes(); got != want || err != nil {
			t.Errorf("%s: %d bytes, %v; want %d", text, got, err, want)
		}
	}
	if _, err := hlotest.Shape(t, "f32[?]").DenseBytes(); err != ErrUnbounded {
		t.Error(err)
	}
}

// The size of an array is the product, in numbers that do not overflow.
func TestShapeBytesProduct(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &Shape{Type: rapid.SampledFrom([]Type{"pred", "bf16", "f32", "c128"}).Draw(t, "type")}
		s.Dims = rapid.SliceOfN(rapid.OneOf(rapid.Int64Range(0, 9), rapid.Int64Range(0, math.MaxInt64)), 0, 4).Draw(t, "dims")
		want := new(big.Int).SetUint64(map[Type]uint64{"pred": 1, "bf16": 2, "f32": 4, "c128": 16}[s.Type])
		elems := big.NewInt(1)
		for _, d := range s.Dims {
			elems.Mul(elems, big.NewInt(d))
		}
		want.Mul(want, elems)
		if rapid.Bool().Draw(t, "dynamic") {
			s.Dynamic = make([]bool, len(s.Dims))
			want.Add(want, big.NewInt(int64(4*len(s.Dims))))
		}
		got, err := s.Bytes()
		if large := !want.IsUint64(); large != (err == ErrTooLarge) || !large && got != want.Uint64() {
			t.Errorf("%s: %d, %v; expected %s", s, got, err, want)
		}
		n, err := s.Elems()
		if large := !elems.IsUint64(); large != (err == ErrTooLarge) || !large && n != elems.Uint64() {
			t.Errorf("%s: %d elements, %v; expected %s", s, n, err, elems)
		}
	})
}

func TestShapeAt(t *testing.T) {
	s := hlotest.Shape(t, "(f32[], (s32[2], ()))")
	for _, c := range []struct {
		index []int
		want  string
	}{
		{nil, s.String()}, {[]int{0}, "f32[]"}, {[]int{1, 0}, "s32[2]"}, {[]int{1, 1}, "()"},
		{[]int{2}, ""}, {[]int{-1}, ""}, {[]int{0, 0}, ""}, {[]int{1, 1, 0}, ""}, {[]int{5, 5}, ""},
	} {
		got := ""
		if at := s.At(c.index...); at != nil {
			got = at.String()
		}
		if got != c.want {
			t.Errorf("at %v: %q, expected %q", c.index, got, c.want)
		}
	}
}

func TestShapeSpace(t *testing.T) {
	for text, want := range map[string]uint64{
		"f32[2]": 0, "f32[2]{0}": 0, "f32[2]{0:S(5)}": HostSpace, "f32[2]{0:T(8,128)S(1)}": 1, "f32[2]{0:SC(0:1)}": 0,
		"f32[2]{0:E(4)S(3)SC(0:1)}": 3, "f32[]{:S(5)}": HostSpace,
	} {
		if got := hlotest.Shape(t, text).Space(); got != want {
			t.Errorf("%s: space %d, expected %d", text, got, want)
		}
	}
}

func TestShapeTypes(t *testing.T) {
	for text, array := range map[string]bool{"f32[]": true, "pred[2]": true, "token[]": false, "opaque[]": false, "()": false} {
		s := hlotest.Shape(t, text)
		if s.IsArray() != array {
			t.Errorf("%s: array %v", text, s.IsArray())
		}
	}
	if s, err := hlotest.ParseShape("f33[]"); err == nil {
		t.Errorf("f33 is known: %v", s)
	}
}

// shapes makes shapes that parse as themselves.
func shapes(depth int) *rapid.Generator[*Shape] {
	return rapid.Custom(func(t *rapid.T) *Shape {
		if depth > 0 && rapid.IntRange(0, 3).Draw(t, "tuple") == 0 {
			return &Shape{Type: Tuple, Elements: rapid.SliceOfN(shapes(depth-1), 0, 7).Draw(t, "elements")}
		}
		s := &Shape{Type: rapid.SampledFrom([]Type{"pred", "bf16", "f32", "s4", "c64", "f8e5m2"}).Draw(t, "type")}
		s.Dims = rapid.SliceOfN(rapid.OneOf(rapid.Int64Range(-1, 9), rapid.Int64Range(0, math.MaxInt64)), 0, 4).Draw(t, "dims")
		if len(s.Dims) == 0 {
			s.Dims = nil
		}
		for n, d := range s.Dims {
			if d >= 0 && rapid.IntRange(0, 4).Draw(t, "dynamic") == 0 {
				if s.Dynamic == nil {
					s.Dynamic = make([]bool, len(s.Dims))
				}
				s.Dynamic[n] = true
			}
		}
		if s.HasLayout = rapid.Bool().Draw(t, "layout"); s.HasLayout {
			for n := range s.Dims {
				if n > 0 {
					s.Layout = "," + s.Layout
				}
				s.Layout = string(rune('0'+n)) + s.Layout
			}
			s.Layout += rapid.SampledFrom([]string{"", ":T(8,128)(2,1)", ":E(4)S(5)", ":P(f32[2]{0})"}).Draw(t, "parts")
		}
		s.Buffer = rapid.IntRange(0, 5).Draw(t, "buffer") == 0
		return s
	})
}

func TestShapeText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := shapes(3).Draw(t, "shape")
		again, err := hlotest.ParseShape(" /* x */" + s.String() + "\n")
		if err != nil || !hlotest.EqualShapes(s, again) {
			t.Fatalf("%s: %v, %v", s, again, err)
		}
	})
	for _, text := range []string{"", "f32", "f32[2] x", "(f32[2]", "f32[2]]"} {
		if s, err := hlotest.ParseShape(text); err == nil {
			t.Errorf("%q is %s", text, s)
		}
	}
}

func TestShapeEqual(t *testing.T) {
	shape := func(text string) *Shape {
		s, err := hlotest.ParseShape(text)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, x := range []struct {
		a, b string
		same bool
	}{
		{"f32[2,3]", "f32[2,3]{1,0}", true}, {"f32[2,3]{0,1}", "f32[2,3]", false}, {"f32[2]", "f32[3]", false},
		{"f32[2]", "s32[2]", false}, {"(f32[2], f32[3])", "(f32[2]{0}, f32[3])", true}, {"(f32[2])", "f32[2]", false}, {"f32[<=2]", "f32[2]", false},
		{"f32[2]{0:S(5)}", "f32[2]{0}", false}, {"token[]", "token[]", true},
	} {
		if got := shape(x.a).Equal(shape(x.b)); got != x.same {
			t.Errorf("%s and %s: %v", x.a, x.b, got)
		}
	}
}
