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
// anew after every check. A signal ends the check that runs and all after it, and leaves them and
// no process.
//
// It changes no setting of the GPU, and takes no managed memory above what is free.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

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

const defaultPython = "python3"

// The statuses that the program ends with beside 0, and 128 and the number of a signal.
const (
	statusBad   = 1 // something is wrong, crashed or hung, or the report is not saved
	statusUsage = 2 // nothing was checked, or nothing held
)

// mostSeconds is a day.
const mostSeconds = 86400

func main() {
	begun := time.Now()
	var o options
	flag.IntVar(&o.seconds, "seconds", 480, "the time for everything, in `SECONDS`")
	flag.StringVar(&o.out, "out", "gpu-check", "the `FOLDER` for report.txt, report.json and logs.zip, which has none of them yet")
	flag.StringVar(&o.only, "only", "", "these checks only: `NAME,...`")
	flag.StringVar(&o.python, "python", defaultPython, "the `PYTHON` that has the frameworks")
	flag.BoolVar(&o.simulated, "simulated", false, "on the bundle's simulated GPU")
	flag.BoolVar(&o.list, "list", false, "list the checks with what each settles")
	flag.StringVar(&o.plant, "plant", "", "begin with checks that hang, crash or are wrong, to see that they are reported: `KIND,...`")
	flag.StringVar(&o.one, "one", "", "run the check `NAME` here; for check itself")
	flag.Usage = usage
	flag.Parse()
	status, err := o.run(begun, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "check:", err)
	}
	os.Exit(status)
}

// usage writes the flags but those that are for check itself and for its tests.
func usage() {
	w := flag.CommandLine.Output()
	fmt.Fprintln(w, "check finds out on this machine's GPU what only a GPU can show.\n\n    check [FLAGS]")
	fmt.Fprintln(w)
	flag.VisitAll(func(f *flag.Flag) {
		if f.Name == "one" || f.Name == "plant" {
			return
		}
		value, text := flag.UnquoteUsage(f)
		if f.DefValue != "" && f.DefValue != "false" {
			text += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(w, "    --%-18s %s\n", strings.TrimSpace(f.Name+" "+value), text)
	})
	fmt.Fprintln(w, "\nStatus 0: a check held, and nothing is wrong; 1: something is wrong, crashed or hung, or the report\n"+
		"is not saved; 2: nothing was checked, or every check was skipped or not reached.")
}

// signalError is the cause of a context that a signal ended.
type signalError syscall.Signal

func (s signalError) Error() string { return "interrupted by " + unix.SignalName(syscall.Signal(s)) }

// untilSignal returns a context that ends with the first signal that asks this process to end. Signals
// that whoever started it has it ignore, as nohup does, stay ignored.
func untilSignal() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	go func() { cancel(signalError((<-signals).(syscall.Signal))) }()
	// Whoever reads the lines may go away: the report is what counts. Not signal.Ignore, which programs
	// would inherit.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return ctx
}

// run does what the flags ask for, and returns the status to end with.
func (o options) run(begun time.Time, w io.Writer) (int, error) {
	checks, err := choose(o.only, o.plant)
	if err != nil {
		return statusUsage, err
	}
	switch {
	case flag.NArg() > 0:
		return statusUsage, fmt.Errorf("unexpected argument %q; want flags only", flag.Arg(0))
	case o.list:
		for _, c := range checks {
			fmt.Fprintf(w, "%-18s %3.0f s  %s (%s)\n", c.name, c.limit.Seconds(), c.claim, c.doc)
		}
		return 0, nil
	case o.one != "":
		if err := child(o.one); err != nil {
			return statusUsage, err
		}
		return 0, nil
	case o.seconds < 1 || o.seconds > mostSeconds:
		return statusUsage, fmt.Errorf("--seconds %d: want 1 to %d", o.seconds, mostSeconds)
	}
	for _, name := range []string{"report.json", "report.txt", "logs.zip"} {
		if _, err := os.Lstat(filepath.Join(o.out, name)); err == nil {
			return statusUsage, fmt.Errorf("%s has a %s already; --out names another folder", o.out, name)
		}
	}
	ctx := untilSignal()
	b, err := openBundle(ctx, o)
	if err != nil {
		return statusOf(ctx, statusUsage), err
	}
	defer b.close()
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return statusUsage, fmt.Errorf("--out: %w", err)
	}
	r := b.report(begun)
	for _, note := range r.Notes {
		fmt.Fprintln(w, note)
	}
	for _, result := range r.Results {
		result.Line(w)
	}
	save := func() error {
		r.Seconds = time.Since(begun).Seconds()
		return errors.Join(writeReport(r, o.out), b.saveLogs())
	}
	if err := save(); err != nil { // the machine may be gone before the first check ends
		return statusUsage, err
	}
	var unsaved error
	for _, c := range checks {
		result := b.one(ctx, c, time.Duration(o.seconds)*time.Second-time.Since(begun))
		r.Results = append(r.Results, result)
		before := unsaved
		unsaved = save() // the next one may be saved, with all results
		result.Line(w)
		if isNews := unsaved != nil && (before == nil || before.Error() != unsaved.Error()); isNews {
			fmt.Fprintln(os.Stderr, "check: the report is not saved:", report.OneLine(unsaved.Error()))
		}
	}
	status, err := verdict(r, unsaved)
	if unsaved == nil {
		fmt.Fprintf(w, "\n%s: report.txt, report.json, logs.zip\n", o.out)
	}
	return statusOf(ctx, status), err
}

// verdict is the status of a whole run, and what else is to be said of it. unsaved is why the report, with
// its last result, is not saved.
func verdict(r *report.Report, unsaved error) (int, error) {
	switch {
	case unsaved != nil:
		return statusBad, errors.New("the report is not saved; the lines above are all there is")
	case !r.Good():
		return statusBad, nil
	case r.Count(report.Held) == 0:
		return statusUsage, errors.New("nothing held: every check was skipped or not reached")
	}
	return 0, nil
}

// statusOf is the status of a signal, or without one that which is given.
func statusOf(ctx context.Context, status int) int {
	var s signalError
	if errors.As(context.Cause(ctx), &s) {
		return 128 + int(s)
	}
	return status
}

// writeReport writes both forms.
func writeReport(r *report.Report, out string) error {
	if err := r.Write(filepath.Join(out, "report.json")); err != nil {
		return err
	}
	var text strings.Builder
	r.Text(&text)
	return report.WriteWhole(filepath.Join(out, "report.txt"), []byte(text.String()))
}

// choose returns the planted checks, then those of the list, or the named ones of it; each once.
func choose(only, plant string) ([]check, error) {
	var chosen []check
	add := func(c check) {
		if !slices.ContainsFunc(chosen, func(had check) bool { return had.name == c.name }) {
			chosen = append(chosen, c)
		}
	}
	for kind := range words(plant) {
		i := slices.IndexFunc(planted, func(c check) bool { return c.name == "planted-"+kind })
		if i < 0 {
			return nil, fmt.Errorf("--plant %q: want hang, crash, wrong", kind)
		}
		add(planted[i])
	}
	if plant != "" && len(chosen) == 0 {
		return nil, fmt.Errorf("--plant %q: want hang, crash, wrong", plant)
	}
	if only == "" {
		return append(chosen, checks...), nil
	}
	for name := range words(only) {
		c, ok := find(name)
		if !ok {
			return nil, fmt.Errorf("--only %q: no check has that name; --list has them", name)
		}
		add(c)
	}
	if len(slices.Collect(words(only))) == 0 {
		return nil, fmt.Errorf("--only %q names no check; --list has them", only)
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
