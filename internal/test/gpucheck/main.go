//go:build linux

// Gpu-check is the program `check` of a bundle that scripts/gpu-check builds: everything that
// only a real GPU can show, in order of worth, in minutes.
//
//	check [--seconds 480] [--out FOLDER] [--only NAME,...] [--python PYTHON] [--simulated] [--list]
//
// Each check runs in a process of its own (run.go), under a limit: one that hangs or crashes
// is killed with all that it started, reported, and passed over. A check measures figures and
// holds them against a sentence of the documents; list.go has them all. What a check needs and
// does not find makes it skipped, with the reason. Results are FOLDER/report.json and
// FOLDER/report.txt, and what the checks' programs wrote is FOLDER/logs.zip; all three are written
// anew after every check.
//
// It changes no setting of the GPU, and takes no managed memory above what is free.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gpumem/internal/test/gpucheck/report"
)

// options are the flags.
type options struct {
	seconds   int
	out       string
	only      string
	python    string
	simulated bool
	list      bool
	plant     string
	one       string
}

func main() {
	var o options
	flag.IntVar(&o.seconds, "seconds", 480, "the time for everything, in `SECONDS`")
	flag.StringVar(&o.out, "out", "gpu-check", "the `FOLDER` for report.txt, report.json and logs.zip")
	flag.StringVar(&o.only, "only", "", "`NAME,...`: these checks only")
	flag.StringVar(&o.python, "python", "python3", "the `PYTHON` that has the frameworks")
	flag.BoolVar(&o.simulated, "simulated", false, "on the bundle's simulated GPU")
	flag.BoolVar(&o.list, "list", false, "list the checks with what each settles")
	flag.StringVar(&o.plant, "plant", "", "`KIND,...`: begin with checks that hang, crash or are wrong, to see that they are reported")
	flag.StringVar(&o.one, "one", "", "run the check `NAME` here; for check itself")
	flag.Parse()
	if err := o.run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "check:", err)
		os.Exit(2)
	}
}

// run does what the flags ask for. It ends the process with status 1 if something is wrong.
func (o options) run(w io.Writer) error {
	checks, err := choose(o.only, o.plant)
	if err != nil {
		return err
	}
	switch {
	case flag.NArg() > 0:
		return fmt.Errorf("unexpected argument %q; want flags only", flag.Arg(0))
	case o.list:
		for _, c := range checks {
			fmt.Fprintf(w, "%-18s %3.0f s  %s (%s)\n", c.name, c.limit.Seconds(), c.claim, c.doc)
		}
		return nil
	case o.one != "":
		return child(o.one)
	case o.seconds < 1:
		return fmt.Errorf("--seconds %d: want at least 1", o.seconds)
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	b, err := openBundle(o)
	if err != nil {
		return err
	}
	defer b.close()
	r := b.report()
	for _, c := range checks {
		result := b.one(c, time.Duration(o.seconds)*time.Second-time.Since(r.Begun))
		result.Line(w)
		r.Results = append(r.Results, result)
		r.Seconds = time.Since(r.Begun).Seconds()
		if err := errors.Join(writeReport(r, o.out), b.saveLogs()); err != nil {
			return err
		}
	}
	fmt.Fprintf(w, "\n%s: report.txt, report.json, logs.zip\n", o.out)
	if !r.Good() {
		b.close()
		os.Exit(1)
	}
	return nil
}

// writeReport writes both forms.
func writeReport(r *report.Report, out string) error {
	if err := r.Write(filepath.Join(out, "report.json")); err != nil {
		return err
	}
	var text strings.Builder
	r.Text(&text)
	return os.WriteFile(filepath.Join(out, "report.txt"), []byte(text.String()), 0o644)
}

// choose returns the planted checks, then those of the list, or the named ones of it.
func choose(only, plant string) ([]check, error) {
	var chosen []check
	for kind := range words(plant) {
		i := slices.IndexFunc(planted, func(c check) bool { return c.name == "planted-"+kind })
		if i < 0 {
			return nil, fmt.Errorf("--plant %q: want hang, crash, wrong", kind)
		}
		chosen = append(chosen, planted[i])
	}
	if only == "" {
		return append(chosen, checks...), nil
	}
	for name := range words(only) {
		c, ok := find(name)
		if !ok {
			return nil, fmt.Errorf("--only %q: no check has that name; --list has them", name)
		}
		chosen = append(chosen, c)
	}
	return chosen, nil
}

// words yields the words of a list with commas.
func words(list string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for _, word := range strings.Split(list, ",") {
			if word != "" && !yield(word) {
				return
			}
		}
	}
}

// find returns the check of that name.
func find(name string) (check, bool) {
	for _, c := range slices.Concat(checks, planted) {
		if c.name == name {
			return c, true
		}
	}
	return check{}, false
}
