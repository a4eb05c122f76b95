package doctor

// Files taken beside a log: a snapshot of PyTorch, a memory profile of JAX, a recording,
// or the dump of a pool. It says how much the program held itself, and who allocated it.

import (
	"cmp"
	"context"
	"fmt"
	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/statement"
	"slices"
	"strings"

	"gpumem/record/dump"
	"gpumem/record/trace"
	"gpumem/size"
)

// Beside is what a file beside the log shows.
type Beside struct {
	Source string         // the file
	Live   uint64         // bytes that were allocated at its end
	Blocks uint64         // how many
	Most   uint64         // of Live, those of the pool that has most: one GPU's
	Sites  []Site         // by stack, the largest first, at most five
	Dump   *dump.Dump     // a pool's dump; nil if it is none
	pools  map[int]uint64 // of Live, by the GPU, where the recording names it
}

// Site is a place of the program, and the bytes that it allocated and that are live.
type Site struct {
	Name  string // the frames, the innermost first; empty if the recording has none
	Bytes uint64
}

// ReadBeside reads what is live at the end of a recording.
func ReadBeside(ctx context.Context, t *trace.Trace) (*Beside, error) {
	live, err := t.Live(ctx, "")
	if err != nil {
		return nil, err
	}
	b := &Beside{Source: t.Source, pools: map[int]uint64{}}
	sites, pools := map[uint32]uint64{}, map[string]uint64{}
	for _, l := range live {
		b.Live = size.Add(b.Live, l.Bytes)
		b.Blocks += l.Blocks
		sites[l.Site] = size.Add(sites[l.Site], l.Bytes)
		pools[l.Pool] = size.Add(pools[l.Pool], l.Bytes)
	}
	for _, p := range t.Pools {
		b.Most = max(b.Most, pools[p.Name])
		if gpu := account.DeviceOf(p.Name); gpu >= 0 {
			b.pools[gpu] = size.Add(b.pools[gpu], pools[p.Name])
		}
	}
	for site, bytes := range sites {
		b.Sites = append(b.Sites, Site{t.Site(site), bytes})
	}
	slices.SortFunc(b.Sites, func(x, y Site) int { return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Name, y.Name)) })
	b.Sites = b.Sites[:min(len(b.Sites), 5)]
	return b, nil
}

// On is what was live on a GPU, in bytes: that of its pool if the pools are of GPUs by number,
// else of the largest.
func (b *Beside) On(gpu int) uint64 {
	if n, ok := b.pools[gpu]; ok {
		return n
	}
	return b.Most
}

// said is what it shows, in a sentence.
func (b *Beside) said() string {
	switch {
	case b == nil || b.Dump != nil:
		return ""
	case b.Live == 0:
		return b.Source + ": nothing was allocated at its end, so that it says nothing of the failure"
	}
	s := fmt.Sprintf("%s: the program held %s (blocks: %d)", b.Source, account.Human(b.Live), b.Blocks)
	if len(b.Sites) > 0 && b.Sites[0].Name != "" {
		frame, _, _ := strings.Cut(b.Sites[0].Name, "\n")
		s += fmt.Sprintf("; the largest part, %s: %s", account.Human(b.Sites[0].Bytes), statement.Clip(frame))
	}
	return s
}
