// Remake writes what a report of gpu-check measured into the project's tables:
//
//	scripts/gpu-check --tables REPORT.json
//
// device/sim/costs.txt, what the driver's calls cost, and node/internal/overhead/overhead.txt, what
// frameworks take outside of their pools. An entry that was measured gets the value
// and a field that says on what; what it rested on before stays below it. The rest stays as it
// is. It prints each change.
package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"

	"gpumem/internal/test/gpucheck/report"
)

// table is one that figures belong to: those whose names begin with prefix, an entry each.
type table struct {
	path   string
	prefix string
	value  func(report.Figure) string // as the table writes it; "" for what is too small for it
}

var tables = []table{
	{"device/sim/costs.txt", "cost.", func(f report.Figure) string {
		d := time.Duration(f.Value * float64(time.Microsecond))
		if d <= 0 {
			return ""
		}
		return strings.ReplaceAll(d.String(), "µs", "us")
	}},
	// An eighth more, as for what run measures itself.
	{"node/internal/overhead/overhead.txt", "outside.", func(f report.Figure) string {
		if f.Value < 1<<20 {
			return ""
		}
		return fmt.Sprintf("%.0fMiB", math.Ceil(f.Value/(1<<20)*9/8))
	}},
}

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gpu-check:", err)
		os.Exit(2)
	}
}

func run(args []string, w io.Writer) error {
	if len(args) != 1 {
		return errors.New("--tables: want one report.json of gpu-check")
	}
	r, err := report.Read(args[0])
	if err != nil {
		return err
	}
	if r.Machine.Simulated {
		return fmt.Errorf("%s: measured on a simulated GPU, which says nothing of a real one", args[0])
	}
	source := fmt.Sprintf("%s, driver %s, %s", r.Machine.GPU, r.Machine.Driver, r.Begun.UTC().Format("2006-01-02"))
	for _, t := range tables {
		before, err := os.ReadFile(t.path)
		if err != nil {
			return err
		}
		after, changes := t.remake(string(before), r.Figures(t.prefix), source)
		for _, c := range changes {
			fmt.Fprintf(w, "%s: %s\n", t.path, c)
		}
		if len(changes) == 0 {
			fmt.Fprintf(w, "%s: the report has no figure for it\n", t.path)
			continue
		}
		if err := os.WriteFile(t.path, []byte(after), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// remake returns the table with the figures in it, and what changed. A figure that is below what
// could be measured changes nothing.
func (t table) remake(text string, figures map[string]report.Figure, source string) (after string, changes []string) {
	var out strings.Builder
	measured := false // the entry was; its old source goes
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "\tmeasured: ") && measured {
			continue
		}
		name, old, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		entry := ok && line[0] != '\t' && line[0] != '#'
		if entry {
			measured = false
		}
		f, is := figures[name]
		value := ""
		if entry && is {
			value = t.value(f)
		}
		if value == "" {
			out.WriteString(line)
			continue
		}
		measured = true
		fmt.Fprintf(&out, "%s %s\n\tmeasured: %s on %s\n", name, value, value, source)
		changes = append(changes, fmt.Sprintf("%s %s, was %s", name, value, old))
	}
	return out.String(), changes
}
