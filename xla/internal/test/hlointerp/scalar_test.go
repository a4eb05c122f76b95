package hlointerp

import (
	"math"
	"testing"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/test/hlotest"

	"pgregory.net/rapid"
)

// Each pattern of 16 bits is a value and comes back from it.
func TestRoundTrip(t *testing.T) {
	for _, typ := range []hlo.Type{"f16", "bf16"} {
		for b := range uint64(1 << 16) {
			f := decode(typ, b)
			if got := encode(typ, f); got != b && !math.IsNaN(f) {
				t.Fatalf("%s: %x is %g is %x", typ, b, f, got)
			}
			if got := encode(typ, f); math.IsNaN(f) && !math.IsNaN(decode(typ, got)) {
				t.Fatalf("%s: NaN %x is %x", typ, b, got)
			}
		}
	}
}

// Rounding takes the nearest, and of two that are as near the even one.
func TestRounding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		typ := rapid.SampledFrom([]hlo.Type{"f16", "bf16"}).Draw(t, "type")
		f := rapid.Float64().Draw(t, "f")
		if rapid.Bool().Draw(t, "small") {
			f = math.Ldexp(rapid.Float64Range(-2, 2).Draw(t, "fraction"), rapid.IntRange(-30, 17).Draw(t, "exponent"))
		}
		b := encode(typ, f)
		got := decode(typ, b)
		if math.IsInf(got, 0) {
			// From the middle between the largest and the next power of two on.
			top := decode(typ, b-1)
			step := math.Abs(top - decode(typ, b-2))
			if math.Abs(f) < math.Abs(top)+step/2 {
				t.Fatalf("%g is %g", f, got)
			}
			return
		}
		for _, other := range []uint64{b - 1, b + 1} {
			near := decode(typ, other&0xffff)
			d, e := math.Abs(got-f), math.Abs(near-f)
			if math.IsNaN(near) || math.IsInf(near, 0) {
				continue
			}
			if e < d || e == d && d > 0 && b&1 != 0 {
				t.Fatalf("%s: %g is %g, %g is as near", typ, f, got, near)
			}
		}
	})
	for _, test := range []struct {
		f    float64
		bits uint64
	}{{65504, 0x7bff}, {65519, 0x7bff}, {65520, 0x7c00}, {-1e300, 0xfc00}, {6e-8, 1}, {2.9e-8, 0}, {math.Copysign(0, -1), 0x8000}, {5e-324, 0}} {
		if got := encode("f16", test.f); got != test.bits {
			t.Errorf("f16 %g: %x, want %x", test.f, got, test.bits)
		}
	}
}

// All pairs of 8 bits against Go's own arithmetic.
func TestWhole(t *testing.T) {
	type pair struct {
		signed   func(a, b int8) int8
		unsigned func(a, b uint8) uint8
	}
	for op, want := range map[hlo.Opcode]pair{
		"add":      {func(a, b int8) int8 { return a + b }, func(a, b uint8) uint8 { return a + b }},
		"subtract": {func(a, b int8) int8 { return a - b }, func(a, b uint8) uint8 { return a - b }},
		"multiply": {func(a, b int8) int8 { return a * b }, func(a, b uint8) uint8 { return a * b }},
		"maximum":  {func(a, b int8) int8 { return max(a, b) }, func(a, b uint8) uint8 { return max(a, b) }},
		"minimum":  {func(a, b int8) int8 { return min(a, b) }, func(a, b uint8) uint8 { return min(a, b) }},
		"divide": {func(a, b int8) int8 {
			if b == 0 {
				return -1
			}
			return a / b
		}, func(a, b uint8) uint8 {
			if b == 0 {
				return 255
			}
			return a / b
		}},
		"remainder": {func(a, b int8) int8 {
			if b == 0 {
				return a
			}
			return a % b
		}, func(a, b uint8) uint8 {
			if b == 0 {
				return a
			}
			return a % b
		}},
		"shift-left":             {func(a, b int8) int8 { return a << uint8(b) }, func(a, b uint8) uint8 { return a << b }},
		"shift-right-logical":    {func(a, b int8) int8 { return int8(uint8(a) >> uint8(b)) }, func(a, b uint8) uint8 { return a >> b }},
		"shift-right-arithmetic": {func(a, b int8) int8 { return a >> uint8(b) }, func(a, b uint8) uint8 { return uint8(int8(a) >> b) }},
	} {
		s, u := binaryOf(op, "s8"), binaryOf(op, "u8")
		for a := range uint64(256) {
			for b := range uint64(256) {
				if got := s(a, b); got != uint64(uint8(want.signed(int8(a), int8(b)))) {
					t.Fatalf("%s of s8 %d and %d: %d", op, int8(a), int8(b), int8(got))
				}
				if got := u(a, b); got != uint64(want.unsigned(uint8(a), uint8(b))) {
					t.Fatalf("%s of u8 %d and %d: %d", op, a, b, got)
				}
			}
		}
	}
}

// Arithmetic of f32 is Go's.
func TestFloat32(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.Float32().Draw(t, "a"), rapid.Float32().Draw(t, "b")
		for op, want := range map[hlo.Opcode]float32{"add": a + b, "subtract": a - b, "multiply": a * b, "divide": a / b} {
			got := binaryOf(op, "f32")(uint64(math.Float32bits(a)), uint64(math.Float32bits(b)))
			if got != uint64(math.Float32bits(want)) && want == want {
				t.Fatalf("%s of %g and %g: %x, want %g", op, a, b, got, want)
			}
		}
	})
}

// Whole numbers round once on their way to 16 bits.
func TestConvertLarge(t *testing.T) {
	for _, test := range []struct {
		n    uint64
		want float64
	}{
		{257 << 54, 256 << 54},        // the middle between 256<<54 and 258<<54: to the even one
		{257<<54 + 1, 258 << 54},      // just above it
		{257<<54 - 1, 256 << 54},      // just below
		{math.MaxUint64, 1 << 63 * 2}, // 2^64
	} {
		if got := decode("bf16", convertOf("u64", "bf16")(test.n)); got != test.want {
			t.Errorf("%d: %g, want %g", test.n, got, test.want)
		}
	}
	if got := decode("bf16", convertOf("s64", "bf16")(^uint64(257<<54))); got != -258*(1<<54) {
		t.Errorf("%g", got)
	}
}

func TestLiteral(t *testing.T) {
	for _, test := range []struct{ shape, text, want string }{
		{"f32[]", "1.5", "1.5"},
		{"f32[2]", "{inf, -inf}", "{inf, -inf}"},
		{"f32[2]", "{nan, -nan(0x7f)}", "{nan, nan}"},
		{"f32[]", "1e999", "inf"},
		{"f64[]", "1.0000000000000002", "1.0000000000000002"},
		{"s32[2,2]", "{ { 1, 2 }, /*i0=1*/ { 3, 4 } }", "{{1, 2}, {3, 4}}"},
		{"pred[2]", "{1, 0}", "{true, false}"},
		{"s8[0]", "{}", "{}"},
		{"s8[0,3]", "{}", "{}"},
		{"()", "()", "()"},
		{"(s8[], (s8[1]))", "(1, ({2}))", "(1, ({2}))"},
	} {
		s, err := hlotest.ParseShape(test.shape)
		if err != nil {
			t.Fatal(err)
		}
		v, err := Literal(s, test.text)
		if err != nil || v.String() != test.want {
			t.Errorf("%s %s: %s, %v", test.shape, test.text, v, err)
		}
	}
	for _, test := range []struct{ shape, text string }{
		{"f32[]", ""}, {"f32[]", "x"}, {"f32[]", "1 2"}, {"f32[2]", "{1}"}, {"f32[2]", "{1, 2, 3}"}, {"f32[2]", "{1, 2"}, {"f32[2]", "1, 2}"},
		{"s8[]", "128"}, {"s8[]", "1.5"}, {"u8[]", "-1"}, {"pred[]", "2"}, {"(s8[])", "1"}, {"(s8[])", "(1"}, {"s8[2]", "{...}"}, {"f32[]", "nan(0x)"},
		{"f32[]", "/* "}, {"c64[]", "(1, 2)"},
	} {
		s, err := hlotest.ParseShape(test.shape)
		if err != nil {
			t.Fatal(err)
		}
		if v, err := Literal(s, test.text); err == nil {
			t.Errorf("%s %q: %s", test.shape, test.text, v)
		}
	}
	s, _ := hlotest.ParseShape("s32[100]")
	if v, _ := sample(s, new(uint64)); len(v.String()) > 300 {
		t.Error(v)
	}
}
