// Command gpumem answers questions about GPU memory: what a recorded run would
// have needed under each policy, and where it breaks; what a framework makes of
// the settings in the environment; who holds what. And it shares a GPU among
// programs that know nothing of each other.
//
// This folder is a file per command: xCommand fills the xOptions from the flags, runX
// makes the request of a package from them and calls it, and writeX writes the answer for
// people, in xtext.go where it is long. What the commands do lives in the packages that
// they call: a value out of range is an error of the request there, and the JSON is the
// answer's.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gpumem/internal/input"
	"gpumem/internal/report"
	"gpumem/internal/unhandled/early"
	"gpumem/node/library"
	"gpumem/node/pip"
)

// Exit statuses that scripts rely on.
const (
	exitNo          = 1   // the answer is no
	exitUsage       = 2   // bad usage or bad input
	exitInterrupted = 130 // as shells count an interrupt
)

// errNo ends a command whose answer is no; it has been printed.
var errNo = errors.New("no")

func init() {
	// run becomes its program, which has what its caller has set for the main thread
	// alone, such as prctl's PR_SET_PDEATHSIG, only if that thread calls execve.
	if len(os.Args) > 1 && os.Args[1] == "run" {
		runtime.LockOSThread()
	}
}

func main() {
	library.Leave()
	measureScreen(os.Stdout)
	os.Exit(run(interruptible(context.Background()), os.Args[1:], os.Stdout, os.Stderr))
}

// released is the key of the function in a command's context that ends the catching
// of signals.
type released struct{}

// A caught is the signal that ended a command: the cause of its context's end.
type caught struct{ syscall.Signal }

func (c caught) Error() string { return c.String() }

// Is reports that it is a cancellation.
func (c caught) Is(err error) bool { return err == context.Canceled }

// interruptible returns a context that the first of the ending signals cancels. A
// second one ends this process.
func interruptible(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, ending...)
	early.Handled()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if sig, ok := <-signals; ok {
			n, _ := sig.(syscall.Signal)
			cancel(caught{n})
			signal.Stop(signals)
		}
	}()
	return context.WithValue(ctx, released{}, func() error {
		signal.Stop(signals) // what has come by now is in the channel
		close(signals)
		<-done
		return ctx.Err()
	})
}

// releaseSignals ends the catching of signals: the next one ends this process, or what has
// taken its place. The error is that one has come before.
func releaseSignals(ctx context.Context) error {
	if f, ok := ctx.Value(released{}).(func() error); ok {
		return f()
	}
	return nil
}

// run is the program: the command line in, the exit status out.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot(stdout, stderr)
	root.SetArgs(joinWait(root, args))
	ctx = input.WithNotice(ctx, func(text string) { fmt.Fprintln(stderr, "gpumem: "+report.OneLine(text)) })
	err := root.ExecuteContext(ctx)
	var status exitStatus
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	case errors.Is(err, errNo):
		return exitNo
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return interrupted(ctx, stderr)
	}
	fmt.Fprintln(stderr, "gpumem: "+report.OneLine(err.Error()))
	return exitUsage
}

// interrupted returns the status of a command that a signal ended, as shells count it:
// 128 and the signal's number. Of the signals that people do not send it says nothing.
func interrupted(ctx context.Context, stderr io.Writer) int {
	var c caught
	switch errors.As(context.Cause(ctx), &c); c.Signal {
	case syscall.SIGTERM:
		fmt.Fprintln(stderr, "gpumem: terminated")
		return 128 + int(c.Signal)
	case 0, syscall.SIGINT:
		fmt.Fprintln(stderr, "gpumem: interrupted")
		return exitInterrupted
	}
	return 128 + int(c.Signal)
}

func newRoot(stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:           "gpumem",
		Short:         "Explain, replay and share GPU memory",
		Version:       versionText(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.AddCommand(
		replayCommand(), adviseCommand(), fitCommand(), leaksCommand(), explainCommand(), doctorCommand(), hloCommand(), rematCommand(),
		runCommand(), keepCommand(), devicesCommand(), psCommand(), topCommand(), serveCommand(), pauseCommand(), resumeCommand(),
		versionCommand(), manualCommand(),
	)
	root.SetFlagErrorFunc(flagError)
	root.PersistentPreRunE = func(cmd *cobra.Command, args []string) error {
		own := cmd.Name() != "run" && !strings.HasPrefix(cmd.Name(), "__") // not its program's, nor of a line to complete
		if own && slices.Contains(args, "") {
			return errors.New("a word of the command line is empty; name a file, or leave it out")
		}
		if err := checkFlags(cmd); err != nil {
			return err
		}
		noteUnits(cmd)
		return nil
	}
	finish(root)
	formatHelp(root)
	return root
}

// A once is the value of a flag that is given once: a second value would replace the first
// without a word.
type once struct {
	pflag.Value
	given bool
}

// Set sets the value.
func (o *once) Set(text string) error {
	if o.given {
		return errors.New("the flag is given twice; this command takes one")
	}
	o.given = true
	return o.Value.Set(text)
}

// finish completes the commands: their texts, and --device as a flag that is given once where
// one device is taken. Those that cobra brings along get what ours have: an example, and an
// error about a word that they do not know.
func finish(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	describe(root)
	for _, cmd := range root.Commands() {
		describe(cmd)
		if f := cmd.Flags().Lookup("device"); f != nil && f.Value.Type() == "string" {
			f.Value = &once{Value: f.Value}
		}
		switch cmd.Name() {
		case "help":
			cmd.Example = "  gpumem help replay"
			cmd.Args = func(_ *cobra.Command, args []string) error {
				_, _, err := root.Find(args)
				return err
			}
		case "completion":
			cmd.Example = "  source <(gpumem completion bash)"
			// Without something to run, cobra prints the help for any word.
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
			for _, shell := range cmd.Commands() {
				shell.Example = "  gpumem completion " + shell.Name()
			}
		}
	}
}

// decimal is a size in a unit that means a power of 1000 elsewhere, and not the end of a card's name.
var decimal = regexp.MustCompile(`(?i)(?:^|[:=/])[0-9.]+ ?([KMGTPE])B\b`)

// noteUnits says once what a size such as 24GB is read as.
func noteUnits(cmd *cobra.Command) {
	said := false
	cmd.Flags().Visit(func(f *pflag.Flag) {
		isSize := f.Value.Type() == "size" || slices.Contains([]string{"device", "card", "simulate"}, f.Name)
		m := decimal.FindStringSubmatch(f.Value.String())
		if said || m == nil || !isSize {
			return
		}
		said = true
		unit := strings.ToUpper(m[1])
		fmt.Fprintf(cmd.ErrOrStderr(), "gpumem: --%s: %sB is read as %siB, a power of 1024, as GPU tools mean it\n", f.Name, unit, unit)
	})
}

// checkFlags returns the error of a flag that is given without a value, as an unset
// variable of a shell leaves it: it is not what the flag does where it is not given; or of one
// whose value is no size.
func checkFlags(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		empty := f.Value.String() == ""
		if list, ok := f.Value.(pflag.SliceValue); ok {
			empty = slices.Contains(list.GetSlice(), "")
		}
		bytes, isSize := f.Value.(*sizeValue)
		switch {
		case err != nil:
		case empty:
			err = fmt.Errorf("--%s \"\": it is empty; give a value, or leave the flag out", f.Name)
		case strings.HasPrefix(f.Value.String(), "--"):
			err = fmt.Errorf("--%s: its value is missing, and %s stands in its place", f.Name, f.Value)
		case isSize && bytes.err != nil:
			err = fmt.Errorf("--%s: %w", f.Name, bytes.err)
		}
	})
	return err
}

// version is the release that a build without a tag leads to or comes after.
const version = "0.2.0"

// programVersion returns the program's version in a line: the tag of the build or the version, the
// commit of a build from a checkout, the compiler and the system.
func programVersion() string {
	words := []string{"gpumem", version}
	if info, ok := debug.ReadBuildInfo(); ok {
		if tag, ok := strings.CutPrefix(info.Main.Version, "v"); ok && !strings.ContainsAny(tag, "-+") {
			words[1] = tag
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				words = append(words, s.Value[:12])
			}
		}
	}
	words = append(words, runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH)
	if name, _, ok := pip.Distribution(); ok {
		words = append(words, "("+name+" from pip)")
	}
	return strings.Join(words, " ")
}

// versionText is the version, and what is in its way.
func versionText() string {
	if other := pip.Warning(); other != "" {
		return programVersion() + "\ngpumem: " + other
	}
	return programVersion()
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  gpumem version",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), versionText())
			return err
		},
	}
}
