package timeline

import (
	"slices"
	"testing"

	"gpumem/internal/report"
	"gpumem/record/internal/category"
	"gpumem/record/internal/test/traintest"
	"gpumem/record/trace"
)

// At the peak the bands by purpose are the parts of the peak, and the answer names the largest.
func TestBandsByPurpose(t *testing.T) {
	tr := traintest.Record(t, 6, 8, nil)
	o := outlined(t, tr)
	tl := o.timeline
	if !o.reading.Knows() || tl.Groupings[0].By != "purpose" {
		t.Fatalf("the first bands are by %s", tl.Groupings[0].By)
	}
	p := o.reading.Peak()
	at := 0
	for at < len(tl.Moments) && tl.Moments[at] != p.Event {
		at++
	}
	if at == len(tl.Moments) {
		t.Fatalf("no bucket has event %d", p.Event)
	}
	bands := map[string]uint64{}
	for _, b := range tl.Groupings[0].Bands {
		// A category has its colour, whichever others a recording has.
		k := slices.IndexFunc(purposes, func(c category.Category) bool { return c.String() == o.texts.List[b.Name] })
		if b.Color != k+1 {
			t.Errorf("%s has the colour %d, want %d", o.texts.List[b.Name], b.Color, k+1)
		}
		bands[o.texts.List[b.Name]] = b.Bytes[at]
	}
	sum := uint64(0)
	for _, part := range p.Parts {
		if got := bands[part.Category.String()]; got != part.Bytes {
			t.Errorf("the band of %s has %d bytes, the part %d", part.Category, got, part.Bytes)
		}
		sum += part.Bytes
	}
	if sum != tl.Peak || sum == 0 {
		t.Errorf("the parts have %d bytes, the peak %d", sum, tl.Peak)
	}
	m := &pageMaker{texts: o.texts, outlines: map[*trace.Pool]*outline{o.pool: o}}
	if got := m.atPeak([]*report.Timeline{tl}); got == groupsAtPeak([]*report.Timeline{tl}, o.texts) || got == "" {
		t.Errorf("%s", got)
	}
}
