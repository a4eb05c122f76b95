// gpumem pause and gpumem resume.

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gpumem/node/turns"
)

type turnsOptions struct {
	call
	pid  int
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
			return o.readPID(words[0])
		},
		RunE: runner(&o, runTurns),
	}
	cmd.Flags().DurationVar(&o.wait, "wait", turns.DefaultWait, "wait at most `DURATION`")
	o.addJSON(cmd)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		var unknown *pflag.NotExistError
		if errors.As(err, &unknown) && isNumber(unknown.GetSpecifiedShortnames()) {
			return o.readPID("-" + unknown.GetSpecifiedShortnames())
		}
		return flagError(cmd, err)
	})
	return cmd
}

// isNumber reports whether a word is a number: -1 is meant as a PID, and no flag is a digit.
func isNumber(word string) bool {
	_, err := strconv.Atoi(word)
	return err == nil
}

// readPID reads the number of a process.
func (o *turnsOptions) readPID(word string) (err error) {
	o.pid, err = strconv.Atoi(word)
	if err != nil || o.pid <= 0 {
		return fmt.Errorf("PID %q: want the number of a process, as gpumem ps lists them", word)
	}
	return nil
}

func runTurns(ctx context.Context, o *turnsOptions) error {
	if o.wait <= 0 {
		return fmt.Errorf("--wait %v: want a duration above 0", o.wait)
	}
	a, err := o.do(ctx, turns.Request{PID: o.pid, Wait: o.wait})
	if errors.Is(err, context.Canceled) {
		o.note(a.String())
	}
	if err != nil {
		return err
	}
	return o.answer(a, a.Done, func(t *text) { t.Line("%s", a) })
}
