// Package category says what the memory at a recording's peak is for: parameters,
// gradients, optimizer state, activations kept for the backward pass, temporaries, inputs,
// a cache of keys and values, workspaces of libraries, and what the program keeps otherwise. What it
// cannot tell is Unknown.
//
// # What it goes by
//
// A recording has sizes, the order of events, and lifetimes; often it has stacks. A training
// step has a shape that no model changes: what is made in the forward pass and freed in the
// backward pass was kept for it, what is made in the backward pass and outlives it is a
// gradient, what is made in the first update and never freed is the optimizer's, and what was
// there before and stays is the model. So first the passes are found (phases.go), by the stacks
// of PyTorch's own frames (roles.go), or without stacks by the gradients, whose sizes are
// those of parameters and which are made last first and freed together (stackless.go). Then
// each block's birth and death are looked up among the passes (rules.go).
//
// # One block
//
// A linear layer of a training loop makes its output at event 1,204, under a frame of
// Module._call_impl: forward. The next pass of the engine is from 1,377 to 1,702, and the
// block is freed at 1,455 by a thread of the engine. It was kept for the backward pass: an
// activation, for sure. Had it been freed at 1,210 it were a temporary; had it lived on, it
// would be held by a variable of the program, too, and the answer is not sure.
package category

import (
	"cmp"
	"context"
	"maps"
	"regexp"
	"slices"
	"sort"

	"gpumem/record/internal/stacks"
	"gpumem/record/internal/tape"
	"gpumem/size"
)

// A Category is what memory is for.
type Category string

// The categories.
const (
	Parameters  Category = "parameters" // and buffers, such as the averages of a norm
	Gradients   Category = "gradients"  // of parameters
	State       Category = "optimizer_state"
	Activations Category = "activations" // kept for the backward pass
	Temporaries Category = "temporaries" // made and freed within a pass
	Inputs      Category = "inputs"      // batches
	KVCache     Category = "kv_cache"    // keys and values of tokens so far
	Workspace   Category = "workspace"   // of libraries, such as cuBLAS
	Kept        Category = "kept"        // by the program, through several steps
	Unknown     Category = "unknown"
)

// String returns the category in words.
func (c Category) String() string {
	switch c {
	case State:
		return "optimizer state"
	case KVCache:
		return "KV cache"
	case Kept:
		return "kept by the program"
	}
	return string(c)
}

// Peak is what a pool has when most of its memory is live, for the first time.
type Peak struct {
	Pool  string `json:"pool,omitempty"`
	Event uint64 `json:"event"` // as people count: from 1, without what is older than the recording
	Bytes uint64 `json:"bytes"` // requested, what was refused there included; the sum of the parts
	// Parts are what the memory is for, the largest first.
	Parts []Part `json:"parts"`
}

// Part is the memory of one category.
type Part struct {
	Category Category `json:"category"`
	Bytes    uint64   `json:"bytes"`
	Sure     uint64   `json:"sure_bytes"` // of Bytes, those that can be nothing else
	Blocks   uint64   `json:"blocks"`
	// Lines are the lines of the program that allocated it, or the sizes of blocks of
	// which no line is known; the largest first, and at most twelve.
	Lines []Line `json:"lines"`
}

// Line is the memory of one category that one line of the program allocated.
type Line struct {
	Where  string `json:"where"` // "forward (model.py:12)", or "blocks of 2.50 MiB"
	Bytes  uint64 `json:"bytes"`
	Blocks uint64 `json:"blocks"`
}

// A label is what was found out of a block.
type label struct {
	Category
	sure bool
}

// A Reading is what is known of the blocks of a pool.
type Reading struct {
	trace  *tape.Trace
	pool   *tape.Pool
	span   *span
	judges []*judge // one for each process; none where the recording itself has the categories
	labels []label  // of the span's blocks
}

// Read reads a pool, or returns what was read of it before: the page of a replay, its advice and its
// leaks want the same. The errors are those of reading the trace.
func Read(ctx context.Context, t *tape.Trace, p *tape.Pool) (*Reading, error) {
	type of struct{ *tape.Pool } // no other package's
	v, err := t.Found(of{p}, func() (any, error) { return readingOf(ctx, t, p) })
	if err != nil {
		return nil, err
	}
	return v.(*Reading), nil
}

func readingOf(ctx context.Context, t *tape.Trace, p *tape.Pool) (*Reading, error) {
	s, err := read(ctx, p)
	if err != nil {
		return nil, err
	}
	var rest []int // blocks that stand for parameters, and whatever else there was
	for i := range s.blocks {
		if b := &s.blocks[i]; b.seed && t.Site(b.site) == tape.Rest {
			s.unlisted = true
			rest = append(rest, i)
		}
	}
	r := &Reading{trace: t, pool: p, span: s, labels: make([]label, len(s.blocks))}
	if t.Format == "torch-timeline" {
		r.labels = labelsByPyTorch(s, t.Site)
		return r, nil
	}
	for _, of := range s.byPart(tape.Parts(p)) {
		j := newJudge(of.span, t.FullSite)
		for i, l := range j.labels(t.Format == "torch" || t.Format == "kineto") {
			r.labels[of.at[i]] = l
		}
		r.judges = append(r.judges, j)
	}
	for _, i := range rest {
		r.labels[i] = label{Category: Unknown}
	}
	return r, nil
}

// Of returns what a pool's memory is for at its peak, nil if nothing is ever live. The
// errors are those of reading the trace.
func Of(ctx context.Context, t *tape.Trace, p *tape.Pool) (*Peak, error) {
	r, err := Read(ctx, t, p)
	if err != nil {
		return nil, err
	}
	return r.Peak(), nil
}

// Category returns what the block is for that an event allocated, counted from 1 with the
// seeds.
func (r *Reading) Category(event uint64) Category {
	blocks := r.span.blocks
	i := sort.Search(len(blocks), func(i int) bool { return blocks[i].born >= event })
	if i == len(blocks) || blocks[i].born != event {
		return Unknown
	}
	return r.labels[i].Category
}

// Knows reports whether any block that lives at the peak has a category.
func (r *Reading) Knows() bool {
	for i := range r.labels {
		if b := &r.span.blocks[i]; b.lives(r.span.peak) && r.labels[i].Category != Unknown {
			return true
		}
	}
	return false
}

// Steps returns the events, counted from 1 with the seeds, at which the program had made a
// training step: the end of each update, or of each backward pass where updates do not show,
// as those that make nothing. It reports whether stacks show a training at all, of one process.
func (r *Reading) Steps() (ends []uint64, trains bool) {
	if len(r.judges) != 1 {
		return nil, false
	}
	j := r.judges[0]
	if j.blind || !j.trains {
		return nil, false
	}
	var updates []uint64
	for i := range j.phases {
		switch p := &j.phases[i]; {
		case p.role == backward:
			ends = append(ends, p.last)
		case p.role == update && p.first > j.start:
			updates = append(updates, p.last)
		}
	}
	if len(updates) > 1 {
		ends = updates
	}
	return ends, true
}

// Peak returns what the memory is for at the peak, nil if nothing is ever live.
func (r *Reading) Peak() *Peak {
	t, s, labels := r.trace, r.span, r.labels
	if s.bytes == 0 {
		return nil
	}
	peak := &Peak{Pool: r.pool.Name, Event: r.pool.Recorded(s.peak), Bytes: s.bytes, Parts: []Part{}}
	at := map[Category]int{}
	blocks := map[Category][]*block{}
	for i := range s.blocks {
		b := &s.blocks[i]
		if !b.lives(s.peak) || b.bytes == 0 {
			continue
		}
		l := labels[i]
		k, ok := at[l.Category]
		if !ok {
			k = len(peak.Parts)
			at[l.Category] = k
			peak.Parts = append(peak.Parts, Part{Category: l.Category})
		}
		part := &peak.Parts[k]
		part.Bytes += b.bytes
		part.Blocks++
		if l.sure {
			part.Sure += b.bytes
		}
		blocks[l.Category] = append(blocks[l.Category], b)
	}
	for k := range peak.Parts {
		part := &peak.Parts[k]
		part.Lines = linesOf(t, blocks[part.Category], t.Line)
		// A trainer's step is one line of the program: its layers say more.
		if first := part.Lines[0]; 10*first.Bytes > 6*part.Bytes {
			layers := linesOf(t, blocks[part.Category], func(site uint32) string { return t.Shown(stacks.LayerFrame(t.FullSite(site))) })
			if len(layers) > len(part.Lines) && layers[0].Bytes < first.Bytes {
				part.Lines = layers
			}
		}
		part.Lines = part.Lines[:min(len(part.Lines), mostLines)]
	}
	slices.SortFunc(peak.Parts, func(a, b Part) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Category, b.Category))
	})
	return peak
}

// linesOf adds up blocks by line, the largest first. frame returns the line of a site.
func linesOf(t *tape.Trace, blocks []*block, frame func(site uint32) string) []Line {
	at := map[string]Line{}
	for _, b := range blocks {
		where := lineOf(t, b, frame)
		one := at[where]
		at[where] = Line{where, one.Bytes + b.bytes, one.Blocks + 1}
	}
	list := slices.Collect(maps.Values(at))
	slices.SortFunc(list, func(a, b Line) int { return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Where, b.Where)) })
	return list
}

// lineOf returns the line of the program that made a block; for the engine's threads, which have
// none, the operation that goes back, and without a stack the size.
func lineOf(t *tape.Trace, b *block, frame func(site uint32) string) string {
	full := t.FullSite(b.site)
	switch node := engineNode.FindStringSubmatch(full); {
	case full == "":
		return blocksOf + size.Format(b.bytes)
	case roleOf(full) != backward, isPython(full):
		return cmp.Or(frame(b.site), t.Line(b.site))
	case node != nil:
		return node[1]
	}
	return "the backward pass"
}

// engineNode matches the frame of the autograd engine's node, such as AddmmBackward0.
var engineNode = regexp.MustCompile(`::(\w+)::apply\(`)

// blocksOf begins the name of what no line is known of.
const blocksOf = "blocks of "

// mostLines is the most lines of a category that are told apart.
const mostLines = 12
