package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"gpumem/internal/report"
	"gpumem/record/formats"
	"gpumem/record/trace"
	"gpumem/xla/measure"
)

// recordingOptions are those of every command that reads a recording.
type recordingOptions struct {
	call
	pool, format string
	paths        bool // keep whole paths in stacks
}

func (o *recordingOptions) addFlags(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&o.pool, "pool", "", "only the pool `NAME` of a recording that has several")
	fs.StringVar(&o.format, "format", "", "`FORMAT` of the recording: "+strings.Join(formats.All().Names(), ", ")+" (default: by its content)")
	o.addJSON(cmd)
}

func (o *recordingOptions) addPaths(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&o.paths, "paths", false, "keep whole file paths in stacks")
}

// oneTrace checks the arguments of such a command.
func oneTrace(cmd *cobra.Command, words []string) error {
	if len(words) != 1 {
		const format = "%s takes one TRACE, a file or - for standard input, and got %d; gpumem %[1]s --help has examples"
		return fmt.Errorf(format, cmd.Name(), len(words))
	}
	return nil
}

// open reads the recording.
func (o *recordingOptions) open(ctx context.Context, path string, keepPaths bool, line *progress) (*trace.Trace, error) {
	if measure.IsDump(path) {
		const format = "%s: is a folder of XLA's modules, and no recording; gpumem hlo %s lists what each takes"
		return nil, fmt.Errorf(format, path, report.ShellQuote(path))
	}
	return formats.Open(ctx, path, trace.Options{
		Format: o.format, KeepPaths: keepPaths,
		Progress: func(done, total int64) { line.bytes("reading", done, total) },
	})
}
