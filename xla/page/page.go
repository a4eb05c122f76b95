// Package page writes pages of HTML about a compiled program, in one file that loads nothing:
// [WriteModule] what it takes and what lives when, [Write] what a plan of remat changes and
// costs. Both have one layout, page.html with page.js, and the same figures as the commands
// print: every one is computed here or below.
package page

// The page of a plan, and what both pages share. See view.go for the curves, frontier.go for
// what less memory costs, and module.go for the page of a module.

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"gpumem/internal/report"
	"gpumem/internal/report/web"
	"gpumem/size"
	"gpumem/xla/internal/advice"
	"gpumem/xla/internal/cost"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/memory"
	"gpumem/xla/measure"
	"gpumem/xla/remat"
)

var (
	//go:embed page.html
	html string
	//go:embed page.css
	style string
	//go:embed page.js
	script string
)

var pageTemplate = template.Must(template.New("remat").Funcs(template.FuncMap{
	"bytes": size.Format, "part": report.Part, "count": report.Count, "peak": (*view).peakText, "line": oneLine,
	"words": func(name string) []string { return strings.SplitAfter(name, "/") }, // where a line may end
}).Parse(html))

const (
	// mostLayers is how many rows the table of what is recomputed has.
	mostLayers = 30
	// largeModule is how many instructions a module may have before its frontier has steps
	// twice as large: a plan for 41,881 takes 6 to 30 seconds on two cores.
	largeModule = 20_000
)

// Step returns a Request.Frontier for a page about a module, in percent of the peak.
func Step(m *hlo.Module) int {
	if m.Instructions() > largeModule {
		return 2 * remat.FrontierStep
	}
	return remat.FrontierStep
}

// contents are what page.html shows. The scripts have the views and the frontier, too.
type contents struct {
	Title, Headline string
	Facts           []factRow
	Notes           []string
	Views           []*view
	Own             *measure.Answer // the module if XLA's assignment says what lives at the peak; nil without one
	OwnRest         string          // what Own.Largest leaves out
	Frontier        *frontier
	FrontierNotes   []string
	Advice          []advice.Section
	AdviceNote      string
	Plan            bool // there is a plan, with Layers
	Layers          []*layerRow
}

// write writes the page.
func (c *contents) write(w io.Writer) error {
	var body strings.Builder
	if err := pageTemplate.Execute(&body, c); err != nil {
		return err
	}

	top := uint64(0)
	for _, v := range c.Views {
		top = max(top, v.Peak)
	}

	page := web.Page{Title: c.Title, Body: template.HTML(body.String()), Style: style, Script: script, Data: struct {
		Views    []*view
		Top      uint64 // of all views
		Levels   []level
		Frontier *frontier
	}{c.Views, top, c.levels(top), c.Frontier}}
	return page.Write(w)
}

// A layerRow is what is recomputed of one part of the program.
type layerRow struct {
	Name         string
	Instructions string
	Bytes        string
	Seconds      string
	Part         string // of the step before
	Bar          string // percent of the longest
	Rest         bool   // it sums what has no row

	n       int
	bytes   float64
	seconds float64
}

// layers returns what the plan recomputes, by part of the program, the longest first. What
// went because the plan computes it elsewhere is subtracted, so that the seconds add up to
// what the plan costs.
func layers(a *remat.Answer) ([]*layerRow, error) {
	before, err := withoutDead(a.Given)
	if err != nil {
		return nil, err
	}

	after, err := withoutDead(a.Module)
	if err != nil {
		return nil, err
	}

	rows := map[string]*layerRow{}
	if err := count(rows, after, before, a.Request.Rates, 1); err != nil {
		return nil, err
	}
	if err := count(rows, before, after, a.Request.Rates, -1); err != nil {
		return nil, err
	}

	var list []*layerRow
	for _, row := range rows {
		if row.n != 0 || math.Abs(row.seconds) > 1e-9*a.RunSeconds {
			list = append(list, row)
		}
	}

	slices.SortFunc(list, func(x, y *layerRow) int {
		return cmp.Or(cmp.Compare(y.seconds, x.seconds), cmp.Compare(y.bytes, x.bytes), cmp.Compare(x.Name, y.Name))
	})
	return list, nil
}

// withoutDead returns a copy without instructions that nothing uses, callees before callers.
func withoutDead(m *hlo.Module) (*hlo.Module, error) {
	lean, err := hlo.ParseString(m.String())
	if err == nil {
		_, err = hlo.RemoveDead(lean)
	}
	return lean, err
}

// count adds to the rows, sign times, the instructions of m that the other does not have.
func count(rows map[string]*layerRow, m, other *hlo.Module, rates cost.Rates, sign int) error {
	prices, err := cost.New(m, rates)
	if err != nil {
		return err
	}

	there := namesOf(other)
	runs := map[*hlo.Computation]float64{m.Entry: 1}
	for _, c := range slices.Backward(m.Computations) {
		if runs[c] == 0 {
			continue // part of what calls it
		}
		for _, i := range c.Instructions {
			if there[i.Name] {
				times := runs[c]
				if n, ok := cost.TripCount(i); ok {
					times *= float64(n)
				}
				for _, callee := range memory.ControlFlow(i) {
					runs[callee] += times
				}
				continue
			}
			// The price of a new call has what it runs. Copies to the host and back compute nothing.
			if i.Opcode == hlo.CopyStart || i.Opcode == hlo.CopyDone || memory.HandsOn(i) || i.Opcode == hlo.Parameter {
				continue
			}
			n, err := i.Shape.TotalBytes()
			if err != nil {
				return err
			}
			row := rows[scopeOf(i)]
			if row == nil {
				row = &layerRow{Name: scopeOf(i)}
				rows[row.Name] = row
			}
			row.n += sign
			row.bytes += float64(sign) * float64(n)
			row.seconds += float64(sign) * prices.Of(i).Seconds * runs[c]
		}
	}

	return nil
}

func namesOf(m *hlo.Module) map[string]bool {
	names := make(map[string]bool, m.Instructions())
	for i := range m.All() {
		names[i.Name] = true
	}
	return names
}

// figures sets the row's texts. run is the seconds of one run, and longest those of a bar of
// full length, 0 for no bar.
func (l *layerRow) figures(run, longest float64) {
	minus := func(v float64, text string) string {
		if v < 0 {
			return "-" + text
		}
		return text
	}

	l.Instructions = strconv.Itoa(l.n)
	l.Bytes = minus(l.bytes, size.Format(uint64(math.Abs(l.bytes))))
	l.Seconds = minus(l.seconds, report.Seconds(math.Abs(l.seconds)))
	if l.Part = "-"; run > 0 {
		l.Part = fmt.Sprintf("%.2f %%", 100*l.seconds/run)
	}
	if longest > 0 && l.seconds > 0 {
		l.Bar = fmt.Sprintf("%.4g%%", 100*l.seconds/longest)
	}
}

// headline returns one sentence about what the plan reaches and costs.
func headline(a *remat.Answer) string {
	now, then, limit := glued(a.Before), glued(a.After), glued(a.Limit)
	cost := strings.Replace(report.MoreCompute(a.Extra), " ", "\u00a0", 1)
	switch {
	case a.Before <= a.Limit && a.Recomputed == 0:
		return fmt.Sprintf("%s fits its limit of %s as it is, with %s of temporaries: nothing is recomputed", a.Given.Name, limit, now)
	case a.Recomputed == 0 && a.Algorithm == "off":
		return fmt.Sprintf("%s takes %s of temporaries, more than its limit of %s, and nothing is recomputed", a.Given.Name, now, limit)
	case a.After >= a.Before && !a.Met:
		return fmt.Sprintf("%s takes %s of temporaries, more than its limit of %s, and recomputing does not help", a.Given.Name, now, limit)
	case a.Met:
		return fmt.Sprintf("%s goes from %s of temporaries to %s, within its limit of %s, at %s", a.Given.Name, now, then, limit, cost)
	}
	return fmt.Sprintf("%s goes from %s of temporaries to %s, which misses its limit of %s, at %s", a.Given.Name, now, then, limit, cost)
}

// glued returns bytes as text whose number and unit stay on one line.
func glued(n uint64) string { return strings.ReplaceAll(size.Format(n), " ", "\u00a0") }

// A factRow is one figure of the page, and what it means.
type factRow struct{ What, Value, More string }

// facts are the figures that the command prints, and what the plan costs.
func facts(a *remat.Answer) (rows []factRow) {
	add := func(figures ...remat.Figure) {
		for _, f := range figures {
			rows = append(rows, factRow(f))
		}
	}

	add(a.Figures()...)
	more := report.Seconds(a.RunSeconds*a.Extra/100) + " for each run, which takes " + report.Seconds(a.RunSeconds)
	rows = append(rows,
		factRow{"more compute", fmt.Sprintf("%.1f %%", a.Extra), more},
		factRow{"recomputed", report.Count(uint64(a.Recomputed)), "instructions were added, those that went taken off"})
	if p := a.Proven(); p.Value != "" {
		add(p)
	}

	rows = append(rows, factRow{"algorithm", a.Algorithm, "the plan is by: " + a.By + "; it took " + report.Seconds(a.Seconds)})
	add(a.Markings()...)
	return rows
}

// Write writes the page of an answer that has a plan and a frontier. The errors are those of
// measuring the plan, and w's.
func Write(w io.Writer, a *remat.Answer) error {
	notes := a.Warnings
	views, err := planViews(a)
	if err != nil {
		return err
	}
	if len(views) == 1 {
		notes = append(slices.Clone(notes), "the plan changes nothing, so what follows is shown once: before and after are the same.")
	}

	rows, err := layers(a)
	if err != nil {
		return err
	}

	c := &contents{
		Title: a.Given.Name + ": recomputing", Headline: headline(a), Facts: facts(a), Notes: notes,
		Views: views, Frontier: newFrontier(a, a), Advice: a.Text, Plan: true,
		Layers: shortened(rows, a.RunSeconds),
	}

	c.FrontierNotes = []string{fmt.Sprintf("Plans by the same algorithm for limits %d %% of the peak apart, and that of this page; "+
		"those that others beat in both memory and time are left out.", a.Request.Frontier)}
	return c.write(w)
}

// planViews returns the views before and after a plan, one alone if it changes nothing.
func planViews(a *remat.Answer) ([]*view, error) {
	if a.Module == a.Given || a.Module.String() == a.Given.String() {
		both, err := planView(a, "before and after", a.Given, nil, nil)
		return []*view{both}, err
	}

	before, err := planView(a, "before", a.Given, nil, nil)
	if err != nil {
		return nil, err
	}

	after, err := planView(a, "after", a.Module, before, namesOf(a.Given))
	return []*view{before, after}, err
}

// shortened returns the first rows with their texts, and one for the rest.
func shortened(layers []*layerRow, run float64) []*layerRow {
	list, rest := slices.Clone(layers[:min(len(layers), mostLayers)]), layerRow{Rest: true}
	for k, l := range layers {
		if k >= mostLayers {
			rest.n, rest.bytes, rest.seconds = rest.n+l.n, rest.bytes+l.bytes, rest.seconds+l.seconds
		}
		l.figures(run, layers[0].seconds)
	}

	if k := len(layers) - mostLayers; k > 0 {
		rest.figures(run, 0)
		rest.Name = fmt.Sprintf("%s more", report.Counted(uint64(k), "part"))
		list = append(list, &rest)
	}
	return list
}

// A level is a line across the curves.
type level struct {
	Value uint64
	Text  string
	Limit bool
}

// levels are the limit and the bound of a plan, as far as they are on the drawing.
func (c *contents) levels(top uint64) (list []level) {
	if f := c.Frontier; f != nil && c.Plan {
		if f.Limit <= top {
			list = append(list, level{f.Limit, "limit " + size.Format(f.Limit), true})
		}
		list = append(list, level{f.Bound, "lower bound " + size.Format(f.Bound), false})
	}
	return list
}
