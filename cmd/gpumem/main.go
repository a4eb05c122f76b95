// Command gpumem answers questions about GPU memory: what a recorded run would
// have needed under each policy, and where it breaks.
//
// This folder is a file per command: flags and output only. What the commands
// do lives in the packages that they call.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit statuses that scripts rely on.
const (
	exitNo          = 1   // the answer is no
	exitUsage       = 2   // bad usage or bad input
	exitInterrupted = 130 // as shells count an interrupt
)

// errNo ends a command whose answer is no; it has been printed.
var errNo = errors.New("no")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program: the command line in, the exit status out.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use:           "gpumem",
		Short:         "GPU memory: what a run needs, and why it ran out",
		Long:          "gpumem answers questions about GPU memory as JAX, XLA and TensorFlow allocate it.\nIt needs no GPU: a simulated one stands in.",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.AddCommand(replayCommand(), versionCommand())
	root.CompletionOptions.HiddenDefaultCmd = false
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errNo):
		return exitNo
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		fmt.Fprintln(stderr, "gpumem: interrupted")
		return exitInterrupted
	}
	// One line, whatever the message holds.
	fmt.Fprintln(stderr, "gpumem: "+strings.Join(strings.Fields(strings.ReplaceAll(err.Error(), "\n", "; ")), " "))
	return exitUsage
}
