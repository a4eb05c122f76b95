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
	"gpumem/size"
)

func runCommand() *cobra.Command {
	var (
		plan                        launch.Plan
		mem, reserve, outside, wait string
		printEnv                    bool
	)
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND ARGS...",
		Short: "Start a program with its share of a GPU, unchanged",
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return errors.New("run needs a COMMAND; gpumem run --help has examples")
			case args[0] == "":
				return errors.New("run needs a COMMAND, and the word for it is empty; gpumem run --help has examples")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			// A closed standard error must not keep the program from starting. A signal that is
			// caught here is not ignored in the program.
			signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
			plan.Command = args
			var err error
			for _, f := range []struct {
				name, text string
				to         *uint64
			}{{"mem", mem, &plan.Bytes}, {"reserve", reserve, &plan.Reserve}, {"overhead", outside, &plan.Limits.Overhead}} {
				if f.text == "" {
					continue
				}
				if *f.to, err = size.ParseFlag(f.text); err != nil {
					return fmt.Errorf("--%s: %w", f.name, err)
				}
			}
			flags := cmd.Flags()
			switch {
			case flags.Changed("mem") && flags.Changed("share"):
				return errors.New("--mem and --share both say how much; give one of them")
			case plan.Pool != "" && plan.Pool != launch.NoPool && plan.Limits.Allocator != "":
				return fmt.Errorf("--pool %s and --allocator %s both say what serves JAX's memory; give one of them", plan.Pool, plan.Limits.Allocator)
			case flags.Changed("mem") && plan.Bytes == 0:
				return errors.New("--mem 0 leaves nothing to run in; give a size such as 6GiB")
			case flags.Changed("share") && !(plan.Share > 0 && plan.Share <= 1):
				return fmt.Errorf("--share %v: want a number above 0 and at most 1, such as .5 for half", plan.Share)
			case plan.Limits.Procs < 1 || plan.Limits.Procs > 1024:
				return fmt.Errorf("--procs %d: want a number from 1 to 1024", plan.Limits.Procs)
			case plan.Copies < 1 || plan.Copies > 1024:
				return fmt.Errorf("--copies %d: want a number from 1 to 1024", plan.Copies)
			}
			if plan.Pool != "" && plan.Pool != launch.NoPool {
				if err := launch.CheckPool(plan.Pool); err != nil {
					return fmt.Errorf("--pool: %w", err)
				}
			}
			if flags.Changed("remat") {
				if plan.Limits.Remat, err = launch.RematLimit(plan.Limits.Remat); err != nil {
					return fmt.Errorf("--remat: %w", err)
				}
			}
			if flags.Changed("wait") {
				plan.Wait = -1
				if wait != "forever" {
					if plan.Wait, err = time.ParseDuration(wait); err != nil || plan.Wait <= 0 {
						return fmt.Errorf("--wait %q: want a duration such as --wait 10m, or --wait alone for as long as it takes", wait)
					}
				}
			}
			plan.Say = func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), "gpumem: "+report.OneLine(line)) }
			if printEnv {
				env, err := plan.Show(cmd.Context())
				if err != nil {
					return refused(plan.Say, err)
				}
				return writeEnvironment(cmd.OutOrStdout(), env)
			}
			plan.Keeper = []string{"keep"}
			plan.Release = func() error { return releaseSignals(cmd.Context()) }
			status, err := plan.Run(cmd.Context()) // of one copy only an error
			var missing *launch.NotStarted
			switch {
			case errors.As(err, &missing):
				plan.Say(err.Error())
				return exitStatus(missing.Status)
			case err != nil:
				return refused(plan.Say, err)
			}
			return exitStatus(status)
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // what follows COMMAND is its own
	f.StringVar(&plan.GPUs, "gpu", "", "the GPUs to use, `N[,M]` (default 0, or the device that --device or $GPUMEM_DEVICE names)")
	f.StringVar(&plan.Device, "device", "", "`DEVICE` to use: cuda:N or sim@FILE[,device=N] (default $GPUMEM_DEVICE, else cuda:0)")
	f.StringVar(&mem, "mem", "", "`SIZE` of the lease on each GPU, for each copy, with all that the program holds outside its pool")
	f.Float64Var(&plan.Share, "share", 0, "the lease as a `FRACTION` of what can be shared, for all copies together")
	f.IntVar(&plan.Copies, "copies", 1, "run `N` of the program at once, each with an equal share; the status is the first that is not zero")
	f.IntVar(&plan.Limits.Procs, "procs", 1, "divide each lease among `N` processes that use a GPU at once, such as the workers of pytest -n N")
	f.StringVar(&plan.Limits.Allocator, "allocator", "", "the allocator `NAME` of JAX: bfc, platform, address, cuda_async, vmm")
	f.StringVar(&plan.Pool, "pool", "", "serve GPU memory from a pool of policy `NAME`, such as elastic; off: as without (default: off, or that of the lease around)")
	f.BoolVar(&plan.Limits.CPUTensorFlow, "cpu-tensorflow", false, "keep TensorFlow off the GPU")
	f.BoolVar(&plan.Limits.Growth, "growth", false, "allocate on demand instead of preallocating; the limit still applies")
	f.StringVar(&wait, "wait", "", "wait for room, at most `DURATION`; alone: as long as it takes (default: do not wait)")
	f.Lookup("wait").NoOptDefVal = "forever"
	f.StringVar(&reserve, "reserve", "", "`SIZE` to leave for the desktop and others")
	f.StringVar(&outside, "overhead", "", "`SIZE` of the lease to leave for what lies outside the pool (default: by framework, or as measured before)")
	f.StringVar(&plan.Record, "record", "", "record the program's memory to `FILE`, which must not exist; with several copies to FILE.1, FILE.2, ...")
	f.StringVar(&plan.Limits.Remat, "remat", "", "compile JAX's functions with plans for less memory: a `LIMIT` for temporaries such as 12GiB or 60%, or auto for what the lease leaves")
	f.BoolVar(&printEnv, "print-env", false, "show what the program would be given, with reasons, and do not run it")
	return cmd
}

// exitStatus ends a command with a status. Its messages have been printed.
type exitStatus int

func (exitStatus) Error() string { return "ended" }

// refused is status 1, with the reason in one line, for a lease that was refused;
// other errors stay as they are.
func refused(say func(string), err error) error {
	var no *share.InsufficientMemoryError
	if !errors.As(err, &no) || errors.Is(err, context.Canceled) { // interrupted while it waited
		return err
	}
	say(err.Error())
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
