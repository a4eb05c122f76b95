package main

import (
	"context"
	"errors"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"gpumem/device/open"
	"gpumem/device/sim"
	"gpumem/record/advise"
	"gpumem/record/trace"
	"gpumem/size"
)

type adviseOptions struct {
	recordingOptions
	device, as string
	beside     uint64
}

func adviseCommand() *cobra.Command {
	var o adviseOptions
	cmd := &cobra.Command{
		Use:   "advise TRACE...",
		Short: "Find the settings with which a recording fits a GPU",
		Args: func(_ *cobra.Command, words []string) error {
			if len(words) == 0 {
				return errors.New("advise takes a TRACE, a file or - for standard input, or several; gpumem advise --help has examples")
			}
			if i := slices.Index(words, "-"); i >= 0 && slices.Contains(words[i+1:], "-") {
				return errors.New("- is given twice, and there is one standard input")
			}
			return nil
		},
		RunE: runner(&o, runAdvise),
	}

	fs := cmd.Flags()
	fs.StringVar(&o.device, "device", "", "`DEVICE`: sim:24GiB[,used=8GiB], sim@FILE or cuda:N, of which only the size is "+
		"read "+defaultDevice)
	addSize(fs, &o.beside, "beside", size.Format(advise.DefaultContext), besideUsage)
	const as = "`FRAMEWORK`[@VERSION] to answer for: jax, tensorflow, pytorch, rmm, none; for all recordings (default: by the recording)"
	fs.StringVar(&o.as, "as", "", as)
	o.addFlags(cmd)
	return cmd
}

// besideUsage is the help of --beside.
const besideUsage = "`SIZE` of the program's memory outside its pool: the CUDA context, code, libraries; context= of " +
	"DEVICE goes before the default"

func runAdvise(ctx context.Context, o *adviseOptions) error {
	cfg := advise.Config{Pool: o.pool, As: o.as}
	spec, note, err := open.Choose(o.device, os.LookupEnv, true)
	if err != nil {
		return err
	}
	if cfg.Sim, cfg.Context, err = simulated(spec, o.beside, o.given("beside")); err != nil {
		return err
	}
	if err := advise.Check(cfg); err != nil {
		return err
	}

	line := newProgress(o.errs)
	defer line.clear()
	cfg.Progress = line.show
	var traces []*trace.Trace
	for _, path := range o.words {
		t, err := o.open(ctx, path, o.paths, line)
		if err != nil {
			return err
		}
		defer t.Close()
		traces = append(traces, t)
	}

	// With an error stderr has that one line alone.
	answer := func(rep any, yes bool, write func(*text)) error {
		line.clear()
		if note != "" {
			o.note(note)
		}
		return o.answer(rep, yes, write)
	}
	if len(traces) > 1 {
		rep, err := advise.RunTogether(ctx, traces, cfg)
		if err != nil {
			return err
		}
		return answer(rep, rep.Fits, func(t *text) { writeTogether(t, rep) })
	}
	rep, err := advise.Run(ctx, traces[0], cfg)
	if err != nil {
		return err
	}
	return answer(rep, rep.Advice != nil, func(t *text) { writeAdvice(t, rep) })
}

// simulated returns the card of a device spec, simulated: with its size, and what others
// hold of it now. context is what the program has outside its pool: beside if that was given, or
// else context= of the spec, or else beside.
func simulated(spec open.Spec, beside uint64, given bool) (card sim.Config, context uint64, err error) {
	if card = spec.Sim; spec.Kind != open.Private {
		dev, err := spec.Device()
		if err != nil {
			return card, 0, err
		}
		defer dev.Close()
		card = advise.Simulated(dev)
	}
	if !given && (card.Context > 0 || spec.SetsContext()) {
		return card, card.Context, nil
	}
	return card, beside, nil
}
