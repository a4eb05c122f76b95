// Package page writes an answer of remat as a page of HTML: what the plan reaches and costs,
// in one file that loads nothing.
package page

// The contents of the page. The drawings are in draw.go, the page itself in page.html.

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
	"unicode"

	"gpumem/hlo"
	"gpumem/hlo/cost"
	"gpumem/hlo/memory"
	"gpumem/remat"
	"gpumem/report"
	"gpumem/size"
)

//go:embed page.html
var html string

var pageTemplate = template.Must(template.New("remat").Parse(html))

const (
	// mostLayers and mostAlive are how many rows the page's tables have.
	mostLayers = 30
	mostAlive  = 12
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

// A side is the program before or after.
type side struct {
	Which string
	Peak  string // bytes, for people
	At    string
	Rows  []aliveRow
	Rest  string // what the rows leave out; empty if nothing

	curve []uint64
	peak  uint64
	place int // in the curve
}

type aliveRow struct {
	Bytes, Part string
	Name, Shape string
	From        string // op_name
	Source      string
	Again       bool // the plan added it
}

// A layerRow is what is recomputed of one part of the program.
type layerRow struct {
	Name         string
	Instructions string
	Bytes        string
	Seconds      string
	Part         string // of the step before
	Bar          string // percent of the longest

	n       int
	bytes   float64
	seconds float64
}

// Write writes the page of an answer that has a plan and a frontier. The errors are those of
// measuring the plan, and w's.
func Write(w io.Writer, a *remat.Answer) error {
	names := namesOf(a.Given)
	before, err := newSide(a, "before", a.Given, names)
	if err != nil {
		return err
	}
	after, err := newSide(a, "after", a.Module, names)
	if err != nil {
		return err
	}
	rows, err := layers(a)
	if err != nil {
		return err
	}
	return write(w, a, &before, &after, rows)
}

// newSide measures a program. names are the names in the program before.
func newSide(a *remat.Answer, which string, m *hlo.Module, names map[string]bool) (s side, err error) {
	s = side{Which: which}
	meter := memory.NewMeter(a.Request.Memory())
	if s.curve, err = meter.Curve(m.Entry); err != nil {
		return s, err
	}
	s.peak = slices.Max(s.curve)
	s.place = slices.Index(s.curve, s.peak)
	s.Peak, s.At = size.Format(s.peak), m.Entry.Instructions[s.place].Name
	alive, err := meter.Alive(m.Entry)
	if err != nil {
		return s, err
	}
	sources := m.Sources()
	for _, x := range alive[:min(len(alive), mostAlive)] {
		name := x.Instruction.Name
		if x.Copies > 1 {
			name += fmt.Sprintf(", %d times", x.Copies)
		}
		s.Rows = append(s.Rows, aliveRow{
			Bytes: size.Format(x.Bytes * x.Copies), Part: percent(x.Bytes*x.Copies, s.peak),
			Name: name, Shape: x.Shape.String(), From: x.Instruction.OpName(), Source: sources.Place(x.Instruction),
			Again: !names[x.Instruction.Name],
		})
	}
	var rest uint64
	for _, x := range alive[len(s.Rows):] {
		rest += x.Bytes * x.Copies
	}
	if n := len(alive) - len(s.Rows); n > 0 {
		s.Rest = fmt.Sprintf("and %s more, %s", report.Counted(uint64(n), "value"), size.Format(rest))
	}
	return s, nil
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
			row := rows[layerOf(i)]
			if row == nil {
				row = &layerRow{Name: layerOf(i)}
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

// layerOf returns the part of the program that an instruction comes from: the words of its
// op_name up to the first one with a number, at most three, without the operation and
// without what JAX's transformations put around the words.
func layerOf(i *hlo.Instruction) string {
	name := i.OpName()
	if name == "" {
		return "no op_name: " + string(i.Opcode)
	}
	words := strings.Split(name, "/")
	var way []string
	for _, w := range words[:len(words)-1] {
		for {
			inner, ok := strings.CutSuffix(w, ")")
			at := strings.IndexByte(inner, '(')
			if !ok || at < 0 {
				break
			}
			if outer := inner[:at]; outer == "jit" || outer == "pjit" {
				inner, at = "", -1
			}
			w = inner[at+1:]
		}
		switch w {
		case "", "while", "body", "cond", "checkpoint", "rematted_computation":
			continue
		}
		if way = append(way, w); len(way) == 3 || strings.ContainsFunc(w, unicode.IsDigit) {
			break
		}
	}
	layer := strings.Join(way, "/")
	if layer == "" {
		layer = words[len(words)-1]
	}
	if strings.Contains(name, "transpose(") {
		layer += ", backward"
	}
	return layer
}

// Words returns the name, cut where a line may end.
func (l *layerRow) Words() []string { return strings.SplitAfter(l.Name, "/") }

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
		l.Bar = svgPercent(l.seconds / longest)
	}
}

// headline returns one sentence about what the plan reaches and costs.
func headline(a *remat.Answer) string {
	const together = "\u00a0" // number and unit stay on one line
	bytes := func(n uint64) string { return strings.ReplaceAll(size.Format(n), " ", together) }
	now, then, limit := bytes(a.Before), bytes(a.After), bytes(a.Limit)
	cost := strings.Replace(remat.Compute(a.Extra), " ", together, 1)
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

// A factRow is one figure of the plan, and what it means.
type factRow struct{ What, Value, More string }

func facts(a *remat.Answer) []factRow {
	rows := []factRow{
		{"limit", size.Format(a.Limit), a.Request.LimitFrom},
		{"temporaries before", size.Format(a.Before), "at their peak, in " + report.Counted(uint64(a.Instructions), "instruction")},
		{"temporaries after", size.Format(a.After), percent(a.After, a.Before) + " of that"},
		{"more compute", fmt.Sprintf("%.1f %%", a.Extra), fmt.Sprintf("%s for each run, which takes %s", report.Seconds(a.RunSeconds*a.Extra/100), report.Seconds(a.RunSeconds))},
		{"recomputed", report.Count(uint64(a.Recomputed)), "instructions were added, those that went taken off"},
		{"lower bound", size.Format(a.LowerBound), "no plan goes below, in any order"},
	}
	if a.HostValues > 0 {
		rows = append(rows, factRow{"on the host", size.Format(a.HostBytes), fmt.Sprintf("copied to it and back beside what runs meanwhile: %s, %s", report.Counted(uint64(a.HostValues), "value"), report.Counted(uint64(a.HostReloads), "reload"))})
	}
	switch {
	case a.OutOfReach:
		rows = append(rows, factRow{"proven", "out of reach", "while each instruction also runs at its place"})
	case a.LowerPercent > 0:
		rows = append(rows, factRow{"proven", fmt.Sprintf("%.1f %%", a.LowerPercent), "more compute at least while each instruction also runs at its place; moving some may do better"})
	}
	rows = append(rows, factRow{"algorithm", a.Algorithm, "the plan is by: " + a.By + "; it took " + report.Seconds(a.Seconds)})
	for _, k := range a.Marked {
		rows = append(rows, factRow{"marked", k.Pattern, fmt.Sprintf("in %s: %s, %d kept; %d added for %s", k.Computation, report.Counted(uint64(k.Region), "instruction"), k.Saved, k.Recomputed, report.Counted(uint64(k.Late), "late user"))})
	}
	return rows
}

// A frontierRow is one plan of the frontier.
type frontierRow struct{ Limit, Reached, Part, Extra, Least, Added, By string }

func frontierRows(curve []*remat.Answer) (rows []frontierRow) {
	for _, p := range curve {
		row := frontierRow{size.Format(p.Limit), size.Format(p.After), percent(p.After, p.Before), fmt.Sprintf("%.1f %%", p.Extra), p.Least(), report.Count(uint64(p.Recomputed)), p.By}
		if p.OutOfReach {
			row.Least = "out of reach"
		}
		if !p.Met {
			row.Limit += ", missed"
		}
		rows = append(rows, row)
	}
	return rows
}

func write(w io.Writer, a *remat.Answer, before, after *side, layers []*layerRow) error {
	page := struct {
		Name, Headline string
		Facts          []factRow
		Warnings       []string
		Memory         *memoryDrawing
		Frontier       *frontierDrawing
		Rows           []frontierRow
		Step           int
		Layers         []*layerRow
		Sides          []*side
	}{
		Name: a.Given.Name, Headline: headline(a), Facts: facts(a), Warnings: a.Warnings,
		Memory: drawMemory(a, before, after), Frontier: drawFrontier(a), Rows: frontierRows(a.Frontier), Step: a.Request.Frontier,
		Layers: slices.Clone(layers[:min(len(layers), mostLayers)]), Sides: []*side{before, after},
	}
	rest := layerRow{}
	for k, l := range layers {
		if k >= mostLayers {
			rest.n, rest.bytes, rest.seconds = rest.n+l.n, rest.bytes+l.bytes, rest.seconds+l.seconds
		}
		l.figures(a.RunSeconds, layers[0].seconds)
	}
	if k := len(layers) - mostLayers; k > 0 {
		rest.figures(a.RunSeconds, 0)
		rest.Name = fmt.Sprintf("%s more", report.Counted(uint64(k), "part"))
		page.Layers = append(page.Layers, &rest)
	}
	return pageTemplate.Execute(w, page)
}

// percent returns a part of the whole in percent, "-" if the whole is 0.
func percent(part, whole uint64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", 100*float64(part)/float64(whole))
}
