// gpumem ps: its flags, and what it has in common with top and serve.

package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"gpumem/node/machine"
	"gpumem/node/probe"
	"gpumem/node/screen"
)

// snapshotOptions are those of commands that look at the machine.
type snapshotOptions struct {
	call
	probe probe.Options
}

func psCommand() *cobra.Command {
	var o snapshotOptions
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List the programs on each GPU and their memory",
		Args:  noWords,
		RunE:  runner(&o, runPs),
	}
	o.addDevices(cmd)
	o.addJSON(cmd)
	return cmd
}

func runPs(_ context.Context, o *snapshotOptions) error {
	_, s, err := startProbe(o.probe)
	if err != nil {
		return err
	}
	return o.write(s, screen.List)
}

func (o *snapshotOptions) addDevices(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&o.probe.Devices, "device", nil, "only this `DEVICE`: cuda:N or sim@FILE[,device=N]; repeat for several")
}

// noWords refuses the words of a command that takes none.
func noWords(cmd *cobra.Command, words []string) error {
	if len(words) > 0 {
		const format = "%[1]s takes no words but flags, and got %[2]q; to look at one device: gpumem %[1]s --device %[2]s"
		return fmt.Errorf(format, cmd.Name(), words[0])
	}
	return nil
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

// write writes the notes to stderr and a snapshot to stdout, as JSON or text.
func (o *snapshotOptions) write(s *machine.Snapshot, list func(*machine.Snapshot) string) error {
	o.note(s.Notes...)
	return o.show(s, func(t *text) { t.Raw(strings.TrimSuffix(list(s), "\n")) })
}
