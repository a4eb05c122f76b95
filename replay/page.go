package replay

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gpumem/report"
	"gpumem/size"
)

// Page is the report as report.WritePage and report.WriteSVG want it, without
// pools in which nothing happened. It is nil without Config.Picture, and if nothing
// happened in any.
func (r *Report) Page() *report.Page {
	if r.pools == nil {
		return nil
	}
	p := &report.Page{
		Title: filepath.Base(r.Trace.Source), Notes: slices.Concat(r.Trace.Notes, r.Placements()), Names: r.names, Pools: r.pools,
		Device:  r.Results[0].DeviceBytes,
		Columns: []string{"fits", ">refused", ">held peak", ">mean", ">idle", ">fragmentation", ">driver calls", ">driver time", ">own time"},
	}
	p.Headline, p.Story = r.story()
	for _, t := range p.Pools {
		t.Layers = nil
	}
	for _, res := range r.Results {
		l := res.picture
		at := slices.IndexFunc(p.Pools, func(t *report.Timeline) bool { return t.Pool == res.Pool })
		if l == nil || at < 0 {
			continue
		}
		l.Notes, l.Why = res.Notes, nil
		l.Cells = []string{
			"yes", report.Count(res.Refused), size.Format(res.HeldPeak), size.Format(uint64(res.HeldMean)), size.Format(res.HeldIdle),
			strconv.FormatFloat(res.Fragmentation, 'f', 2, 64), report.Count(res.DriverCalls), report.Seconds(res.DriverSeconds),
			res.OwnTime(),
		}
		if !res.Fits {
			l.Cells[0] = "NO"
		}
		if res.searched {
			if len(p.Columns) == len(l.Cells) {
				p.Columns = append(p.Columns, ">smallest device")
			}
			l.Cells = append(l.Cells, "none")
			if res.Smallest != nil {
				l.Cells[len(l.Cells)-1] = size.Format(*res.Smallest)
			}
		}
		if res.Failure != nil {
			l.Why = strings.Split(strings.TrimSuffix(res.Failure.Why, "\n"), "\n")
		}
		p.Pools[at].Layers = append(p.Pools[at].Layers, l)
	}
	return p
}
