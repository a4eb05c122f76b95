package report

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// Seconds formats a duration in seconds with three digits: 45 ns, 1.23 ms, 52.4 s;
// from 1000 s on in whole seconds: 16m40s.
func Seconds(s float64) string {
	// The bounds are half a digit below the unit, since 999.6 ns with three
	// digits would be 1e+03.
	switch {
	case s == 0:
		return "0"
	case s < 999.5e-9:
		return fmt.Sprintf("%.3g ns", s*1e9)
	case s < 999.5e-6:
		return fmt.Sprintf("%.3g us", s*1e6)
	case s < 999.5e-3:
		return fmt.Sprintf("%.3g ms", s*1e3)
	case s < 999.5:
		return fmt.Sprintf("%.3g s", s)
	}
	return time.Duration(s * 1e9).Round(time.Second).String()
}

// Count formats a number with commas: 1,234,567.
func Count(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Part formats a part of the whole in whole percent, "-" if the whole is 0.
func Part(part, whole uint64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", 100*float64(part)/float64(whole))
}

// MoreCompute formats percent of more compute, such as "7.1 % more compute". It is below 0 for a
// plan that reads and writes less.
func MoreCompute(percent float64) string {
	if percent <= -.05 {
		return fmt.Sprintf("%.1f %% less compute", -percent)
	}
	return fmt.Sprintf("%.1f %% more compute", math.Abs(percent))
}

// Round returns a number to two digits, for what is known about.
func Round(n uint64) uint64 {
	unit := uint64(1)
	for n/unit >= 100 {
		unit *= 10
	}
	return n / unit * unit
}
