package leaks

// The memory that is live at the end of a recording, by the line of the program.

import (
	"cmp"
	"context"
	"slices"

	"gpumem/record/internal/stacks"
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
}

// Live returns what is live at the end of t by line, the largest first; never nil. It is all
// that a recording of one instant has. The errors are those of Find.
func Live(ctx context.Context, t *trace.Trace, cfg Config) ([]Held, error) {
	sites, err := t.Live(ctx, cfg.Pool)
	if err != nil {
		return nil, err
	}
	type line struct {
		pool string
		site uint32
	}
	names := newNames(t.Site, t.Sites(), cfg.KeepPaths)
	at := make(map[line]int)
	held := []Held{}
	for _, s := range sites { // the largest stack of a line comes first
		key := line{s.Pool, names.group(s.Site)}
		i, ok := at[key]
		if !ok {
			i = len(held)
			at[key] = i
			h := Held{Pool: s.Pool}
			if s.Site != 0 {
				h.Site, h.Stack = names.shown(stacks.OwnFrame(t.Site(s.Site))), names.stack(s.Site)
			}
			held = append(held, h)
		}
		held[i].Bytes = size.Add(held[i].Bytes, s.Bytes)
		held[i].Blocks += s.Blocks
	}
	slices.SortStableFunc(held, func(a, b Held) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return held, nil
}
