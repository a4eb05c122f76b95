package report

// Parts of drawings: curves with fewer points, and the numbers at axes.

import (
	"math"
	"strconv"
	"strings"

	"gpumem/size"
)

// Columns reduces a curve to at most n columns of the same width, n above 0, with the
// largest value of each, so that no peak is lost.
func Columns(values []uint64, n int) []uint64 {
	n = min(n, len(values))
	columns := make([]uint64, n)
	for k, v := range values {
		at := k * n / len(values)
		columns[at] = max(columns[at], v)
	}
	return columns
}

// coordinate formats a coordinate with one decimal at most.
func coordinate(v float64) string {
	return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64)
}

// A Tick is a number at an axis.
type Tick struct {
	Value float64
	Text  string
}

// Ticks returns round numbers from 0 to top, at most n+1 of them: 1, 2 or 5 times a
// power of ten apart. If top or n is not above 0, there is only the 0.
func Ticks(top float64, n int) []Tick {
	ticks := []Tick{{0, "0"}}
	if !(top > 0) || math.IsInf(top, 1) || n < 1 {
		return ticks
	}
	ten := math.Pow(10, math.Floor(math.Log10(top/float64(n))))
	step := ten
	for _, f := range []float64{1, 2, 5, 10} {
		if step = f * ten; step*float64(n) >= top*(1-1e-9) {
			break
		}
	}
	decimals := max(0, int(math.Ceil(-math.Log10(step)-1e-9)))
	for k := 1; float64(k)*step <= top*(1+1e-9); k++ {
		v := float64(k) * step
		ticks = append(ticks, Tick{v, strconv.FormatFloat(v, 'f', decimals, 64)})
	}
	return ticks
}

// ByteTicks returns Ticks for bytes, in the unit that suits top: GiB from 1 GiB on.
func ByteTicks(top float64, n int) (unit string, ticks []Tick) {
	scale := 1.0
	for top/scale >= 1024 && scale < 1<<60 {
		scale *= 1024
	}
	_, unit, _ = strings.Cut(size.Format(uint64(scale)), " ")
	ticks = Ticks(top/scale, n)
	for k := range ticks {
		ticks[k].Value *= scale
	}
	return unit, ticks
}
