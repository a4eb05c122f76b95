package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"gpumem/hlo/load"
	"gpumem/hlo/memory"
	"gpumem/remat"
	"gpumem/report"
	"gpumem/size"
)

// hloLargest is how many of the values that live at the peak are listed.
const hloLargest = 10

// A hloAnswer is what a module takes. Scripts rely on its JSON.
type hloAnswer struct {
	*memory.Summary
	Regions int `json:"checkpoint_regions"` // those that jax.checkpoint marked
}

func hloCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "hlo MODULE",
		Short: "Measure the memory of a compiled program",
		Args:  oneModule,
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := load.Module(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			s, err := memory.Summarize(m, hloLargest)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			a := &hloAnswer{s, len(remat.Regions(m))}
			return show(cmd, asJSON, a, func(t *text) { writeHLO(t, a) })
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
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
	order := "in the order in which they run"
	if !a.Scheduled {
		order = "not scheduled: measured in the order of the text"
	}
	t.Line("%s: %s in %s, %s", a.Name, report.Counted(uint64(a.Instructions), "instruction"), report.Counted(uint64(a.Computations), "computation"), order)
	aliased := ""
	if a.Aliased > 0 {
		aliased = ", of which " + size.Format(a.Aliased) + " lie in parameters"
	}
	t.Raw(fmt.Sprintf("  %-11s  %10s", "parameters", size.Format(a.Parameters)))
	t.Raw(fmt.Sprintf("  %-11s  %10s%s", "results", size.Format(a.Results), aliased))
	t.Raw(report.Fit(fmt.Sprintf("  %-11s  %10s at %s, parameters and results with it", "peak", size.Format(a.Peak), a.PeakAt), textWidth))
	t.Raw(report.Fit(fmt.Sprintf("  %-11s  %10s at %s, as XLA's recompute pass counts", "temporaries", size.Format(a.TempPeak), a.TempPeakAt), textWidth))
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
		t.section(fmt.Sprintf("Live at the peak: %s, the largest", report.Counted(uint64(a.Alive), "value")))
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

// tailOf returns the end of a text that is too long: the end of an operation's name says most.
func tailOf(text string, n int) string {
	if r := []rune(text); len(r) > n && n > 3 {
		return "..." + string(r[len(r)-n+3:])
	}
	return text
}
