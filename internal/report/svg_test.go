package report_test

import (
	"math"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"gpumem/internal/report"
)

func TestColumns(t *testing.T) {
	for _, tc := range []struct {
		values []uint64
		n      int
		want   []uint64
	}{
		{nil, 5, []uint64{}},
		{[]uint64{3}, 5, []uint64{3}},
		{[]uint64{1, 2, 3}, 3, []uint64{1, 2, 3}},
		{[]uint64{1, 9, 3, 4, 5}, 2, []uint64{9, 5}},
		{[]uint64{1, 9, 3, 4, 5}, 1, []uint64{9}},
	} {
		if got := report.Columns(tc.values, tc.n); !slices.Equal(got, tc.want) {
			t.Errorf("Columns(%v, %d) = %v, want %v", tc.values, tc.n, got, tc.want)
		}
	}
}

// TestColumnsKeepPeaks: no column is below what it stands for, and none is made up.
func TestColumnsKeepPeaks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Uint64(), 1, 200).Draw(t, "values")
		n := rapid.IntRange(1, 300).Draw(t, "n")
		got := report.Columns(values, n)
		if len(got) != min(n, len(values)) || slices.Max(got) != slices.Max(values) {
			t.Fatalf("%d columns, top %d", len(got), slices.Max(got))
		}
		for k, v := range got {
			if !slices.Contains(values, v) {
				t.Fatalf("column %d is %d", k, v)
			}
		}
	})
}

func texts(ticks []report.Tick) (list []string) {
	for _, k := range ticks {
		list = append(list, k.Text)
	}
	return list
}

func TestTicks(t *testing.T) {
	for _, tc := range []struct {
		top  float64
		n    int
		want []string
	}{
		{0, 5, []string{"0"}},
		{math.NaN(), 5, []string{"0"}},
		{math.Inf(1), 5, []string{"0"}},
		{7.57, 5, []string{"0", "2", "4", "6"}},
		{10, 5, []string{"0", "2", "4", "6", "8", "10"}},
		{108.9, 5, []string{"0", "50", "100"}},
		{0.7, 5, []string{"0", "0.2", "0.4", "0.6"}},
		{37000, 4, []string{"0", "10000", "20000", "30000"}},
	} {
		if got := texts(report.Ticks(tc.top, tc.n)); !slices.Equal(got, tc.want) {
			t.Errorf("Ticks(%v, %d) = %q, want %q", tc.top, tc.n, got, tc.want)
		}
	}
}

// TestTicksProperties: they go up evenly, are not too many, do not pass the
// top, and each is what its text says.
func TestTicksProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		top := math.Pow(10, rapid.Float64Range(-6, 12).Draw(t, "log10"))
		n := rapid.IntRange(1, 20).Draw(t, "n")
		ticks := report.Ticks(top, n)
		if len(ticks) > n+1 || n >= 5 && len(ticks) < 2 {
			t.Fatalf("%d ticks to %v, asked for %d", len(ticks), top, n)
		}
		for k, tick := range ticks {
			v, err := strconv.ParseFloat(tick.Text, 64)
			if err != nil || math.Abs(v-tick.Value) > 1e-9*top || tick.Value > top*1.000001 {
				t.Fatalf("%+v of %v", tick, top)
			}
			if k > 0 && math.Abs(tick.Value-float64(k)*ticks[1].Value) > 1e-9*top {
				t.Fatalf("uneven: %v", ticks)
			}
		}
	})
}

func TestByteTicks(t *testing.T) {
	for _, tc := range []struct {
		top  float64
		unit string
		want []string
		last float64
	}{
		{0, "B", []string{"0"}, 0},
		{700, "B", []string{"0", "200", "400", "600"}, 600},
		{16 << 10, "KiB", []string{"0", "5", "10", "15"}, 15 << 10},
		{7.57 * (1 << 30), "GiB", []string{"0", "2", "4", "6"}, 6 << 30},
		{700 << 30, "GiB", []string{"0", "200", "400", "600"}, 600 << 30},
		{2048 << 60, "EiB", []string{"0", "1000", "2000"}, 2000 << 60},
	} {
		unit, ticks := report.ByteTicks(tc.top, 4)
		if unit != tc.unit || !slices.Equal(texts(ticks), tc.want) || ticks[len(ticks)-1].Value != tc.last {
			t.Errorf("ByteTicks(%v) = %s %v", tc.top, unit, ticks)
		}
	}
}
