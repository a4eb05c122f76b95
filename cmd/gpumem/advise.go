// gpumem advise: its flags, and the advice as text.

package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"gpumem/device/open"
	"gpumem/device/sim"
	"gpumem/replay/advise"
	"gpumem/report"
	"gpumem/size"
)

func adviseCommand() *cobra.Command {
	var (
		f              recordingFlags
		device, beside string
	)
	cmd := &cobra.Command{
		Use:   "advise TRACE",
		Short: "Find the settings with which a recording fits a GPU",
		Args:  oneTrace,
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg := advise.Config{Pool: f.pool}
			var err error
			if cfg.Context, err = size.ParseFlag(beside); err != nil {
				return fmt.Errorf("--beside: %w", err)
			}
			spec, note, err := open.Choose(device, os.LookupEnv, true)
			if err != nil {
				return err
			}
			if cfg.Sim, err = simulated(spec); err != nil {
				return err
			}
			if err := advise.Check(cfg); err != nil {
				return err
			}
			line := newProgress(cmd.ErrOrStderr())
			defer line.clear()
			cfg.Progress = line.show
			t, err := f.open(cmd.Context(), args[0], line)
			if err != nil {
				return err
			}
			defer t.Close()
			rep, err := advise.Run(cmd.Context(), t, cfg)
			line.clear()
			if err != nil {
				return err
			}
			if note != "" {
				fmt.Fprintln(cmd.ErrOrStderr(), "gpumem: "+note)
			}
			err = show(cmd, f.asJSON, rep, func(t *text) { writeAdvice(t, rep) })
			if err == nil && rep.Advice == nil {
				err = errNo
			}
			return err
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&device, "device", "", "`DEVICE`: sim:24GiB[,used=8GiB], sim@FILE or cuda:N, of which only the size is read (default $GPUMEM_DEVICE, else cuda:0 if a driver loads, else "+open.Default+")")
	fs.StringVar(&beside, "beside", size.Format(advise.DefaultContext), "`SIZE` of the program's memory outside its pool: the CUDA context, code, libraries")
	f.add(cmd)
	return cmd
}

// simulated returns the card of a device spec, simulated: with its size, and what
// others hold of it now.
func simulated(spec open.Spec) (sim.Config, error) {
	if spec.Kind == open.Private {
		return spec.Sim, nil
	}
	dev, err := spec.Device()
	if err != nil {
		return sim.Config{}, err
	}
	defer dev.Close()
	return advise.Simulated(dev), nil
}

// writeAdvice writes the answer as text: the verdict, what to set, the table of what was
// tried, a second program, the smallest card, the assumptions.
func writeAdvice(t *text, rep *advise.Report) {
	export := func(set []string) {
		for _, s := range set {
			t.Raw("  export " + s)
		}
	}
	t.Line("%s", adviceVerdict(rep))
	if rep.Advice != nil {
		if !rep.FitsAsItIs {
			export(rep.Advice.Set)
		}
		for _, n := range rep.Advice.Notes {
			t.Line("  during the run: %s", n)
		}
	}
	t.section("")
	adviceTable(t, rep)
	t.section("")
	if s := rep.Second; s != nil {
		t.Line("For a second program there would be %s, and %s for its context. Set here, then there:", size.Format(s.Bytes), size.Format(rep.ContextBytes))
		if len(s.First) == 0 {
			t.Raw("  (nothing)")
		}
		export(s.First)
		export(s.Other)
	} else if rep.Advice != nil {
		t.Line("There is not enough memory for a second program.")
	}
	if rep.SmallestCard == nil {
		t.Line("No card on the market is large enough.")
	} else {
		t.Line("The smallest card: %s, of which programs see %s at least, with %s.", size.Format(*rep.SmallestCard),
			size.Format(advise.Usable(*rep.SmallestCard)), smallestWith(rep))
	}
	t.section("")
	t.recording(rep.Trace)
	used := ""
	if rep.UsedBytes > 0 {
		used = fmt.Sprintf(", %s of it held by others", size.Format(rep.UsedBytes))
	}
	t.Line("device of %s%s; any allocator must hold %s at the peak", size.Format(rep.DeviceBytes), used, size.Format(rep.LowerBound))
	t.Line("Assumed: %s outside the pool, for the CUDA context, code and libraries (--beside), and another run that requests no more than this one.", size.Format(rep.ContextBytes))
	if rep.Trace.Format == "torch" {
		t.Line("Replayed through pools like PyTorch's: PyTorch's own rounds and splits blocks differently, so the figures are approximate. Before PyTorch 2.10 the variable is PYTORCH_CUDA_ALLOC_CONF, and a fraction is set in the program by torch.cuda.set_per_process_memory_fraction.")
	}
}

// adviceVerdict returns the answer in a sentence or two.
func adviceVerdict(rep *advise.Report) string {
	first := rep.Candidates[0]
	defaults := "JAX's defaults"
	if rep.Trace.Format == "torch" {
		defaults = "PyTorch's defaults"
	}
	if rep.FitsAsItIs {
		served := "nothing is refused"
		if n := rep.Trace.Refused; n > 0 {
			served = fmt.Sprintf("every request is served, also the %s that the recorded run was refused", report.Count(n))
		}
		return fmt.Sprintf("It fits as it is: with %s %s; they hold %s of %s.", defaults, served, size.Format(first.HeldPeak), size.Format(rep.DeviceBytes))
	}
	why := ""
	if first.FirstRefused != nil {
		why = fmt.Sprintf(" (holding %s of %s, event %s, a request for %s, is refused)",
			size.Format(first.HeldPeak), size.Format(rep.DeviceBytes), report.Count(*first.FirstRefused), size.Format(first.RefusedBytes))
	}
	switch {
	case rep.Advice == nil:
		others := ""
		if rep.UsedBytes > 0 {
			others = fmt.Sprintf(", of which others hold %s", size.Format(rep.UsedBytes))
		}
		return fmt.Sprintf("It does not fit %s%s, with any setting: %s is live at the peak, and %s is needed outside the pool.",
			size.Format(rep.DeviceBytes), others, size.Format(rep.LowerBound), size.Format(rep.ContextBytes))
	case rep.Advice.Ours:
		return fmt.Sprintf("It does not fit with any setting of the framework%s. It fits with the policy %s, for programs that use this project's pool.", why, rep.Advice.Policy)
	}
	return fmt.Sprintf("It does not fit with %s%s. It fits with:", defaults, why)
}

func adviceTable(t *text, rep *advise.Report) {
	tab := report.NewTable("setting", "fits", ">held peak", ">left", ">driver calls", ">driver time", ">smallest device", ">card")
	for _, c := range rep.Candidates {
		fits, left := "yes", size.Format(c.Left)
		if !c.Fits {
			fits, left = "NO", ""
		}
		device, card := "none", "none"
		if c.SmallestDevice != nil {
			device = size.Format(*c.SmallestDevice)
		}
		if c.SmallestCard != nil {
			card = size.Format(*c.SmallestCard)
		}
		names := c.Set
		switch {
		case c.Ours:
			names = []string{"(policy " + c.Policy + ")"}
		case len(names) == 0:
			names = []string{"(nothing)"}
		}
		tab.Row(shortSetting(names[0]), fits, size.Format(c.HeldPeak), left, report.Count(c.DriverCalls), report.Seconds(c.DriverSeconds), device, card)
		for _, more := range names[1:] {
			tab.Row("  " + shortSetting(more))
		}
	}
	t.table(tab)
}

// shortSetting leaves out what the variables' names have in common, so that the
// table stays narrow; the whole line is above it.
func shortSetting(s string) string {
	for _, prefix := range []string{"XLA_PYTHON_CLIENT_", "XLA_CLIENT_", "PYTORCH_ALLOC_CONF="} {
		if rest, ok := strings.CutPrefix(s, prefix); ok {
			return rest
		}
	}
	return s
}

// smallestWith returns the first setting with which the smallest card is enough.
func smallestWith(rep *advise.Report) string {
	for _, c := range rep.Candidates {
		if c.Ours || c.SmallestCard == nil || *c.SmallestCard != *rep.SmallestCard {
			continue
		}
		if len(c.CardSet) == 0 {
			return "nothing set"
		}
		return strings.Join(c.CardSet, " ")
	}
	return "our own pool"
}
