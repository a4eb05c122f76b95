package leaks

// The memory that is live at the peak of a recording, by the line of the program.

import (
	"cmp"
	"context"
	"io"
	"slices"

	"gpumem/size"
	"gpumem/trace"
)

// Peak returns what is live in a pool when most is, a refused request included, by line;
// by size where the recording has no stacks. The largest is first. The pool is that of the
// configuration, or else the one with the highest peak. The errors are those of Find.
func Peak(ctx context.Context, t *trace.Trace, cfg Config) ([]Held, error) {
	pools, err := t.Choose(cfg.Pool)
	if err != nil {
		return nil, err
	}
	p := slices.MaxFunc(pools, func(a, b *trace.Pool) int { return cmp.Compare(a.PeakLive, b.PeakLive) })
	live, err := atPeak(ctx, p)
	if err != nil {
		return nil, err
	}
	type line struct {
		site  uint32
		bytes uint64 // of each block, where there is no site
	}
	names := newNames(t.Site, t.Sites(), cfg.KeepPaths)
	at := map[line]int{}
	held := []Held{}
	for _, e := range live {
		key := line{site: names.group(e.Site)}
		if e.Site == 0 {
			key.bytes = e.Bytes
		}
		i, ok := at[key]
		if !ok {
			i = len(held)
			at[key] = i
			h := Held{Pool: p.Name, Site: "requests of " + size.Format(e.Bytes)}
			if e.Site != 0 {
				h.Site, h.Stack = names.shown(ownFrame(t.Site(e.Site))), names.stack(e.Site)
			}
			held = append(held, h)
		}
		held[i].Bytes = size.Add(held[i].Bytes, e.Bytes)
		held[i].Blocks++
	}
	slices.SortStableFunc(held, func(a, b Held) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return held, nil
}

// atPeak returns the allocations of what is live when most is, the largest first.
func atPeak(ctx context.Context, p *trace.Pool) ([]trace.Event, error) {
	slots := make([]trace.Event, p.Slots)
	var live, top uint64
	var at, count int // events
	// walk plays the events up to one at which last returns true.
	walk := func(last func() bool) error {
		live, count = 0, 0
		err := p.Batches(ctx, nil, func(batch []trace.Event) error {
			for _, e := range batch {
				count++
				if e.Op == trace.Free {
					live -= min(live, slots[e.Slot].Bytes)
					slots[e.Slot] = trace.Event{}
					continue
				}
				live = size.Add(live, e.Bytes)
				slots[e.Slot] = e
				if last() {
					return io.EOF
				}
				if e.Refused {
					live -= min(live, e.Bytes)
					slots[e.Slot] = trace.Event{}
				}
			}
			return nil
		})
		if err == io.EOF { // ours, which Batches passes on as it is
			return nil
		}
		return err
	}
	err := walk(func() bool {
		if live > top {
			top, at = live, count
		}
		return false
	})
	clear(slots)
	if err == nil {
		err = walk(func() bool { return count == at })
	}
	list := slices.DeleteFunc(slots, func(e trace.Event) bool { return e.Bytes == 0 })
	slices.SortStableFunc(list, func(a, b trace.Event) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return list, err
}
