package page

// The drawings of the page. Positions are in percent of the drawing, so that its texts keep
// their size however wide the page is.

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"gpumem/remat"
	"gpumem/report"
	"gpumem/size"
)

// mostColumns is the most columns of a curve on the page.
const mostColumns = 1000

// svgPercent returns a fraction as SVG writes it.
func svgPercent(part float64) string { return fmt.Sprintf("%.4g%%", 100*part) }

// A point is a position with a text.
type point struct {
	X, Y   string
	Text   string
	Anchor string // start, middle or end
	Title  string // shown when the pointer rests there
	Narrow bool   // the text also has room on a phone
}

// A memoryDrawing is memory over the program, before and after.
type memoryDrawing struct {
	Unit          string
	Ticks         []point // at the left
	Before, After string  // paths
	Limit, Bound  *point
	LimitAbove    string  // the limit, if it is beyond the drawing
	Peaks         []point // before, after
	BeforePlaces  string  // instructions
	AfterPlaces   string
}

// drawMemory returns nil if there are no temporaries.
func drawMemory(a *remat.Answer, before, after *side) *memoryDrawing {
	high := float64(max(before.peak, after.peak))
	if high == 0 {
		return nil
	}
	d := &memoryDrawing{BeforePlaces: report.Count(uint64(len(before.curve))), AfterPlaces: report.Count(uint64(len(after.curve)))}
	top := 1.12 * high
	if limit := float64(a.Limit); limit <= 2*high {
		top = max(top, 1.08*limit)
		d.Limit = &point{Y: svgPercent(1 - limit/top), Text: "limit " + size.Format(a.Limit)}
	} else {
		d.LimitAbove = size.Format(a.Limit)
	}
	d.Bound = &point{X: "100%", Anchor: "end", Y: svgPercent(1 - float64(a.LowerBound)/top), Text: "lower bound " + size.Format(a.LowerBound)}
	// The text of the limit stands away from that of the peak, which is often as high.
	if d.Limit != nil {
		d.Limit.X, d.Limit.Anchor = "100%", "end"
		if 2*after.place > len(after.curve) {
			d.Limit.X, d.Limit.Anchor = "0", "start"
		}
		if d.Limit.Anchor == "end" && math.Abs(float64(a.Limit)-float64(a.LowerBound)) < .08*top {
			d.Bound.X, d.Bound.Anchor = "0", "start"
		}
	}
	unit, ticks := report.ByteTicks(top, 5)
	d.Unit = unit
	for _, t := range ticks {
		d.Ticks = append(d.Ticks, point{Y: svgPercent(1 - t.Value/top), Text: t.Text})
	}
	d.Before = report.Steps(report.Columns(before.curve, mostColumns), top)
	d.After = report.Under(report.Columns(after.curve, mostColumns), top)
	for _, s := range []*side{before, after} {
		x := (float64(s.place) + .5) / float64(len(s.curve))
		d.Peaks = append(d.Peaks, point{X: svgPercent(x), Y: svgPercent(1 - float64(s.peak)/top), Anchor: anchor(x), Text: s.Which + " " + s.Peak, Title: s.Peak + " at " + s.At})
	}
	return d
}

// anchor returns the text-anchor that keeps a text at x inside the drawing.
func anchor(x float64) string {
	switch {
	case x < .2:
		return "start"
	case x > .8:
		return "end"
	}
	return "middle"
}

// A frontierDrawing is memory against extra compute.
type frontierDrawing struct {
	Unit         string
	Bytes, Extra []point // ticks at the bottom and at the left
	Curve        string  // path through the points
	Points       []point
	Now, Plan    *point
	Bound        *point
	Least        string // path; empty if nothing is proven
	LeastEnd     *point
}

// drawFrontier returns nil if there are no temporaries.
func drawFrontier(a *remat.Answer) *frontierDrawing {
	if a.Before == 0 {
		return nil
	}
	right, top := 1.05*float64(max(a.Before, a.After)), max(1, a.Extra)
	for _, p := range a.Frontier {
		top = max(top, p.Extra, p.LowerPercent)
	}
	top *= 1.12
	x := func(bytes uint64) float64 { return float64(bytes) / right }
	y := func(extra float64) float64 { return 1 - max(extra, 0)/top }
	at := func(p *remat.Answer) *point {
		return &point{
			X: svgPercent(x(p.After)), Y: svgPercent(y(p.Extra)), Text: fmt.Sprintf("%.1f", p.Extra),
			Title: fmt.Sprintf("%s, %s of the peak, at %s", size.Format(p.After), percent(p.After, p.Before), remat.Compute(p.Extra)),
		}
	}
	d := &frontierDrawing{Plan: at(a), Now: &point{X: svgPercent(x(a.Before)), Y: svgPercent(1), Title: "as given: " + size.Format(a.Before)}}
	unit, ticks := report.ByteTicks(right, 6)
	d.Unit = unit
	for _, t := range ticks {
		d.Bytes = append(d.Bytes, point{X: svgPercent(t.Value / right), Text: t.Text})
	}
	for _, t := range report.Ticks(top, 5) {
		d.Extra = append(d.Extra, point{Y: svgPercent(1 - t.Value/top), Text: t.Text})
	}
	path := []string{fmt.Sprintf("M%.1f 1000", report.Plane*x(a.Before))}
	var least []string
	var lastLeast float64
	for _, p := range a.Frontier {
		d.Points = append(d.Points, *at(p))
		path = append(path, fmt.Sprintf("L%.1f %.1f", report.Plane*x(p.After), report.Plane*y(p.Extra)))
		if !p.OutOfReach && p.LowerPercent > 0 {
			if len(least) == 0 {
				least = append(least, fmt.Sprintf("M%.1f 1000", report.Plane*x(a.Before)))
			}
			least = append(least, fmt.Sprintf("H%.1fV%.1f", report.Plane*x(p.Limit), report.Plane*y(p.LowerPercent)))
			lastLeast = p.LowerPercent
			d.LeastEnd = &point{X: svgPercent(x(p.Limit)), Y: svgPercent(y(p.LowerPercent)), Text: fmt.Sprintf("at least %.1f %%", p.LowerPercent)}
		}
	}
	bound := x(a.LowerBound)
	d.Bound = &point{X: svgPercent(bound), Y: "45%", Text: size.Format(a.LowerBound), Anchor: "start"}
	if least != nil { // a bound for a limit holds for smaller limits, too
		least = append(least, fmt.Sprintf("H%.1f", report.Plane*bound))
		if at := y(lastLeast); at > .3 && at < .6 {
			d.Bound.Y = "75%"
		}
	}
	d.Curve, d.Least = strings.Join(path, ""), strings.Join(least, "")
	if bound > .7 {
		d.Bound.Anchor = "end"
	}
	d.place(a, x, y)
	return d
}

// place removes texts that would lie on others, and marks those that have room on a phone,
// too. The smallest plan and that of the page have priority.
func (d *frontierDrawing) place(a *remat.Answer, x func(uint64) float64, y func(float64) float64) {
	if len(a.Frontier) == 0 {
		return
	}
	order := []int{len(a.Frontier) - 1}
	for k, p := range a.Frontier {
		if p.After == a.After && p.Extra == a.Extra && k != order[0] {
			order = append(order, k)
		}
	}
	for k := range a.Frontier {
		if !slices.Contains(order, k) {
			order = append(order, k)
		}
	}
	free := func(width, height float64) []bool {
		var taken [][2]float64 // left, base
		fits := make([]bool, len(a.Frontier))
		for _, k := range order {
			left, base := width*x(a.Frontier[k].After), height*y(a.Frontier[k].Extra)
			fits[k] = true
			for _, t := range taken {
				if math.Abs(left-t[0]) < 30 && math.Abs(base-t[1]) < 14 {
					fits[k] = false
				}
			}
			if fits[k] {
				taken = append(taken, [2]float64{left, base})
			}
		}
		return fits
	}
	wide, narrow := free(700, 320), free(260, 290)
	for k := range d.Points {
		if !wide[k] {
			d.Points[k].Text = ""
		}
		d.Points[k].Narrow = narrow[k]
	}
}
