// Package report is what a run of gpu-check found: as JSON, which the project's tables are
// remade from, and as one page of text.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Outcome is how a check ended.
type Outcome string

// The outcomes, the ones that need somebody first.
const (
	Wrong      Outcome = "wrong"       // the claim does not hold here
	Crashed    Outcome = "crashed"     // the check failed to run: it ended without an answer, or a program of it could not be started or was too late
	Hung       Outcome = "hung"        // it was killed at its limit
	Held       Outcome = "held"        // the claim holds here
	Skipped    Outcome = "skipped"     // it cannot run here; Why says what is missing
	NotReached Outcome = "not reached" // the time was up, or somebody interrupted, before its end
)

// Outcomes are all of them, in the order of a report.
var Outcomes = []Outcome{Wrong, Crashed, Hung, Held, Skipped, NotReached}

// Figure is something that was measured.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`           // "bytes", "us", "1/s", ""
	Want  float64 `json:"want,omitempty"` // what the claim says, in Unit; 0: it says nothing
}

// Result is one check.
type Result struct {
	Name    string   `json:"name"`
	Claim   string   `json:"claim"` // the sentence that it settles
	Doc     string   `json:"doc"`   // the document that says so
	Outcome Outcome  `json:"outcome"`
	Why     string   `json:"why,omitempty"`    // of what was skipped, hung, crashed or not reached
	Faults  []string `json:"faults,omitempty"` // of what is wrong, one sentence each
	Notes   []string `json:"notes,omitempty"`  // of what was not compared, and why, one sentence each
	Figures []Figure `json:"figures,omitempty"`
	Seconds float64  `json:"seconds"`
	Limit   float64  `json:"limit_seconds"`
	Logs    []string `json:"logs,omitempty"`   // files in logs.zip, the check's own first
	Repeat  string   `json:"repeat,omitempty"` // the command that runs it again, alone
}

// Machine is where the checks ran.
type Machine struct {
	Simulated bool              `json:"simulated"`
	GPU       string            `json:"gpu"`
	Total     uint64            `json:"total_bytes"`
	CC        string            `json:"compute_capability"` // "9.0"
	MIG       string            `json:"mig,omitempty"`      // the profile of a slice
	Driver    string            `json:"driver"`
	Kernel    string            `json:"kernel"`
	Versions  map[string]string `json:"versions"` // of Python and its packages
}

// Report is a whole run.
type Report struct {
	Format  string    `json:"format"` // "gpu-check/1"
	Bundle  string    `json:"bundle"` // the version and commit that the bundle was built from
	Begun   time.Time `json:"begun"`
	Seconds float64   `json:"seconds"`
	Machine Machine   `json:"machine"`
	Notes   []string  `json:"notes,omitempty"` // what a reader of the results has to know, one sentence each
	Results []Result  `json:"results"`
}

// Format is the form of the JSON.
const Format = "gpu-check/1"

// Read reads a report. An error names the file.
func Read(path string) (*Report, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := new(Report)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("%s: not a report of gpu-check: %w", path, err)
	}
	if r.Format != Format {
		return nil, fmt.Errorf("%s: format %q, want %q", path, r.Format, Format)
	}
	return r, nil
}

// Write writes the report to the file as JSON, whole or not at all.
func (r *Report) Write(path string) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return WriteWhole(path, append(data, '\n'))
}

// WriteWhole writes a file whole or not at all: what there was before stays until then.
func WriteWhole(path string, data []byte) error {
	err := os.WriteFile(path+".new", data, 0o644)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		_ = os.Remove(path + ".new") // on a full disk a part of it is in the way of the next
	}
	return err
}

// lineBytes is the most that a sentence of a result has, in bytes.
const lineBytes = 2000

// OneLine returns a text as a sentence of a result: printable, on one line, at most lineBytes long. What
// programs write ends up in these, such as a progress bar in color, or a megabyte without a line's end.
func OneLine(text string) string {
	const between, cut = " | ", " ..."
	var line strings.Builder
	for _, letter := range strings.TrimSpace(text) {
		word := string(letter)
		switch {
		case letter == '\n':
			word = between
		case unicode.IsSpace(letter):
			word = " "
		case letter == utf8.RuneError || !unicode.IsPrint(letter):
			word = "?"
		}
		if line.Len()+len(word) > lineBytes-len(cut) {
			return line.String() + cut
		}
		line.WriteString(word)
	}
	return line.String()
}

// Count returns how many checks ended so.
func (r *Report) Count(o Outcome) int {
	n := 0
	for _, c := range r.Results {
		if c.Outcome == o {
			n++
		}
	}
	return n
}

// Figures returns the figures whose names begin with prefix, by the rest of the name.
func (r *Report) Figures(prefix string) map[string]Figure {
	found := map[string]Figure{}
	for _, c := range r.Results {
		for _, f := range c.Figures {
			if name, ok := strings.CutPrefix(f.Name, prefix); ok {
				found[name] = f
			}
		}
	}
	return found
}

// Good reports whether nothing is wrong, crashed or hung.
func (r *Report) Good() bool { return r.Count(Wrong)+r.Count(Crashed)+r.Count(Hung) == 0 }

// Bad reports whether somebody has to look at the check.
func (o Outcome) Bad() bool { return o == Wrong || o == Crashed || o == Hung }

// Text writes the report as a page: the counts, then a block for each check. Those that need
// somebody come first, by outcome, and the rest in the order in which they ran.
func (r *Report) Text(w io.Writer) {
	m := r.Machine
	kind := ""
	if m.Simulated {
		kind = ", simulated"
	}
	wrap(w, "", "", fmt.Sprintf("gpu-check of gpumem %s on %s%s, driver %s, kernel %s", r.Bundle, m.GPU, kind, m.Driver, m.Kernel))
	var versions []string
	for _, name := range []string{"python", "jax", "torch", "cupy", "transformers", "flax"} {
		if v := m.Versions[name]; v != "" {
			versions = append(versions, name+" "+v)
		}
	}
	wrap(w, "", "", strings.Join(versions, ", "))
	var counts []string
	for _, o := range Outcomes {
		if n := r.Count(o); n > 0 {
			counts = append(counts, fmt.Sprintf("%s %d", o, n))
		}
	}
	wrap(w, "", "", fmt.Sprintf("%s, %.0f s: %s", r.Begun.UTC().Format("2006-01-02 15:04 UTC"), r.Seconds, strings.Join(counts, " · ")))
	for _, note := range r.Notes {
		wrap(w, "", "", note)
	}
	fmt.Fprintln(w)
	for _, o := range Outcomes {
		for _, c := range r.Results {
			if o.Bad() && c.Outcome == o {
				c.Line(w)
				fmt.Fprintln(w)
			}
		}
	}
	for _, c := range r.Results {
		if !c.Outcome.Bad() {
			c.Line(w)
		}
	}
}

// What a page has of one check at most; the JSON has all of it.
const (
	width      = 100 // columns
	mostLetter = 500 // of one sentence
	mostFaults = 8
	mostNotes  = 8
	mostLogs   = 8
)

// Line writes the check's line, and below it what is wrong, what was not compared, where to read about
// it, and how to repeat it.
func (c Result) Line(w io.Writer) {
	head := fmt.Sprintf("%-11s %-18s %5.1f s  ", c.Outcome, c.Name, c.Seconds)
	wrap(w, head, strings.Repeat(" ", utf8.RuneCountInString(head)), fmt.Sprintf("%s (%s)", c.Claim, c.Doc))
	const indent, deeper = "            ", "              "
	say := func(text string) {
		if letters := []rune(text); len(letters) > mostLetter {
			text = string(letters[:mostLetter]) + " ... (report.json has all of it)"
		}
		wrap(w, indent, deeper, text)
	}
	say(c.Why)
	for _, f := range c.Faults[:min(len(c.Faults), mostFaults)] {
		say(f)
	}
	if more := len(c.Faults) - mostFaults; more > 0 {
		say(fmt.Sprintf("and %d more, in report.json", more))
	}
	for _, n := range c.Notes[:min(len(c.Notes), mostNotes)] {
		say("note: " + n)
	}
	if more := len(c.Notes) - mostNotes; more > 0 {
		say(fmt.Sprintf("and %d more notes, in report.json", more))
	}
	if !c.Outcome.Bad() {
		return
	}
	if logs := c.Logs; len(logs) > 0 {
		if more := len(logs) - mostLogs; more > 0 { // the check's own, and the last ones
			logs = append([]string{logs[0], fmt.Sprintf("%d more", more)}, logs[more+1:]...)
		}
		wrap(w, indent, deeper, "logs: "+strings.Join(logs, ", "))
	}
	if c.Repeat != "" {
		wrap(w, indent, deeper, "again: "+c.Repeat)
	}
}

// wrap writes words in lines of at most width columns, the first behind first and the others behind
// rest. It writes nothing if there are no words.
func wrap(w io.Writer, first, rest, text string) {
	line, empty := first, true
	for _, word := range strings.Fields(text) {
		for {
			room := width - utf8.RuneCountInString(line)
			if !empty {
				room--
			}
			letters := []rune(word)
			switch {
			case len(letters) <= room:
				if !empty {
					line += " "
				}
				line, word, empty = line+word, "", false
			case !empty:
				fmt.Fprintln(w, line)
				line, empty = rest, true
			default: // longer than a line
				fmt.Fprintln(w, line+string(letters[:room]))
				line, word = rest, string(letters[room:])
			}
			if word == "" {
				break
			}
		}
	}
	if !empty {
		fmt.Fprintln(w, line)
	}
}
