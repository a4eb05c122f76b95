package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"gpumem/internal/output"
	"gpumem/internal/report"
)

// A call is what a command's options have besides its flags: the words, where it writes, and
// which flags were given.
type call struct {
	words     []string
	out, errs io.Writer
	given     func(flag string) bool
	asJSON    bool // by --json
}

func (c *call) begin(cmd *cobra.Command, words []string) {
	c.words, c.out, c.errs, c.given = words, cmd.OutOrStdout(), cmd.ErrOrStderr(), cmd.Flags().Changed
}

// runner returns what calls run with a command's options, which its flags have filled.
func runner[O interface {
	begin(cmd *cobra.Command, words []string)
}](o O, run func(context.Context, O) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, words []string) error {
		o.begin(cmd, words)
		return run(cmd.Context(), o)
	}
}

func (c *call) addJSON(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&c.asJSON, "json", false, "print JSON")
}

// note writes lines for people to standard error.
func (c *call) note(lines ...string) {
	for _, line := range lines {
		fmt.Fprintln(c.errs, "gpumem: "+report.OneLine(line))
	}
}

// show writes an answer to standard output, as JSON or as the text that lines writes.
func (c *call) show(answer any, lines func(*text)) error {
	if c.asJSON {
		return encode(c.out, answer)
	}
	return printText(c.out, lines)
}

// answer is show for a question of which the answer may be no.
func (c *call) answer(answer any, yes bool, lines func(*text)) error {
	err := c.show(answer, lines)
	if err == nil && !yes {
		err = errNo
	}
	return err
}

// A namedFile is a file to write, which a flag names; without a path there is none.
type namedFile struct {
	flag, path string
	write      func(io.Writer) error
}

// writeFiles writes files, each whole or not at all.
func writeFiles(ctx context.Context, files ...namedFile) error {
	for _, f := range files {
		if f.path == "" {
			continue
		}
		if err := output.Write(ctx, f.path, f.write); err != nil {
			return fmt.Errorf("%s: %w", f.flag, err)
		}
	}
	return nil
}
