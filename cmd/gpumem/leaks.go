package main

import (
	"context"

	"github.com/spf13/cobra"

	"gpumem/record/leaks"
	"gpumem/record/replay"
)

type leaksOptions struct {
	recordingOptions
	live bool
}

func leaksCommand() *cobra.Command {
	var o leaksOptions
	cmd := &cobra.Command{
		Use:   "leaks TRACE",
		Short: "Find memory leaks in a recording",
		Args:  oneTrace,
		RunE:  runner(&o, runLeaks),
	}
	o.addFlags(cmd)
	o.addPaths(cmd)
	cmd.Flags().BoolVar(&o.live, "live", false, "list what is live at the end, by line of the program, and search for nothing")
	return cmd
}

func runLeaks(ctx context.Context, o *leaksOptions) error {
	line := newProgress(o.errs)
	defer line.clear()
	t, err := o.open(ctx, o.words[0], o.paths, line)
	if err != nil {
		return err
	}
	defer t.Close()

	cfg := leaks.Config{Pool: o.pool, KeepPaths: o.paths, Progress: func(part float64) { line.show("searching", part) }}
	if o.live {
		held, err := leaks.Live(ctx, t, cfg)
		line.clear()
		if err != nil {
			return err
		}
		a := &leaks.LiveAnswer{Trace: replay.Describe(t), Live: held}
		return o.show(a, func(t *text) { writeLive(t, a) })
	}

	found, err := leaks.Find(ctx, t, cfg)
	line.clear()
	if err != nil {
		return err
	}
	a := &leaks.Answer{Trace: replay.Describe(t), Report: found}
	if err := a.Trace.AddPeaks(ctx, t, o.pool); err != nil {
		return err
	}
	return o.show(a, func(t *text) { writeLeaks(t, a) })
}
