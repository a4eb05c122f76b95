package account

// The table of inequalities (inequalities.txt), and the loop that walks it. Its head says
// how it is written.

import (
	_ "embed"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gpumem/doctor/internal/statement"
)

//go:embed inequalities.txt
var tableText string

// Table is what the text says: the sections in order, the commands that decide, and the
// facts that a state file can have.
var Table = parseTable(tableText)

type inequalities struct {
	sections []*section
	Decides  map[string]string
	Needs    map[string]string
}

// A section is a chain of blocks, of which the first that holds is taken.
type section struct {
	name   string
	blocks []*block
}

type block struct {
	when     string
	findings []*row
}

// A row is what a block finds.
type row struct {
	sure                bool
	cause, remedy, size string // size is the quantity of the remedy
	name                string
	options             map[string]string
	lines               []reading
	certain             []string
}

// A reading is a line of the log by its name, and what it shows.
type reading struct{ line, text string }

// parseTable reads the table. What it does not understand stops the program: the text is
// part of it.
func parseTable(text string) *inequalities {
	t := &inequalities{Decides: map[string]string{}, Needs: map[string]string{}}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || line[0] == '#':
		case words[0] == "decide" && line[0] != '\t':
			_, value, _ := strings.Cut(line, " = ")
			t.Decides[words[1]] = value
		case words[0] == "need" && line[0] != '\t':
			_, value, _ := strings.Cut(line, " = ")
			t.Needs[words[1]] = value
		case line[0] == '[':
			t.sections = append(t.sections, &section{name: strings.Trim(line, "[]")})
		case line[0] != '\t':
			s := t.sections[len(t.sections)-1]
			s.blocks = append(s.blocks, &block{when: line})
		default:
			s := t.sections[len(t.sections)-1]
			s.blocks[len(s.blocks)-1].add(line)
		}
	}
	return t
}

// add reads a line below a block's conditions.
func (b *block) add(line string) {
	if strings.HasPrefix(line, "\t\t") {
		r := b.findings[len(b.findings)-1]
		name, text, _ := strings.Cut(strings.TrimSpace(line), ":")
		if text = strings.TrimSpace(text); name == "certain" {
			r.certain = append(r.certain, text)
		} else {
			r.lines = append(r.lines, reading{name, text})
		}
		return
	}
	head, rest, _ := strings.Cut(strings.TrimSpace(line), "\"")
	if target, ok := strings.CutPrefix(head, "go "); ok {
		b.findings = append(b.findings, &row{options: map[string]string{"go": target}})
		return
	}
	name, options, _ := strings.Cut(rest, "\"")
	words := strings.Fields(head)
	r := &row{sure: words[0] == "sure", cause: words[1], name: name, options: map[string]string{}}
	r.remedy, r.size, _ = strings.Cut(words[2], ":")
	for _, o := range strings.Fields(options) {
		key, value, _ := strings.Cut(o, "=")
		r.options[key] = value
	}
	b.findings = append(b.findings, r)
}

// Scene is what a section compares.
type Scene struct {
	*Facts
	R     *Refusal // that the section is about; nil if there is none
	H     *handle
	N     map[string]uint64              // quantities in bytes, and flags
	Words map[string]string              // texts for readings
	lines map[string][]statement.Evidence // lines by their names
	said  map[string][]string            // what is sure, by name
	found []Finding
}

// Walk goes through all sections.
func (t *inequalities) Walk(e *Facts) []Finding {
	var found []Finding
	for _, s := range t.sections {
		if prepare, ok := prepared[s.name]; ok {
			at := newScene(e, found)
			prepare(at)
			at.take(t, s)
			found = at.found
		}
	}
	return found
}

// take takes the first block of a section that holds.
func (s *Scene) take(t *inequalities, in *section) {
	for _, b := range in.blocks {
		if !s.Holds(b.when) {
			continue
		}
		var lines []reading
		for _, r := range b.findings {
			if target := r.options["go"]; target != "" {
				i := slices.IndexFunc(t.sections, func(x *section) bool { return x.name == target })
				s.take(t, t.sections[i])
				return
			}
			if r.lines != nil {
				lines = r.lines
			}
			if only := r.options["if"]; only == "" || s.Holds(only) {
				s.add(t, r, lines)
			}
		}
		return
	}
}

// add adds what a row finds.
func (s *Scene) add(t *inequalities, r *row, lines []reading) {
	f := Finding{Cause: r.cause, Name: s.Expand(r.name), Sure: r.sure, Verdict: r.options["verdict"]}
	_, f.Alone = r.options["alone"]
	for _, l := range lines {
		for _, q := range s.lines[l.line] {
			if l.text != "" {
				q.Reading = s.Expand(l.text)
			}
			f.Facts = append(f.Facts, q)
		}
	}
	for _, c := range r.certain {
		if list, ok := s.said[strings.Trim(c, "{}")]; ok {
			f.Certain = append(f.Certain, list...)
		} else if c = s.Expand(c); c != "" {
			f.Certain = append(f.Certain, c)
		}
	}
	if id := r.options["decide"]; id != "" {
		if id == "library" {
			id = s.decideLibrary(s.H)
		}
		f.Decide = t.Decides[id]
		if v := s.OtherVendor(); v != nil && id == "smi" {
			f.Decide = strings.Replace(f.Decide, "nvidia-smi", v.Processes, 1)
		}
	}
	if ids := r.options["need"]; ids != "" {
		f.Missing = strings.Split(ids, ",")
	}
	f.Remedy, f.Bytes, f.At = r.remedy, s.N[r.size], s
	s.found = append(s.found, f)
}

var placeholder = regexp.MustCompile(`\{(\w+)\}`)

// Expand puts texts and sizes into a reading.
func (s *Scene) Expand(text string) string {
	return placeholder.ReplaceAllStringFunc(text, func(name string) string {
		name = strings.Trim(name, "{}")
		if w, ok := s.Words[name]; ok {
			return w
		}
		return Human(s.N[name])
	})
}

// Holds reports whether conditions hold: "," is and, "|" is or, "&" is and again.
func (s *Scene) Holds(when string) bool {
	for _, all := range strings.Split(when, ",") {
		one := slices.ContainsFunc(strings.Split(all, "|"), func(either string) bool {
			return !slices.ContainsFunc(strings.Split(either, "&"), func(c string) bool { return !s.is(strings.TrimSpace(c)) })
		})
		if !one {
			return false
		}
	}
	return true
}

var relation = regexp.MustCompile(`[<>]=?`)

// is reports whether one condition holds.
func (s *Scene) is(c string) bool {
	if at := relation.FindStringIndex(c); at != nil {
		left, right := s.sum(c[:at[0]]), s.sum(c[at[1]:])
		switch c[at[0]:at[1]] {
		case "<":
			return left < right
		case "<=":
			return left <= right
		case ">":
			return left > right
		}
		return left >= right
	}
	name, not := strings.CutPrefix(c, "!")
	return (s.value(name) != 0) != not
}

var term = regexp.MustCompile(`([+-]?)([^+-]+)`)

// sum is the value of terms such as total-context/2 and total*2/5.
func (s *Scene) sum(text string) (n int64) {
	for _, m := range term.FindAllStringSubmatch(strings.TrimSpace(text), -1) {
		v := int64(0)
		factors := strings.FieldsFunc(m[2], func(r rune) bool { return r == '*' || r == '/' })
		for at, f := 0, 0; f < len(factors); f++ {
			x := s.value(factors[f])
			switch {
			case f == 0:
				v = x
			case m[2][at-1] == '*':
				v *= x
			default:
				v /= x
			}
			at += len(factors[f]) + 1
		}
		if m[1] == "-" {
			v = -v
		}
		n += v
	}
	return n
}

// value is a number, a quantity, or what is looked up. Sums stay far from overflow: what is
// above 2^56 is a number that went below zero.
func (s *Scene) value(name string) int64 {
	if v, err := strconv.ParseInt(name, 10, 64); err == nil {
		return v
	}
	if quantityText.MatchString(name) {
		return int64(statement.SizeOf(name))
	}
	yes := false
	switch kind, what, ok := strings.Cut(name, ":"); {
	case name[0] == '@':
		yes = s.Uses(name[1:])
	case ok && kind == "topic":
		yes = s.About(what) != nil
	case ok && kind == "word":
		yes = s.R != nil && s.R.St.Words[what]
	default:
		if n, known := s.N[name]; known {
			return int64(min(n, math.MaxInt64>>7))
		}
		yes = len(s.lines[name]) > 0
	}
	if yes {
		return 1
	}
	return 0
}

var quantityText = regexp.MustCompile(`^\d+[KMG]iB$`)
