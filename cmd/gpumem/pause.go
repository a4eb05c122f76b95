// gpumem pause and gpumem resume.

package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"gpumem/node/turns"
)

type turnsOptions struct {
	call
	wait time.Duration
	do   func(context.Context, turns.Request) (turns.Answer, error)
}

func pauseCommand() *cobra.Command {
	return turnsCommand("pause", "Have a program's memory leave the GPU until it is resumed", turns.Pause)
}

func resumeCommand() *cobra.Command {
	return turnsCommand("resume", "Have the memory of a program come back to the GPU", turns.Resume)
}

func turnsCommand(name, short string, do func(context.Context, turns.Request) (turns.Answer, error)) *cobra.Command {
	o := turnsOptions{do: do}
	cmd := &cobra.Command{
		Use:   name + " [flags] PID",
		Short: short,
		Args: func(_ *cobra.Command, words []string) error {
			if len(words) != 1 {
				return fmt.Errorf("%s takes one PID, as gpumem ps lists them", name)
			}
			return nil
		},
		RunE: runner(&o, runTurns),
	}
	cmd.Flags().DurationVar(&o.wait, "wait", turns.DefaultWait, "wait at most `DURATION`")
	o.addJSON(cmd)
	return cmd
}

func runTurns(ctx context.Context, o *turnsOptions) error {
	pid, err := strconv.Atoi(o.words[0])
	if err != nil || pid <= 0 {
		return fmt.Errorf("PID %q: want the number of a process, as gpumem ps lists them", o.words[0])
	}
	if o.wait <= 0 {
		return fmt.Errorf("--wait %v: want a duration above 0", o.wait)
	}
	a, err := o.do(ctx, turns.Request{PID: pid, Wait: o.wait})
	if err != nil {
		return err
	}
	return o.answer(a, a.Done, func(t *text) { t.Line("%s", a) })
}
