// gpumem ps: its flags, and what it has in common with top and serve.

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"gpumem/internal/report"
	"gpumem/node/launch"
	"gpumem/node/machine"
	"gpumem/node/probe"
	"gpumem/node/screen"
	"gpumem/size"
)

// snapshotOptions are those of commands that look at the machine.
type snapshotOptions struct {
	call
	probe probe.Options
}

type psOptions struct {
	snapshotOptions
	overhead bool
	forget   string
}

func psCommand() *cobra.Command {
	var o psOptions
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List the programs on each GPU and their memory",
		Args: func(cmd *cobra.Command, words []string) error {
			switch {
			case len(words) > 0 && o.forget != "":
				return fmt.Errorf("--forget-overhead takes one name, and got %q and %q; put a name with blanks in quotes", o.forget, words[0])
			case len(words) > 0 && o.overhead:
				return fmt.Errorf("--overhead lists all programs and takes no words, and got %q", words[0])
			}
			return noWords(cmd, words)
		},
		RunE: runner(&o, runPs),
	}
	o.addDevices(cmd)
	o.addJSON(cmd)
	cmd.Flags().BoolVar(&o.overhead, "overhead", false, "print what lies outside of the pools, and where each figure is from")
	cmd.Flags().StringVar(&o.forget, "forget-overhead", "", "forget what was measured of `PROGRAM`; all: of every program")
	return cmd
}

func runPs(_ context.Context, o *psOptions) error {
	forget := o.given("forget-overhead")
	switch {
	case forget && o.overhead:
		return errors.New("--overhead and --forget-overhead do two things; give one of them")
	case forget && len(o.probe.Devices) > 0:
		return errors.New("--forget-overhead forgets a program on every device; leave --device out")
	case forget:
		return o.forgetOverhead()
	case o.overhead:
		return o.showOverhead()
	}
	_, s, err := startProbe(o.probe)
	if err != nil {
		return err
	}
	return o.write(s, screen.List)
}

// overheadAnswer is what gpumem ps --overhead prints.
type overheadAnswer struct {
	Measured  []launch.Outside `json:"measured"`
	Estimated []launch.Outside `json:"estimated"` // for programs that were never measured
}

func (o *psOptions) showOverhead() error {
	measured, note := launch.Measured()
	if note != nil {
		o.note(strings.Split(note.Error(), "\n")...)
	}
	devices, _, err := probe.Devices(o.probe.Devices)
	if err != nil {
		return err
	}
	a := overheadAnswer{measured, launch.Estimated(devices)}
	return o.show(a, func(t *text) { writeOverhead(t, a) })
}

// writeOverhead writes the figures as a table, those for any program last.
func writeOverhead(t *text, a overheadAnswer) {
	table := report.NewTable("program", "framework", "GPU", ">outside", "from")
	for _, f := range slices.Concat(a.Measured, a.Estimated) {
		program := f.Program
		if program == "" {
			program = "any other"
		}
		table.Row(program, strings.TrimSpace(f.Framework+" "+f.Release), f.GPU, size.Format(f.Bytes), f.From)
	}
	if len(a.Measured)+len(a.Estimated) == 0 {
		t.Line("no program was measured, and no GPU is there to estimate for")
		return
	}
	t.Table(table)
}

func (o *psOptions) forgetOverhead() error {
	programs, note, err := launch.ForgetMeasured(o.forget)
	if note != nil {
		o.note(strings.Split(note.Error(), "\n")...)
	}
	if err != nil {
		return err
	}
	return o.show(map[string][]string{"forgotten": append([]string{}, programs...)}, func(t *text) {
		for _, p := range programs {
			t.Line("forgotten: %s", p)
		}
		if len(programs) == 0 {
			t.Line("no program was measured")
		}
	})
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
