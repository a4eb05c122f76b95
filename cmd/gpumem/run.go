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
	"time"

	"github.com/spf13/cobra"

	"gpumem/internal/report"
	"gpumem/node/launch"
	"gpumem/node/runenv"
	"gpumem/node/share"
)

type runOptions struct {
	call
	plan     launch.Plan
	mem      uint64
	overhead uint64
	share    float64
	wait     string
	turns    string
	printEnv bool
}

func runCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND ARGS...",
		Short: "Start a program with its share of a GPU, unchanged",
		Args: func(_ *cobra.Command, words []string) error {
			switch {
			case len(words) == 0:
				return errors.New("run needs a COMMAND; gpumem run --help has examples")
			case words[0] == "":
				return errors.New("run needs a COMMAND, and the word for it is empty; gpumem run --help has examples")
			}
			return nil
		},
		RunE: runner(&o, runProgram),
	}

	fs, p := cmd.Flags(), &o.plan
	fs.SetInterspersed(false) // what follows COMMAND is its own
	fs.StringVar(&p.GPUs, "gpu", "", "the GPUs to use, `N[,M]` (default 0, or the device that --device or $GPUMEM_DEVICE names)")
	fs.StringVar(&p.Device, "device", "", "`DEVICE` to use: cuda:N or sim@FILE[,device=N] (default $GPUMEM_DEVICE, else cuda:0)")
	const simulate = "run on a simulated `GPU` in place of the machine's: 24GiB, T4, T4*2, sim@FILE; kernels do nothing"
	fs.StringVar(&p.Simulate, "simulate", "", simulate)
	addSize(fs, &o.mem, "mem", "", "`SIZE` of the lease on each GPU, for each copy, with all that the program holds outside its pool")
	fs.Float64Var(&o.share, "share", 0, "the lease as a `FRACTION` of what can be shared, for all copies together; for each of them with --lend or --turns")
	fs.IntVar(&p.Copies, "copies", 1, "run `N` of the program at once, each with an equal share, or all of it by turns; the status is the first that is not zero")
	const procs = "divide each lease among `N` processes that use a GPU at once, such as the workers of pytest -n N"
	fs.IntVar(&p.Limits.Procs, "procs", 1, procs)
	fs.StringVar(&p.Limits.Allocator, "allocator", "", "the allocator `NAME` of JAX: bfc, platform, address, cuda_async, vmm")
	const pool = "serve GPU memory from a pool of policy `NAME`, such as elastic; off: as without (default: off, or that of the lease around)"
	fs.StringVar(&p.Pool, "pool", "", pool)
	const lend = "with --pool: lend memory after `DURATION` without work: it moves to the host until the next work, " +
		"while other programs of this user with --lend or --turns need it"
	fs.DurationVar(&p.Lend, "lend", 0, lend)
	const turns = "with --pool: programs of this user with --lend or --turns that exceed the GPU together run by turns of `DURATION`; " +
		"alone: ten times what a move costs"
	fs.StringVar(&o.turns, "turns", "", turns)
	fs.Lookup("turns").NoOptDefVal = autoTurns
	const pinned = "with --lend or --turns: keep what has left once in pinned memory of the host, which copies faster, until the process ends"
	fs.BoolVar(&p.LendPinned, "lend-pinned", false, pinned)
	fs.BoolVar(&p.Limits.CPUTensorFlow, "cpu-tensorflow", false, "keep TensorFlow off the GPU")
	fs.BoolVar(&p.Limits.Growth, "growth", false, "allocate on demand instead of preallocating; the limit still applies")
	fs.StringVar(&o.wait, "wait", "", "wait for room, at most `DURATION`; alone: as long as it takes (default: do not wait)")
	fs.Lookup("wait").NoOptDefVal = launch.Forever
	addSize(fs, &p.Reserve, "reserve", "", "`SIZE` to leave for the desktop and others")
	const overhead = "`SIZE` of the lease to leave for what lies outside the pool (default: by framework, or as measured before)"
	addSize(fs, &o.overhead, "overhead", "", overhead)
	const record = "record the program's memory to `FILE`, which must not exist; with several copies to FILE.1, FILE.2, ..."
	fs.StringVar(&p.Record, "record", "", record)
	const remat = "compile JAX's functions with plans for less memory: a `LIMIT` for temporaries such as 12GiB or 60%, " +
		"or auto for what the lease leaves"
	fs.StringVar(&p.Limits.Remat, "remat", "", remat)
	fs.BoolVar(&o.printEnv, "print-env", false, "show what the program would be given, with reasons, and do not run it")
	return cmd
}

// runProgram becomes the program, unless it is shown only or has several copies.
func runProgram(ctx context.Context, o *runOptions) error {
	// A closed standard error must not keep the program from starting. A signal that is
	// caught here is not ignored in the program.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	plan := &o.plan
	plan.Command = o.words
	if err := o.fillPlan(); err != nil {
		return err
	}
	plan.Say = func(line string) { o.note(line) }
	if o.printEnv {
		env, err := plan.Show(ctx)
		if err != nil {
			return o.refused(err)
		}
		return writeEnvironment(o.out, env)
	}

	plan.Keeper = []string{"keep"}
	plan.Release = func() error { return releaseSignals(ctx) }
	status, err := plan.Run(ctx) // of one copy only an error
	var missing *launch.NotStarted
	switch {
	case errors.As(err, &missing):
		o.note(err.Error())
		return exitStatus(missing.Status)
	case err != nil:
		return o.refused(err)
	}
	return exitStatus(status)
}

// fillPlan sets what the words of the flags mean, and checks all of it.
func (o *runOptions) fillPlan() (err error) {
	mem, share := o.given("mem"), o.given("share")
	if o.given("overhead") {
		o.plan.Limits.Overhead = &o.overhead
	}
	switch {
	case mem && share:
		return errors.New("--mem and --share both say how much; give one of them")
	case mem:
		err = o.plan.SetBytes(o.mem)
	case share:
		err = o.plan.SetShare(o.share)
	}
	if err == nil && o.given("lend") && o.plan.Lend == 0 {
		err = errors.New("--lend 0s: want a duration above 0")
	}
	if err == nil && o.turns != "" {
		err = o.setTurns()
	}
	if err == nil {
		err = o.plan.Check()
	}
	if err == nil && o.wait != "" {
		err = o.plan.SetWait(o.wait)
	}
	return err
}

// autoTurns is the word for --turns without one.
const autoTurns = "auto"

func (o *runOptions) setTurns() error {
	if o.turns == autoTurns {
		o.plan.Turns = launch.AutoTurns
		return nil
	}
	d, err := time.ParseDuration(o.turns)
	if err != nil || d <= 0 {
		return fmt.Errorf("--turns %s: want a duration such as 10s, or nothing", o.turns)
	}
	o.plan.Turns = d
	return nil
}

// exitStatus ends a command with a status. Its messages have been printed.
type exitStatus int

func (exitStatus) Error() string { return "ended" }

// refused is status 1, with the reason in one line, for a lease that was refused;
// other errors stay as they are.
func (o *runOptions) refused(err error) error {
	var no *share.InsufficientMemoryError
	if !errors.As(err, &no) || errors.Is(err, context.Canceled) { // interrupted while it waited
		return err
	}
	o.note(err.Error())
	return errNo
}

// writeEnvironment shows an environment's changes: what a shell would write, and why.
func writeEnvironment(w io.Writer, o runenv.Environment) error {
	var b strings.Builder
	for _, c := range o.Changes {
		if c.Kept {
			fmt.Fprintf(&b, "# %s: %s\n", report.OneLine(c.Name), report.OneLine(c.Why))
			continue
		}
		fmt.Fprintf(&b, "%s   # %s\n", report.OneLine(c.String()), report.OneLine(c.Why))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// keepCommand is the hidden command that run starts to stay beside its program.
func keepCommand() *cobra.Command {
	var device string
	cmd := &cobra.Command{
		Use:     "keep",
		Short:   "Stay beside a program (used by run)",
		Example: "  gpumem run -- python train.py",
		Hidden:  true,
		RunE:    func(_ *cobra.Command, args []string) error { return launch.Keep(device, args) },
	}
	cmd.Flags().StringVar(&device, "device", "", "the `DEVICE` of the lease")
	return cmd
}
