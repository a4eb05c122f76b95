package compare

// The page of a comparison: one file of HTML with the kit of package web.

import (
	_ "embed"
	"html/template"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"gpumem/internal/report"
	"gpumem/internal/report/web"
	"gpumem/record/replay"
	"gpumem/size"
)

var (
	//go:embed page/page.html
	pageHTML string
	//go:embed page/page.css
	pageCSS string
	//go:embed page/page.js
	pageJS string
)

const (
	// pageRows is the most rows of a table of the page, and stillRows those that are read
	// without scripts.
	pageRows, stillRows = 500, 20
	// pageTexts bounds the texts of stacks.
	pageTexts = 4 << 20
)

// pageData is what the page's script has. A figure that the page shows is in it as it is
// shown: the script formats numbers and places things.
type pageData struct {
	Pools []*pagePool `json:"pools"`
	Shown int         `json:"shown"` // the pool whose curves are shown first
	// Texts are stacks and names, which rows refer to by index.
	Texts []string `json:"texts"`
	texts report.Texts
}

type pagePool struct {
	Name   string      `json:"name"`
	Top    uint64      `json:"top"` // the higher peak
	Before *pageSide   `json:"before"`
	After  *pageSide   `json:"after"`
	Events pageEvents  `json:"events"`
	Tables []pageTable `json:"tables"` // at the peak, at the end, allocations
}

// A pageSide is a recording's curve over the parts of its run.
type pageSide struct {
	Events uint64      `json:"events"`
	Peak   uint64      `json:"peak"`
	PeakAt uint64      `json:"peak_event"`
	PeakIn int         `json:"peak_stretch"`
	Most   web.Numbers `json:"most"`
	Least  web.Numbers `json:"least"`
	Times  web.Numbers `json:"times,omitempty"`
	Ends   web.Numbers `json:"ends"` // the last event of each stretch, or the one before it
}

// pageEvents are both curves over the number of events.
type pageEvents struct {
	At     web.Numbers `json:"at"`     // the first event of each stretch
	Before []*uint64   `json:"before"` // nil where the run is over
	After  []*uint64   `json:"after"`
}

// A pageTable is a table as the page has it: rows in the order of their difference, and
// what they add up to.
type pageTable struct {
	Rows []pageRow `json:"rows"`
	Sum  pageRow   `json:"sum"`
	// Most is the largest difference without its sign, for the length of the bars.
	Most uint64 `json:"most"`
}

type pageRow struct {
	Where        string `json:"where"`
	How          string `json:"how"` // a word, "" of the rest and of the sum
	Difference   int64  `json:"difference"`
	Before       uint64 `json:"before"`
	After        uint64 `json:"after"`
	BeforeBlocks uint64 `json:"before_blocks"`
	AfterBlocks  uint64 `json:"after_blocks"`
	BeforeStack  int    `json:"before_stack"` // in Texts; -1: none
	AfterStack   int    `json:"after_stack"`
	BeforeStacks int    `json:"before_stacks"`
	AfterStacks  int    `json:"after_stacks"`
}

// text returns the index of a text; -1 of "".
func (d *pageData) text(s string) int {
	if s == "" {
		return -1
	}
	return d.texts.IndexOf(s)
}

// table returns a table of the page.
func (d *pageData) table(t diffTable, of figure) pageTable {
	t = t.cut(pageRows)
	out := pageTable{Rows: []pageRow{}}
	sum := &row{Where: "in all"}
	add := func(r *row) {
		sum.add(r)
		out.Rows = append(out.Rows, d.row(r, of))
		out.Most = max(out.Most, abs(r.Difference))
	}
	for _, r := range t.Rows {
		add(r)
	}
	if t.Rest != nil {
		add(t.Rest)
	}
	out.Sum = d.row(sum, of)
	return out
}

func (d *pageData) row(r *row, of figure) pageRow {
	out := pageRow{
		Where: r.Where, How: words[r.How], Difference: r.Difference,
		BeforeStack: d.text(r.Before.Stack), AfterStack: d.text(r.After.Stack), BeforeStacks: r.Before.Stacks, AfterStacks: r.After.Stacks,
	}
	out.Before, out.BeforeBlocks = of(&r.Before)
	out.After, out.AfterBlocks = of(&r.After)
	return out
}

// pool returns a pool of the page.
func (d *pageData) pool(p *poolReport) *pagePool {
	out := &pagePool{Name: p.Name, Before: newPageSide(p.Before), After: newPageSide(p.After), Events: overEvents(p)}
	for _, s := range []*side{p.Before, p.After} {
		if s != nil {
			out.Top = max(out.Top, s.Peak)
		}
	}
	out.Tables = []pageTable{d.table(p.AtPeak, peakOf), d.table(p.AtEnd, endOf), d.table(p.Allocs, allocsOf)}
	return out
}

func newPageSide(s *side) *pageSide {
	if s == nil {
		return nil
	}
	events := s.recorded()
	out := &pageSide{
		Events: events, Peak: s.Peak, PeakAt: s.number(s.PeakEvent), PeakIn: stretch(s.number(s.PeakEvent), events),
		Most: s.curve.most, Least: s.curve.least, Times: s.curve.times,
	}
	for k := range uint64(curvePoints) {
		out.Ends = append(out.Ends, starts(k+1, events))
	}
	return out
}

// starts returns how many events of that many lie before stretch k.
func starts(k, events uint64) uint64 {
	// The events of stretch k are those n with stretch(n) = k, from the least n on.
	n := k * (events / curvePoints)
	return n + (k*(events%curvePoints)+curvePoints-1)/curvePoints
}

// overEvents returns both curves over events: a value for each stretch of either run.
func overEvents(p *poolReport) (out pageEvents) {
	sides := []*side{p.Before, p.After}
	for _, s := range sides {
		if s == nil {
			continue
		}
		for k := range uint64(curvePoints) {
			if n := starts(k, s.recorded()); n < starts(k+1, s.recorded()) {
				out.At = append(out.At, n+1)
			}
		}
		out.At = append(out.At, s.recorded()+1) // the run is over
	}
	slices.Sort(out.At)
	out.At = slices.Compact(out.At)
	for i, to := range []*[]*uint64{&out.Before, &out.After} {
		for _, n := range out.At {
			if s := sides[i]; s == nil || n > s.recorded() {
				*to = append(*to, nil)
			} else {
				*to = append(*to, &s.curve.most[stretch(n, s.recorded())])
			}
		}
	}
	return out
}

// bodyTemplate is what the page shows without scripts, and the places for them.
var bodyTemplate = template.Must(template.New("compare").Funcs(template.FuncMap{
	"bytes": size.Format, "count": report.Count, "counted": report.Counted, "signed": signedBytes, "base": filepath.Base,
	"still": func(t diffTable) diffTable { return t.differ(stillRows) },
	"word":  func(h matching) string { return words[h] },
	"about": func(h matching) string { return about[h] },
	"held":  func(r *replay.Result) string { return held(r).peak },
	"refused": func(r *replay.Result) string {
		return held(r).refused
	},
	"smallest": func(r *replay.Result) string { return held(r).smallest },
	"sides":    sides,
	"several":  func(rep *Report) bool { return len(rep.Pools) > 1 },
	"heldMore": func(p policyRow) string { return signedBytes(p.difference()) },
	"searched": func(rep *Report) bool {
		return slices.ContainsFunc(rep.Policies, func(p policyRow) bool {
			return p.Before != nil && p.Before.Smallest != nil || p.After != nil && p.After.Smallest != nil
		})
	},
	"rest": func(s []string) string { return strings.Join(s[1:], " ") },
}).Parse(pageHTML))

// WritePage writes the comparison as one page of HTML. The errors are w's.
func (rep *Report) WritePage(w io.Writer) error {
	d := &pageData{Pools: []*pagePool{}, texts: report.Texts{List: []string{}, Most: pageTexts}}
	for k, p := range rep.Pools {
		d.Pools = append(d.Pools, d.pool(p))
		if abs(p.PeakDifference) > abs(rep.Pools[d.Shown].PeakDifference) {
			d.Shown = k
		}
	}
	d.Texts = d.texts.List
	var body strings.Builder
	if err := bodyTemplate.Execute(&body, rep); err != nil {
		return err
	}
	page := web.Page{
		Title: filepath.Base(rep.Before.Source) + " and " + filepath.Base(rep.After.Source),
		Body:  template.HTML(body.String()), Style: pageCSS, Script: pageJS, Data: d,
	}
	return page.Write(w)
}
