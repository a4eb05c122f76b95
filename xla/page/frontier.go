package page

// What less memory costs: the plans of a frontier as a table and a drawing.

import (
	"fmt"
	"slices"

	"gpumem/internal/report"
	"gpumem/size"
	"gpumem/xla/remat"
)

// A frontier is plans for less and less memory. Memory is in bytes, compute in percent more.
type frontier struct {
	Points []*frontierPoint // the most memory first
	Before uint64
	Bound  uint64 // no plan goes below
	Limit  uint64 // of the page's own plan, 0 if there is none
	// Right and Top are the ends of the axes. A plan that costs more than Top stands at the
	// edge, with its figure.
	Right uint64
	Top   float64
	// Least are the proven bounds, by limit: compute is no less for it and below.
	Least []leastPoint
}

type leastPoint struct {
	Limit uint64
	Extra float64
}

// A frontierPoint is one plan.
type frontierPoint struct {
	After uint64
	Extra float64
	Text  string // the figure beside the point
	Title string
	Own   bool // it is the plan of the page
	// Beaten reports whether another of the points takes less and costs less, which can be of the
	// page's own plan alone.
	Beaten bool

	Reached, Part, Least, Added, Limit, By string
}

// newFrontier returns the frontier of an answer; own is the plan of the page, nil if it has
// none. It is nil if there are no temporaries.
func newFrontier(a, own *remat.Answer) *frontier {
	if a.Before == 0 {
		return nil
	}

	f := &frontier{Before: a.Before, Bound: a.LowerBound, Right: a.Before + a.Before/20}
	point := func(p *remat.Answer) *frontierPoint {
		k := &frontierPoint{
			After: p.After, Extra: max(p.Extra, 0), Text: fmt.Sprintf("%.1f %%", p.Extra), Own: p == own,
			Title:   fmt.Sprintf("%s, %s of the peak, at %s", size.Format(p.After), report.Part(p.After, p.Before), report.MoreCompute(p.Extra)),
			Reached: size.Format(p.After), Part: report.Part(p.After, p.Before), Least: p.Least(),
			Added: report.Count(uint64(p.Recomputed)), Limit: size.Format(p.Limit), By: p.By,
		}
		if p.OutOfReach {
			k.Least = "out of reach"
		}
		if !p.Met {
			k.Limit += ", missed"
		}
		f.Right = max(f.Right, p.After+p.After/20)
		return k
	}

	for _, p := range a.Frontier {
		f.Points = append(f.Points, point(p))
		if !p.OutOfReach && p.LowerPercent > 0 {
			f.Least = append(f.Least, leastPoint{p.Limit, p.LowerPercent})
		}
	}

	var mine *frontierPoint
	if own != nil {
		f.Limit = own.Limit
		at := slices.IndexFunc(f.Points, func(p *frontierPoint) bool { return p.Own })
		if at < 0 {
			mine = point(own)
			mine.Beaten = true
			if at = slices.IndexFunc(f.Points, func(p *frontierPoint) bool { return p.After <= own.After }); at < 0 {
				at = len(f.Points)
			}
			f.Points = slices.Insert(f.Points, at, mine)
		}
		mine = f.Points[at]
	}

	f.Top = topOf(f.Points, mine)
	return f
}

// dear is how many times the middle plan's compute a plan may cost and stay on the drawing.
const dear = 4

// topOf returns the top of the axis of compute: all points lie below it but the dear ones,
// which would leave no height for the others. The page's own plan is never left out.
func topOf(points []*frontierPoint, own *frontierPoint) float64 {
	costs := []float64{}
	for _, p := range points {
		if p.Extra > 0 {
			costs = append(costs, p.Extra)
		}
	}

	slices.Sort(costs)
	top := 1.0
	if n := len(costs); n > 0 {
		most := costs[n-1]
		if middle := max(1, costs[(n-1)/2]); most > 1.5*dear*middle {
			for _, c := range costs { // the largest that is not dear
				if c <= dear*middle {
					most = c
				}
			}
		}
		top = max(top, most)
	}

	if own != nil {
		top = max(top, own.Extra)
	}
	return 1.12 * top
}
