// Package literal reads and writes numbers, truth values and strings as Python,
// C++ and people do, as far as that decides whether a framework accepts a setting and
// what it prints if it does not. Python's rules were checked against CPython 3.11.
package literal

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// PyFloat is float(s). Too large a number is an infinity, not an error.
func PyFloat(s string) (f float64, ok bool) {
	s, ok = asciiNumber(s)
	if !ok || strings.ContainsAny(s, "xX") { // ParseFloat would read hex
		return 0, false
	}
	if unsigned := strings.TrimLeft(s, "+-"); len(s)-len(unsigned) <= 1 && strings.EqualFold(unsigned, "nan") {
		return math.NaN(), true // ParseFloat takes no sign with it
	}
	f, err := strconv.ParseFloat(s, 64)
	return f, err == nil || errors.Is(err, strconv.ErrRange)
}

// maxDigits is how many digits int() reads (sys.int_info.default_max_str_digits,
// since CPython 3.10.7 and 3.11).
const maxDigits = 4300

// PyInt is int(s), or the ValueError's text.
func PyInt(text string) (n *big.Int, problem string) {
	problem = "invalid literal for int() with base 10: " + FirstRunes(PyRepr(text), 200) // %.200R
	s, ok := asciiNumber(text)
	if !ok {
		return nil, problem
	}
	digits := s
	if s != "" && (s[0] == '+' || s[0] == '-') {
		digits = s[1:]
	}
	for i := range len(digits) {
		if !isDigit(digits[i]) {
			return nil, problem
		}
	}
	if len(digits) > maxDigits {
		return nil, fmt.Sprintf("Exceeds the limit (%d digits) for integer string conversion: value has %d digits; use sys.set_int_max_str_digits() to increase the limit", maxDigits, len(digits))
	}
	if n, ok = new(big.Int).SetString(s, 10); !ok {
		return nil, problem
	}
	return n, ""
}

// FirstRunes cuts s to n code points.
func FirstRunes(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}

// PyLower is s.lower(). Bytes that are not UTF-8 stay. Go's own differs in two
// letters: Python makes two code points of a capital I with a dot, and of a
// capital sigma at the end of a word the final one.
func PyLower(s string) string {
	var b strings.Builder
	word := false // a letter was before, with nothing between but what Unicode ignores for case
	for i, r := range s {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD"):
			b.WriteByte(s[i])
		case r == 'İ':
			b.WriteString("i\u0307")
		case r == 'Σ' && word && !wordGoesOn(s[i+len("Σ"):]):
			b.WriteRune('ς')
		default:
			b.WriteRune(unicode.ToLower(r))
		}
		if !caseIgnorable(r) {
			word = cased(r)
		}
	}
	return b.String()
}

// wordGoesOn reports whether a cased letter comes next.
func wordGoesOn(s string) bool {
	for _, r := range s {
		if !caseIgnorable(r) {
			return cased(r)
		}
	}
	return false
}

func cased(r rune) bool { return unicode.IsUpper(r) || unicode.IsLower(r) || unicode.IsTitle(r) }

// caseIgnorable is Unicode's Case_Ignorable (D136 of its section 3.13), as far
// as anyone writes it.
func caseIgnorable(r rune) bool {
	return unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf, unicode.Lm, unicode.Sk) || strings.ContainsRune("'.:\u00b7\u2018\u2019\u2024\u2027", r)
}

// asciiNumber does what float() and int() have in common: blanks around the
// number go, decimal digits of every script become ASCII, and underscores go.
// An underscore that is not between two digits is an error.
func asciiNumber(s string) (string, bool) {
	// TrimSpace takes what Python takes here: U+001C to U+001F are blanks for
	// str.isspace, but not for these two functions.
	s = strings.TrimSpace(s)
	s = strings.Map(asciiDigit, s)
	for i := range len(s) {
		if s[i] == '_' && (i == 0 || i == len(s)-1 || !isDigit(s[i-1]) || !isDigit(s[i+1])) {
			return "", false
		}
	}
	return strings.ReplaceAll(s, "_", ""), true
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// asciiDigit gives decimal digits of other scripts their ASCII digit and leaves
// all else alone. Unicode has such digits in runs of ten, zero first, and the
// table's ranges begin at a zero.
func asciiDigit(r rune) rune {
	if r < utf8.RuneSelf || !unicode.Is(unicode.Nd, r) {
		return r
	}
	for _, t := range unicode.Nd.R16 {
		if rune(t.Lo) <= r && r <= rune(t.Hi) {
			return '0' + (r-rune(t.Lo))%10
		}
	}
	for _, t := range unicode.Nd.R32 {
		if rune(t.Lo) <= r && r <= rune(t.Hi) {
			return '0' + (r-rune(t.Lo))%10
		}
	}
	return r
}

// PyRepr is repr(s), for s as os.environ gives it: bytes that are not UTF-8
// appear as the lone surrogates U+DC80 to U+DCFF.
func PyRepr(s string) string {
	quote := '\''
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	var b strings.Builder
	b.WriteRune(quote)
	for i, r := range s {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD"):
			fmt.Fprintf(&b, `\udc%02x`, s[i])
		case r == quote || r == '\\':
			b.WriteRune('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	b.WriteRune(quote)
	return b.String()
}

// PyFloatText is repr(f).
func PyFloatText(f float64) string {
	switch a := math.Abs(f); {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 0):
		return strings.ToLower(strings.TrimPrefix(fmt.Sprint(f), "+"))
	case a != 0 && a < 1e-4 || a >= 1e16:
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	text := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}

// CInt is ReadInt64FromEnvVar's strings::safe_strto64.
func CInt(text string) (int64, bool) {
	v, err := strconv.ParseInt(strings.Trim(text, " \t\n\v\f\r"), 10, 64)
	return v, err == nil
}

// CBool is ReadBoolFromEnvVar.
func CBool(text string) (on, ok bool) {
	switch strings.ToLower(text) {
	case "1", "true":
		return true, true
	case "0", "false":
		return false, true
	}
	return false, false
}

// CInteger matches the beginning of a text that std::stoi reads.
var CInteger = regexp.MustCompile(`^[ \t-\r]*[+-]?[0-9]+`)

// CReal matches the beginning of a text that std::stod reads.
var CReal = regexp.MustCompile(`^[ \t-\r]*[+-]?(?i:0x(?:[0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)(?:p[+-]?[0-9]+)?|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf(?:inity)?|nan)`)

// IsSpace is C's isspace.
func IsSpace(c rune) bool { return c == ' ' || '\t' <= c && c <= '\r' }

// MeansYes reports whether a person who writes text means yes.
func MeansYes(text string) bool {
	switch strings.ToLower(strings.TrimSpace(text)) {
	case "1", "true", "t", "yes", "y", "on":
		return true
	}
	return false
}

// Hundredth writes a percentage as the fraction that was meant.
func Hundredth(f float64) string {
	return strings.TrimPrefix(strconv.FormatFloat(float64(float32(f/100)), 'g', 6, 64), "0")
}

// Percent writes a fraction as a percentage.
func Percent(f float64) string {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return fmt.Sprint(f)
	}
	return strconv.FormatFloat(float64(float32(f*100)), 'g', 6, 64) + " %"
}
