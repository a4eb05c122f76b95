package leaks

// The memory that is live at the peak of a recording, by the line of the program.

import (
	"cmp"
	"context"
	"slices"

	"gpumem/record/trace"
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
	held := newHeldBy(t, cfg.KeepPaths)
	for _, e := range live {
		held.add(p.Name, e.Site, e.Bytes, e.Bytes, 1)
	}
	return held.largest(), nil
}
