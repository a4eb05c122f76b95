package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"gpumem/node/machine"
	"gpumem/node/probe"
	"gpumem/node/screen"
)

// topLeast is the shortest time between two snapshots: each costs some milliseconds.
const topLeast = 100 * time.Millisecond

func topCommand() *cobra.Command {
	var (
		o      probe.Options
		asJSON bool
		once   bool
		every  time.Duration
	)
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Monitor the programs on each GPU and their memory",
		Args:  noWords("top"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, s, err := startRounds(o, every)
			if err != nil {
				return err
			}
			terminal, ok := cmd.OutOrStdout().(*os.File)
			if asJSON || once || !ok || !screen.CanRun(terminal) {
				return writeSnapshot(cmd, s, asJSON, screen.Once)
			}
			return screen.Run(cmd.Context(), terminal, s, p.Snapshot, every)
		},
	}
	psFlags(cmd, &o, &asJSON)
	cmd.Flags().BoolVar(&once, "once", false, "print one snapshot and end")
	cmd.Flags().DurationVar(&every, "every", time.Second, "`TIME` between updates")
	return cmd
}

// startRounds takes the first of the snapshots that follow each other after a time.
func startRounds(o probe.Options, every time.Duration) (*probe.Probe, *machine.Snapshot, error) {
	if every < topLeast || every > 24*time.Hour {
		return nil, nil, fmt.Errorf("--every %v: want a time from %v to 24h, such as 2s", every, topLeast)
	}
	return startProbe(o)
}
