package main

// The page that remat --report writes: what a plan reaches and costs, as one
// file of HTML that needs nothing else. Here is what it says; the drawings are in
// rematdraw.go, the page itself in rematreport.html.

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
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

//go:embed rematreport.html
var rematHTML string

var rematTemplate = template.Must(template.New("remat").Parse(rematHTML))

const (
	// reportLayers and reportAlive are how many rows the page's tables have.
	reportLayers = 30
	reportAlive  = 12
	// largeModule is how many instructions a module may have before the page's
	// frontier has steps twice as large: a plan for 41,881 takes 6 to 30 seconds
	// on two cores.
	largeModule = 20_000
)

// A rematReport is what the page says of the module as it was given. It is taken
// before the module changes.
type rematReport struct {
	given   *hlo.Module // --mark changes it
	lean    *hlo.Module // without what nothing uses; --mark does not change it
	names   map[string]bool
	before  rematSide
	seconds float64 // of one run
}

// A rematSide is the program before or after.
type rematSide struct {
	Which string
	Peak  string // bytes, for people
	At    string
	Rows  []aliveRow
	Rest  string // what the rows leave out; empty: nothing

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

// A layerRow is what is computed again of one part of the program.
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

func (f *rematFlags) rates() cost.Rates { return cost.Rates{Bytes: f.bandwidth, Flops: f.flops} }

// checkReport checks the flag before anything takes time.
func (f *rematFlags) checkReport(module string) error {
	switch {
	case f.report == "":
	case f.frontier:
		return errors.New("--report: the page has the frontier, and a plan for one limit besides; leave --frontier out")
	case sameFile(module, f.report):
		return fmt.Errorf("--report %s: this is the module itself; name another file", f.report)
	case f.out != "" && (f.out == f.report || sameFile(f.out, f.report)):
		return fmt.Errorf("--report %s: --out has the same file; name another", f.report)
	}
	return nil
}

// newReport measures the module before the plan changes it.
func (f *rematFlags) newReport(m *hlo.Module) (*rematReport, error) {
	lean, err := withoutDead(m)
	if err != nil {
		return nil, err
	}
	r := &rematReport{given: m, lean: lean, names: namesOf(m)}
	if r.seconds, err = remat.Seconds(m, f.rates()); err != nil {
		return nil, err
	}
	r.before, err = r.side(f, "before", m)
	return r, err
}

// added says whether the plan made an instruction.
func (r *rematReport) added(i *hlo.Instruction) bool { return !r.names[i.Name] }

// side measures a program.
func (r *rematReport) side(f *rematFlags, which string, m *hlo.Module) (s rematSide, err error) {
	s = rematSide{Which: which}
	if s.curve, err = memory.TempCurve(m, f.memory()); err != nil {
		return s, err
	}
	s.peak = slices.Max(s.curve)
	s.place = slices.Index(s.curve, s.peak)
	s.Peak, s.At = size.Format(s.peak), m.Entry.Instructions[s.place].Name
	alive, err := memory.TempAlive(m, f.memory())
	if err != nil {
		return s, err
	}
	sources := m.Sources()
	for _, x := range alive[:min(len(alive), reportAlive)] {
		name := x.Instruction.Name
		if x.Copies > 1 {
			name += fmt.Sprintf(", %d times", x.Copies)
		}
		s.Rows = append(s.Rows, aliveRow{
			Bytes: size.Format(x.Bytes * x.Copies), Part: partOf(x.Bytes*x.Copies, s.peak),
			Name: name, Shape: x.Shape.String(), From: x.Instruction.OpName(), Source: sources.Place(x.Instruction),
			Again: r.added(x.Instruction),
		})
	}
	var rest uint64
	for _, x := range alive[len(s.Rows):] {
		rest += x.Bytes * x.Copies
	}
	if n := len(alive) - len(s.Rows); n > 0 {
		s.Rest = fmt.Sprintf("and %s more, %s", counted(uint64(n), "value"), size.Format(rest))
	}
	return s, nil
}

// writeReport writes the page for a plan: its answer and its module.
func (f *rematFlags) writeReport(ctx context.Context, r *rematReport, a *rematAnswer, m *hlo.Module) error {
	after, err := r.side(f, "after", m)
	if err != nil {
		return err
	}
	base := *a
	base.Recomputed = 0
	for _, k := range a.Marked {
		base.Recomputed += k.Recomputed
	}
	step := frontierStep
	if a.Instructions > largeModule {
		step *= 2
	}
	curve, err := f.curve(ctx, &base, r.given, f.rates(), r.seconds, step)
	if err != nil {
		return err
	}
	layers, err := r.layers(m, f.rates())
	if err != nil {
		return err
	}
	return writeWhole(ctx, f.report, func(w io.Writer) error { return writePage(w, r, a, after, curve, step, layers) })
}

// layers are what the plan computes again, the most time first. What went because
// the plan computes it elsewhere is taken off, so that the seconds add up to
// what the plan costs.
func (r *rematReport) layers(m *hlo.Module, rates cost.Rates) ([]*layerRow, error) {
	lean, err := withoutDead(m)
	if err != nil {
		return nil, err
	}
	rows := map[string]*layerRow{}
	if err := count(rows, lean, r.lean, rates, 1); err != nil {
		return nil, err
	}
	if err := count(rows, r.lean, lean, rates, -1); err != nil {
		return nil, err
	}
	var list []*layerRow
	for _, row := range rows {
		if row.n != 0 || math.Abs(row.seconds) > 1e-9*r.seconds {
			list = append(list, row)
		}
	}
	slices.SortFunc(list, func(x, y *layerRow) int {
		return cmp.Or(cmp.Compare(y.seconds, x.seconds), cmp.Compare(y.bytes, x.bytes), cmp.Compare(x.Name, y.Name))
	})
	return list, nil
}

// hostCopy says whether an instruction is of a copy that a plan adds: to the host or back.
func hostCopy(i *hlo.Instruction) bool {
	return i.Opcode == hlo.CopyStart || i.Opcode == hlo.CopyDone
}

// withoutDead is a copy without what nothing uses. Its computations have callees first.
func withoutDead(m *hlo.Module) (*hlo.Module, error) {
	lean, err := hlo.ParseString(m.String())
	if err == nil {
		_, err = remat.RemoveDead(lean)
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
			// What a new call runs is in its own price. Copies to the host and back compute nothing.
			if hostCopy(i) || memory.HandsOn(i) || i.Opcode == hlo.Parameter {
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
	for _, c := range m.Computations {
		for _, i := range c.Instructions {
			names[i.Name] = true
		}
	}
	return names
}

// layerOf names the part of the program that an instruction comes from: its
// op_name without the operation itself, without what JAX's transformations put
// around it, and not beyond the first name with a number or the third.
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

// Words are the name, cut where a line may end.
func (l *layerRow) Words() []string { return strings.SplitAfter(l.Name, "/") }

// figures are the row's figures for people. run is what one run takes, longest the
// bar's full length, 0 for no bar.
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
		l.Bar = percent(l.seconds / longest)
	}
}

// headline says in one sentence what the plan reaches and costs.
func headline(a *rematAnswer) string {
	const together = "\u00a0" // number and unit stay on one line
	bytes := func(n uint64) string { return strings.ReplaceAll(size.Format(n), " ", together) }
	now, then, limit := bytes(a.Before), bytes(a.After), bytes(a.Limit)
	cost := fmt.Sprintf("%.1f%s%% more compute", a.Extra, together)
	switch {
	case a.Before <= a.Limit && a.Recomputed == 0:
		return fmt.Sprintf("%s fits its limit of %s as it is, with %s of temporaries: nothing is recomputed", a.name, limit, now)
	case a.Recomputed == 0 && a.Algorithm == "off":
		return fmt.Sprintf("%s takes %s of temporaries, more than its limit of %s, and nothing is recomputed", a.name, now, limit)
	case a.After >= a.Before && !a.Met:
		return fmt.Sprintf("%s takes %s of temporaries, more than its limit of %s, and recomputing does not help", a.name, now, limit)
	case a.Met:
		return fmt.Sprintf("%s goes from %s of temporaries to %s, within its limit of %s, at %s", a.name, now, then, limit, cost)
	}
	return fmt.Sprintf("%s goes from %s of temporaries to %s, which misses its limit of %s, at %s", a.name, now, then, limit, cost)
}

// A factRow is one figure of the plan, and what it means.
type factRow struct{ What, Value, More string }

func facts(a *rematAnswer, before float64) []factRow {
	rows := []factRow{
		{"limit", size.Format(a.Limit), a.from},
		{"temporaries before", size.Format(a.Before), "at their peak, in " + counted(uint64(a.Instructions), "instruction")},
		{"temporaries after", size.Format(a.After), partOf(a.After, a.Before) + " of that"},
		{"more compute", fmt.Sprintf("%.1f %%", a.Extra), fmt.Sprintf("%s for each run, which takes %s", report.Seconds(before*a.Extra/100), report.Seconds(before))},
		{"recomputed", report.Count(uint64(a.Recomputed)), "instructions were added, those that went taken off"},
		{"lower bound", size.Format(a.LowerBound), "no plan goes below, in any order"},
	}
	if a.HostValues > 0 {
		rows = append(rows, factRow{"on the host", size.Format(a.HostBytes), fmt.Sprintf("copied to it and back beside what runs meanwhile: %s, %s", counted(uint64(a.HostValues), "value"), counted(uint64(a.HostReloads), "reload"))})
	}
	switch {
	case a.OutOfReach:
		rows = append(rows, factRow{"proven", "out of reach", "while each instruction also runs at its place"})
	case a.LowerPercent > 0:
		rows = append(rows, factRow{"proven", fmt.Sprintf("%.1f %%", a.LowerPercent), "more compute at least while each instruction also runs at its place; moving some may do better"})
	}
	rows = append(rows, factRow{"algorithm", a.Algorithm, "the plan is by: " + a.by + "; it took " + report.Seconds(a.Seconds)})
	for _, k := range a.Marked {
		rows = append(rows, factRow{"marked", k.Pattern, fmt.Sprintf("in %s: %s, %d kept; %d added for %s", k.Computation, counted(uint64(k.Region), "instruction"), k.Saved, k.Recomputed, counted(uint64(k.Late), "late user"))})
	}
	return rows
}

// A frontierRow is one plan of the frontier.
type frontierRow struct{ Limit, Reached, Part, Extra, Least, Added, By string }

func frontierRows(curve []*rematAnswer) (rows []frontierRow) {
	for _, p := range curve {
		row := frontierRow{size.Format(p.Limit), size.Format(p.After), partOf(p.After, p.Before), fmt.Sprintf("%.1f %%", p.Extra), least(p), report.Count(uint64(p.Recomputed)), p.by}
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

func writePage(w io.Writer, r *rematReport, a *rematAnswer, after rematSide, curve []*rematAnswer, step int, layers []*layerRow) error {
	page := struct {
		Name, Headline string
		Facts          []factRow
		Warnings       []string
		Memory         *memoryDrawing
		Frontier       *frontierDrawing
		Rows           []frontierRow
		Step           int
		Layers         []*layerRow
		Sides          []rematSide
	}{
		Name: a.name, Headline: headline(a), Facts: facts(a, r.seconds), Warnings: a.warnings,
		Memory: drawMemory(a, &r.before, &after), Frontier: drawFrontier(a, curve), Rows: frontierRows(curve), Step: step,
		Layers: slices.Clone(layers[:min(len(layers), reportLayers)]), Sides: []rematSide{r.before, after},
	}
	rest := layerRow{}
	for k, l := range layers {
		if k >= reportLayers {
			rest.n, rest.bytes, rest.seconds = rest.n+l.n, rest.bytes+l.bytes, rest.seconds+l.seconds
		}
		l.figures(r.seconds, layers[0].seconds)
	}
	if k := len(layers) - reportLayers; k > 0 {
		rest.figures(r.seconds, 0)
		rest.Name = fmt.Sprintf("%s more", counted(uint64(k), "part"))
		page.Layers = append(page.Layers, &rest)
	}
	return rematTemplate.Execute(w, page)
}
