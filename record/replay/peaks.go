package replay

// What a recording's memory is for when most of it is live.

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"gpumem/internal/report"
	"gpumem/record/internal/category"
	"gpumem/record/trace"
	"gpumem/size"
)

// Peak is what the memory of a pool is for at its peak.
type Peak = category.Peak

// mostPeaks is the most pools whose peaks are told.
const mostPeaks = 8

// AddPeaks finds out what the memory of pools is for at their peaks, the highest first, at
// most of eight pools. The pools are those of the names, all for none or "". It costs two
// passes over each. The error is that of reading the events, or ctx.Err().
func (info *TraceInfo) AddPeaks(ctx context.Context, t *trace.Trace, names ...string) error {
	all := len(names) == 0 || slices.Contains(names, "")
	pools := slices.DeleteFunc(slices.Clone(t.Pools), func(p *trace.Pool) bool { return !all && !slices.Contains(names, p.Name) })
	slices.SortStableFunc(pools, func(a, b *trace.Pool) int { return cmp.Compare(b.PeakLive, a.PeakLive) })
	for _, p := range pools[:min(len(pools), mostPeaks)] {
		peak, err := category.Of(ctx, t, p)
		if err != nil {
			return t.Failed(ctx, err)
		}
		if peak != nil {
			info.AtPeak = append(info.AtPeak, peak)
		}
	}
	return nil
}

// PeakLines returns what the memory is for at the peaks, a line a pool.
func (info *TraceInfo) PeakLines() []string {
	var lines []string
	for _, p := range info.AtPeak {
		where := ""
		if len(info.AtPeak) > 1 || len(info.PoolNames) > 1 {
			where = " of " + p.Pool
		}
		lines = append(lines, fmt.Sprintf("at the peak%s, %s at event %s: %s", where, size.Format(p.Bytes), report.Count(p.Event), p.Text()))
	}
	return lines
}
