package leaks

// The steps of a training as its stacks show them: then it is not in doubt whether a
// recording is one step, and what each step keeps is counted.

import (
	"math"
	"slices"

	"gpumem/record/internal/category"
)

// steps are the events at which steps end, counted from 1: where events are counted from 0, the
// next step begins there. A nil pointer is a recording of which that is not known.
type steps []uint64

func stepsOf(r *category.Reading) *steps {
	ends, trains := r.Steps()
	if !trains {
		return nil
	}
	return (*steps)(&ends)
}

// one reports whether the recording is known to have no second step.
func (s *steps) one() bool { return s != nil && len(*s) <= 1 }

// few reports whether the recording is known to have so few steps that what grows slowly, or in
// some steps, does not show.
func (s *steps) few() bool { return s != nil && len(*s) < leastSteps }

// leastSteps is how many steps tell that nothing grows.
const leastSteps = 10

// count returns the number of steps, where repeats is what the allocations' counts say, 0 if
// nothing. A loop with two optimizers has two updates a step.
func (s *steps) count(repeats float64) float64 {
	if s == nil {
		return repeats
	}
	n := float64(len(*s))
	if repeats > 0 {
		if updates := math.Round(n / repeats); updates >= 1 && math.Abs(n/repeats-updates) <= 0.05 {
			return repeats
		}
	}
	return n
}

// middle returns the ends of the steps from a quarter to nine tenths of all.
func (s *steps) middle() (ends []uint64) {
	if s == nil {
		return nil
	}
	return (*s)[len(*s)/4 : len(*s)*9/10]
}

// rate returns how many bytes a place keeps in a step, over the steps in the middle, where n is how
// many steps count says there are; ok is false if they are too few to know.
func (s *steps) rate(p *place, n float64) (bytes uint64, ok bool) {
	ends := s.middle()
	if len(ends) < leastBlocks {
		return 0, false
	}
	kept := float64(total(p.bornIn(ends[0], ends[len(ends)-1]))) / float64(len(ends)-1)
	updates := math.Round(float64(len(*s)) / n)
	if updates == 1 {
		return uint64(math.Round(kept)), true
	}
	return wholeBlocks(p, kept*updates), true // the middle need not have whole steps
}

// all reports whether each of some places keeps memory in most steps of the middle, for
// certain: a single step keeps something in each layer, but not in each step.
func (s *steps) all(places []*place) bool {
	ends := s.middle()
	if len(ends) < leastBlocks {
		return false
	}
	return !slices.ContainsFunc(places, func(p *place) bool {
		with := 0
		for i := 1; i < len(ends); i++ {
			if len(p.bornIn(ends[i-1], ends[i])) > 0 {
				with++
			}
		}
		return with*10 < (len(ends)-1)*6
	})
}
