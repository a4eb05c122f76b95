package timeline

// The bands by what memory is for, where it is known.

import (
	"slices"

	"gpumem/record/internal/category"
	"gpumem/record/trace"
)

// purposes are the categories that have a band, in the order in which they are stacked: what
// stays below what comes and goes.
var purposes = []category.Category{
	category.Parameters, category.State, category.Workspace, category.KVCache, category.Kept, category.Gradients,
	category.Inputs, category.Activations, category.Temporaries,
}

// byPurpose has a band for each category of memory; nil if none is known.
func (o *outline) byPurpose() *grouping {
	if o.reading == nil || !o.reading.Knows() {
		return nil
	}
	var names []bandName
	for _, c := range purposes {
		names = append(names, bandName{c.String(), ""})
	}
	of := func(b *trace.Block) int { return slices.Index(purposes, o.reading.Category(b.Number)) }
	g := o.newGrouping("purpose", names, category.Unknown.String(), of, func(b *trace.Block) int {
		return o.texts.IndexOf(o.reading.Category(b.Number).String())
	})
	// What is older than the recording is for something, too.
	last := len(g.counters) - 1
	first := last - len(names)
	for k := range names { // the same on every page
		g.counters[first+k].band.Color = k + 1
	}
	g.band = func(b *trace.Block) int {
		if k := of(b); k >= 0 {
			return first + k
		}
		return last
	}
	return g
}
