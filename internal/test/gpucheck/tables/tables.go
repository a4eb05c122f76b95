// Package tables puts figures of a report of gpu-check into the project's tables: costs.txt, what the
// driver's calls cost, and overhead.txt, what frameworks take outside of their pools.
//
// An entry that was measured gets the value and a field that says on what; what it rested on before
// stays below it. The rest of a table stays as it is.
package tables

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"gpumem/internal/test/gpucheck/report"
	"gpumem/size"
)

// Table is one that figures belong to: those whose names begin with Prefix, an entry each.
type Table struct {
	Path   string // from the root of the repository
	Prefix string
	Unit   string // of its figures
	write  func(float64) string
	read   func(string) (float64, error) // the opposite of write
	// An estimate is to be enough, and a lower one is written by force only: another program may take more.
	estimate bool
}

// most is the factor by which a measured value may differ from the table's. A figure that is further off
// is more likely to be a fault of the check than news of the GPU.
const most = 4

var (
	// Costs are in us, and 1 ns is the least that the table can have.
	Costs = Table{Path: "device/sim/costs.txt", Prefix: "cost.", Unit: "us",
		write: func(us float64) string {
			d := time.Duration(math.Round(us * 1e3))
			if d <= 0 {
				return ""
			}
			return strings.ReplaceAll(d.String(), "µs", "us")
		},
		read: func(text string) (float64, error) {
			d, err := time.ParseDuration(text)
			return float64(d) / 1e3, err
		},
	}

	// Outside is in bytes, and gets an eighth more, as what run measures itself. A part of less than 1 MiB is
	// the noise of a driver.
	Outside = Table{Path: "node/internal/overhead/overhead.txt", Prefix: "outside.", Unit: "bytes", estimate: true,
		write: func(bytes float64) string {
			if bytes < 1<<20 {
				return ""
			}
			return fmt.Sprintf("%.0fMiB", math.Ceil(bytes/(1<<20)*9/8))
		},
		read: func(text string) (float64, error) {
			n, err := size.Parse(text)
			return float64(n), err
		},
	}
)

// Notes are what became of the figures, a line each.
type Notes struct {
	Written []string
	Left    []string // that are written by force only
	Without []string // that have no place in the table
}

// Take returns the table's figures of a report, by the names of entries. refused says for each check
// with such figures that did not end well why they are not taken: a crash, a hang, a unit, or a fault
// that is not about the table's figures.
func (t Table) Take(r *report.Report) (figures map[string]report.Figure, refused []string) {
	figures = map[string]report.Figure{}
	for _, c := range r.Results {
		found := map[string]report.Figure{}
		for _, f := range c.Figures {
			if name, ok := strings.CutPrefix(f.Name, t.Prefix); ok {
				found[name] = f
			}
		}
		if len(found) == 0 {
			continue
		}
		if why := t.doubt(c, found); why != "" {
			refused = append(refused, fmt.Sprintf("%d figures of %s are not taken: %s", len(found), c.Name, why))
			continue
		}
		maps.Copy(figures, found)
	}
	return figures, refused
}

// doubt says why a check's figures cannot be taken; "" if they can.
func (t Table) doubt(c report.Result, found map[string]report.Figure) string {
	switch c.Outcome {
	case report.Held:
	case report.Wrong:
		if c.Why != "" {
			return "it is wrong, and " + c.Why
		}
		for _, fault := range c.Faults {
			if !strings.HasPrefix(fault, t.Prefix) {
				return "it is wrong otherwise: " + fault
			}
		}
	default:
		return strings.TrimSuffix(fmt.Sprintf("it is %s: %s", c.Outcome, c.Why), ": ")
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if f := found[name]; f.Unit != t.Unit {
			return fmt.Sprintf("%s is in %q, want %q", f.Name, f.Unit, t.Unit)
		}
	}
	return ""
}

// Remake returns the table with the figures in it. A figure that is below what could be measured changes
// nothing, and a doubtful one only by force.
func (t Table) Remake(text string, figures map[string]report.Figure, source string, force bool) (after string, n Notes) {
	var out strings.Builder
	entries := map[string]bool{}
	measured := false // the entry was; its old source goes
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "\tmeasured: ") && measured {
			continue
		}
		name, old, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if !ok || line[0] == '\t' || line[0] == '#' {
			out.WriteString(line)
			continue
		}
		entries[name], measured = true, false
		f, is := figures[name]
		value := ""
		if is {
			value = t.write(f.Value)
		}
		change := fmt.Sprintf("%s %s, was %s", name, value, old)
		switch why := t.doubtful(value, old); {
		case !is:
		case value == "":
			n.Without = append(n.Without, fmt.Sprintf("%s stays %s: measured as %.6g %s, too little to tell", name, old, f.Value, t.Unit))
		case why != "" && !force:
			n.Left = append(n.Left, change+": "+why)
		default:
			measured = true
			fmt.Fprintf(&out, "%s %s\n\tmeasured: %s on %s\n", name, value, value, source)
			n.Written = append(n.Written, change)
			continue
		}
		out.WriteString(line)
	}
	for _, name := range slices.Sorted(maps.Keys(figures)) {
		if !entries[name] {
			n.Without = append(n.Without, fmt.Sprintf("no entry for %s, measured as %.6g %s", name, figures[name].Value, t.Unit))
		}
	}
	return out.String(), n
}

// doubtful says why a value is not to replace another without a look at it; "" if it is.
func (t Table) doubtful(value, old string) string {
	is, err := t.read(value)
	was, err2 := t.read(old)
	switch {
	case value == "":
		return ""
	case err != nil || err2 != nil || is > most*was || is < was/most:
		return fmt.Sprintf("more than a factor of %d from the table", most)
	case t.estimate && is < was:
		return "less than the table has, which is to be enough for other programs, too"
	}
	return ""
}
