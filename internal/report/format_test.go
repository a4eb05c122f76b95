package report_test

import (
	"math"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpumem/internal/report"
)

func TestSeconds(t *testing.T) {
	for _, tc := range []struct {
		s    float64
		want string
	}{
		{0, "0"},
		{4.5e-10, "0.45 ns"},
		{45e-9, "45 ns"},
		{999.4e-9, "999 ns"},
		{999.6e-9, "1 us"},
		{1e-6, "1 us"},
		{5.126e-6, "5.13 us"},
		{999.6e-6, "1 ms"},
		{1.234e-3, "1.23 ms"},
		{999.4e-3, "999 ms"},
		{999.6e-3, "1 s"},
		{52.44, "52.4 s"},
		{999.4, "999 s"},
		{999.6, "16m40s"},
		{3661.2, "1h1m1s"},
		{1e6, "277h46m40s"},
	} {
		if got := report.Seconds(tc.s); got != tc.want {
			t.Errorf("Seconds(%v) = %q, want %q", tc.s, got, tc.want)
		}
	}
}

// TestSecondsBack: what is written, read again, is the number to three digits.
func TestSecondsBack(t *testing.T) {
	units := map[string]float64{"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1}
	rapid.Check(t, func(t *rapid.T) {
		s := math.Pow(10, rapid.Float64Range(-9, 2.9997).Draw(t, "log10"))
		number, unit, _ := strings.Cut(report.Seconds(s), " ")
		v, err := strconv.ParseFloat(number, 64)
		if err != nil || units[unit] == 0 || strings.ContainsAny(number, "e+") {
			t.Fatalf("Seconds(%v) = %q", s, report.Seconds(s))
		}
		if v *= units[unit]; math.Abs(v-s) > s*0.00501 {
			t.Fatalf("Seconds(%v) = %q", s, report.Seconds(s))
		}
	})
}

func TestCount(t *testing.T) {
	for _, tc := range []struct {
		n    uint64
		want string
	}{
		{0, "0"},
		{999, "999"},
		{1000, "1,000"},
		{12345, "12,345"},
		{999999, "999,999"},
		{1234567, "1,234,567"},
		{math.MaxUint64, "18,446,744,073,709,551,615"},
	} {
		if got := report.Count(tc.n); got != tc.want {
			t.Errorf("Count(%d) = %q, want %q", tc.n, got, tc.want)
		}
	}
}
