package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"gpumem/internal/report"
	"gpumem/node/machine"
	"gpumem/node/probe"
	"gpumem/node/screen"
)

func psCommand() *cobra.Command {
	var o probe.Options
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List the programs on each GPU and their memory",
		Args: noWords("ps"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, s, err := startProbe(o)
			if err != nil {
				return err
			}
			return writeSnapshot(cmd, s, asJSON, screen.List)
		},
	}
	psFlags(cmd, &o, &asJSON)
	return cmd
}

// psFlags are those that ps and top share.
func psFlags(cmd *cobra.Command, o *probe.Options, asJSON *bool) {
	cmd.Flags().StringArrayVar(&o.Devices, "device", nil, "only this `DEVICE`: cuda:N or sim@FILE[,device=N]; repeat for several")
	cmd.Flags().BoolVar(asJSON, "json", false, "print JSON")
}

func noWords(command string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return fmt.Errorf("%s takes no words but flags, and got %q; to look at one device: gpumem %s --device %s", command, args[0], command, args[0])
		}
		return nil
	}
}

// startProbe takes the first snapshot at once: what is wrong with the flags shows now.
func startProbe(o probe.Options) (*probe.Probe, *machine.Snapshot, error) {
	p, err := probe.New(o)
	if err != nil {
		return nil, nil, err
	}
	s, err := p.Snapshot()
	return p, s, err
}

// writeSnapshot writes the notes to stderr and a snapshot to stdout, as JSON or text.
func writeSnapshot(cmd *cobra.Command, s *machine.Snapshot, asJSON bool, list func(*machine.Snapshot) string) error {
	writeNotes(cmd.ErrOrStderr(), s.Notes)
	return show(cmd, asJSON, s, func(t *text) { t.Raw(strings.TrimSuffix(list(s), "\n")) })
}

// writeNotes writes a line for each note.
func writeNotes(w io.Writer, notes []string) {
	for _, n := range notes {
		fmt.Fprintln(w, "gpumem: "+report.OneLine(n))
	}
}
