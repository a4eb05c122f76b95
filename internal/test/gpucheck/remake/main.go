// Remake writes what a report of gpu-check measured into the project's tables:
//
//	scripts/gpu-check --tables [--force] REPORT.json
//
// The tables are device/sim/costs.txt, what the driver's calls cost, and
// node/internal/overhead/overhead.txt, what frameworks take outside of their pools. Package tables
// says which figures are taken. Remake prints each change, and what it leaves.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"gpumem/internal/test/gpucheck/report"
	"gpumem/internal/test/gpucheck/tables"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gpu-check:", err)
		os.Exit(2)
	}
}

// run remakes the tables. The error says what is refused, or that something was left.
func run(args []string, w io.Writer) error {
	flags := flag.NewFlagSet("--tables", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	root := flags.String("root", ".", "the `FOLDER` of the repository")
	force := flags.Bool("force", false, "take doubtful figures, too")
	if err := flags.Parse(args); err != nil || flags.NArg() != 1 {
		return errors.Join(err, errors.New("--tables: want [--force] and one report.json of gpu-check"))
	}
	path := flags.Arg(0)
	r, err := report.Read(path)
	if err != nil {
		return err
	}
	if r.Machine.Simulated {
		return fmt.Errorf("%s: measured on a simulated GPU, which says nothing of a real one", path)
	}
	if why := otherCard(r.Machine); why != "" && !*force {
		return fmt.Errorf("%s: measured on %s; --force takes it", path, why)
	}
	source := fmt.Sprintf("%s, driver %s, %s", r.Machine.GPU, r.Machine.Driver, r.Begun.UTC().Format("2006-01-02"))
	left, refused := 0, 0
	for _, t := range []tables.Table{tables.Costs, tables.Outside} {
		figures, why := t.Take(r)
		file := filepath.Join(*root, t.Path)
		before, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		after, n := t.Remake(string(before), figures, source, *force)
		for _, line := range why {
			fmt.Fprintf(w, "%s: %s\n", t.Path, line)
		}
		for _, line := range n.Written {
			fmt.Fprintf(w, "%s: %s\n", t.Path, line)
		}
		for _, line := range n.Left {
			fmt.Fprintf(w, "%s: LEFT: %s\n", t.Path, line)
		}
		for _, line := range n.Without {
			fmt.Fprintf(w, "%s: %s\n", t.Path, line)
		}
		left, refused = left+len(n.Left), refused+len(why)
		if len(figures) == 0 {
			fmt.Fprintf(w, "%s: the report has no figure for it\n", t.Path)
		}
		if len(n.Written) > 0 {
			if err := os.WriteFile(file, []byte(after), 0o644); err != nil {
				return err
			}
		}
	}
	if left > 0 {
		return fmt.Errorf("%s: %d figures were left, see LEFT; --force takes them", path, left)
	}
	if refused > 0 {
		return fmt.Errorf("%s: figures of %d checks were not taken", path, refused)
	}
	return nil
}

// otherCard says what the GPU is if it is not of the tables' model, an H100 or H200 as a whole; else "".
func otherCard(m report.Machine) string {
	major, _, _ := strings.Cut(m.CC, ".")
	switch {
	case m.CC == "":
		return m.GPU + ", of an unknown compute capability, and the tables are of 9.0"
	case major != "9":
		return fmt.Sprintf("%s, of compute capability %s, and the tables are of 9.0", m.GPU, m.CC)
	case m.MIG != "":
		return fmt.Sprintf("%s, a slice (%s), and the tables are of a whole GPU", m.GPU, m.MIG)
	}
	return ""
}
