// gpumem fit: its flags, and the answer as text.

package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"gpumem/device/card"
	"gpumem/device/open"
	"gpumem/replay/advise"
	"gpumem/replay/fit"
	"gpumem/report"
	"gpumem/size"
)

func fitCommand() *cobra.Command {
	var (
		device, beside, name string
		cfg                  fit.Config
		asJSON, quiet        bool
	)
	cmd := &cobra.Command{
		Use:   "fit [flags] -- COMMAND ARGS... | MODULE | TRACE",
		Short: "Find whether a program fits a GPU, without the GPU",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || args[0] == "" {
				return errors.New("fit needs a COMMAND, a MODULE or a TRACE; gpumem fit --help has examples")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if cfg.Context, err = size.ParseFlag(beside); err != nil {
				return fmt.Errorf("--beside: %w", err)
			}
			if name != "" {
				if cmd.Flags().Changed("device") {
					return errors.New("--card and --device are the same: leave one of them out")
				}
				if _, err := card.Find(name); err != nil {
					return fmt.Errorf("--card: %w", err)
				}
				device = "sim:" + name
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
			cfg.Progress = line.show
			if fit.IsFile(args, cmd.ArgsLenAtDash() >= 0) {
				for _, flag := range []string{"full", "smallest", "quiet"} {
					if cmd.Flags().Changed(flag) {
						return fmt.Errorf("--%s is for a program; %s is a file", flag, args[0])
					}
				}
				rep, err := fit.File(cmd.Context(), args[0], cfg)
				line.clear()
				if err != nil {
					return err
				}
				err = show(cmd, asJSON, rep, func(t *text) { writeFitFile(t, rep) })
				if err == nil && rep.Advice == nil {
					err = errNo
				}
				return err
			}
			cfg.Command, cfg.Env = args, os.Environ()
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
	fs.StringVar(&name, "card", "", "`NAME` of the card: T4, L4, A100-40GB, H100, \"RTX 4090\", ...")
	fs.StringVar(&beside, "beside", size.Format(advise.DefaultContext), "`SIZE` of the program's memory outside its pool: the CUDA context, code, libraries")
	fs.BoolVar(&cfg.Full, "full", false, "run the program to its end, also when its memory repeats")
	fs.BoolVar(&cfg.Smallest, "smallest", false, "run the program for the smallest card, too, and for smaller ones until it does not fit")
	fs.BoolVar(&quiet, "quiet", false, "show nothing that the program writes")
	fs.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// writeFit writes the answer about a program: the advice, what it compiled, what differs.
func writeFit(t *text, rep *fit.Report) {
	known := rep.Program.Framework == "jax" || rep.Program.Framework == "pytorch" // whose settings advise knows
	if rep.Program.Repeats {
		t.Line("As far as it ran: it was ended when its memory repeated. What comes later, such as an evaluation, is not in this answer; --full runs it to its end.")
	}
	if own := rep.Program.Own; len(own) > 0 {
		why := ", for JAX refuses both names of a setting at once"
		if rep.Program.Framework != "jax" {
			why = ""
		}
		t.Line("Without the program's own %s: take that out before you set anything below%s.", strings.Join(own, " "), why)
	}
	if known {
		writeAdvice(t, rep.Report)
	} else {
		writeNeed(t, rep)
	}
	if len(rep.Program.Lines) > 0 {
		writeParts(t, "Live at the peak, by line of the program, the largest", rep.Program.Lines)
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
		case !known:
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

// writeFitFile writes the answer about a module or a recording.
func writeFitFile(t *text, rep *fit.FileReport) {
	writeAdvice(t, rep.Report)
	if m := rep.Module; m != nil {
		t.section("")
		if rep.Refused != nil {
			t.Line("What is refused first is %s.", rep.Refused.What)
		}
		t.Line("%s takes %s:", m.Name, size.Format(m.Total()))
		tab := report.NewTable(">arguments", ">results", ">in place", ">temporaries", ">constants")
		tab.Row(size.Format(m.Arguments), size.Format(m.Results), size.Format(m.Aliased), size.Format(m.Temporaries), size.Format(m.Constants))
		t.table(tab)
		if !m.Scheduled {
			t.Line("The module is not compiled yet (is_scheduled=true is missing). What it takes is an estimate: docs/fit.md says how wrong it may be. compiled.as_text() has what runs.")
		}
		t.Line("Constants and the code, whose size the module does not have, lie outside the pool.")
	}
	if len(rep.Peak) > 0 {
		writeParts(t, "Live at the peak, the largest", rep.Peak)
	}
}

// writeParts lists what fills the peak.
func writeParts(t *text, title string, list []fit.Part) {
	t.section(title)
	for _, p := range list {
		what := p.What
		if p.Blocks > 1 {
			what += ", " + report.Counted(p.Blocks, "block")
		}
		t.Raw(report.Fit(fmt.Sprintf("  %10s  %s", size.Format(p.Bytes), report.OneLine(what)), textWidth))
		if p.Where != "" {
			t.Raw("              " + tailOf(report.OneLine(p.Where), textWidth-14))
		}
	}
}
