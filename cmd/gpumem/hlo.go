package main

import (
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

// A hloAnswer is what a module takes. Scripts rely on its JSON.
type hloAnswer struct {
	*measure.Answer
	Regions int `json:"checkpoint_regions"` // those that jax.checkpoint marked
}

func hloCommand() *cobra.Command {
	var asJSON bool
	var pageTo string
	var limit time.Duration
	cmd := &cobra.Command{
		Use:   "hlo MODULE [ASSIGNMENT]",
		Short: "Measure the memory of a compiled program",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 2 {
				return fmt.Errorf("hlo takes a module and its buffer assignment, and got %d words", len(args))
			}
			return oneModule(cmd, args[:min(len(args), 1)])
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, file := range args {
				if err := output.Check(file, "module", output.File{Flag: "--report", Path: pageTo}); err != nil {
					return err
				}
			}
			if limit < 0 {
				return fmt.Errorf("--time %s: want 0 or more", limit)
			}
			s, err := measure.Files(cmd.Context(), args, page.Largest)
			if err != nil {
				return err
			}
			if pageTo != "" {
				line := newProgress(cmd.ErrOrStderr())
				err := output.Write(cmd.Context(), pageTo, func(w io.Writer) error {
					return page.WriteModule(cmd.Context(), w, s, limit, func(done float64) { line.show("plans for less memory", done) })
				})
				if line.clear(); err != nil {
					return fmt.Errorf("--report: %w", err)
				}
			}
			s.Largest = s.Largest[:min(len(s.Largest), hloLargest)]
			a := &hloAnswer{Answer: s}
			if s.Module != nil {
				a.Regions = len(remat.Regions(s.Module))
			}
			return show(cmd, asJSON, a, func(t *text) { writeHLO(t, a) })
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().StringVar(&pageTo, "report", "", "write a page of HTML about the module to `FILE`")
	cmd.Flags().DurationVar(&limit, "time", 10*time.Second, "with --report: time to plan what less memory costs; 0 for none")
	return cmd
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
func writeHLO(t *text, a *hloAnswer) {
	by := "by a model of XLA's assignment"
	if a.Exact {
		by = "by XLA's own assignment"
	}
	if a.Instructions > 0 {
		t.Line("%s: %s in %s, %s", a.Name, report.Counted(uint64(a.Instructions), "instruction"), report.Counted(uint64(a.Computations), "computation"), by)
	} else {
		t.Line("No module, %s", by)
	}
	line := func(name string, bytes uint64, format string, args ...any) {
		t.Raw(report.Fit(strings.TrimRight(fmt.Sprintf("  %-12s  %10s%s", name, size.Format(bytes), fmt.Sprintf(format, args...)), " "), textWidth))
	}
	aliased := ""
	if a.Aliased > 0 {
		aliased = ", of which " + size.Format(a.Aliased) + " lie in arguments"
	}
	line("arguments", a.Arguments, "")
	line("results", a.Results, "%s", aliased)
	line("temporaries", a.Temporaries, " in one block")
	line("total", a.Total, "")
	if a.Constants > 0 {
		line("constants", a.Constants, " beside that, with the code")
	}
	if line("live at most", a.Peak, "%s", at(a.PeakAt)); a.Instructions > 0 {
		line("pass's count", a.PassPeak, " of temporaries, by XLA's recompute pass,%s", at(a.TempPeakAt))
	}
	for _, n := range a.Notes {
		t.Line("Note: %s.", n)
	}
	if a.Regions > 0 {
		t.Raw("  " + report.Counted(uint64(a.Regions), "region") + " marked by jax.checkpoint")
	}
	if len(a.Curve) > 1 {
		t.section("Memory over the program")
		for _, l := range report.Plot(a.Curve, textWidth-14) {
			t.Raw("  " + l)
		}
	}
	if len(a.Largest) > 0 {
		title := "Live at the peak"
		if a.Exact {
			title = "In memory where the temporaries take the most"
		}
		t.section(fmt.Sprintf("%s: %s, the largest", title, report.Counted(uint64(a.Alive), "value")))
		for _, v := range a.Largest {
			from := v.OpName
			if v.Source != "" {
				from += " " + v.Source
			}
			t.Raw(report.Fit(fmt.Sprintf("  %10s  %s", size.Format(v.Bytes), report.OneLine(v.Instruction+" "+v.Shape)), textWidth))
			if from = strings.TrimSpace(from); from != "" {
				t.Raw("              " + tailOf(report.OneLine(from), textWidth-14))
			}
		}
	}
}

// at says at which instruction something is, if that is known.
func at(name string) string {
	if name == "" {
		return ""
	}
	return " at " + name
}

// tailOf returns the end of a text that is too long: the end of an operation's name says most.
func tailOf(text string, n int) string {
	if r := []rune(text); len(r) > n && n > 3 {
		return "..." + string(r[len(r)-n+3:])
	}
	return text
}
