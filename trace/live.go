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
		type block struct {
			bytes uint64
			site  uint32
		}
		live := make([]block, p.Slots)
		err := p.Batches(ctx, nil, func(events []Event) error {
			for i := range events {
				if e := &events[i]; e.Op == Free {
					live[e.Slot] = block{}
				} else if !e.Refused {
					live[e.Slot] = block{e.Bytes, e.Site}
				}
			}
			return nil
		})
		if err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return nil, fmt.Errorf("%s: %w", t.Source, err)
		}
		sites := make(map[uint32]*LiveSite)
		for _, b := range live {
			if b.bytes == 0 {
				continue
			}
			s := sites[b.site]
			if s == nil {
				s = &LiveSite{Pool: p.Name, Site: b.site}
				sites[b.site] = s
			}
			s.Bytes = size.Add(s.Bytes, b.bytes)
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
