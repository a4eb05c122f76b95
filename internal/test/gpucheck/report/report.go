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
)

// Outcome is how a check ended.
type Outcome string

// The outcomes, the ones that need somebody first.
const (
	Wrong      Outcome = "wrong"       // the claim does not hold here
	Crashed    Outcome = "crashed"     // the check ended by itself without an answer
	Hung       Outcome = "hung"        // it was killed at its limit
	Held       Outcome = "held"        // the claim holds here
	Skipped    Outcome = "skipped"     // it cannot run here; Why says what is missing
	NotReached Outcome = "not reached" // the time was up before it began
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
	Figures []Figure `json:"figures,omitempty"`
	Seconds float64  `json:"seconds"`
	Limit   float64  `json:"limit_seconds"`
	Logs    []string `json:"logs,omitempty"` // files in logs.zip
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
	if err := os.WriteFile(path+".new", append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
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

// Text writes the report as a page: the counts, then a line for each check with what is
// wrong below it.
func (r *Report) Text(w io.Writer) {
	m := r.Machine
	kind := ""
	if m.Simulated {
		kind = ", simulated"
	}
	fmt.Fprintf(w, "gpu-check of gpumem %s on %s%s, driver %s, kernel %s\n", r.Bundle, m.GPU, kind, m.Driver, m.Kernel)
	var versions []string
	for _, name := range []string{"python", "jax", "torch", "cupy", "transformers", "flax"} {
		if v := m.Versions[name]; v != "" {
			versions = append(versions, name+" "+v)
		}
	}
	if len(versions) > 0 {
		fmt.Fprintln(w, strings.Join(versions, ", "))
	}
	var counts []string
	for _, o := range Outcomes {
		if n := r.Count(o); n > 0 {
			counts = append(counts, fmt.Sprintf("%s %d", o, n))
		}
	}
	fmt.Fprintf(w, "%s, %.0f s: %s\n\n", r.Begun.UTC().Format("2006-01-02 15:04 UTC"), r.Seconds, strings.Join(counts, " · "))
	for _, c := range r.Results {
		c.Line(w)
	}
}

// Line writes the check's line, and below it what is wrong.
func (c Result) Line(w io.Writer) {
	fmt.Fprintf(w, "%-11s %-18s %5.1f s  %s (%s)\n", c.Outcome, c.Name, c.Seconds, c.Claim, c.Doc)
	if c.Why != "" {
		fmt.Fprintf(w, "            %s\n", c.Why)
	}
	for _, f := range c.Faults {
		fmt.Fprintf(w, "            %s\n", f)
	}
}
