// Tests of the three formats: tables for what is accepted and printed, and
// properties that tie the formats to each other.
package size_test

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpumem/size"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       uint64
	}{
		{"zero", "0", 0},
		{"plain", "512", 512},
		{"bytes", "512B", 512},
		{"lower-case bytes", "512b", 512},
		{"KiB", "4KiB", 4 << 10},
		{"MiB", "2MiB", 2 << 20},
		{"GiB", "80GiB", 80 << 30},
		{"TiB", "1TiB", 1 << 40},
		{"PiB", "3PiB", 3 << 50},
		{"EiB", "15EiB", 15 << 60},
		{"letter alone", "80G", 80 << 30},
		{"GB means GiB", "80GB", 80 << 30},
		{"Kubernetes' Gi", "80Gi", 80 << 30},
		{"any case", "80gIb", 80 << 30},
		{"blanks", " \t80 GiB\n", 80 << 30},
		{"decimals", "1.5GiB", 3 << 29},
		{"decimals cut to bytes", "7.2G", 7730941132}, // 7.2*2^30 = 7730941132.8
		{"half a byte", "1.5", 1},
		{"no leading digit", ".5K", 512},
		{"no trailing digit", "5.K", 5120},
		{"leading zeros", "000000000000000000000000000012", 12},
		{"largest", "18446744073709551615", math.MaxUint64},
		{"largest with a fraction", "18446744073709551615.999", math.MaxUint64},
		{"largest in EiB", "15.9999999999999999999999E", math.MaxUint64},
		{"exact where a float64 is not", "9007199254740993", 1<<53 + 1},
		// 2^-60 in full: one digit less would be below it.
		{"60 decimals", "0.000000000000000000867361737988403547205962240695953369140625E", 1},
		{"just below", "0.00000000000000000086736173798840354720596224069595336914062499999E", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := size.Parse(tc.text)
			if err != nil || got != tc.want {
				t.Errorf("Parse(%q) = %d, %v; want %d", tc.text, got, err, tc.want)
			}
		})
	}
}

func TestParseErrors(t *testing.T) {
	const form, large = "such as 512, 4KiB, 1.5GiB or 80G", "too large"
	for _, tc := range []struct{ name, text, want string }{
		{"empty", "", form},
		{"blank", "  ", form},
		{"unit alone", "GiB", form},
		{"point alone", ".", form},
		{"point and unit", ".G", form},
		{"two points", "1.2.3", form},
		{"negative", "-1", form},
		{"plus sign", "+1", form},
		{"unknown unit", "5X", form},
		{"unit with a tail", "5GiBs", form},
		{"i without a letter", "5iB", form},
		{"exponent", "1e3", form},
		{"hex", "0x10", form},
		{"underscore", "1_000", form},
		{"decimal comma", "1,5G", form},
		{"blank inside the number", "1 000", form},
		{"foreign digits", "８G", form},
		{"unit whose upper case is longer", "1\u0149", form},
		{"not UTF-8", "1\xff", form},
		{"2^64", "18446744073709551616", large},
		{"16 EiB", "16EiB", large},
		{"many digits", strings.Repeat("9", 100), large},
		{"shifted out to zero", "18446744073709551615E", large},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := size.Parse(tc.text)
			if err == nil {
				t.Fatalf("Parse(%q) gave no error", tc.text)
			}
			if s := err.Error(); !strings.Contains(s, tc.want) || !strings.Contains(s, strconv.Quote(tc.text)) {
				t.Errorf("Parse(%q): %q names not both the text and %q", tc.text, s, tc.want)
			}
		})
	}
}

// TestParseFlagNeedsUnit: a small number without a unit is a question, what scripts
// write is not.
func TestParseFlagNeedsUnit(t *testing.T) {
	for text, want := range map[string]uint64{
		"0": 0, "0.0": 0, "6GiB": 6 << 30, "1024": 1024, "25769803776": 24 << 30, "512B": 512, "6 b": 6, ".5G": 1 << 29,
	} {
		if got, err := size.ParseFlag(text); err != nil || got != want {
			t.Errorf("ParseFlag(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"6", " 12 ", "1023", "1.5", "0.25"} {
		_, err := size.ParseFlag(text)
		form := strings.TrimSpace(text)
		if err == nil || !strings.Contains(err.Error(), "missing unit; write "+form+"GiB, "+form+"MiB or "+form+"B") {
			t.Errorf("ParseFlag(%q): %v", text, err)
		}
	}
	if _, err := size.ParseFlag("lots"); err == nil || !strings.Contains(err.Error(), "want a number of bytes") {
		t.Errorf("ParseFlag of a word: %v", err)
	}
}

func TestFormat(t *testing.T) {
	for _, tc := range []struct {
		n    uint64
		want string
	}{
		{0, "0 B"},
		{1, "1 B"},
		{512, "512 B"},
		{1023, "1023 B"},
		{1024, "1 KiB"},
		{1536, "1.50 KiB"},
		{1<<20 - 1, "1.00 MiB"}, // not "1024.00 KiB"
		{1<<20 - 6, "1023.99 KiB"},
		{1 << 20, "1 MiB"},
		{1<<30 - 1, "1.00 GiB"},
		{80 << 30, "80 GiB"},
		{85045542912, "79.20 GiB"},
		{1023 << 30, "1023 GiB"},
		{1<<40 - 1, "1.00 TiB"},
		{1<<50 + 1, "1.00 PiB"},
		{1<<60 - 1, "1.00 EiB"},
		{1 << 63, "8 EiB"},
		{math.MaxUint64, "16.00 EiB"},
	} {
		if got := size.Format(tc.n); got != tc.want {
			t.Errorf("Format(%d) = %q, want %q", tc.n, got, tc.want)
		}
	}
}

func TestXLA(t *testing.T) {
	for _, tc := range []struct {
		n    int64
		want string
	}{
		{0, "0B"},
		{1000, "1000B"},
		{1023, "1023B"},
		{1024, "1.0KiB"},
		{1280, "1.2KiB"}, // 1.25: a tie, which printf rounds to even
		{700160, "683.8KiB"},
		{1<<20 - 1, "1024.0KiB"},
		{1 << 20, "1.00MiB"},
		{63784878080, "59.40GiB"}, // from a log of XLA
		{1 << 40, "1.00TiB"},
		{1 << 50, "1.00PiB"},
		{1 << 60, "1.00EiB"},
		{math.MaxInt64, "8.00EiB"},
		{-1, "-1B"},
		{-1024, "-1.0KiB"},
		{-700160, "-683.8KiB"},
		{math.MinInt64 + 1, "-8.00EiB"},
		{math.MinInt64, "-8E"},
	} {
		if got := size.XLA(tc.n); got != tc.want {
			t.Errorf("XLA(%d) = %q, want %q", tc.n, got, tc.want)
		}
	}
}

// TestFormatParsesBack: what Format writes is exact when it has no decimals
// and within half a hundredth of its unit otherwise.
func TestFormatParsesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Uint64().Draw(t, "n") >> rapid.IntRange(0, 63).Draw(t, "shift")
		text := size.Format(n)
		if strings.HasPrefix(text, "1024") || len(text) > len("1023.99 KiB") {
			t.Fatalf("Format(%d) = %q: not in its largest unit", n, text)
		}
		if text == "16.00 EiB" { // rounded past the last uint64
			return
		}
		back, err := size.Parse(text)
		if err != nil {
			t.Fatalf("Format(%d) = %q: %v", n, text, err)
		}
		diff := math.Abs(float64(back) - float64(n))
		if exact := !strings.Contains(text, "."); exact && back != n || diff > float64(n)*0.005+1 {
			t.Fatalf("Format(%d) = %q, which Parse reads as %d", n, text, back)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"512", "1.5GiB", " 80 gb ", "-1", "16E", ".", "1e9", "0.1E"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := size.Parse(s)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("error of more than one line: %q", err)
			}
			return
		}
		// The oracle: the same number as an exact rational.
		text := strings.ToUpper(strings.TrimSpace(s))
		i := strings.IndexFunc(text, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
		if i < 0 {
			i = len(text)
		}
		r, ok := new(big.Rat).SetString("0" + text[:i])
		if !ok {
			t.Fatalf("Parse(%q) = %d, but %q is no number", s, n, text[:i])
		}
		if u := strings.TrimSpace(text[i:]); u != "" && u != "B" {
			power := strings.Index("KMGTPE", u[:1]) + 1
			r.Mul(r, new(big.Rat).SetInt(new(big.Int).Lsh(big.NewInt(1), uint(10*power))))
		}
		want := new(big.Int).Quo(r.Num(), r.Denom())
		if want.Cmp(new(big.Int).SetUint64(n)) != 0 {
			t.Errorf("Parse(%q) = %d, want %d", s, n, want)
		}
	})
}
