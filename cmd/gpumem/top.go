package main

import (
	"context"
	"os"
	"time"

	"github.com/spf13/cobra"

	"gpumem/node/probe"
	"gpumem/node/screen"
)

type topOptions struct {
	snapshotOptions
	once  bool
	every time.Duration
}

func topCommand() *cobra.Command {
	var o topOptions
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Monitor the programs on each GPU and their memory",
		Args:  noWords,
		RunE:  runner(&o, runTop),
	}
	o.addDevices(cmd)
	o.addJSON(cmd)
	cmd.Flags().BoolVar(&o.once, "once", false, "print one snapshot and end")
	cmd.Flags().DurationVar(&o.every, "every", time.Second, "`TIME` between updates")
	return cmd
}

func runTop(ctx context.Context, o *topOptions) error {
	if err := probe.CheckEvery(o.every); err != nil {
		return err
	}
	p, s, err := startProbe(o.probe)
	if err != nil {
		return err
	}

	terminal, ok := o.out.(*os.File)
	if o.asJSON || o.once || !ok || !screen.CanRun(terminal) {
		return o.write(s, screen.Once)
	}
	return screen.Run(ctx, terminal, s, p.Snapshot, o.every)
}
