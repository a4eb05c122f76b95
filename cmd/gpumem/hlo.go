// gpumem hlo: its flags, and what a module takes as text.

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gpumem/internal/output"
	"gpumem/internal/report"
	"gpumem/size"
	"gpumem/xla/measure"
	"gpumem/xla/page"
	"gpumem/xla/remat"
)

// hloLargest is how many of the values that live at the peak are listed.
const hloLargest = 10

type hloOptions struct {
	call
	page string        // a file to write
	time time.Duration // to plan for the page
}

func hloCommand() *cobra.Command {
	var o hloOptions
	cmd := &cobra.Command{
		Use:   "hlo MODULE [ASSIGNMENT]",
		Short: "Measure the memory of a compiled program",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 2 {
				return fmt.Errorf("hlo takes a module and its buffer assignment, and got %d words", len(args))
			}
			return oneModule(cmd, args[:min(len(args), 1)])
		},
		RunE: runner(&o, runHLO),
	}
	o.addJSON(cmd)
	cmd.Flags().StringVar(&o.page, "report", "", "write a page of HTML about the module to `FILE`")
	cmd.Flags().DurationVar(&o.time, "time", 10*time.Second, "with --report: time to plan what less memory costs; 0 for none")
	return cmd
}

func runHLO(ctx context.Context, o *hloOptions) error {
	for _, file := range o.words {
		if err := output.Check(file, "module", output.File{Flag: "--report", Path: o.page}); err != nil {
			return err
		}
	}
	if o.given("time") && o.page == "" {
		return errors.New("--time is for the page: give --report, too")
	}
	if err := remat.CheckTime(o.time); err != nil {
		return err
	}
	if len(o.words) == 1 && measure.IsFolder(o.words[0]) {
		return runHLOFolder(ctx, o)
	}
	a, err := measure.Files(ctx, o.words, page.Largest)
	if err != nil {
		return err
	}

	line := newProgress(o.errs)
	err = writeFiles(ctx, namedFile{"--report", o.page, func(w io.Writer) error {
		return page.WriteModule(ctx, w, a, o.time, func(done float64) { line.show("plans for less memory", done) })
	}})
	if line.clear(); err != nil {
		return err
	}
	a.Largest = a.Largest[:min(len(a.Largest), hloLargest)]
	return o.show(a, func(t *text) { writeHLO(t, a) })
}

// Of a folder, hloDetailed modules are shown with their hloFolderLargest largest values.
const (
	hloDetailed      = 3
	hloFolderLargest = 5
	hloRows          = 20
)

// runHLOFolder lists the modules of a folder that XLA wrote.
func runHLOFolder(ctx context.Context, o *hloOptions) error {
	if o.page != "" {
		return fmt.Errorf("%s: is a folder, and --report is about one module: name its file", o.words[0])
	}
	f, err := measure.ReadFolder(ctx, o.words[0], hloDetailed, hloFolderLargest)
	if err != nil {
		return err
	}
	return o.show(f, func(t *text) { writeHLOFolder(t, f) })
}

// writeHLOFolder writes a table of modules, and what is in the largest ones.
func writeHLOFolder(t *text, f *measure.Folder) {
	t.Line("%s", f.Title())
	tab := report.NewTable("module", ">total", ">arguments", ">results", ">temporaries", ">modules")
	for _, m := range f.Modules[:min(hloRows, len(f.Modules))] {
		tab.Row(report.OneLine(m.Name), size.Format(m.Total), size.Format(m.Arguments), size.Format(m.Results),
			size.Format(m.Temporaries), report.Count(uint64(m.Same)))
	}
	t.Table(tab)
	if more := len(f.Modules) - hloRows; more > 0 {
		most := size.Format(f.Modules[hloRows].Total)
		t.Line("And %s that take at most %s each; --json has them.", report.Counted(uint64(more), "module"), most)
	}
	for _, m := range f.Modules {
		if len(m.Largest) == 0 {
			break
		}
		t.section(m.Name + ", " + size.Format(m.Total) + ": the largest values at its peak")
		t.Raw("  " + report.Fit(report.OneLine(m.File), textWidth-2))
		for _, v := range m.Largest {
			t.place(v.Bytes, report.OneLine(v.Instruction+" "+v.Shape), v.OpName+" "+v.Source)
		}
	}
	for _, n := range f.Notes {
		t.Line("Note: %s.", n)
	}
}

// oneModule checks the words of a command that takes a module.
func oneModule(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return fmt.Errorf("no module: name its FILE, as in gpumem %s step.hlo; XLA_FLAGS=--xla_dump_to=DIR makes XLA write modules", cmd.Name())
	case len(args) > 1:
		return fmt.Errorf("%s takes one module, and got %d words", cmd.Name(), len(args))
	}
	return nil
}

// writeHLO writes the sizes, the curve of memory over the program, and what lives where it
// is highest.
func writeHLO(t *text, a *measure.Answer) {
	writeSizes(t, a)
	if len(a.Curve) > 1 {
		t.section("Memory over the program")
		for _, l := range report.Plot(a.Curve, textWidth-14) {
			t.Raw("  " + l)
		}
	}

	if len(a.Largest) == 0 {
		return
	}
	title := "Live at the peak"
	switch {
	case a.Module == nil && a.Own.Text:
		title = "Beside each other"
	case a.Exact:
		title = "In memory where the temporaries take the most"
	}

	t.section(fmt.Sprintf("%s: %s, the largest", title, report.Counted(uint64(a.Alive), "value")))
	for _, v := range a.Largest {
		t.place(v.Bytes, report.OneLine(v.Instruction+" "+v.Shape), v.OpName+" "+v.Source)
	}
}

// writeSizes writes what the program takes, a line each.
func writeSizes(t *text, a *measure.Answer) {
	by := "by a model of XLA's assignment"
	if a.Exact {
		by = "by XLA's own assignment"
	}
	if a.Instructions > 0 {
		instructions, computations := report.Counted(uint64(a.Instructions), "instruction"), report.Counted(uint64(a.Computations), "computation")
		t.Line("%s: %s in %s, %s", a.Name, instructions, computations, by)
	} else {
		t.Line("No module, %s", by)
	}

	line := func(name string, bytes uint64, more string) {
		t.Raw(report.Fit(strings.TrimRight(fmt.Sprintf("  %-12s  %10s%s", name, size.Format(bytes), more), " "), textWidth))
	}
	aliased := ""
	if a.Aliased > 0 {
		aliased = ", of which " + size.Format(a.Aliased) + " lie in arguments"
	}
	line("arguments", a.Arguments, "")
	line("results", a.Results, aliased)
	line("temporaries", a.Temporaries, " in one block")
	line("total", a.Total, "")
	if a.Constants > 0 {
		line("constants", a.Constants, " beside that, with the code")
	}
	line("live at most", a.Peak, at(a.PeakAt))
	if a.Instructions > 0 {
		line("pass's count", a.PassPeak, " of temporaries, by XLA's recompute pass,"+at(a.TempPeakAt))
	}

	for _, n := range a.Notes {
		t.Line("Note: %s.", n)
	}
	if a.Regions > 0 {
		t.Raw("  " + report.Counted(uint64(a.Regions), "region") + " marked by jax.checkpoint")
	}
}

// at says at which instruction something is, if that is known.
func at(name string) string {
	if name == "" {
		return ""
	}
	return " at " + name
}
