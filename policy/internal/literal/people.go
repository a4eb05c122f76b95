// Truth values and fractions as people write and read them.

package literal

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// meansYes says whether a text that turns preallocation on was meant to.
func MeansYes(text string) bool {
	switch strings.ToLower(strings.TrimSpace(text)) {
	case "1", "true", "t", "yes", "y", "on":
		return true
	}
	return false
}

// hundredth is a percentage as the fraction that was meant.
func Hundredth(f float64) string {
	return strings.TrimPrefix(strconv.FormatFloat(float64(float32(f/100)), 'g', 6, 64), "0")
}

// percent is a fraction as people say it.
func Percent(f float64) string {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return fmt.Sprint(f)
	}
	return strconv.FormatFloat(float64(float32(f*100)), 'g', 6, 64) + " %"
}
