package tape

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
		if err := w.Each(ctx, nil, func(*Event, *Block) {}); err != nil {
			return nil, t.Failed(ctx, err)
		}
		at := make(map[uint32]int) // in all, by site
		for _, b := range w.Slots {
			if !b.Live || b.Bytes == 0 {
				continue
			}
			i, ok := at[b.Site]
			if !ok {
				i = len(all)
				at[b.Site] = i
				all = append(all, LiveSite{Pool: p.Name, Site: b.Site})
			}
			all[i].Bytes = size.Add(all[i].Bytes, b.Bytes)
			all[i].Blocks++
		}
	}
	slices.SortFunc(all, func(a, b LiveSite) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Site, b.Site))
	})
	return all, nil
}

// Failed returns the error of reading the events with the recording's name, and after the
// end of ctx ctx.Err() in its place.
func (t *Trace) Failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("%s: %w", t.Source, err)
}
