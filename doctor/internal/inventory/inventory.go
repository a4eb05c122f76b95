// Package inventory answers where the memory is, from what programs print of it without a failure:
// counters of frameworks, lines of engines at their start, tables of nvidia-smi, and the state of
// a machine.
//
// Three steps. forms.go has the lines that are read, and which figure of which subject each part
// of them is. parts.go makes rows of a subject's figures: parts that do not overlap, and totals.
// odd.go compares them, and says what would return memory. Figures of different subjects (a
// process, a GPU, the host) never meet.
package inventory

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"gpumem/internal/input"
	"gpumem/node/machine"
	"gpumem/record/smi"
)

// Account is where memory is.
type Account struct {
	// Rows are by subject. Those that are a part of it do not overlap, and are together at most
	// its total.
	Rows []Row `json:"rows"`
	// Odd is what stands out, and Returns what would return memory, a sentence each.
	Odd     []string `json:"odd"`
	Returns []string `json:"returns"`
	// Notes are further figures that the lines have, and NotTold is what none of them has.
	Notes   []string `json:"notes"`
	NotTold []string `json:"not_told"`

	told bool // some line has what a whole GPU has in use
}

// Row is one figure.
type Row struct {
	Subject string `json:"subject"`
	What    string `json:"what"`
	Bytes   uint64 `json:"bytes"`
	From    From   `json:"from"`
	Kind    string `json:"kind"` // part, total or other; others, such as peaks, are not of the same moment
}

// From is the line of the log that has the figure, or the larger one of a difference. Line is 0 if
// it is a field of the state, which Text names then.
type From struct {
	Line int    `json:"line"`
	Text string `json:"text"`
}

// The kinds of a row.
const (
	Part  = "part"
	Total = "total"
	Other = "other"
)

// A figure is an amount with the line that has it.
type figure struct {
	bytes uint64
	From
}

// A subject is what figures are of: one process, GPU or host, as one source of lines describes it.
type subject struct {
	*source
	name    string
	figures map[string]figure
	counts  map[string]uint64 // numbers that are no bytes
	words   map[string]string
	growth  map[string][]figure // the readings of a figure, by its key and phase
	names   []part              // of a list, in its order
	known   bool                // a line names the program
}

func (s *subject) set(key string, f figure) {
	if s.source == bufferAssignment {
		f.bytes += s.figures[key].bytes
	}
	if _, known := s.figures[key]; !known && len(s.figures) >= maxFigures {
		return
	}
	if old := s.figures[key]; !strings.HasPrefix(key, "peak_") || old.bytes <= f.bytes {
		s.figures[key] = f // the largest peak counts, and else the last figure
	}
	if g := key + " " + s.words["phase"]; len(s.growth[g]) < maxReadings {
		s.growth[g] = append(s.growth[g], f)
	}
}

func (s *subject) has(keys ...string) bool {
	return !slices.ContainsFunc(keys, func(k string) bool { _, ok := s.figures[k]; return !ok })
}

// Bounds of what is kept of a log.
const (
	maxSubjects = 64
	maxFigures  = 64
	maxText     = 200
	maxTexts    = 4096
	maxReadings = 512
)

// Reader takes the lines of a log. The zero Reader is ready.
type Reader struct {
	subjects []*subject
	smi      smi.Reader
	listed   []card // by gpumem ps
	listLine int
	hbmEnd   int            // how far a list of the buffers in HBM may go
	buffer   string         // of that list, the one that is being read
	read     map[int]bool   // lines with figures
	texts    map[int]string // of the last lines that smi has read
	shapes   map[uint64]*shape
	sampled  bool   // some lines were left out
	refused  bool   // a line that is not the account's speaks of a failure
	table    string // the subject of the report that is being read
	within   *table // the table that is being read, up to its last row
	rowEnd   int
}

// ReadAll reads a log to its end.
func ReadAll(in io.Reader) (*Reader, error) {
	r := &Reader{}
	lines := input.NewLines(in)
	for lines.Next() {
		r.Line(lines.Number(), string(lines.Text()))
	}
	r.end()
	return r, lines.Err()
}

// Line takes one line.
func (r *Reader) Line(n int, text string) {
	if strings.IndexByte(text, 0x1b) >= 0 {
		text = escapes.ReplaceAllLiteralString(text, "")
	}
	if r.smi.Line(n, text) {
		r.mark(n, text)
		r.texts[n] = clip(text)
		delete(r.texts, n-maxTexts)
		return
	}
	r.line(n, text)
}

// line takes a line that is not of nvidia-smi.
func (r *Reader) line(n int, text string) {
	if len(text) < 8 {
		return
	}
	if r.tabled(n, text) {
		r.mark(n, text)
		return
	}
	if len(text) > 16<<10 || text[0] != '|' && n > r.hbmEnd && !gate(text) {
		return
	}
	if (n <= r.hbmEnd || strings.Contains(text, "hbm ")) && r.hbm(n, text) {
		return // not marked: a message of refused memory has the same list
	}
	if r.often(n, text) {
		return
	}
	if r.ps(n, text) {
		r.mark(n, text)
		return
	}
	for i := range forms {
		f := &forms[i]
		if !f.stands(text) || !f.take(r, n, text) {
			continue
		}
		if f.how != ownWords {
			r.mark(n, text)
		} else {
			r.listing(n, text)
		}
		return
	}
	if r.gauge(n, text) {
		r.mark(n, text)
		return
	}
	r.listing(n, text)
	if text[0] == '|' && text[len(text)-1] == '|' {
		r.mark(n, text) // of a table
	}
	r.refused = r.refused || fails(text)
}

// Bounds of the lines of one shape: maxRead are read, then only some, and the last ones, which
// are kept of so many shapes.
const (
	maxRead    = 256
	maxShapes  = 1 << 14
	maxSampled = 64
)

// A shape is the lines that differ in their numbers alone.
type shape struct {
	n     int
	last  []numbered
	ended int // of last, in all
}

type numbered struct {
	n    int
	text string
}

// shapeOf is a hash of a line without its numbers.
func shapeOf(text string) (h uint64) {
	for i := range len(text) {
		if c := text[i]; c > '9' || c < '-' && c != ' ' {
			h = (h ^ uint64(c)) * 0x9E3779B97F4A7C15
		}
	}
	return h
}

// often reports whether lines of this shape came so often that this one is left out, or kept for
// the end.
func (r *Reader) often(n int, text string) bool {
	h := shapeOf(text)
	s := r.shapes[h]
	if s == nil {
		if len(r.shapes) == maxShapes {
			return false
		}
		if r.shapes == nil {
			r.shapes = map[uint64]*shape{}
		}
		s = &shape{}
		r.shapes[h] = s
	}
	if s.n++; s.n <= maxRead || s.n&(s.n-1) == 0 {
		return false
	}
	s.put(n, text)
	return true
}

func (s *shape) put(n int, text string) {
	if s.last == nil {
		s.last = make([]numbered, 32)
	}
	s.last[s.ended%len(s.last)] = numbered{n, text}
	s.ended++
}

// end reads the last lines of shapes that came too often to read them all.
func (r *Reader) end() {
	var rest []numbered
	for _, s := range r.shapes {
		r.sampled = r.sampled || s.ended > len(s.last)
		rest = append(rest, s.last[:min(s.ended, len(s.last))]...)
	}
	r.shapes = nil
	slices.SortFunc(rest, func(a, b numbered) int { return a.n - b.n })
	for _, l := range rest {
		r.line(l.n, l.text)
	}
}

// Refused reports whether a line that is not the account's speaks of a failure.
func (r *Reader) Refused() bool { return r.refused }

// marks are what a line with figures has, most lines of a log do not: a unit, which ends in B, or one
// of a few words. Each is looked for by a byte that is rare in text, at its place in the mark.
var marks = []struct {
	rare   byte
	before string // what stands before that byte
	after  string // and behind it
}{
	{'B', "i", ""}, {'B', "M", ""}, {'B', "G", ""}, {'B', "", "ufferAssignment"}, {'y', "emor", ""}, {'y', "", "tes"}, {'y', "oaded partiall", ""}, {'y', "oaded completel", ""}, {'_', "mem", "g"}, {'_', "", "mem"}, {'_', "", "MEM_LIMIT"}, {'O', "", "OMs"},
	{'V', "K", " cache"}, {'k', "'pea", "'"}, {'G', "layers to ", ""}, {'G', "", "     "}, {'c', "allo", "ation "}, {'M', "", "em: "}, {'M', "", "alloc ret"}, {'T', "", "otal hbm"}, {'P', "", "rogram hbm"},
}

// gate reports whether a line may have a figure.
func gate(text string) bool {
	for m := 0; m < len(marks); {
		rare, next := marks[m].rare, m
		for next < len(marks) && marks[next].rare == rare {
			next++
		}
		for at := 0; ; at++ {
			i := strings.IndexByte(text[at:], rare)
			if i < 0 {
				break
			}
			at += i
			for _, k := range marks[m:next] {
				if strings.HasSuffix(text[:at], k.before) && strings.HasPrefix(text[at+1:], k.after) {
					return true
				}
			}
		}
		m = next
	}
	return false
}

// mark remembers that a line was understood, and speaks of no failure.
func (r *Reader) mark(n int, text string) {
	if r.read == nil {
		r.read, r.texts = map[int]bool{}, map[int]string{}
	}
	if len(r.read) < 1<<16 && !fails(text) {
		r.read[n] = true
	}
}

// Read reports whether a line of the log is one of those that the account is from.
func (r *Reader) Read(line int) bool { return r.read[line] }

// of returns the subject of a name, as a source describes it; nil if there are too many.
func (r *Reader) of(src *source, name string) *subject {
	for _, s := range r.subjects {
		if s.source == src && s.name == name {
			return s
		}
	}
	if len(r.subjects) == maxSubjects {
		return nil
	}
	s := &subject{source: src, name: name}
	s.clear()
	r.subjects = append(r.subjects, s)
	return s
}

func (s *subject) clear() {
	s.figures, s.counts, s.words, s.growth = map[string]figure{}, map[string]uint64{}, map[string]string{}, map[string][]figure{}
}

// Account is where the memory is, by the log and by the state; nil if neither says. Either may be
// nil. A failure's log is asked for two rows at least.
func (r *Reader) Account(state *machine.Snapshot) *Account {
	a := &Account{Rows: []Row{}, Odd: []string{}, Returns: []string{}, Notes: []string{}, NotTold: []string{}}
	var cards []card
	if r != nil {
		cards = append(append(r.cards(), r.listed...), r.measured()...)
		pair(cards, r.subjects)
		a.told = len(cards) > 0
		alone := len(cards) == 0 && !slices.ContainsFunc(r.subjects, func(s *subject) bool { return s.source != list })
		for _, s := range r.subjects {
			switch {
			case alone && s.figuresTold() < fewFigures:
			case len(s.names) > 0:
				a.asTold(s)
			case s.source != device:
				a.subject(s, r.sampled)
			}
		}
		a.alike()
	}
	pid := 0
	if state != nil {
		cards = append(cards, cardsIn(state)...)
		if state.Process != nil {
			pid = state.Process.PID
		}
		if pid > 0 && len(cards) > 0 && !slices.ContainsFunc(cards, func(c card) bool { return !c.told || c.has(pid) }) {
			a.Notes = append(a.Notes, "pid "+number(pid)+" is not among the processes on these GPUs")
		}
	}
	for _, c := range cards {
		a.card(c, pid)
	}
	a.between(cards)
	for _, c := range cards {
		a.oddOfCard(c)
	}
	if r != nil {
		for _, s := range r.smi.Summary() {
			if s.Index >= 0 || s.Name != "" || s.UUID != "" || row.MatchString(r.texts[s.LastLine]) {
				a.overTime(s)
			}
		}
	}
	if len(a.Rows) == 0 {
		return nil
	}
	for i := range a.Rows {
		if from := &a.Rows[i].From; from.Line > 0 && from.Text == "" {
			from.Text = r.texts[from.Line]
		}
	}
	return a
}

// add adds rows of a subject. Parts that exceed the total are not of one moment: then the total
// goes, and the account says so.
func (a *Account) add(name string, total Row, rows []Row) {
	var sum uint64
	for _, row := range rows {
		if row.Kind == Part {
			sum += row.Bytes
		}
	}
	if total.Bytes > 0 {
		slack := total.Bytes/200 + 1<<20 // lines round
		switch {
		case sum > total.Bytes+slack:
			a.Notes = append(a.Notes, name+": its parts are more than "+total.What+", "+human(total.Bytes)+" (line "+
				number(total.From.Line)+"): they are not of one moment")
			total.Kind = Other
		case sum > total.Bytes:
			total.Bytes = sum
		}
		rows = append(rows, total)
	}
	for _, row := range rows {
		row.Subject, row.From.Text = name, clip(row.From.Text)
		a.Rows = append(a.Rows, row)
	}
}

// alike makes one of ranks that say the same.
func (a *Account) alike() {
	var names []string
	of := map[string][]Row{}
	for _, row := range a.Rows {
		names = appendNew(names, row.Subject)
		of[row.Subject] = append(of[row.Subject], row)
	}
	a.Rows = a.Rows[:0:0]
	for len(names) > 0 {
		name := names[0]
		program, _, ranked := strings.Cut(name, ", ")
		same := func(other string) bool {
			return other == name || ranked && strings.HasPrefix(other, program+", ") && slices.EqualFunc(of[name], of[other], func(x, y Row) bool {
				return x.What == y.What && x.Bytes == y.Bytes && x.Kind == y.Kind
			})
		}
		before := len(names)
		names = slices.DeleteFunc(names, same)
		for _, row := range of[name] {
			if n := before - len(names); n > 1 {
				row.Subject = fmt.Sprintf("%s (x%d)", name, n)
			}
			a.Rows = append(a.Rows, row)
		}
	}
}

// clip bounds a line that is kept.
func clip(text string) string {
	text = strings.TrimSpace(text)
	return strings.ToValidUTF8(text[:min(len(text), maxText)], "")
}
