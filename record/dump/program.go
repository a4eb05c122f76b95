package dump

// The reports of XLA's compiler on a program's memory: that of buffer assignment, which
// is printed when the program does not fit (buffer_assignment.cc, the same from 2020 to
// 2026 but for two lines of its statistics), and the message of rematerialization:
//
//	BufferAssignment stats:
//	             parameter allocation:    6.00GiB
//	      preallocated temp allocation:   8.00GiB
//	                  total allocation:  14.00GiB
//	Peak buffers:
//		Buffer 1:
//			Size: 2.00GiB
//			Operator: op_name="jit(step)/dot_general"
//			XLA Label: fusion
//			Shape: f32[65536,8192]
//			==========================
//
// The [Program] of it has 6 GiB of parameters, 8 GiB of temporaries, and one peak buffer.
// Every line is known by its words, and a line of the statistics belongs to the report of
// its writer, see writer.

import (
	"bytes"
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"gpumem/internal/input"
	"gpumem/internal/report"
	"gpumem/size"
)

// A Program is XLA's report on the memory of one program. Sizes are in bytes,
// as exact as they are printed: to two decimals of their unit. An unknown size is 0.
type Program struct {
	Parameter         uint64 `json:"parameter_bytes"`
	Constant          uint64 `json:"constant_bytes"`
	LiveOut           uint64 `json:"maybe_live_out_bytes"` // what may be results
	Temp              uint64 `json:"temp_bytes"`
	TempFragmentation uint64 `json:"temp_fragmentation_bytes"` // within Temp; printed since 2022
	Total             uint64 `json:"total_bytes"`
	Fragmentation     uint64 `json:"total_fragmentation_bytes"` // within Total
	// Peak has the largest buffers at the program's peak, in the report's order,
	// which is by size. XLA lists 15.
	Peak []Buffer `json:"peak"`
	// Remats has the last 8 messages of rematerialization, about this program or
	// others: the messages do not name it.
	Remats []remat `json:"rematerializations,omitempty"`
	// Line is where the report begins, from 1; 0 if there are only Remats.
	Line int `json:"line"`
	// Reports is the number of reports in the log. A program's is often printed twice.
	Reports int `json:"reports"`
	// Complete reports whether statistics and buffers are there, each to its end.
	Complete bool `json:"complete"`

	open, closed bool // a buffer was begun; the last one was ended
}

// A Buffer is one value of a program.
type Buffer struct {
	Bytes    uint64 `json:"bytes"`
	Operator string `json:"operator,omitempty"` // its metadata: op_name, source_file and so on
	Label    string `json:"label,omitempty"`    // its opcode, such as fusion; parameter for the program's own
	Shape    string `json:"shape"`
}

// A remat is the outcome of one run of rematerialization, in bytes.
type remat struct {
	Limit   uint64 `json:"limit_bytes"`
	Reached uint64 `json:"reached_bytes"` // 0 if unknown
	Was     uint64 `json:"was_bytes"`     // before; 0 if unknown
	Line    int    `json:"line"`
}

const (
	maxPeak     = 64 // buffers that are kept of a report
	maxRemats   = 8
	maxPrograms = 64  // writers of one log that are distinguished
	maxOperator = 600 // bytes
)

// writer matches the part of a line's prefix that identifies its writer, such as a rank:
// reports of several writers may be mixed line by line.
var writer = regexp.MustCompile(`rank:? ?\d+\]|pid=\d+|^[A-Za-z][\w.-]{0,60} +\||^\[\d+,\d+\]<std(?:err|out)>`)

// programs are the reports of one log. Prefixes before the lines, several writers, and
// reports on one line with "\n" between their lines are allowed.
type programs struct {
	of      map[string]*Program // by writer: the one that is being read
	best    *Program
	reports int
	remats  []remat
}

// result returns the last complete report, or else the last; nil if there is none.
func (p *programs) result() *Program {
	// The order of ends is that of beginnings, not of the map.
	var open []*Program
	for _, q := range p.of {
		open = append(open, q)
	}
	slices.SortFunc(open, func(a, b *Program) int { return cmp.Compare(a.Line, b.Line) })
	for _, q := range open {
		p.end(q)
	}
	if p.best == nil && len(p.remats) == 0 {
		return nil
	}
	if p.best == nil {
		p.best = &Program{}
	}
	p.best.Remats, p.best.Reports = p.remats, p.reports
	return p.best
}

// end takes a report that has ended.
func (p *programs) end(q *Program) {
	q.Peak = slices.DeleteFunc(q.Peak, func(b Buffer) bool { return b.Bytes == 0 && b.Shape == "" })
	if q.Total == 0 && q.Temp == 0 && q.Parameter == 0 && q.LiveOut == 0 && len(q.Peak) == 0 {
		return // a heading alone
	}
	q.Complete = q.Total > 0 && q.closed && len(q.Peak) > 0
	p.reports++
	if p.best == nil || q.Complete || !p.best.Complete {
		p.best = q
	}
}

var (
	literalBreak = []byte(`\n`)
	rematWords   = []byte("Can't reduce memory use below ")
	headWords    = [][]byte{[]byte("BufferAssignment OOM Debugging"), []byte("BufferAssignment stats:")}
	peakWords    = []byte("Peak buffers:")
	bufferWord   = []byte("Buffer ")
	ruleWords    = []byte("==========")
	allocation   = []byte("allocation:")
	fragments    = []byte("fragmentation:")
)

// line reads one line, or several that a log writes as one.
func (p *programs) line(number int, line []byte) {
	for {
		at := bytes.Index(line, literalBreak)
		if at < 0 {
			p.part(number, line)
			return
		}
		p.part(number, line[:at])
		line = line[at+len(literalBreak):]
	}
}

func (p *programs) part(number int, line []byte) {
	if rest, ok := after(line, rematWords); ok {
		p.remat(number, rest)
		return
	}
	for i, head := range headWords {
		if before, _, ok := bytes.Cut(line, head); ok {
			key := string(writer.Find(before))
			// The two headings of a report stand one after the other.
			if q := p.of[key]; q == nil || i == 0 || q.Total > 0 || len(q.Peak) > 0 {
				p.begin(number, key)
			}
			return
		}
	}
	if before, rest, ok := bytes.Cut(line, allocation); ok {
		p.stat(number, before, rest, false)
	} else if before, rest, ok := bytes.Cut(line, fragments); ok {
		p.stat(number, before, rest, true)
	} else if len(p.of) > 0 || bytes.Contains(line, peakWords) {
		p.buffer(number, line)
	}
}

// begin begins a report of a writer.
func (p *programs) begin(number int, key string) *Program {
	if q := p.of[key]; q != nil {
		p.end(q)
	} else if len(p.of) >= maxPrograms {
		return &Program{} // read and forgotten
	}
	q := &Program{Line: number}
	p.of[key] = q
	return q
}

// stat reads a line of the statistics: before and behind "allocation:" or
// "fragmentation:".
func (p *programs) stat(number int, before, rest []byte, fragmentation bool) {
	n := human(word(bytes.TrimSpace(rest)))
	if !n.known {
		return
	}
	before = bytes.TrimRight(before, " ")
	field := func(q *Program) *uint64 {
		for _, f := range []struct {
			name string
			frag bool
			to   *uint64
		}{
			{"parameter", false, &q.Parameter},
			{"constant", false, &q.Constant},
			{"maybe_live_out", false, &q.LiveOut},
			{"preallocated temp", false, &q.Temp},
			{"preallocated temp", true, &q.TempFragmentation},
			{"total", false, &q.Total},
			{"total", true, &q.Fragmentation},
		} {
			if f.frag == fragmentation && bytes.HasSuffix(before, []byte(f.name)) {
				return f.to
			}
		}
		return nil
	}
	key := string(writer.Find(before))
	q := p.of[key]
	if q == nil || len(q.Peak) > 0 {
		if field(&Program{}) == nil || bytes.HasSuffix(before, []byte("total")) {
			return // not of a report, or too little to begin one
		}
		q = p.begin(number, key)
	}
	if to := field(q); to != nil {
		*to = n.n
	}
}

// labels are those of a buffer's lines. Nothing but a prefix stands before them.
var labels = [][]byte{[]byte("Size: "), []byte("Operator: "), []byte("XLA Label: "), []byte("Entry Parameter Subshape: "), []byte("Shape: ")}

// buffer reads a line of "Peak buffers".
func (p *programs) buffer(number int, line []byte) {
	if before, _, ok := bytes.Cut(line, peakWords); ok {
		if key := string(writer.Find(before)); p.of[key] == nil {
			p.begin(number, key)
		}
		return
	}
	if at := bytes.Index(line, bufferWord); at >= 0 && own(line[:at]) {
		_, rest, ok := input.Digits(line[at+len(bufferWord):])
		if q := p.of[string(writer.Find(line[:at]))]; q != nil && ok && bytes.HasPrefix(rest, []byte(":")) {
			q.open, q.closed = true, false
			if len(q.Peak) < maxPeak {
				q.Peak = append(q.Peak, Buffer{})
			}
		}
		return
	}
	if at := bytes.Index(line, ruleWords); at >= 0 {
		if q := p.of[string(writer.Find(line[:at]))]; q != nil && q.open {
			q.open, q.closed = false, true
		}
		return
	}
	for i, label := range labels {
		at := bytes.Index(line, label)
		if at < 0 || !own(line[:at]) {
			continue
		}
		q := p.of[string(writer.Find(line[:at]))]
		if q == nil || !q.open || len(q.Peak) == 0 {
			return
		}
		b, text := &q.Peak[len(q.Peak)-1], bytes.TrimSpace(line[at+len(label):])
		switch i {
		case 0:
			b.Bytes = human(word(text)).n
		case 1:
			b.Operator = strings.ReplaceAll(kept(text, maxOperator), `\"`, `"`)
		case 2:
			b.Label = kept(text, maxName)
		case 3:
			b.Label, b.Shape = "parameter", kept(text, maxName)
		case 4:
			b.Shape = kept(text, maxName)
		}
		return
	}
}

// kept returns a text of a report, n bytes at most, up to a terminal's code and
// without control characters.
func kept(text []byte, n int) string {
	text, _, _ = bytes.Cut(text, []byte{0x1b})
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || unicode.IsControl(r) {
			return -1
		}
		return r
	}, string(text[:min(len(text), n)]))
}

// own reports whether a label begins a line of a report and is not a word of a sentence:
// it is indented, by a tab or more than one blank, or what stands before it does not end
// in a letter.
func own(before []byte) bool {
	for _, indent := range []string{"\t", `\t`, `\u0009`, "  "} {
		if bytes.HasSuffix(before, []byte(indent)) {
			return true
		}
	}
	before = bytes.TrimSuffix(before, []byte(" "))
	if len(before) == 0 {
		return true
	}
	c := before[len(before)-1] | 0x20
	return c < 'a' || c > 'z'
}

var rematRE = regexp.MustCompile(`^([\d.]+ ?\w+)(?: \((\d+) bytes\))? by rematerialization(?:; only reduced to ([\d.]+ ?\w+)(?: \((\d+) bytes\))?(?:, down from ([\d.]+ ?\w+)(?: \((\d+) bytes\))?)?)?`)

// remat reads what follows "Can't reduce memory use below ".
func (p *programs) remat(number int, rest []byte) {
	m := rematRE.FindSubmatch(rest[:min(len(rest), 300)])
	if m == nil {
		return
	}
	exact := func(i int) uint64 {
		if len(m[i+1]) > 0 {
			return human(m[i+1]).n
		}
		return human(m[i]).n
	}
	if len(p.remats) == maxRemats {
		p.remats = p.remats[1:]
	}
	p.remats = append(p.remats, remat{Limit: exact(1), Reached: exact(3), Was: exact(5), Line: number})
}

// Summary returns the report on at most lines lines, of which 40 are always
// enough, each cut to width characters (40 at least): what the program takes,
// what of it is large, and the outcome of rematerialization.
func (p *Program) Summary(width, lines int) []string {
	var out []string
	for _, shown := range []int{15, 10, 6, 3, 0} { // buffers; XLA lists 15
		if out = p.summary(width, shown); len(out) <= lines {
			break
		}
	}
	return out[:min(len(out), max(lines, 0))]
}

func (p *Program) summary(width, shown int) []string {
	s := &screen{width: max(width, 40)}
	if p.Line > 0 {
		p.table(s)
		p.peak(s, shown)
	}
	if n := len(p.Remats); n > 0 {
		r := p.Remats[n-1]
		s.line("rematerialization: wanted %s%s", size.Format(r.Limit), sized(", reached ", r.Reached))
		if r.Was > 0 && r.Reached > 0 {
			s.line("  it saved %s of %s; %s too much", size.Format(r.Was-min(r.Was, r.Reached)), size.Format(r.Was), size.Format(r.Reached-min(r.Reached, r.Limit)))
		}
		if n > 1 {
			s.line("  the last of %s", size.Count(uint64(n), "such message"))
		}
	}
	return s.out
}

// sized returns a word with a size behind it, "" if the size is unknown.
func sized(word string, n uint64) string {
	if n == 0 {
		return ""
	}
	return word + size.Format(n)
}

func (p *Program) table(s *screen) {
	if p.Total+p.Parameter+p.Temp+p.LiveOut == 0 {
		return
	}
	all := p.Total
	if all == 0 {
		all = size.Add(size.Add(p.Parameter, p.Constant), size.Add(p.LiveOut, p.Temp))
	}
	s.line("%12s  %6s  %s", "program", "share", "for")
	for _, row := range []struct {
		n    uint64
		what string
	}{{p.Temp, "temporaries" + sized(", fragmentation ", p.TempFragmentation)}, {p.Parameter, "parameters"}, {p.LiveOut, "results (maybe live out)"}, {p.Constant, "constants"}} {
		s.line("%12s  %6s  %s", size.Format(row.n), report.Part(row.n, all), row.what)
	}
	if p.Total > 0 {
		s.line("%12s  %6s  all%s", size.Format(p.Total), "100 %", sized(", fragmentation ", p.Fragmentation))
	}
}

// peak lists the largest buffers, shown at most.
func (p *Program) peak(s *screen, shown int) {
	if len(p.Peak) == 0 || shown == 0 {
		return
	}
	s.line("%12s  %s", "at the peak", "shape, by what")
	for _, b := range p.Peak[:min(len(p.Peak), shown)] {
		head := fmt.Sprintf("%12s  %s", size.Format(b.Bytes), strings.Join(strings.Fields(b.Shape+" "+b.Label), " "))
		s.line("%s", head+" "+tail(b.operator(), s.width-len(head)-1))
	}
	var sum uint64
	for _, b := range p.Peak {
		sum = size.Add(sum, b.Bytes)
	}
	of := ""
	if p.Total > 0 && sum <= p.Total {
		of = fmt.Sprintf(", %s of all", report.Part(sum, p.Total))
	}
	s.line("%12s  the sum of these %d%s", size.Format(sum), len(p.Peak), of)
	if d, n, bytes := p.leading(); n > 1 {
		s.line("%d of them, %s, begin with the dimension %s:", n, size.Format(bytes), d)
		s.line("  with half of it they take %s less", size.Format(bytes/2))
	}
	if !p.Complete {
		s.line("note: the report is not complete")
	}
}

var (
	opName   = regexp.MustCompile(`op_name="([^"]*)"?`)
	source   = regexp.MustCompile(`source_file="(?:[^"]*/)?([^"/]+)" source_line=(\d+)`)
	firstDim = regexp.MustCompile(`^\w+\[(\d{1,9})[,\]]`)
)

// operator returns the operation's name without its attributes, and its place.
func (b *Buffer) operator() string {
	text := ""
	if m := opName.FindStringSubmatch(b.Operator); m != nil {
		text, _, _ = strings.Cut(m[1], "[")
	}
	if m := source.FindStringSubmatch(b.Operator); m != nil {
		text += " " + m[1] + ":" + m[2]
	}
	return strings.TrimSpace(text)
}

// tail returns the end of a text, n characters at most: the end of an operation's path
// is its most specific part.
func tail(text string, n int) string {
	r := []rune(text)
	switch {
	case len(r) <= n:
		return text
	case n <= 3:
		return ""
	}
	return "..." + string(r[len(r)-n+3:])
}

// leading returns the first dimension that most bytes of the peak have in common,
// parameters left out: how many buffers, and their sum.
func (p *Program) leading() (dimension string, n int, bytes uint64) {
	type group struct {
		n     int
		bytes uint64
	}
	groups := map[string]*group{}
	for _, b := range p.Peak {
		m := firstDim.FindStringSubmatch(b.Shape)
		if m == nil || m[1] == "1" || m[1] == "0" || b.Label == "parameter" {
			continue
		}
		g := groups[m[1]]
		if g == nil {
			g = &group{}
			groups[m[1]] = g
		}
		g.n++
		g.bytes = size.Add(g.bytes, b.Bytes)
		if g.bytes > bytes || g.bytes == bytes && m[1] < dimension {
			dimension, n, bytes = m[1], g.n, g.bytes
		}
	}
	return dimension, n, bytes
}
