package advise

// Memory that is kept in step after step: a program that has it fits a card for a time.

import (
	"context"

	"gpumem/record/leaks"
	"gpumem/record/trace"
	"gpumem/size"
)

// Grows is memory that a program keeps in each of its steps, all of it together.
type Grows struct {
	BytesPerStep uint64 `json:"bytes_per_step"`
	Where        string `json:"where"` // the line that keeps the most, or the size of its requests
	// RecordedSteps is the number of steps of the recording, in which this advice is right.
	RecordedSteps uint64 `json:"recorded_steps"`
	// FitsSteps is about the number of steps for which it fits the card with the advice;
	// nil if nothing fits.
	FitsSteps *uint64 `json:"fits_steps"`
}

// grows returns what grows in a recording; nil if nothing does for certain.
func (a *adviser) grows(ctx context.Context, t *trace.Trace, rep *Report) (*Grows, error) {
	if rep.Instant {
		return nil, nil
	}
	found, err := leaks.Find(ctx, t, leaks.Config{Pool: a.cfg.Pool})
	if err != nil || found.Verdict != leaks.Leak || found.Steps == nil {
		return nil, err
	}
	g := &Grows{Where: found.Leaks[0].Site, RecordedSteps: *found.Steps}
	for _, l := range found.Leaks {
		if l.BytesPerStep != nil {
			g.BytesPerStep = size.Add(g.BytesPerStep, *l.BytesPerStep)
		}
	}
	if g.BytesPerStep == 0 {
		return nil, nil
	}
	if c := rep.Advice; c != nil {
		taken := size.Add(rep.UsedBytes, size.Add(size.Add(rep.ContextBytes, rep.ConstantBytes), c.UsedPeak))
		n := g.RecordedSteps + (rep.DeviceBytes-min(rep.DeviceBytes, taken))/g.BytesPerStep
		g.FitsSteps = &n
	}
	return g, nil
}
