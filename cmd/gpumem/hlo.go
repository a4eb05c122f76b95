// gpumem hlo: its flags, and what a module takes as text.

package main

import (
	"context"
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
	if err := remat.CheckTime(o.time); err != nil {
		return err
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
	if a.Exact {
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
