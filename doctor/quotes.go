// The lines of a log that an answer quotes, each with what it shows.

package doctor

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"gpumem/internal/report"
)

// A quote is a line with what it shows, for one cause or for several.
type quote struct {
	line     int // 0 if it is of the state
	text     string
	readings []string
	causes   []string // for each reading the letters of its causes
}

// quotesOf returns the lines that speak for the causes, at most this many for each, in
// the order of the log; those of the state come last. more is the number of others.
func quotesOf(causes []Cause, most int) (list []*quote, more int) {
	find := func(e Evidence) *quote {
		for _, q := range list {
			if q.line == e.Line && (e.Line > 0 || q.text == e.Text) {
				return q
			}
		}
		return nil
	}
	for _, c := range causes {
		n := 0
		for _, e := range c.Evidence {
			if n < most && find(e) == nil {
				list = append(list, &quote{line: e.Line, text: e.Text})
				n++
			}
		}
	}
	others := map[Evidence]bool{}
	for i, c := range causes {
		for _, e := range c.Evidence {
			if q := find(e); q != nil {
				q.add(e.Reading, letter(i))
			} else {
				others[Evidence{Line: e.Line, Text: e.Text}] = true
			}
		}
	}
	slices.SortStableFunc(list, func(a, b *quote) int { return cmp.Compare(a.place(), b.place()) })
	return list, len(others)
}

// place orders quotes.
func (q *quote) place() int {
	if q.line == 0 {
		return math.MaxInt
	}
	return q.line
}

// add adds what the line shows for a cause.
func (q *quote) add(reading, cause string) {
	i := slices.Index(q.readings, reading)
	switch {
	case reading == "":
	case i < 0:
		q.readings, q.causes = append(q.readings, reading), append(q.causes, cause)
	case !strings.HasSuffix(q.causes[i], cause):
		q.causes[i] += ", " + cause
	}
}

// quotes writes the lines that speak for the causes. A line is quoted once, with the
// letters of those causes for which it shows something that it does not show for all.
func (a *text) quotes(causes []Cause) {
	var letters []string
	for i := range causes {
		letters = append(letters, letter(i))
	}
	all := strings.Join(letters, ", ")
	list, more := quotesOf(causes, a.extent.quotes)
	for _, q := range list {
		number := "state"
		if q.line > 0 {
			number = strconv.Itoa(q.line)
		}
		const indent = "          "
		rows := strings.Split(report.Fold(indent+report.OneLine(strings.ReplaceAll(q.text, "\t", " ")), a.Width-3), "\n")
		if len(rows) > a.rows {
			rows = rows[:a.rows]
			rows[a.rows-1] += "..."
		}
		for i, r := range rows {
			if i > 0 {
				number = ""
			}
			r = fmt.Sprintf("%7s | %s", number, strings.TrimPrefix(r, indent))
			a.Raw(report.Fit(strings.TrimRight(r, " "), a.Width))
		}
		for i, r := range q.readings {
			a.shown = append(a.shown, r)
			if q.causes[i] != all {
				r = q.causes[i] + ": " + r
			}
			a.Line(indent+"%s", r)
		}
	}
	if more > 0 {
		a.Line("          (and %s; --json has all)", report.Counted(uint64(more), "more line"))
	}
}

// mainEvidence returns the first thing that speaks for a cause.
func (a *text) mainEvidence(c Cause) string {
	if len(c.Evidence) == 0 {
		return ""
	}
	e := c.Evidence[0]
	what := e.Reading
	if what == "" {
		what = report.Shorten(report.OneLine(e.Text), a.Width/2)
	}
	if e.Line == 0 {
		return " (" + what + ")"
	}
	return fmt.Sprintf(" (line %d: %s)", e.Line, what)
}
