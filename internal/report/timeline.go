package report

// The timeline of a replay as a static drawing: for documents, and for the page without
// scripts.

import (
	"cmp"
	"fmt"
	"html"
	"io"
	"slices"
	"strconv"
	"strings"

	"gpumem/size"
)

// Sizes of the drawing: of the whole, of the margins, and of a line of its key.
const (
	drawWidth, drawHeight = 960, 330
	drawLeft, drawTop     = 56, 34
	drawRight, drawBelow  = 34, 34
	keyLine, keyColumn    = 20, 280
)

// dashes tell the policies' lines apart without colour.
var dashes = []string{"", "8 3", "2 3", "10 3 2 3", "5 5", "14 4", "1 5", "6 2 1 2 1 2"}

// drawStyle is for both colour schemes. Its class names have a prefix, because the
// drawing may be part of a page.
const drawStyle = `.gm-back{fill:#fff}.gm-text{fill:#1b1f24;font:12px system-ui,sans-serif}.gm-quiet{fill:#57606a}.gm-bold{font-weight:600}.gm-halo{paint-order:stroke;stroke:#fff;stroke-width:4px;stroke-linejoin:round}.gm-grid{stroke:#e6e9ed}.gm-base{stroke:#57606a}.gm-live{fill:#9cc3ea;stroke:#1f5f9e;stroke-width:.75}.gm-held{fill:none;stroke:#1b1f24;stroke-width:1.5}.gm-ring{fill:#fff;stroke:#1b1f24;stroke-width:2}.gm-no{fill:#a40e26}` +
	`@media screen and (prefers-color-scheme:dark){.gm-back{fill:#0f1318}.gm-text{fill:#e6e9ed}.gm-quiet{fill:#a3adb8}.gm-halo{stroke:#0f1318}.gm-grid{stroke:#242b33}.gm-base{stroke:#a3adb8}.gm-live{fill:#2c5b8c;stroke:#8cc0f5}.gm-held{stroke:#e6e9ed}.gm-ring{fill:#0f1318;stroke:#e6e9ed}.gm-no{fill:#ff9aa5}}`

// WriteSVG writes the timeline of the page's first pool as an SVG file. The errors are
// the writer's.
func WriteSVG(w io.Writer, p *Page) error {
	_, err := io.WriteString(w, drawTimeline(p.Pools[0])+"\n")
	return err
}

// drawTimeline draws the live requested bytes as an area, what each policy held as a
// numbered line, the peak, and the first refusals.
func drawTimeline(t *Timeline) string {
	top := float64(t.Peak)
	for _, l := range t.Layers {
		top = max(top, float64(slices.Max(l.Held)))
	}
	top = max(top*1.02, 1)
	plotWidth, plotHeight := float64(drawWidth-drawLeft-drawRight), float64(drawHeight-drawTop-drawBelow)
	x := func(event uint64) float64 { return drawLeft + plotWidth*float64(event)/float64(max(t.Events, 1)) }
	y := func(v float64) float64 { return drawTop + plotHeight*(1-v/top) }
	columns := (drawWidth - drawLeft - drawRight) / keyColumn
	height := drawHeight + keyLine*((len(t.Layers)+1+columns-1)/columns) + 8

	var b strings.Builder
	out := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	text := func(class string, x, y float64, anchor, s string) {
		out(`<text class="gm-text%s" x="%s" y="%s" text-anchor="%s">%s</text>`, class, coordinate(x), coordinate(y), anchor, html.EscapeString(s))
	}
	out(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img"><title>%s</title><style>%s</style>`, drawWidth, height,
		html.EscapeString(fmt.Sprintf("Memory over %s events: at most %s requested at once", Count(t.Events), size.Format(t.Peak))), drawStyle)
	out(`<rect class="gm-back" width="100%%" height="100%%"/>`)
	unit, ticks := ByteTicks(top, 5)
	for _, k := range ticks {
		out(`<path class="gm-grid" d="M%d %sH%d"/>`, drawLeft, coordinate(y(k.Value)), drawWidth-drawRight)
		text(" gm-quiet", drawLeft-8, y(k.Value)+4, "end", k.Text)
	}
	text(" gm-quiet", drawLeft-8, drawTop-14, "end", unit)
	asked := path(t, t.Asked, x, y)
	out(`<path class="gm-live" d="%sV%sH%dZ"/>`, asked, coordinate(y(0)), drawLeft)
	labels := make([]float64, len(t.Layers))
	for k, l := range t.Layers {
		out(`<path class="gm-held" stroke-dasharray="%s" d="%s"/>`, dashes[k%len(dashes)], path(t, l.Held, x, y))
		labels[k] = y(float64(l.Held[len(l.Held)-1]))
	}
	out(`<path class="gm-base" d="M%d %sH%d"/>`, drawLeft, coordinate(y(0)), drawWidth-drawRight)
	for k, at := range apart(labels, 14, drawTop, y(0)) {
		text(" gm-bold", drawWidth-drawRight+8, at+4, "start", strconv.Itoa(k+1))
	}
	for _, r := range refusals(t, x) {
		out(`<path class="gm-no" d="M%s %dl-5 -9h10z"/>`, coordinate(r.at), drawTop)
		text(" gm-no gm-bold", r.at, drawTop-12, anchor(r.at), strings.Join(r.who, ", ")+r.verb)
	}
	px, py := x(t.PeakAt), y(float64(t.Peak))
	out(`<circle class="gm-ring" cx="%s" cy="%s" r="4.5"/>`, coordinate(px), coordinate(py))
	text(" gm-halo gm-bold", px, py-10, anchor(px), "peak "+size.Format(t.Peak))
	text(" gm-quiet", drawLeft, y(0)+18, "start", "event 1")
	text(" gm-quiet", drawWidth-drawRight, y(0)+18, "end", Count(t.Events))
	for k := range len(t.Layers) + 1 {
		kx, ky := float64(drawLeft+keyColumn*(k%columns)), float64(drawHeight+keyLine*(k/columns))
		if k == 0 {
			out(`<rect class="gm-live" x="%s" y="%s" width="28" height="10"/>`, coordinate(kx), coordinate(ky-5))
			text("", kx+36, ky+4, "start", "requested and live")
			continue
		}
		l := t.Layers[k-1]
		out(`<path class="gm-held" stroke-dasharray="%s" d="M%s %sh28"/>`, dashes[(k-1)%len(dashes)], coordinate(kx), coordinate(ky))
		text("", kx+36, ky+4, "start", fmt.Sprintf("%d held by %s", k, Fit(l.Policy, 26)))
	}
	b.WriteString("</svg>")
	return b.String()
}

// A refusalMark marks the first refusal of policies.
type refusalMark struct {
	at   float64
	who  []string // their numbers
	verb string
}

// refusals returns the marks in the order of the events. Those too near for separate
// texts share one.
func refusals(t *Timeline, x func(uint64) float64) (marks []refusalMark) {
	const room = 80
	var first []int // layers
	for k, l := range t.Layers {
		if l.First != nil {
			first = append(first, k)
		}
	}
	slices.SortStableFunc(first, func(a, b int) int { return cmp.Compare(t.Layers[a].First.Event, t.Layers[b].First.Event) })
	for _, k := range first {
		at, who := x(t.Layers[k].First.Event), strconv.Itoa(k+1)
		if n := len(marks) - 1; n >= 0 && at-marks[n].at < room {
			marks[n].who, marks[n].verb = append(marks[n].who, who), " refuse"
			continue
		}
		marks = append(marks, refusalMark{at, []string{who}, " refuses"})
	}
	return marks
}

// anchor keeps a text at x inside the drawing.
func anchor(x float64) string {
	switch {
	case x < drawLeft+60:
		return "start"
	case x > drawWidth-drawRight-60:
		return "end"
	}
	return "middle"
}

// path draws the most of each column of two units, in steps.
func path(t *Timeline, values []uint64, x func(uint64) float64, y func(float64) float64) string {
	var b strings.Builder
	column, most := -1, uint64(0)
	last := ""
	step := func() {
		at := coordinate(y(float64(most)))
		switch {
		case last == "":
			fmt.Fprintf(&b, "M%d %s", drawLeft, at)
		case at != last:
			fmt.Fprintf(&b, "H%dV%s", column, at)
		}
		last = at
	}
	start := uint64(0)
	for k, v := range values {
		if c := int(x(start)) &^ 1; c != column {
			if column >= 0 {
				step()
			}
			column, most = c, v
		}
		most = max(most, v)
		start = t.Ends[k]
	}
	step()
	fmt.Fprintf(&b, "H%d", drawWidth-drawRight)
	return b.String()
}

// apart moves labels up and down until they are the given distance apart, as near to
// their places as possible, in the same order, and within low and high if they fit.
func apart(at []float64, room, low, high float64) []float64 {
	order := make([]int, len(at))
	for k := range order {
		order[k] = k
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(at[a], at[b]) })
	out := slices.Clone(at)
	next := low
	for _, k := range order {
		out[k] = max(out[k], next)
		next = out[k] + room
	}
	next = high
	for _, k := range slices.Backward(order) {
		out[k] = min(out[k], next)
		next = out[k] - room
	}
	return out
}
