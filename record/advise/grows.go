package advise

// Memory that is kept in step after step: a program that has it fits a card for a time.

import (
	"context"

	"gpumem/record/leaks"
	"gpumem/record/trace"
	"gpumem/size"
)

// Grows is memory that a program keeps on a GPU in each of its steps, all of it together.
type Grows struct {
	BytesPerStep uint64 `json:"bytes_per_step"`
	Where        string `json:"where"` // the line that keeps the most, or the size of its requests
	// RecordedSteps is the number of steps of the recording, in which this advice is right.
	RecordedSteps uint64 `json:"recorded_steps"`
	// FitsSteps is about the number of steps for which it fits the card with the advice;
	// nil if nothing fits.
	FitsSteps *uint64 `json:"fits_steps"`
}

// grows returns what grows on the GPU where that is most; nil if nothing does for certain.
func (a *adviser) grows(ctx context.Context, rep *Report) (*Grows, error) {
	if rep.Instant {
		return nil, nil
	}
	var most *Grows
	for _, g := range a.gpus {
		one, err := a.growsOn(ctx, g)
		if err != nil {
			return nil, err
		}
		if most == nil || one.BytesPerStep > most.BytesPerStep {
			most = one
		}
	}
	if most.BytesPerStep == 0 {
		return nil, nil
	}
	if c := rep.Advice; c != nil {
		taken := size.Add(a.taken(false), c.UsedPeak)
		n := most.RecordedSteps + (rep.DeviceBytes-min(rep.DeviceBytes, taken))/most.BytesPerStep
		most.FitsSteps = &n
	}
	return most, nil
}

// growsOn adds up what grows in the pools of a GPU, of a joined recording in each process.
func (a *adviser) growsOn(ctx context.Context, g gpu) (*Grows, error) {
	sum := &Grows{}
	most := uint64(0) // that one line keeps
	add := func(t *trace.Trace, pool string) error {
		found, err := leaks.Find(ctx, t, leaks.Config{Pool: pool})
		if err != nil || found.Verdict != leaks.Leak || found.Steps == nil {
			return err
		}
		for _, l := range found.Leaks {
			if l.BytesPerStep == nil {
				continue
			}
			sum.BytesPerStep = size.Add(sum.BytesPerStep, *l.BytesPerStep)
			if *l.BytesPerStep > most {
				most, sum.Where, sum.RecordedSteps = *l.BytesPerStep, l.Site, *found.Steps
			}
		}
		return nil
	}
	for _, m := range a.cfg.Members {
		for _, of := range m.GPUs {
			if of.Joint != g.name || m.Trace == nil || !m.Has(of.Pool) {
				continue
			}
			if err := add(m.Trace, of.Pool); err != nil {
				return nil, err
			}
		}
	}
	if len(a.cfg.Members) > 0 {
		return sum, nil
	}
	for _, pool := range g.pools {
		if err := add(a.trace, pool); err != nil {
			return nil, err
		}
	}
	return sum, nil
}
