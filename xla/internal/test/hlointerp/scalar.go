package hlointerp

// One element: types, rounding, arithmetic.

import (
	"math"
	"math/bits"
	"strings"

	"gpumem/xla/internal/hlo"
)

type kind int

const (
	none kind = iota
	boolean
	signed
	unsigned
	float
)

var kinds = map[hlo.Type]kind{
	"pred": boolean,
	"s1":   signed, "s2": signed, "s4": signed, "s8": signed, "s16": signed, "s32": signed, "s64": signed,
	"u1": unsigned, "u2": unsigned, "u4": unsigned, "u8": unsigned, "u16": unsigned, "u32": unsigned, "u64": unsigned,
	"f16": float, "bf16": float, "f32": float, "f64": float,
}

func kindOf(t hlo.Type) kind { return kinds[t] }

// bitsOf is the width of a type's values: 1 of a pred.
func bitsOf(t hlo.Type) int {
	if t == "pred" {
		return 1
	}
	n := 0
	for _, c := range strings.TrimLeft(string(t), "bfsu") {
		n = 10*n + int(c-'0')
	}
	return n
}

func mask(t hlo.Type) uint64 { return math.MaxUint64 >> (64 - bitsOf(t)) }

// extend is a signed value.
func extend(t hlo.Type, b uint64) int64 {
	gone := 64 - bitsOf(t)
	return int64(b<<gone) >> gone
}

// decode is a float's value.
func decode(t hlo.Type, b uint64) float64 {
	switch t {
	case "f64":
		return math.Float64frombits(b)
	case "f32":
		return float64(math.Float32frombits(uint32(b)))
	case "bf16":
		return float64(math.Float32frombits(uint32(b) << 16))
	}
	sign, exponent, fraction := 1.0, int(b>>10&31), b&1023
	if b>>15 != 0 {
		sign = -1
	}
	switch exponent {
	case 0:
		return sign * math.Ldexp(float64(fraction), -24)
	case 31:
		if fraction != 0 {
			return math.NaN()
		}
		return math.Inf(int(sign))
	}
	return sign * math.Ldexp(float64(fraction|1024), exponent-25)
}

// encode rounds to a float type, to even where it lies in the middle.
func encode(t hlo.Type, f float64) uint64 {
	switch t {
	case "f64":
		return math.Float64bits(f)
	case "f32":
		return uint64(math.Float32bits(float32(f)))
	case "bf16":
		return round(f, 8, 7)
	}
	return round(f, 5, 10)
}

// round is f in a format of that many bits of exponent and fraction.
func round(f float64, exponent, fraction int) uint64 {
	sign := uint64(0)
	if math.Signbit(f) {
		sign = 1 << (exponent + fraction)
	}
	top := uint64(1)<<exponent - 1 // of infinity and NaN
	switch {
	case math.IsNaN(f):
		return sign | top<<fraction | 1<<(fraction-1)
	case math.IsInf(f, 0):
		return sign | top<<fraction
	case f == 0:
		return sign
	}
	bias := 1<<(exponent-1) - 1
	_, e := math.Frexp(f) // |f| is in [2^(e-1), 2^e)
	e = max(e-1, 1-bias)  // small ones share the lowest exponent
	// In units of the last place: exact, and so is what RoundToEven gives.
	units := math.RoundToEven(math.Ldexp(math.Abs(f), fraction-e))
	// A value of 2^fraction units or more has its leading 1 counted into the
	// exponent; rounding up to the next power of two carries by itself.
	n := uint64(units) + uint64(e+bias-1)<<fraction
	return sign | min(n, top<<fraction)
}

// unaryOf is the function of an opcode on elements of a type, and nil where there
// is none.
func unaryOf(op hlo.Opcode, t hlo.Type) func(uint64) uint64 {
	m := mask(t)
	switch kindOf(t) {
	case float:
		if op == "is-finite" {
			return func(b uint64) uint64 {
				f := decode(t, b)
				return truth(!math.IsNaN(f) && !math.IsInf(f, 0))
			}
		}
		sign := uint64(1) << (bitsOf(t) - 1)
		switch op {
		case hlo.Copy:
			return func(b uint64) uint64 { return b }
		case "negate":
			return func(b uint64) uint64 { return b ^ sign }
		case hlo.Abs:
			return func(b uint64) uint64 { return b &^ sign }
		}
		if f := functions[op]; f != nil {
			return func(b uint64) uint64 { return encode(t, f(decode(t, b))) }
		}
	case signed, unsigned, boolean:
		whole := kindOf(t) == signed
		switch op {
		case hlo.Copy:
			return func(b uint64) uint64 { return b }
		case "not":
			return func(b uint64) uint64 { return ^b & m }
		case "negate":
			return func(b uint64) uint64 { return -b & m }
		case hlo.Abs:
			return func(b uint64) uint64 {
				if whole && extend(t, b) < 0 {
					b = -b & m
				}
				return b
			}
		case "sign":
			return func(b uint64) uint64 {
				switch {
				case b == 0:
					return 0
				case whole && extend(t, b) < 0:
					return m
				}
				return 1
			}
		case "popcnt":
			return func(b uint64) uint64 { return uint64(bits.OnesCount64(b)) }
		case "count-leading-zeros":
			return func(b uint64) uint64 { return uint64(bits.LeadingZeros64(b) - 64 + bitsOf(t)) }
		}
	}
	return nil
}

// functions are those of floats. Their results are rounded once, from 64 bits.
var functions = map[hlo.Opcode]func(float64) float64{
	"acos": math.Acos, "acosh": math.Acosh, "asin": math.Asin, "asinh": math.Asinh, "atanh": math.Atanh, "cbrt": math.Cbrt, "ceil": math.Ceil,
	"cosine": math.Cos, "cosh": math.Cosh, "erf": math.Erf, "exponential": math.Exp, "exponential-minus-one": math.Expm1,
	"floor": math.Floor, "log": math.Log, "log-plus-one": math.Log1p,
	"logistic":           func(x float64) float64 { return 1 / (1 + math.Exp(-x)) },
	"round-nearest-afz":  math.Round,
	"round-nearest-even": math.RoundToEven,
	"rsqrt":              func(x float64) float64 { return 1 / math.Sqrt(x) },
	"sign": func(x float64) float64 {
		if x == 0 || math.IsNaN(x) {
			return x
		}
		return math.Copysign(1, x)
	},
	"sine": math.Sin, "sinh": math.Sinh, "sqrt": math.Sqrt, "tan": math.Tan, "tanh": math.Tanh,
}

func truth(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// binaryOf is the function of an opcode on pairs of elements of a type, and nil
// where there is none.
func binaryOf(op hlo.Opcode, t hlo.Type) func(a, b uint64) uint64 {
	switch kindOf(t) {
	case float:
		var f func(x, y float64) float64
		switch op {
		// In 64 bits sums, products and quotients of narrower types are so exact that rounding
		// them again gives what rounding once does: 53 >= 2*24+2.
		case hlo.Add:
			f = func(x, y float64) float64 { return x + y }
		case hlo.Subtract:
			f = func(x, y float64) float64 { return x - y }
		case hlo.Multiply:
			f = func(x, y float64) float64 { return x * y }
		case "divide":
			f = func(x, y float64) float64 { return x / y }
		case "maximum":
			f = math.Max
		case "minimum":
			f = math.Min
		case "remainder":
			f = math.Mod
		case "power":
			f = math.Pow
		case "atan2":
			f = math.Atan2
		default:
			return nil
		}
		return func(a, b uint64) uint64 { return encode(t, f(decode(t, a), decode(t, b))) }
	case boolean:
		switch op {
		case "and", hlo.Multiply, "minimum":
			return func(a, b uint64) uint64 { return a & b }
		case "or", hlo.Add, "maximum":
			return func(a, b uint64) uint64 { return a | b }
		case "xor":
			return func(a, b uint64) uint64 { return a ^ b }
		}
	case signed, unsigned:
		return wholeOf(op, t)
	}
	return nil
}

// wholeOf are the functions of whole numbers, which wrap around.
func wholeOf(op hlo.Opcode, t hlo.Type) func(a, b uint64) uint64 {
	m, width, minus := mask(t), uint64(bitsOf(t)), kindOf(t) == signed
	less := func(a, b uint64) bool {
		if minus {
			return extend(t, a) < extend(t, b)
		}
		return a < b
	}
	switch op {
	case hlo.Add:
		return func(a, b uint64) uint64 { return (a + b) & m }
	case hlo.Subtract:
		return func(a, b uint64) uint64 { return (a - b) & m }
	case hlo.Multiply:
		return func(a, b uint64) uint64 { return a * b & m }
	case "and":
		return func(a, b uint64) uint64 { return a & b }
	case "or":
		return func(a, b uint64) uint64 { return a | b }
	case "xor":
		return func(a, b uint64) uint64 { return a ^ b }
	case "maximum":
		return func(a, b uint64) uint64 {
			if less(a, b) {
				return b
			}
			return a
		}
	case "minimum":
		return func(a, b uint64) uint64 {
			if less(a, b) {
				return a
			}
			return b
		}
	// By 0: all bits set, and the dividend remains (operation semantics of XLA).
	case "divide":
		return func(a, b uint64) uint64 {
			switch {
			case b == 0:
				return m
			case minus && b == m:
				return -a & m // the smallest by -1 wraps around
			case minus:
				return uint64(extend(t, a)/extend(t, b)) & m
			}
			return a / b
		}
	case "remainder":
		return func(a, b uint64) uint64 {
			switch {
			case b == 0:
				return a
			case minus && b == m:
				return 0
			case minus:
				return uint64(extend(t, a)%extend(t, b)) & m
			}
			return a % b
		}
	case "shift-left":
		return func(a, b uint64) uint64 {
			if b >= width {
				return 0
			}
			return a << b & m
		}
	case "shift-right-logical":
		return func(a, b uint64) uint64 {
			if b >= width {
				return 0
			}
			return a >> b
		}
	case "shift-right-arithmetic":
		return func(a, b uint64) uint64 {
			// Of an unsigned type too, the top bit fills up.
			return uint64(extend(t, a)>>min(b, width-1)) & m
		}
	case "power":
		return func(a, b uint64) uint64 { return power(t, a, b) }
	}
	return nil
}

func power(t hlo.Type, a, b uint64) uint64 {
	m := mask(t)
	if kindOf(t) == signed && extend(t, b) < 0 {
		switch {
		case a == 1, a == m && b&1 == 0:
			return 1
		case a == m:
			return m
		}
		return 0
	}
	product := uint64(1)
	for ; b > 0; b >>= 1 {
		if b&1 != 0 {
			product = product * a & m
		}
		a = a * a & m
	}
	return product & m
}

// compareOf is a comparison, and nil where the direction is none.
func compareOf(direction string, t hlo.Type, total bool) func(a, b uint64) bool {
	// order is below 0, 0, above 0, and apart for what has no order.
	const apart = 2
	var order func(a, b uint64) int
	sign := uint64(1) << (bitsOf(t) - 1)
	switch k := kindOf(t); {
	case k == float && total:
		// As whole numbers, the negative ones the other way round.
		key := func(b uint64) uint64 {
			if b&sign != 0 {
				return ^b & mask(t)
			}
			return b | sign
		}
		order = func(a, b uint64) int { return compare(key(a), key(b)) }
	case k == float:
		order = func(a, b uint64) int {
			x, y := decode(t, a), decode(t, b)
			if math.IsNaN(x) || math.IsNaN(y) {
				return apart
			}
			return compare(x, y)
		}
	case k == signed:
		order = func(a, b uint64) int { return compare(extend(t, a), extend(t, b)) }
	default:
		order = func(a, b uint64) int { return compare(a, b) }
	}
	switch direction {
	case "EQ":
		return func(a, b uint64) bool { return order(a, b) == 0 }
	case "NE":
		return func(a, b uint64) bool { return order(a, b) != 0 }
	case "LT":
		return func(a, b uint64) bool { return order(a, b) == -1 }
	case "LE":
		return func(a, b uint64) bool { return order(a, b) <= 0 }
	case "GT":
		return func(a, b uint64) bool { return order(a, b) == 1 }
	case "GE":
		return func(a, b uint64) bool { o := order(a, b); return o == 0 || o == 1 }
	}
	return nil
}

func compare[T uint64 | int64 | float64](a, b T) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// convertOf changes a value's type: floats become whole numbers towards 0, at most the
// largest, NaN becomes 0.
func convertOf(from, to hlo.Type) func(uint64) uint64 {
	m := mask(to)
	switch a, b := kindOf(from), kindOf(to); {
	case b == boolean:
		if a == float {
			return func(x uint64) uint64 { return truth(decode(from, x) != 0) }
		}
		return func(x uint64) uint64 { return truth(x != 0) }
	case a == float && b == float:
		return func(x uint64) uint64 { return encode(to, decode(from, x)) }
	case a == float:
		low, high := 0.0, math.Ldexp(1, bitsOf(to))
		if b == signed {
			low, high = -math.Ldexp(1, bitsOf(to)-1), math.Ldexp(1, bitsOf(to)-1)
		}
		return func(x uint64) uint64 {
			switch f := math.Trunc(decode(from, x)); {
			case f != f:
				return 0
			case f <= low:
				return uint64(int64(low)) & m
			case f >= high:
				if b == signed {
					return m >> 1
				}
				return m
			case b == signed:
				return uint64(int64(f)) & m
			default:
				return uint64(f)
			}
		}
	case b == float:
		return func(x uint64) uint64 {
			if a == signed {
				n := extend(from, x)
				if to == "f32" {
					return uint64(math.Float32bits(float32(n)))
				}
				return encode(to, odd(float64(n), uint64(max(n, -n))))
			}
			if to == "f32" {
				return uint64(math.Float32bits(float32(x)))
			}
			return encode(to, odd(float64(x), x))
		}
	case a == signed:
		return func(x uint64) uint64 { return uint64(extend(from, x)) & m }
	}
	return func(x uint64) uint64 { return x & m }
}

// odd is for whole numbers of more than 53 bits on their way to 16: it keeps the
// first rounding from making a middle that the second rounds the wrong way.
// magnitude is the number without sign.
func odd(f float64, magnitude uint64) float64 {
	if magnitude>>53 == 0 {
		return f
	}
	low := bits.Len64(magnitude) - 53
	kept := magnitude >> low << low
	if kept != magnitude {
		kept |= 1 << low // the last bit stands for all behind it
	}
	return math.Copysign(float64(kept), f)
}

// wide is the value of a format of that many bits of exponent and fraction.
// Numbers below the lowest exponent are 0, as hardware without them has it.
func wide(b uint64, exponent, fraction int) float64 {
	sign := 1.0
	if b>>(exponent+fraction) != 0 {
		sign = -1
	}
	top := 1<<exponent - 1
	e, f := int(b>>fraction)&top, b&(1<<fraction-1)
	switch {
	case e == top && f != 0:
		return math.NaN()
	case e == top:
		return math.Inf(int(sign))
	case e == 0:
		return math.Copysign(0, sign)
	}
	return sign * math.Ldexp(float64(f|1<<fraction), e-(1<<(exponent-1)-1)-fraction)
}
