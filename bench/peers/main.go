// Command peers measures this project's policies and other GPU memory allocators on the
// same traces, in one run on one machine, and prints a table. See run, which fetches and
// builds the others and calls this.
//
// Files: run, fetches and builds; main.go the table, own.go this project's policies,
// other.go the peers, traces.go the recordings. In C++, peer.h is what a peer is, replay.cc
// drives one, device.h is the device below it; xla.cc, torch.cc, rmm.cc, vma.cc and
// offset/lib.rs are the peers.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"gpumem/internal/report"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout)
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "peers:", err)
	if errors.Is(err, errUsage) {
		os.Exit(2)
	}
	os.Exit(1)
}

// errUsage is wrapped by errors of the command line.
var errUsage = errors.New("see bench/peers/run --help")

// options are the flags.
type options struct {
	testdata, built, document string
	columns                   []column
	repeats                   int
	budget                    float64
	check                     bool // check the options and measure nothing
}

// parseOptions reads the flags, and fails with errUsage.
func parseOptions(args []string) (options, error) {
	var o options
	var only string
	flags := flag.NewFlagSet("peers", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&o.built, "built", "", "folder of the built peers")
	flags.StringVar(&o.testdata, "testdata", "../../testdata", "folder of the traces")
	flags.StringVar(&o.document, "document", "", "document whose table between markers is replaced")
	flags.StringVar(&only, "only", "", "traces to measure, separated by commas (default: all)")
	flags.IntVar(&o.repeats, "repeats", 9, "timed passes, of which the least counts")
	flags.Float64Var(&o.budget, "budget", 20, "CPU seconds that a pass may take")
	flags.BoolVar(&o.check, "check", false, "check the flags alone")
	usage := func(format string, args ...any) (options, error) {
		return o, fmt.Errorf(format+"; %w", append(args, errUsage)...)
	}
	if err := flags.Parse(args); err != nil {
		return usage("%w", err)
	}
	if flags.NArg() > 0 {
		return usage("%q: no such argument", flags.Arg(0))
	}
	if o.repeats < 1 {
		return usage("--repeats %d: want at least 1", o.repeats)
	}
	if !(o.budget > 0) {
		return usage("--budget %v: want more than 0 seconds", o.budget)
	}
	o.columns = columns
	if only != "" {
		o.columns = nil
		for _, title := range strings.Split(only, ",") {
			i := slices.IndexFunc(columns, func(c column) bool { return c.title == title })
			if i < 0 {
				var all []string
				for _, c := range columns {
					all = append(all, c.title)
				}
				return usage("--only %q: no such trace, want some of %s", title, strings.Join(all, ","))
			}
			o.columns = append(o.columns, columns[i])
		}
	}
	if o.document != "" {
		if only != "" {
			return usage("--out takes no --only: the table is that of a whole run")
		}
		if _, err := replaced(o.document, ""); err != nil {
			return usage("--out: %w", err)
		}
	}
	return o, nil
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	o, err := parseOptions(args)
	if err != nil || o.check {
		return err
	}
	scratch, err := os.MkdirTemp("", "peers")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	peers, err := findPeers(o.built)
	if err != nil {
		return err
	}
	var inputs []*input
	for _, c := range o.columns {
		in, err := c.open(ctx, o.testdata, scratch)
		if err != nil {
			return err
		}
		defer in.trace.Close()
		inputs = append(inputs, in)
	}
	rows, failed, err := measure(ctx, o, peers, inputs)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	write(&text, peers, inputs, rows)
	skipped, err := os.ReadFile(filepath.Join(o.built, "skipped"))
	if err != nil {
		return err
	}
	failed = string(skipped) + failed
	if o.document == "" || failed != "" {
		text.WriteString(failed)
		if _, err := text.WriteTo(stdout); err != nil {
			return err
		}
		if failed != "" {
			return errors.New("peers were skipped or failed, see the end of the table")
		}
		return nil
	}
	doc, err := replaced(o.document, text.String())
	if err != nil {
		return err
	}
	return os.WriteFile(o.document, []byte(doc), 0o644)
}

// row is one allocator and its figures, a trace each.
type row struct {
	name    string
	figures []figures
}

// measure goes trace by trace, so that all allocators meet the machine at about the same
// time. failed has a line for each peer that failed on a trace, which is "failed" in the
// table.
func measure(ctx context.Context, o options, peers []peer, inputs []*input) (rows []row, failed string, err error) {
	rows = make([]row, len(own)+len(peers))
	for _, in := range inputs {
		for i := range rows {
			var f figures
			var err error
			if i < len(own) {
				rows[i].name = own[i].name
				f, err = measureOwn(ctx, in, own[i].spec, o.repeats)
			} else {
				p := peers[i-len(own)]
				rows[i].name = p.name
				f, err = p.measure(ctx, o, in)
				if err != nil && ctx.Err() == nil {
					failed += fmt.Sprintf("FAILED %s on %s: %s\n", p.name, in.title, strings.ReplaceAll(err.Error(), "\n", "; "))
					f, err = figures{ns: "failed"}, nil
				}
			}
			if err != nil {
				return nil, "", fmt.Errorf("%s on %s: %w", rows[i].name, in.title, err)
			}
			rows[i].figures = append(rows[i].figures, f)
			fmt.Fprintf(os.Stderr, "%s: %s: %s ns\n", in.title, rows[i].name, f.ns)
		}
	}
	return rows, failed, nil
}

// write writes the machine, the four parts of the table, and the versions.
func write(w io.Writer, peers []peer, inputs []*input, rows []row) {
	fmt.Fprintf(w, "%s, %s/%s, %s, %d cores%s\n", runtime.Version(), runtime.GOOS, runtime.GOARCH, processor(), runtime.NumCPU(), load())
	part := func(title string, cell func(in *input, f figures) string) {
		titles := []string{title}
		for _, in := range inputs {
			titles = append(titles, ">"+in.title)
		}
		t := report.NewTable(titles...)
		for _, r := range rows {
			cells := []string{r.name}
			for i, f := range r.figures {
				cells = append(cells, cell(inputs[i], f))
			}
			if strings.Join(cells[1:], "") != "" {
				t.Row(cells...)
			}
		}
		fmt.Fprintln(w)
		t.WriteTo(w)
	}
	part("ns per operation", func(in *input, f figures) string {
		if f.failed(in) {
			return "-"
		}
		return f.ns
	})
	part("smallest device / peak of live bytes", func(in *input, f figures) string {
		if f.smallest == nil {
			return ""
		}
		return fmt.Sprintf("%.3f", float64(*f.smallest)/float64(in.trace.PeakLive))
	})
	part("bytes held, mean / live, mean", func(in *input, f figures) string {
		switch {
		case f.held == nil:
			return ""
		case f.failed(in):
			return "-"
		case *f.held >= 0.999*float64(in.device):
			return "all"
		}
		return fmt.Sprintf("%.3f", *f.held/in.liveMean())
	})
	part("driver calls", func(in *input, f figures) string {
		switch {
		case f.calls == nil:
			return ""
		case f.failed(in):
			return "-"
		}
		return report.Count(*f.calls)
	})
	part("requests refused", func(_ *input, f figures) string {
		if f.refused == 0 {
			return ""
		}
		return report.Count(f.refused)
	})
	fmt.Fprintln(w)
	for _, s := range same(rows, inputs) {
		fmt.Fprintln(w, s)
	}
	fmt.Fprintln(w)
	for _, p := range peers {
		if p.version != "" {
			fmt.Fprintf(w, "%s: %s\n", p.name, p.version)
		}
	}
}

// same says on how many traces an own policy and the peer that it is a copy of gave
// every block the same address, and refused the same.
func same(rows []row, inputs []*input) []string {
	find := func(name string) *row {
		i := slices.IndexFunc(rows, func(r row) bool { return r.name == name })
		if i < 0 {
			return nil
		}
		return &rows[i]
	}
	var list []string
	for _, pair := range [][2]string{
		{"gpumem bfc", "XLA BFC"}, {"gpumem bfc, growing", "XLA BFC, growing"},
		{"gpumem pytorch", "PyTorch"}, {"gpumem pytorch, expandable", "PyTorch, expandable"},
	} {
		a, b := find(pair[0]), find(pair[1])
		if a == nil || b == nil {
			continue
		}
		var differ []string
		for i, f := range a.figures {
			if f.digest != b.figures[i].digest {
				differ = append(differ, inputs[i].title)
			}
		}
		s := fmt.Sprintf("%s places as %s on %d of %d traces", pair[0], pair[1], len(inputs)-len(differ), len(inputs))
		if differ != nil {
			s += ", not on " + strings.Join(differ, ", ")
		}
		list = append(list, s)
	}
	return list
}

func (in *input) liveMean() float64 {
	live := make([]uint64, in.trace.Pools[0].Slots)
	var sum uint64
	var all float64
	for _, e := range in.events {
		sum += e.Bytes - live[e.Slot] // what lay there is 0 at an allocation
		live[e.Slot] = e.Bytes
		all += float64(sum)
	}
	return all / float64(len(in.events))
}

// nanos is a time per operation as the table shows it.
func nanos(ns float64) string {
	if ns < 10 {
		return fmt.Sprintf("%.1f", ns)
	}
	return report.Count(uint64(ns + 0.5))
}

// processor is the model that Linux names.
func processor() string {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown processor"
	}
	for line := range strings.Lines(string(info)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return "unknown processor"
}

// load is what else the machine did, in words.
func load() string {
	avg, err := os.ReadFile("/proc/loadavg")
	if f := strings.Fields(string(avg)); err == nil && len(f) > 2 {
		return "; load average " + f[2] + " over 15 minutes; this run alone is 1"
	}
	return ""
}

// replaced returns the document's text with the table between its markers.
func replaced(document, table string) (string, error) {
	doc, err := os.ReadFile(document)
	if err != nil {
		return "", err
	}
	head, rest, ok := strings.Cut(string(doc), "<!-- others -->\n```\n")
	_, tail, ok2 := strings.Cut(rest, "```\n<!-- end -->")
	if !ok || !ok2 {
		return "", fmt.Errorf("%s has no markers for the table", document)
	}
	return head + "<!-- others -->\n```\n" + table + "```\n<!-- end -->" + tail, nil
}
