package report

// The page of a replay: its data, and how it is written. internal/report/web has what all pages
// share; page/replay.js draws this one in the reader's browser, and without scripts there
// are the summary, the tables and the drawing of timeline.go.

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"regexp"
	"strings"

	"gpumem/internal/report/web"
	"gpumem/size"
)

var (
	//go:embed page/page.html
	pageHTML string
	//go:embed page/page.css
	pageCSS string
	//go:embed page/replay.js
	replayJS string
	//go:embed page/places.js
	placesJS string
)

// A Page is what the page of a replay shows. Sizes are bytes. Recorded events are counted
// from 1; event 0 is what was live before the first. A value at an event is the one after
// it. Texts may be anything.
type Page struct {
	Title    string
	Headline string
	Summary  []string // sentences: what happened
	Answers  []Answer // what else people ask first, below Summary
	Notes    []string // remarks of the reader of the recording
	Sections []*Section
	Columns  []string // of the table of policies, as for NewTable
	Device   uint64   // its total
	Pools    []*Timeline
	// Names are texts that the rest refers to by index: stacks, groups and sizes.
	Names []string
}

// An Answer is a question in a word or two, and one or two sentences.
type Answer struct{ Question, Text string }

// A Section is the answer of another command to the same recording, in its words: what to
// set (gpumem advise), what grew (gpumem leaks).
type Section struct {
	ID, Title string
	Sentences []string
	Lines     []string // for a shell or a program, to be copied; or a stack
	More      []string // sentences after those
	Columns   []string // of a table, as for NewTable; nil: none
	Rows      [][]string
	Small     []string // sentences: what is assumed
}

// A Timeline is one pool of the recording.
type Timeline struct {
	Pool      string `json:"pool"`
	Events    uint64 `json:"events"`  // recorded
	Seeds     uint64 `json:"-"`       // blocks that are older than the recording
	SeedBytes uint64 `json:"-"`       // their requested bytes
	Peak      uint64 `json:"peak"`    // the most requested bytes live at once, refused ones included
	PeakAt    uint64 `json:"peak_at"` // the first event with that
	Lived     uint64 `json:"lived"`   // the most without those that the recorded program was refused

	// What lives, in buckets of events. Starts are their first events. All other values
	// of a bucket are those after one event of it, the first with the most live bytes:
	// Moments, at Times (in ns since the first; nil: not recorded).
	Starts  web.Numbers `json:"starts"`
	Moments web.Numbers `json:"moments"`
	Times   web.Numbers `json:"times,omitempty"`
	Live    web.Numbers `json:"live"`   // requested bytes
	Blocks  web.Numbers `json:"blocks"` // live
	// Groupings divide Live and Blocks into bands in several ways.
	Groupings []*Grouping `json:"groupings"`
	// Lists have what lives in full at some events: at the most of each stretch of the
	// run, the peak, each policy's first refusal and the end, in order.
	Lists []*List `json:"lists"`
	// Allocations are all blocks in the order of the events; nil if they are too many.
	Allocations *Allocations `json:"allocations,omitempty"`

	// Ends are the last events of the buckets of the policies' curves, up to Events, and
	// Asked is the most live requested bytes in each, for the static drawing.
	Ends  web.Numbers `json:"ends"`
	Asked web.Numbers `json:"-"`
	// Recorded is what the recorded program's pool held, the most of each of these
	// buckets; nil if the recording does not have it.
	Recorded web.Numbers `json:"recorded,omitempty"`
	// Segments are the memory of the recorded program's pool at the end; nil if the
	// recording does not have them.
	Segments []*Segment `json:"segments,omitempty"`
	// Refused are the requests that the recorded program was refused, the first ones.
	Refused []Refusal `json:"refused,omitempty"`
	// Kind says what memory this is if it is no GPU's; "" otherwise.
	Kind string `json:"-"`
	// Layers are the policies, and Look is the index of the one that is looked at first.
	Layers []*Layer `json:"layers"`
	Look   int      `json:"look"`
}

// A Grouping divides what lives into bands, the first at the bottom. At each bucket they
// add up to Timeline.Live and Timeline.Blocks.
type Grouping struct {
	By    string  `json:"by"` // "purpose", "stack", "caller" or "size"
	Bands []*Band `json:"bands"`
}

// A Band is the blocks of one group.
type Band struct {
	Name   int         `json:"name"`   // in Page.Names: its short name
	Detail int         `json:"detail"` // in Page.Names: its stack; -1: none
	Kind   string      `json:"kind,omitempty"`
	Color  int         `json:"color,omitempty"` // of the page's eight, from 1; 0: the next that is free
	Bytes  web.Numbers `json:"bytes"`
	Blocks web.Numbers `json:"blocks"`
	Since  web.Numbers `json:"since"` // event that allocated the oldest; 0 also if there is none
}

// Kinds of bands that are not one group of many.
const (
	Before = "before" // blocks that are older than the recording
	Rest   = "rest"   // all groups without a band
)

// A List is what lives after one event.
type List struct {
	Event  uint64 `json:"event"`
	Bytes  uint64 `json:"bytes"`
	Blocks uint64 `json:"blocks"`
	// Groups are those of Timeline.Groupings, the most bytes first. What they leave out is
	// the last one, with a Name of -1.
	Groups [][]Group `json:"groups"`
}

// A Group is live blocks that have something in common.
type Group struct {
	Name   int // in Page.Names; -1: all others
	Label  int // in Page.Names: a line that tells it from the others
	Bytes  uint64
	Blocks uint64
	Since  uint64 // event that allocated the oldest
	Kinds  uint64 // of the last one: how many groups it stands for
}

// MarshalJSON writes a group as a list of six.
func (g Group) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "[%d,%d,%d,%d,%d,%d]", g.Name, g.Bytes, g.Blocks, g.Since, g.Kinds, g.Label), nil
}

// Allocations are lists of the same length.
type Allocations struct {
	From  web.Numbers `json:"from"`  // the event that allocates the block; 0: before the recording
	For   []uint64    `json:"for"`   // the number of events until it is freed; 0: never
	Bytes []uint64    `json:"bytes"` // requested
	Names []int       `json:"names"` // of the stack, in Page.Names; -1: not recorded
}

// A Segment is memory that the recorded program's pool held from its device.
type Segment struct {
	Addr   string      `json:"addr"` // hexadecimal: JavaScript's numbers end at 2^53
	Bytes  uint64      `json:"bytes"`
	Free   uint64      `json:"free"`
	Small  bool        `json:"small,omitempty"`
	Stream uint32      `json:"stream,omitempty"`
	Blocks [][3]uint64 `json:"blocks"` // distance from the beginning, size, 1 more than the stack in Page.Names
}

// A Layer is one policy on one pool.
type Layer struct {
	Policy string      `json:"policy"`
	Cells  []string    `json:"-"`    // of the table of policies
	Used   web.Numbers `json:"used"` // the most of each bucket, in whole blocks
	Held   web.Numbers `json:"held"` // the most
	// At the end of each bucket: the free part of the memory held, and the largest
	// free block, 0 if unknown.
	Free  web.Numbers `json:"free"`
	Hole  web.Numbers `json:"hole"`
	Frag  []float64   `json:"frag"`  // percent of Free outside of Hole
	Calls web.Numbers `json:"calls"` // of the driver, up to the end of each bucket
	// Refused are the events of the first refusals, and First the first of them.
	Refused web.Numbers `json:"-"`
	First   *Refusal    `json:"first"`
	// Snapshots are visits of the whole pool, in the order of the events.
	Snapshots []*Snapshot `json:"snapshots"`
	Why       []string    `json:"-"` // the cause of First, a line each
	Notes     []string    `json:"-"`
	Refusals  []Refusal   `json:"-"` // the first ones
	Times     uint64      `json:"-"` // how many requests were refused
}

// A Refusal is a request that was refused.
type Refusal struct {
	Event uint64 `json:"event"`
	Bytes uint64 `json:"bytes"`
	Stack int    `json:"-"`    // in Page.Names; -1: not recorded
	Live  uint64 `json:"live"` // requested bytes that were live then, without it; of the recorded run alone
}

// A Snapshot is the pool after one event.
type Snapshot struct {
	Event  uint64 `json:"event"`
	Used   uint64 `json:"used"` // in whole blocks
	Asked  uint64 `json:"-"`    // requested, of the same blocks
	Blocks int    `json:"blocks"`
	Held   uint64 `json:"held"`
	Free   uint64 `json:"free"`
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
}

// numberUnit matches a number and its unit, which stay on one line.
var numberUnit = regexp.MustCompile(`(\d) ((?:[KMGTPE]i)?B)\b`)

// partOfSpec matches a part of a policy's name up to its end.
var partOfSpec = regexp.MustCompile(`[^:,=]*[:,=]?`)

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"bytes": size.Format, "count": Count, "counted": func(n uint64, what string) string { return Counted(n, what) },
	"title": func(s string) string { return strings.TrimPrefix(s, ">") },
	"right": func(s string) bool { return strings.HasPrefix(s, ">") },
	"size":  func(n int) uint64 { return uint64(n) },
	"rows":  textRows,
	"event": EventName,
	// A policy is broken where its parts end.
	"parts": func(s string) []string { return partOfSpec.FindAllString(s, -1) },
	"glue":  func(s string) string { return numberUnit.ReplaceAllString(s, "$1\u00a0$2") },
	"sum":   func(list []Refusal) uint64 { return uint64(len(list)) },
	"draw":  func(t *Timeline) template.HTML { return template.HTML(drawTimeline(t)) },
}).Parse(pageHTML))

// EventName returns "event 1,234", or what event 0 is.
func EventName(n uint64) string {
	if n == 0 {
		return "a block from before the recording"
	}
	return "event " + Count(n)
}

// WritePage writes the page. The errors are the writer's.
func WritePage(w io.Writer, p *Page) error {
	var body strings.Builder
	if err := pageTemplate.Execute(&body, p); err != nil {
		return err
	}
	page := web.Page{
		Title: p.Headline, Body: template.HTML(body.String()), Style: pageCSS, Script: placesJS + replayJS,
		Data: struct {
			Device uint64      `json:"device"`
			Pools  []*Timeline `json:"pools"`
			Names  []string    `json:"names"`
		}{p.Device, p.Pools, p.Names},
	}
	return page.Write(w)
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
		first := uint64(0)
		if k > 0 {
			first = t.Ends[k-1] + 1
		}
		peak := first <= t.PeakAt && t.PeakAt <= end
		if !peak && k%step != 0 && k != len(t.Ends)-1 {
			continue
		}
		row := textRow{Event: Count(end), Asked: size.Format(t.Asked[k])}
		if peak {
			row.Event = Count(t.PeakAt) + ", the peak"
		}
		for _, l := range t.Layers {
			row.Held = append(row.Held, size.Format(l.Held[k]))
		}
		rows = append(rows, row)
	}
	return rows
}
