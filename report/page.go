package report

// The page of a replay: its data, and how it is written. It is one file of HTML that
// loads nothing else. The drawings are made in the reader's browser, by page/*.js with
// uPlot; without scripts there are the summary, the tables and the drawing of
// timeline.go.

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"regexp"
	"strconv"
	"strings"

	"gpumem/size"
)

// uPlot 1.6.32 by Leon Sorokin, MIT, from npm (uplot@1.6.32, dist/), unchanged.
// A test has their checksums.
var (
	//go:embed uplot/uPlot.iife.min.js
	uplotJS string
	//go:embed uplot/uPlot.min.css
	uplotCSS string
	//go:embed uplot/LICENSE
	uplotLicence string
)

var (
	//go:embed page/page.html
	pageHTML string
	//go:embed page/page.css
	pageCSS string
	//go:embed page/data.js
	dataJS string
	//go:embed page/plots.js
	plotsJS string
	//go:embed page/maps.js
	mapsJS string
	//go:embed page/look.js
	lookJS string
	//go:embed page/hands.js
	handsJS string
)

// pageJS is the page's script; page/data.js has an overview.
var pageJS = "\"use strict\";\n(function () {\n" + dataJS + plotsJS + mapsJS + lookJS + handsJS + "})();\n"

// A Page is what the page of a replay shows. Sizes are bytes, events are counted
// from 1, and a value at an event is the one after it. Texts are escaped.
type Page struct {
	Title    string
	Headline string
	Summary  []string // sentences
	Notes    []string // remarks of the reader of the recording
	Columns  []string // of the table of policies, as for NewTable
	Device   uint64   // its total
	Pools    []*Timeline
	// Names are texts that the rest refers to by index: stacks and frames.
	Names []string
}

// A Timeline is one pool of the recording.
type Timeline struct {
	Pool   string `json:"pool"`
	Events uint64 `json:"events"`
	// Ends are the last events of the buckets of events, up to Events. Curves have a
	// value or two for each bucket.
	Ends   Numbers `json:"ends"`
	Times  Numbers `json:"times,omitempty"` // of the last event of each, in ns since the first; nil: not recorded
	Asked  Curve   `json:"asked"`           // requested bytes live at once, refused ones included
	Peak   uint64  `json:"peak"`            // the most of it
	PeakAt uint64  `json:"peak_at"`         // first event with that
	// Blocks are all blocks, in the order of the events, so that the live ones are
	// known at every event. It is nil if they are too many: then the snapshots of the
	// layers list what is live.
	Blocks *Blocks `json:"blocks,omitempty"`
	// Layers are the policies.
	Layers []*Layer `json:"layers"`
}

// Blocks are lists of the same length.
type Blocks struct {
	From   Numbers  `json:"from"`            // the event that allocates it
	For    []uint64 `json:"for"`             // the number of events until it is freed; 0: never
	Bytes  []uint64 `json:"bytes"`           // requested
	Stacks []int    `json:"stack,omitempty"` // in Page.Names; nil: none were recorded
}

// A Curve is a value that changes with events, as the least and the most of each
// bucket.
type Curve struct {
	Min Numbers `json:"min"`
	Max Numbers `json:"max"`
}

// A Layer is one policy on one pool.
type Layer struct {
	Policy string   `json:"policy"`
	Cells  []string `json:"-"` // of the table of policies
	Used   Curve    `json:"used"`
	Held   Curve    `json:"held"`
	// At the end of each bucket: the free part of the memory held, and the largest
	// free block, 0 if unknown.
	Free    Numbers `json:"free"`
	Hole    Numbers `json:"hole"`
	Calls   Numbers `json:"calls"`   // of the driver, up to the end of each bucket
	Refused Numbers `json:"refused"` // allocations refused, up to the end of each bucket
	// Near are single events around the first refusal, if buckets have several.
	Near *Near `json:"near,omitempty"`
	// Snapshots are visits of the whole pool, in the order of the events.
	Snapshots []*Snapshot `json:"instants"`
	// First is the first refusal, nil if there is none.
	First *Refusal `json:"first"`
	Why   []string `json:"-"` // the cause of First, a line each
	Notes []string `json:"-"`
	// Refusals are the first refusals, and RefusedAt the events of all of them if
	// the timeline has Blocks.
	Refusals  []Refusal `json:"-"`
	RefusedAt Numbers   `json:"refused_at,omitempty"`
}

// Near are the values after events From, From+1 and so on.
type Near struct {
	From    uint64  `json:"from"`
	Used    Numbers `json:"used"`
	Held    Numbers `json:"held"`
	Refused Numbers `json:"refused"`
}

// A Refusal is a request that was refused.
type Refusal struct {
	Event uint64 `json:"event"`
	Bytes uint64 `json:"bytes"`
	Stack int    `json:"stack"` // in Page.Names; -1: not recorded
}

// A Snapshot is the pool after one event.
type Snapshot struct {
	Event  uint64 `json:"event"`
	Used   uint64 `json:"used"`  // in whole blocks
	Asked  uint64 `json:"asked"` // requested, of the same blocks
	Blocks int    `json:"blocks"`
	Held   uint64 `json:"held"`
	Hole   uint64 `json:"hole"`  // the largest free block, as the allocator counts it
	Holes  int    `json:"holes"` // free blocks whose place is known, adjacent ones as one
	// Map is the pool from its lowest address to its highest, without what is not
	// held, in cells of the same width: 0 is free, 8 is used, and the digits between
	// are eighths. ? is held memory whose contents are unknown.
	Map string `json:"map"`
	// Largest are the largest free blocks: the distance from the beginning of Map, and
	// the size.
	Largest [][2]uint64 `json:"largest"`
	// Top are the largest live blocks: the distance from the beginning of Map, the
	// size, and 1 more than the index of the stack in Page.Names, 0 if there is none.
	Top [][3]uint64 `json:"top"`
	// Live memory, the most bytes first: by requested size, by stack and by innermost
	// frame. What a list leaves out is the rest up to Asked. The lists are nil if the
	// timeline has Blocks. If there are very many sizes, Ranges is set, and a key of
	// Sizes stands for all sizes from it to less than twice as much.
	Sizes  []Group `json:"sizes,omitempty"`
	Ranges bool    `json:"ranges,omitempty"`
	Stacks []Group `json:"stacks,omitempty"`
	Frames []Group `json:"frames,omitempty"`
}

// A Group is the blocks of one size, stack or frame.
type Group struct {
	Key    uint64 // the size, or an index of Page.Names
	Bytes  uint64 // requested
	Blocks int
}

// MarshalJSON writes a group as a list of three.
func (g Group) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "[%d,%d,%d]", g.Key, g.Bytes, g.Blocks), nil
}

// Numbers are written to JSON as differences, the first from 0, because curves rarely
// change.
type Numbers []uint64

// MarshalJSON writes the differences.
func (n Numbers) MarshalJSON() ([]byte, error) {
	b := []byte{'['}
	last := uint64(0)
	for i, v := range n {
		if i > 0 {
			b = append(b, ',')
		}
		if v < last {
			b = append(b, '-')
			b = strconv.AppendUint(b, last-v, 10)
		} else {
			b = strconv.AppendUint(b, v-last, 10)
		}
		last = v
	}
	return append(b, ']'), nil
}

// numberUnit matches a number and its unit, which stay on one line.
var numberUnit = regexp.MustCompile(`(\d) ((?:[KMGTPE]i)?B)\b`)

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"bytes": size.Format, "count": Count,
	"inc":   func(n int) int { return n + 1 },
	"title": func(s string) string { return strings.TrimPrefix(s, ">") },
	"right": func(s string) bool { return strings.HasPrefix(s, ">") },
	"rows":  textRows,
	"glue":  func(s string) string { return numberUnit.ReplaceAllString(s, "$1\u00a0$2") },
	"draw":  func(t *Timeline) template.HTML { return template.HTML(drawTimeline(t)) },
}).Parse(pageHTML))

// WritePage writes the page. The errors are the writer's.
func WritePage(w io.Writer, p *Page) error {
	data, err := json.Marshal(struct {
		Device uint64      `json:"device"`
		Pools  []*Timeline `json:"pools"`
		Names  []string    `json:"names"`
	}{p.Device, p.Pools, p.Names})
	if err != nil {
		return err
	}
	uplot := "/*\n" + uplotLicence + "*/\n" + uplotJS
	return pageTemplate.Execute(w, struct {
		*Page
		Policy        string
		CSS           template.CSS
		UPlot, Script template.JS
		Data          template.JS // json.Marshal writes <, > and & as \u003c and so on
	}{
		Page: p,
		// Only the page's own two scripts may run, whatever stands in the data.
		Policy: fmt.Sprintf("default-src 'none'; style-src 'unsafe-inline'; script-src '%s' '%s'", sourceHash(uplot), sourceHash(pageJS)),
		CSS:    template.CSS(uplotCSS + pageCSS), UPlot: template.JS(uplot), Script: template.JS(pageJS),
		Data: template.JS(data),
	})
}

// sourceHash names a script in a content security policy.
func sourceHash(script string) string {
	sum := sha256.Sum256([]byte(script))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// A textRow is a row of the timeline as text.
type textRow struct {
	Event string
	Asked string
	Held  []string // by each policy
}

// textRows returns about twenty rows of a timeline, and the one with the peak.
func textRows(t *Timeline) (rows []textRow) {
	const about = 20
	step := max(1, len(t.Ends)/about)
	for k, end := range t.Ends {
		first := uint64(1)
		if k > 0 {
			first = t.Ends[k-1] + 1
		}
		peak := first <= t.PeakAt && t.PeakAt <= end
		if !peak && k%step != 0 && k != len(t.Ends)-1 {
			continue
		}
		row := textRow{Event: Count(end), Asked: size.Format(t.Asked.Max[k])}
		if peak {
			row.Event = Count(t.PeakAt) + ", the peak"
		}
		for _, l := range t.Layers {
			row.Held = append(row.Held, size.Format(l.Held.Max[k]))
		}
		rows = append(rows, row)
	}
	return rows
}
