// Truth values and fractions as people write and read them.

package literal

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

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
