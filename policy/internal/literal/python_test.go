// Tests of Python's rules. The expected values are what CPython 3.11 answered.
package literal

import (
	"math"
	"math/big"
	"strings"
	"testing"
)

func TestPyFloat(t *testing.T) {
	for _, tc := range []struct {
		text string
		want float64
	}{
		{".5", .5},
		{" .5 ", .5},
		{"5.", 5},
		{"+.5", .5},
		{"-0.5", -.5},
		{"0_5", 5},
		{"1_0e1_0", 1e11},
		{"1e+5", 1e5},
		{"1E-1", .1},
		{"1e400", math.Inf(1)},
		{"-1e400", math.Inf(-1)},
		{"1e-400", 0},
		{"-inf", math.Inf(-1)},
		{"+Infinity", math.Inf(1)},
		{"nan", math.NaN()},
		{"-NaN", math.NaN()},
		{"\v1\f\r\n\t", 1},
		{"\u00a0.5\u2003", .5}, // no-break space, em space
		{"\u0085.5", .5},
		{"\u0660.\u0665", .5},         // Arabic-Indic digits
		{"\uff10.\uff15", .5},         // full-width digits
		{"\U0001d7ce.\U0001d7d7", .9}, // mathematical bold digits
		{"\u0661_\u0662", 12},
	} {
		got, ok := PyFloat(tc.text)
		if same := got == tc.want || math.IsNaN(got) && math.IsNaN(tc.want); !ok || !same {
			t.Errorf("pyFloat(%q) = %v, %v; want %v", tc.text, got, ok, tc.want)
		}
	}
	for _, text := range []string{
		"", " ", ".", "1e", "1e5.", "--1", "+-nan", "1 2", "0,75", "75%", "0x1p3", "infin", "none",
		"1__0", "_1", "1_", "1_.5", "1._5", "1e_5", "1_e5", "in_f", "_",
		"\x1c1", "\x1f.5", "1\x7f", "\u200b.5", "\ufeff1", "1\xff", "é.5", "1\x00",
	} {
		if got, ok := PyFloat(text); ok {
			t.Errorf("pyFloat(%q) = %v, want an error", text, got)
		}
	}
}

func TestPyInt(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"0", "0"}, {" 12 ", "12"}, {"+7", "7"}, {"-7", "-7"}, {"007", "7"}, {"1_000", "1000"}, {"\uff11", "1"},
		{"9223372036854775807", "9223372036854775807"},
		{"99999999999999999999", "99999999999999999999"},
		{"-99999999999999999999", "-99999999999999999999"},
	} {
		if got, problem := PyInt(tc.text); problem != "" || got.String() != tc.want {
			t.Errorf("pyInt(%q) = %v, %s; want %s", tc.text, got, problem, tc.want)
		}
	}
	for _, text := range []string{"99999999999999999999x", "", "1.0", "1e3", "0x10", "1__0", "- 1", "-_1", "+-1", "+", "\x1c1", "ten", "1\u200b"} {
		if got, problem := PyInt(text); problem == "" {
			t.Errorf("pyInt(%q) = %v, want an error", text, got)
		}
	}
	if _, problem := PyInt(strings.Repeat("1", 4301)); problem != "Exceeds the limit (4300 digits) for integer string conversion: value has 4301 digits; use sys.set_int_max_str_digits() to increase the limit" {
		t.Error(problem)
	}
}

func TestPyLower(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"PlatForm", "platform"}, {"İX", "i\u0307x"}, {"ΒΦΣ", "βφς"}, {"ΣΒΣΒ", "σβσβ"}, {"Σ", "σ"}, {"ẞ", "ß"}, {"\xffA", "\xffa"},
	} {
		if got := PyLower(tc.text); got != tc.want {
			t.Errorf("pyLower(%q) = %q, want %q", tc.text, got, tc.want)
		}
	}
}

func TestPyRepr(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"", `''`},
		{"abc", `'abc'`},
		{"'", `"'"`},
		{`"`, `'"'`},
		{`'"`, `'\'"'`},
		{"a\\b\n\r\t", `'a\\b\n\r\t'`},
		{"\x1b\x7f", `'\x1b\x7f'`},
		{"é", `'é'`},
		{"\u00a0\u00ad", `'\xa0\xad'`},
		{"\u200b\u2028", `'\u200b\u2028'`},
		{"\U0001f600\U000e0001", "'\U0001f600\\U000e0001'"},
		{"\xff\xef\x80", `'\udcff\udcef\udc80'`}, // bytes that are not UTF-8
		{"\ufffd", "'\ufffd'"},                   // a real one
	} {
		if got := PyRepr(tc.text); got != tc.want {
			t.Errorf("pyRepr(%q) = %s, want %s", tc.text, got, tc.want)
		}
	}
}

func TestPythonFloatText(t *testing.T) {
	// CPython 3.11's repr.
	for f, want := range map[float64]string{1.5: "1.5", -0.01: "-0.01", 1e7: "10000000.0", 1e16: "1e+16", 123456789012345.6: "123456789012345.6", 1e-5: "1e-05", 0.0001: "0.0001", 0: "0.0", math.Inf(1): "inf", math.Inf(-1): "-inf"} {
		if got := PyFloatText(f); got != want {
			t.Errorf("%v: %s, want %s", f, got, want)
		}
	}
	if got := PyFloatText(math.NaN()); got != "nan" {
		t.Error(got)
	}
}

func FuzzPython(f *testing.F) {
	for _, s := range []string{"20000000000000000000A", "1_0e5", " .5\t", "-nan", "0x1", "\u0665", "'\xff\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, problem := PyInt(s)
		x, isFloat := PyFloat(s)
		// Every integer is a float of the same value.
		if problem == "" {
			if near, _ := new(big.Float).SetInt(n).Float64(); !isFloat || near != x {
				t.Errorf("pyInt(%q) = %d, pyFloat = %v, %v", s, n, x, isFloat)
			}
		}
		for _, r := range PyRepr(s) {
			if r < ' ' || r == 0x7f {
				t.Fatalf("pyRepr(%q) = %q", s, PyRepr(s))
			}
		}
	})
}
