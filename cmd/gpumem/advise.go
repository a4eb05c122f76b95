// gpumem advise and gpumem fit: their flags, and the advice as text.

package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"gpumem/device/open"
	"gpumem/device/sim"
	"gpumem/replay/advise"
	"gpumem/replay/fit"
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

func fitCommand() *cobra.Command {
	var (
		device, beside string
		cfg            fit.Config
		asJSON, quiet  bool
	)
	cmd := &cobra.Command{
		Use:   "fit [flags] -- COMMAND ARGS...",
		Short: "Find whether a program fits a GPU, without the GPU",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || args[0] == "" {
				return errors.New("fit needs a COMMAND; gpumem fit --help has examples")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if cfg.Context, err = size.ParseFlag(beside); err != nil {
				return fmt.Errorf("--beside: %w", err)
			}
			spec, err := open.Parse(device)
			if err != nil {
				return fmt.Errorf("--device: %w", err)
			}
			if cfg.Sim, err = simulated(spec); err != nil {
				return err
			}
			if err := advise.Check(advise.Config{Sim: cfg.Sim, Context: cfg.Context}); err != nil {
				return err
			}
			signal.Ignore(syscall.SIGPIPE) // the recording is removed, also where the output has no reader
			line := newProgress(cmd.ErrOrStderr())
			defer line.clear()
			cfg.Command, cfg.Env, cfg.Progress = args, os.Environ(), line.show
			if !quiet {
				cfg.Stdout, cfg.Stderr = cmd.ErrOrStderr(), cmd.ErrOrStderr() // the answer alone is on stdout
			}
			rep, err := fit.Run(cmd.Context(), cfg)
			line.clear()
			if err != nil {
				return err
			}
			err = show(cmd, asJSON, rep, func(t *text) { writeFit(t, rep) })
			if err == nil && rep.Advice == nil {
				err = errNo
			}
			return err
		},
	}
	fs := cmd.Flags()
	fs.SetInterspersed(false)
	fs.StringVar(&device, "device", "sim:24GiB", "`DEVICE`, the card: sim:24GiB, or cuda:N, of which only the size is read")
	fs.StringVar(&beside, "beside", size.Format(advise.DefaultContext), "`SIZE` of the program's memory outside its pool: the CUDA context, code, libraries")
	fs.BoolVar(&cfg.Full, "full", false, "run the program to its end, also when its memory repeats")
	fs.BoolVar(&cfg.Smallest, "smallest", false, "run the program for the smallest card, too, and for smaller ones until it does not fit")
	fs.BoolVar(&quiet, "quiet", false, "show nothing that the program writes")
	fs.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// writeFit writes the answer about a program: the advice, what it compiled, what differs.
func writeFit(t *text, rep *fit.Report) {
	if rep.Program.Repeats {
		t.Line("As far as it ran: it was ended when its memory repeated. What comes later, such as an evaluation, is not in this answer; --full runs it to its end.")
	}
	if own := rep.Program.Own; len(own) > 0 {
		t.Line("Without the program's own %s: take that out before you set anything below, for JAX refuses both names of a setting at once.", strings.Join(own, " "))
	}
	if rep.Program.Framework == "jax" {
		writeAdvice(t, rep.Report)
	} else {
		writeNeed(t, rep)
	}
	if p := rep.Program; len(p.Compiled) > 0 {
		t.section("")
		t.Line("Compiled by %s %s, the largest first:", p.Framework, p.Version)
		tab := report.NewTable("function", ">in all", ">arguments", ">results", ">in place", ">temporaries", ">code")
		for _, c := range p.Compiled[:min(5, len(p.Compiled))] {
			tab.Row(c.Name, size.Format(c.Total()), size.Format(c.Argument), size.Format(c.Output), size.Format(c.Alias), size.Format(c.Temp), size.Format(c.Code))
		}
		t.table(tab)
	}
	t.section("")
	for _, c := range rep.Tried {
		switch with := strings.Join(c.Set, " "); {
		case !c.Fits:
			t.Line("Compiled for a card of %s it does not fit it.", size.Format(c.Card))
		case rep.Program.Framework != "jax":
			t.Line("Compiled for a card of %s it fits it; %s is live at the peak.", size.Format(c.Card), size.Format(c.Peak))
		case with == "":
			t.Line("Compiled for a card of %s it fits it as it is; %s is live at the peak.", size.Format(c.Card), size.Format(c.Peak))
		default:
			t.Line("Compiled for a card of %s it fits it with %s; %s is live at the peak.", size.Format(c.Card), with, size.Format(c.Peak))
		}
	}
	if rep.Program.Framework != "" && len(rep.Tried) == 0 && rep.SmallestCard != nil {
		t.Line("For a smaller card the compiler may choose what takes less memory: --smallest runs the program for those, too.")
	}
	if rep.Program.RanOn != rep.DeviceBytes {
		t.Line("It was refused memory on the card, and ran on a simulated GPU of %s to learn what it needs: what the compiler chooses may differ there.", size.Format(rep.Program.RanOn))
	}
	for _, d := range fit.Differences() {
		t.Line("%s", d)
	}
}

// writeNeed is the advice for a program whose settings advise does not know.
func writeNeed(t *text, rep *fit.Report) {
	verdict := "It fits"
	if rep.Advice == nil {
		verdict = "It does not fit"
	}
	t.Line("%s %s: %s is live at the peak, and %s is assumed outside the pool (--beside).",
		verdict, size.Format(rep.DeviceBytes), size.Format(rep.Trace.PeakLive), size.Format(rep.ContextBytes))
	if rep.SmallestCard == nil {
		t.Line("No card on the market is large enough.")
	} else {
		t.Line("The smallest card: %s, of which programs see %s at least.", size.Format(*rep.SmallestCard), size.Format(advise.Usable(*rep.SmallestCard)))
	}
	t.section("")
	t.recording(rep.Trace)
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
