package replay

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"gpumem/report"
	"gpumem/size"
)

// Page is the report as report.WritePage and report.WriteSVG want it. It needs
// Config.Picture; without, it is nil.
func (r *Report) Page() *report.Page {
	if r.pools == nil {
		return nil
	}
	p := &report.Page{
		Title: filepath.Base(r.Trace.Source), Notes: r.Trace.Notes, Names: r.names, Pools: r.pools,
		Device:  r.Results[0].DeviceBytes,
		Columns: []string{"fits", ">refused", ">held peak", ">mean", ">idle", ">fragmentation", ">driver calls", ">driver time", ">own time"},
	}
	p.Headline, p.Story = r.story()
	for _, t := range p.Pools {
		t.Layers = nil
	}
	for k, res := range r.Results {
		l := res.picture
		l.Notes, l.Why = res.Notes, nil
		l.Cells = []string{
			"yes", report.Count(res.Refused), size.Format(res.HeldPeak), size.Format(uint64(res.HeldMean)), size.Format(res.HeldIdle),
			strconv.FormatFloat(res.Fragmentation, 'f', 2, 64), report.Count(res.DriverCalls), report.Seconds(res.DriverSeconds),
			fmt.Sprintf("%.0f ns/event", res.EventNanos()),
		}
		if !res.Fits {
			l.Cells[0] = "NO"
		}
		if res.searched {
			if k == 0 {
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
		// Results are in the order of the policies, and for each in that of the pools.
		t := p.Pools[k%len(p.Pools)]
		t.Layers = append(t.Layers, l)
	}
	return p
}
