package leaks

// The memory that is live at the end of a recording, by the line of the program.

import (
	"context"

	"gpumem/record/trace"
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
	held := newHeldBy(t, cfg.KeepPaths)
	for _, s := range sites { // the largest stack of a line comes first
		held.add(s.Pool, s.Site, 0, s.Bytes, s.Blocks)
	}
	return held.largest(), nil
}
