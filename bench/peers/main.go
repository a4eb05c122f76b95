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
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"gpumem/report"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	testdata, built, document string
	only                      string
	repeats                   int
	budget                    float64
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	var o options
	flags := flag.NewFlagSet("peers", flag.ContinueOnError)
	flags.StringVar(&o.built, "built", "", "folder of the built peers")
	flags.StringVar(&o.testdata, "testdata", "../../testdata", "folder of the traces")
	flags.StringVar(&o.document, "document", "", "document whose table between markers is replaced")
	flags.StringVar(&o.only, "only", "", "traces to measure, separated by commas (default: all)")
	flags.IntVar(&o.repeats, "repeats", 9, "timed passes, of which the least counts")
	flags.Float64Var(&o.budget, "budget", 20, "CPU seconds that a pass may take")
	if err := flags.Parse(args); err != nil {
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
	for _, c := range columns {
		if o.only != "" && !slices.Contains(strings.Split(o.only, ","), c.title) {
			continue
		}
		in, err := c.open(ctx, o.testdata, scratch)
		if err != nil {
			return err
		}
		defer in.trace.Close()
		inputs = append(inputs, in)
	}
	rows, err := measure(ctx, o, peers, inputs)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	write(&text, peers, inputs, rows)
	skipped, err := os.ReadFile(filepath.Join(o.built, "skipped"))
	if err != nil {
		return err
	}
	text.Write(skipped)
	if o.document == "" {
		_, err := text.WriteTo(stdout)
		return err
	}
	return replace(o.document, text.String())
}

// row is one allocator and its figures, a trace each.
type row struct {
	name    string
	figures []figures
}

// measure goes trace by trace, so that all allocators meet the machine at about the same
// time.
func measure(ctx context.Context, o options, peers []peer, inputs []*input) ([]row, error) {
	rows := make([]row, len(own)+len(peers))
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
			}
			if err != nil {
				return nil, fmt.Errorf("%s on %s: %w", rows[i].name, in.title, err)
			}
			rows[i].figures = append(rows[i].figures, f)
			fmt.Fprintf(os.Stderr, "%s: %s: %s ns\n", in.title, rows[i].name, f.ns)
		}
	}
	return rows, nil
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
		return "; load " + f[2] + " in the last 15 minutes, of which this run is 1"
	}
	return ""
}

// replace writes the table into the document, between its markers.
func replace(document, table string) error {
	doc, err := os.ReadFile(document)
	if err != nil {
		return err
	}
	head, rest, ok := strings.Cut(string(doc), "<!-- others -->\n```\n")
	_, tail, ok2 := strings.Cut(rest, "```\n<!-- end -->")
	if !ok || !ok2 {
		return fmt.Errorf("%s has no markers for the table", filepath.Base(document))
	}
	return os.WriteFile(document, []byte(head+"<!-- others -->\n```\n"+table+"```\n<!-- end -->"+tail), 0o644)
}
