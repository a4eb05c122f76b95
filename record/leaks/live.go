package leaks

// The memory that is live at the end of a recording, by the line of the program.

import (
	"context"

	"gpumem/record/trace"
	"gpumem/size"
)

// Held is the memory of one pool that a line of the program allocated and that is live at
// the end of a recording.
type Held struct {
	Pool string `json:"pool"`
	// Site is the innermost frame of the program's own files, "" in a recording without
	// stacks. Stack is the whole stack that holds the most, as in Place.
	Site   string `json:"site"`
	Stack  string `json:"stack"`
	Bytes  uint64 `json:"bytes"`
	Blocks uint64 `json:"blocks"`
	// Keeper is the container of the program that keeps more than half of Bytes, as in Place.
	// Peak does not have it.
	Keeper *trace.Keeper `json:"keeper,omitempty"`
}

// Live returns what is live at the end of t by line, the largest first; never nil. It is all
// that a recording of one instant has. The errors are those of Find.
func Live(ctx context.Context, t *trace.Trace, cfg Config) ([]Held, error) {
	sites, err := t.Live(ctx, cfg.Pool)
	if err != nil {
		return nil, err
	}
	held := newHeldBy(t, cfg.KeepPaths)
	for _, s := range sites { // the largest stack of a line comes first
		held.add(s.Pool, s.Site, 0, s.Bytes, s.Blocks)
	}
	pools, err := t.Choose(cfg.Pool)
	if err != nil {
		return nil, err
	}
	for _, p := range pools {
		if err := held.nameKeepers(ctx, p); err != nil {
			return nil, t.Failed(ctx, err)
		}
	}
	return held.largest(), nil
}

// nameKeepers names the containers that keep more than half of a line's live blocks.
func (h *heldBy) nameKeepers(ctx context.Context, p *trace.Pool) error {
	if !p.HasKeepers() {
		return nil // which saves a walk
	}
	w := p.Walk()
	if err := w.Each(ctx, nil, func(*trace.Event, *trace.Block) {}); err != nil {
		return err
	}
	kept := map[int]map[trace.Keeper]uint64{}
	for _, b := range w.Slots {
		i, listed := h.at[heldKey{pool: p.Name, site: h.group(b.Site)}]
		k, known := p.Keeper(b.Number)
		if !b.Live || !listed || !known {
			continue
		}
		if kept[i] == nil {
			kept[i] = map[trace.Keeper]uint64{}
		}
		kept[i][k] = size.Add(kept[i][k], b.Bytes)
	}
	for i, keepers := range kept {
		for k, n := range keepers {
			if n > h.list[i].Bytes/2 {
				h.list[i].Keeper = &k
			}
		}
	}
	return nil
}
