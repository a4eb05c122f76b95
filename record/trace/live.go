package trace

// The memory that is live at the end of a recording, by allocation site.

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"gpumem/size"
)

// LiveSite is the memory of one pool that one site allocated and the recording does not
// free.
type LiveSite struct {
	Pool   string
	Site   uint32 // for Trace.Site
	Bytes  uint64 // it stops at the largest uint64
	Blocks uint64 // those of 0 bytes are not counted
}

// Live returns what is live at the end of the pools of a name, all for "", the largest
// first. The errors are those of Choose and of reading the events.
func (t *Trace) Live(ctx context.Context, pool string) ([]LiveSite, error) {
	pools, err := t.Choose(pool)
	if err != nil {
		return nil, err
	}
	var all []LiveSite
	for _, p := range pools {
		w := p.Walk()
		for {
			e, err := w.Next(ctx)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", t.Source, err)
			}
			if e == nil {
				break
			}
		}
		sites := make(map[uint32]*LiveSite)
		for _, e := range w.Live() {
			s := sites[e.Site]
			if s == nil {
				s = &LiveSite{Pool: p.Name, Site: e.Site}
				sites[e.Site] = s
			}
			s.Bytes = size.Add(s.Bytes, e.Bytes)
			s.Blocks++
		}
		for _, s := range sites {
			all = append(all, *s)
		}
	}
	slices.SortFunc(all, func(a, b LiveSite) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Site, b.Site))
	})
	return all, nil
}
