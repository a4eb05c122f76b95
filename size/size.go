// Package size turns bytes into the text that people read and write, and back.
//
// Three formats: [Parse] reads what a setting, a log or a file has, and
// [ParseFlag] what a person types; [Format] writes for people, [XLA] as XLA's logs do. All units
// are powers of 1024: in GPU tools "GB" has always meant GiB, and reading it as
// 10^9 would make every limit 7 % smaller than its writer meant.
package size

import (
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"strconv"
	"strings"
)

// units are the letters of the binary prefixes, each 1024 times the one before.
const units = "KMGTPE"

// Parse reads a number of bytes as people write it: 512, 512B, 4KiB, 1.5GiB,
// 80G, 80GB. A unit is one of K, M, G, T, P, E in either case, alone or with
// "i", "B" or "iB" behind it; all of these are powers of 1024. Blanks around
// the text and between number and unit are allowed. A decimal fraction is
// computed exactly and cut to whole bytes.
//
// The result is between 0 and 2^64-1. Anything else is an error of one line
// that names s and says what is accepted.
func Parse(s string) (uint64, error) {
	text := strings.TrimSpace(s)
	end := strings.IndexFunc(text, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if end < 0 {
		end = len(text)
	}
	shift, ok := unitShift(strings.TrimSpace(text[end:]))
	whole, fraction, _ := strings.Cut(text[:end], ".")
	if !ok || whole+fraction == "" || strings.Contains(fraction, ".") {
		return 0, fmt.Errorf("size %q: want a number of bytes, at least 0, with or without a unit, such as 512, 4KiB, 1.5GiB or 80G", s)
	}
	// A leading 0 stands in for the missing digits of ".5".
	n, err := strconv.ParseUint("0"+whole, 10, 64)
	if err != nil || bits.Len64(n)+shift > 64 {
		return 0, fmt.Errorf("size %q: too large; the most is 2^64-1 bytes, just below 16EiB", s)
	}
	// Both parts fit: the first is a multiple of the unit and the second is less than one.
	return n<<shift + scaledFraction(fraction, shift), nil
}

// ParseFlag reads a size that a person typed: as [Parse], but a number below 1024
// without a unit is an error that shows the forms it may have been meant in. "6"
// means 6GiB to its writer and 6 bytes to Parse. 0 needs no unit, and neither do
// exact bytes such as JSON has them.
func ParseFlag(s string) (uint64, error) {
	n, err := Parse(s)
	text := strings.TrimSpace(s)
	if err == nil && n < 1024 && strings.Trim(text, "0123456789.") == "" && strings.Trim(text, "0.") != "" {
		return 0, fmt.Errorf("size %q: missing unit; write %sGiB, %[2]sMiB or %[2]sB", s, text)
	}
	return n, err
}

// unitShift is the power of two that a unit stands for.
func unitShift(unit string) (shift int, ok bool) {
	unit = strings.ToUpper(unit)
	if unit == "" || unit == "B" {
		return 0, true
	}
	i := strings.IndexByte(units, unit[0])
	if i < 0 {
		return 0, false
	}
	switch unit[1:] {
	case "", "I", "B", "IB":
		return 10 * (i + 1), true
	}
	return 0, false
}

// scaledFraction is 0.digits times 2^shift, cut to an integer.
func scaledFraction(digits string, shift int) uint64 {
	// A multiple of 2^-60 has at most 60 decimals, and shift is at most 60. So
	// no digit after the 60th can lift the number to the next whole byte.
	digits = digits[:min(len(digits), 60)]
	n, ok := new(big.Int).SetString(digits, 10)
	if !ok { // no digits
		return 0
	}
	scale := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(len(digits))), nil)
	return n.Lsh(n, uint(shift)).Quo(n, scale).Uint64()
}

// Format writes n bytes for people: "0 B", "512 B", "1.50 KiB", "80 GiB". Whole
// multiples of the unit stand without decimals and are exact; all others are
// rounded to two decimals. [Parse] reads the result.
func Format(n uint64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	i := (bits.Len64(n) - 1) / 10 // 1 for KiB
	if n&(1<<(10*i)-1) == 0 {
		return fmt.Sprintf("%d %ciB", n>>(10*i), units[i-1])
	}
	text := fmt.Sprintf("%.2f", float64(n)/float64(uint64(1)<<(10*i)))
	if text == "1024.00" { // rounded up into the next unit; never so in EiB, of which 16 is the end
		text, i = "1.00", i+1
	}
	return fmt.Sprintf("%s %ciB", text, units[i-1])
}

// XLA writes n bytes exactly as XLA does in its logs and out-of-memory reports
// (HumanReadableNumBytes in tsl/platform/numbers.cc): "1000B", "1.0KiB",
// "683.8KiB", "59.40GiB". It keeps that function's quirks, because logs are
// compared with it: one decimal in KiB and two above, "1024.0KiB" just below
// 1 MiB, and "-8E" for the smallest int64.
func XLA(n int64) string {
	if n == math.MinInt64 { // -n does not exist
		return "-8E"
	}
	sign := ""
	if n < 0 {
		sign, n = "-", -n
	}
	if n < 1024 {
		return fmt.Sprintf("%s%dB", sign, n)
	}
	i := 0
	for ; n >= 1024*1024; n /= 1024 {
		i++
	}
	decimals := 2
	if i == 0 {
		decimals = 1
	}
	return fmt.Sprintf("%s%.*f%ciB", sign, decimals, float64(n)/1024, units[i])
}
