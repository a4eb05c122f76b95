package smi

// The reader of lines. A line that cannot belong to any form is refused by its last byte
// and a few searches for words; only the rest is split. Each form has a file of its own:
// table.go, query.go, details.go, monitor.go and amd.go.

import (
	"slices"
	"strings"
	"time"
)

const (
	// maxLine is longer than any line of these tools: a query for all properties has a heading
	// of 8 kB.
	maxLine = 16 << 10
	// maxReadings, maxGPUs and maxProcesses bound the memory of a Reader.
	maxReadings, maxGPUs, maxProcesses = 1 << 10, 64, 256
	// tableGap is how many lines of other programs may stand within a table.
	tableGap = 40
	// maxMargin is the longest prefix that a log puts before a line.
	maxMargin = 100
)

// A form is a kind of output.
type form uint8

const (
	noForm form = iota
	tableForm
	listForm
	detailsForm
	queryForm
	appsForm
	dmonForm
	pmonForm
	rocmForm
)

// Reader reads lines. The zero Reader is ready. It is not safe for concurrent use.
type Reader struct {
	readings []Reading
	current  *Reading
	last     int // the number of its last line
	series   []series

	date     time.Time // a line with nothing but a date, as nvidia-smi prints before its table
	dateLine int

	table   tableState
	details detailsState
	query   queryState
	monitor monitorState
}

// A margin is what a log puts before each line, as wide as before the heading.
type margin struct {
	width int
	last  byte // the byte before the line begins
}

// marginOf is the margin of a heading that begins at a place in a line.
func marginOf(text string, at int) margin {
	if at == 0 {
		return margin{}
	}
	return margin{at, text[at-1]}
}

// cut takes the margin off. ok is false if the line has another one.
func (m margin) cut(text string) (line string, ok bool) {
	if m.width == 0 {
		return text, true
	}
	if len(text) < m.width || text[m.width-1] != m.last {
		return "", false
	}
	return text[m.width:], true
}

// Line takes a line of a text and its number, and reports whether the line belongs to
// what a tool printed, as far as it or a line before it shows that. Lines are given in
// order; a newline at the end does no harm.
func (r *Reader) Line(n int, text string) bool {
	if len(text) > maxLine {
		return false
	}
	text = trimmed(text)
	if strings.HasSuffix(text, "<br>") {
		text = trimmed(text[:len(text)-len("<br>")])
	}
	if text == "" {
		return false
	}
	switch text[len(text)-1] {
	case '|':
		return r.tableLine(n, text)
	case '+':
		if !r.inTable(n) || !strings.Contains(text, "--+") {
			return false
		}
		if r.table.part == processPart && r.table.rule == n-1 && n > 1 {
			r.tellProcesses(n) // the list is empty
		}
		return true
	}
	if r.dateLineOf(n, text) {
		return true
	}
	switch {
	case r.details.open && r.detail(n, text):
		return true
	case r.query.columns != nil && r.queryRow(n, text):
		return true
	case r.monitor.columns != nil && r.monitorRow(n, text):
		return true
	}
	return r.begins(n, text)
}

// trimmed is the text without blanks at its end. It is some times as fast as TrimRight.
func trimmed(text string) string {
	end := len(text)
	for end > 0 && text[end-1] <= ' ' {
		end--
	}
	return text[:end]
}

// begins reports whether the line begins a form, or is one by itself.
func (r *Reader) begins(n int, text string) bool {
	if i := strings.IndexByte(text, '#'); i >= 0 && r.monitorHeader(n, text, i) {
		return true
	}
	if text[len(text)-1] == ')' && strings.Contains(text, " (UUID: ") && r.listLine(n, text) {
		return true
	}
	if strings.Contains(text, "GPU") {
		if r.detailsBegin(n, text) || r.rocmLine(n, text) || r.amdMonitorHeader(n, text) {
			return true
		}
	}
	if strings.Contains(text, "emory") && (r.queryHeader(n, text) || r.detailsBegin(n, text)) {
		return true
	}
	if strings.Contains(text, "MiB") {
		return r.bareRow(n, text) || r.bareMemory(n, text)
	}
	return text[len(text)-1] == '=' && strings.Contains(text, "NVSMI LOG") && r.detailsBegin(n, text)
}

// dateLayout is the date before a table and in -q: Fri Apr 18 12:26:18 2014.
const dateLayout = time.ANSIC

// dateLineOf remembers a line that ends in a date.
func (r *Reader) dateLineOf(n int, text string) bool {
	at := len(text) - len(dateLayout)
	if at < 0 || text[at+13] != ':' || text[at+16] != ':' || text[at+3] != ' ' || text[at+19] != ' ' {
		return false
	}
	date, err := time.Parse(dateLayout, text[at:])
	if err != nil {
		return false
	}
	r.date, r.dateLine = date, n
	return false
}

// begin ends the current reading and begins another.
func (r *Reader) begin(n int, f form, tool string) *Reading {
	r.finish()
	r.current = &Reading{Line: n, Tool: tool, form: f}
	r.last = n
	return r.current
}

// is reports whether the current reading is of a form.
func (r *Reader) is(f form) bool { return r.current != nil && r.current.form == f }

// finish ends the current reading, if there is one.
func (r *Reader) finish() {
	c := r.current
	r.current = nil
	if c == nil || len(c.GPUs) == 0 && c.Driver == "" {
		return
	}
	switch {
	case c.form == detailsForm && !r.details.says(c):
		return
	case c.form == dmonForm && !slices.ContainsFunc(c.GPUs, func(g GPU) bool { return g.HasUsed }):
		return // columns without memory
	case c.form == detailsForm:
		r.details.number(c)
	}
	r.extend(c)
	if len(r.readings) == maxReadings {
		r.thin()
	}
	r.readings = append(r.readings, *c)
}

// thin drops every other reading of each recording; a table among them stays.
func (r *Reader) thin() {
	kept := r.readings[:0]
	drop := false
	for i, reading := range r.readings {
		within := i > 0 && i < len(r.readings)-1 && reading.form == r.readings[i-1].form && reading.form == r.readings[i+1].form
		drop = within && !drop
		if !drop {
			kept = append(kept, reading)
		}
	}
	if len(kept) > maxReadings*3/4 { // too few neighbours are alike
		kept = slices.Delete(kept, maxReadings/2, maxReadings*3/4)
	}
	clear(r.readings[len(kept):])
	r.readings = kept
}

// Readings returns what was found, in the order of the lines, at most 1024 readings: of
// a longer recording some between the first and the last are left out. A line given
// afterwards begins a reading of its own.
func (r *Reader) Readings() []Reading {
	r.finish()
	return slices.Clone(r.readings)
}

// gpu returns the GPU of an index, or of a key if the index is unknown. It is added if
// it is not there; nil if there are too many.
func (c *Reading) gpu(n, index int) *GPU {
	for i := range c.GPUs {
		if c.GPUs[i].Index == index {
			return &c.GPUs[i]
		}
	}
	return c.add(GPU{Index: index, Line: n})
}

// add adds a GPU and returns it; nil if there are too many.
func (c *Reading) add(g GPU) *GPU {
	if len(c.GPUs) == maxGPUs {
		return nil
	}
	c.GPUs = append(c.GPUs, g)
	return &c.GPUs[len(c.GPUs)-1]
}

// lastGPU returns the GPU added last, nil if there is none.
func (c *Reading) lastGPU() *GPU {
	if len(c.GPUs) == 0 {
		return nil
	}
	return &c.GPUs[len(c.GPUs)-1]
}

// addProcess adds a process to a GPU; nil is allowed.
func (g *GPU) addProcess(p Process) {
	if g != nil && len(g.Processes) < maxProcesses {
		g.Processes = append(g.Processes, p)
	}
}
