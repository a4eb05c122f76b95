package leaks

// The memory that is live at the peak of a recording, by the line of the program.

import (
	"cmp"
	"context"
	"slices"

	"gpumem/record/internal/stacks"
	"gpumem/record/trace"
	"gpumem/size"
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
	live, err := p.AtPeak(ctx)
	if err != nil {
		return nil, err
	}
	// A line is shown with the stack of its largest block.
	slices.SortStableFunc(live, func(a, b trace.Event) int { return cmp.Compare(b.Bytes, a.Bytes) })
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
				h.Site, h.Stack = names.shown(stacks.OwnFrame(t.Site(e.Site))), names.stack(e.Site)
			}
			held = append(held, h)
		}
		held[i].Bytes = size.Add(held[i].Bytes, e.Bytes)
		held[i].Blocks++
	}
	slices.SortStableFunc(held, func(a, b Held) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return held, nil
}
