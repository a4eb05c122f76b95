package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"gpumem/device/open"
	"gpumem/node/probe"
	"gpumem/policy/frameworks"
)

type explainOptions struct {
	call
	as, device string
	diff       string
	pid        int
}

func explainCommand() *cobra.Command {
	var o explainOptions
	cmd := &cobra.Command{
		Use:   "explain",
		Short: "Explain the memory settings in the environment",
		Args: func(cmd *cobra.Command, words []string) error {
			diff := cmd.Flags().Changed("diff")
			switch {
			case !diff && len(words) > 0:
				return fmt.Errorf("explain takes no words but flags, and got %q; to name a framework: --as jax@0.4.30", words[0])
			case diff && len(words) != 1:
				return fmt.Errorf("--diff takes two releases, as in --diff 0.4.30 0.11.0, and got %d", 1+len(words))
			}
			return nil
		},
		RunE: runner(&o, runExplain),
	}

	fs := cmd.Flags()
	const as = "`FRAMEWORK[@VERSION]` whose reading is explained; jax@next is the pool of JAX's documentation (default the newest jax, or what the process of --pid has loaded)"
	fs.StringVar(&o.as, "as", "", as)
	fs.StringVar(&o.device, "device", "", "`DEVICE`: sim:80GiB[,used=8GiB], sim@FILE or cuda:N "+defaultDevice)
	fs.IntVar(&o.pid, "pid", 0, "explain the environment of the running process `N`")
	fs.StringVar(&o.diff, "diff", "", "compare the release `A` with B, the word that follows; each VERSION or FRAMEWORK[@VERSION]")
	o.addJSON(cmd)
	_ = cmd.RegisterFlagCompletionFunc("as", cobra.FixedCompletions(knownFrameworks(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// defaultDevice is the device of commands that work on one, for their help.
const defaultDevice = "(default $GPUMEM_DEVICE, else cuda:0 if a driver loads, else " + open.Default + ")"

func runExplain(_ context.Context, o *explainOptions) error {
	var pid *int
	if o.given("pid") {
		pid = &o.pid
	}
	q, named, err := question(o.as, o.device, pid)
	if err != nil {
		return err
	}

	if o.given("diff") {
		if named.Version != "" {
			return fmt.Errorf("--diff names the releases: write --as %s alone, and got --as %s", named.Name, o.as)
		}
		d, err := q.Compare(o.diff, o.words[0])
		if err != nil {
			return err
		}
		o.note(q.Notes...)
		return o.answer(d, len(d.A.Errors)+len(d.B.Errors) == 0, func(t *text) { writeDiff(t, q, d.Comparison) })
	}

	a, err := q.Explain()
	if err != nil {
		return err
	}
	o.note(q.Notes...)
	return o.answer(a, len(a.Errors) == 0, func(t *text) { writeExplain(t, q, a.Answer) })
}

// question reads what the flags point at: the process, if there is a number of one, and the device.
// named is the framework of as, without one if as is empty.
func question(as, device string, pid *int) (q *probe.Question, named frameworks.Release, err error) {
	if as != "" {
		if named, err = frameworks.ParseRelease(as); err != nil {
			return nil, named, fmt.Errorf("--as: %w", err)
		}
	}
	var of *probe.Running
	if pid != nil {
		if of, err = probe.ReadRunning(*pid); err != nil {
			return nil, named, fmt.Errorf("--pid: %w", err)
		}
	}
	q, err = probe.Ask(named, device, of)
	return q, named, err
}

// knownFrameworks returns the names that --as takes, the default first.
func knownFrameworks() []string {
	var names []string
	for _, f := range frameworks.All {
		names = append(names, f.Name)
	}
	return names
}
