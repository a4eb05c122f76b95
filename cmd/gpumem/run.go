package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	gpu "gpumem/device"
	"gpumem/device/open"
	"gpumem/share"
	"gpumem/share/given"
	"gpumem/share/launch"
	"gpumem/size"
)

func runCommand() *cobra.Command {
	var (
		gpus, device, mem, reserve, overhead, wait, record string

		part     float64
		copies   int
		grant    given.Grant
		printEnv bool
	)
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND ARGS...",
		Short: "Start a program with its share of a GPU, unchanged",
		Long: `Start a program with its share of a GPU, unchanged.

run reserves GPU memory for COMMAND, sets the environment variables that keep
each framework below that limit (JAX, TensorFlow, PyTorch, CuPy), and becomes
COMMAND. If the memory is not available it fails, or waits with --wait. The
program has the process number, descriptors, signals and exit status that it
would have without run. Its lease ends when it and its children have ended.

Without --mem and --share it gets all that can be shared: what no lease and no
other program has, less what a display needs. The limits are made for one process.
With --procs N each of N processes gets an equal part; without it a second process
that uses the GPU says so on standard error.

With --record the program's memory is recorded for gpumem replay: PyTorch writes
its events to FILE when it ends, JAX and TensorFlow write what a pool holds to
FILE_POOL.TIME when it is out of memory. docs/recording.md has the other ways.

Exit status: the program's own; of several copies the first that is not zero. 1
if the memory is not available, 126 or 127 if the program cannot be started.`,
		Example: `  gpumem run --mem 6GiB -- python train.py
  gpumem run --copies 4 -- python worker.py
  gpumem run --mem 8GiB --procs 4 -- pytest -n 4
  gpumem run --gpu 0,1 --share .5 --wait -- python train.py
  gpumem run --mem 6GiB --print-env -- python train.py
  gpumem run --record train.pickle -- python train.py`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || args[0] == "" {
				return errors.New("run needs a COMMAND; gpumem run --help has examples")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			// Messages that nobody can read must not keep the program from starting. What is
			// caught is not ignored in the program.
			signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
			plan := launch.Plan{Copies: copies, Grant: grant, Command: args, Env: os.Environ(), Share: part, Inherited: launch.Inherited()}
			var err error
			for _, f := range []struct {
				name, text string
				to         *uint64
			}{{"mem", mem, &plan.Bytes}, {"reserve", reserve, &plan.Reserve}, {"overhead", overhead, &plan.Grant.Overhead}} {
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
			case flags.Changed("mem") && plan.Bytes == 0:
				return errors.New("--mem 0 leaves nothing to run in; give a size such as 6GiB")
			case flags.Changed("share") && !(part > 0 && part <= 1):
				return fmt.Errorf("--share %v: want a number above 0 and at most 1, such as .5 for half", part)
			case grant.Procs < 1 || grant.Procs > 1024:
				return fmt.Errorf("--procs %d: want a number from 1 to 1024", grant.Procs)
			case copies < 1 || copies > 1024:
				return fmt.Errorf("--copies %d: want a number from 1 to 1024", copies)
			}
			if flags.Changed("wait") {
				plan.Wait = -1
				if wait != "forever" {
					if plan.Wait, err = time.ParseDuration(wait); err != nil || plan.Wait <= 0 {
						return fmt.Errorf("--wait %q: want a duration such as --wait 10m, or --wait alone for as long as it takes", wait)
					}
				}
			}
			var recorded *recording
			if flags.Changed("record") {
				if recorded, err = newRecording(record, copies); err != nil {
					return err
				}
				plan.Grant.Record = recorded.file
			}
			if err := targets(&plan, gpus, device); err != nil {
				return err
			}
			if plan.Registry, err = share.Open(""); err != nil {
				return err
			}
			plan.Program = given.Program(args, workingDir())
			learned, err := given.NewLearned().Load(plan.Program)
			if err != nil {
				fmt.Fprintln(cmd.ErrOrStderr(), "gpumem: "+oneLine(err.Error()))
			}
			plan.Grant.Learned = learned
			plan.Say = func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), "gpumem: "+oneLine(line)) }
			if printEnv {
				outfit, err := plan.Show(cmd.Context())
				if err != nil {
					return noRoom(cmd.ErrOrStderr(), err)
				}
				return writeOutfit(cmd.OutOrStdout(), outfit)
			}
			if plan.Keeper, err = keeperCommand(plan.Targets[0]); err != nil {
				return err
			}
			plan.Release = func() error {
				recorded.say(plan.Say, copies) // now that it starts
				return releaseSignals(cmd.Context())
			}
			outcome, err := plan.Run(cmd.Context()) // of one copy only an error
			var missing *launch.NotStarted
			switch {
			case errors.As(err, &missing):
				fmt.Fprintln(cmd.ErrOrStderr(), "gpumem: "+oneLine(err.Error()))
				return exitStatus(missing.Status)
			case err != nil:
				return noRoom(cmd.ErrOrStderr(), err)
			}
			return exitStatus(outcome.Status())
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // what follows COMMAND is its own
	f.StringVar(&gpus, "gpu", "", "the GPUs to use, `N[,M]` (default 0, or the device that --device or $GPUMEM_DEVICE names)")
	f.StringVar(&device, "device", "", "`DEVICE` to use: cuda:N or sim@FILE[,device=N] (default $GPUMEM_DEVICE, else cuda:0)")
	f.StringVar(&mem, "mem", "", "`SIZE` of the lease on each GPU, for each copy, with all that the program holds outside of its pool")
	f.Float64Var(&part, "share", 0, "the lease as a `FRACTION` of what can be shared, for all copies together")
	f.IntVar(&copies, "copies", 1, "run `N` of the program at once, each with an equal share; the status is the first that is not zero")
	f.IntVar(&grant.Procs, "procs", 1, "divide each lease among `N` processes that use a GPU at once, such as the workers of pytest -n N")
	f.StringVar(&grant.Allocator, "allocator", "", "the allocator `NAME` of JAX: bfc, platform, address, cuda_async, vmm")
	f.BoolVar(&grant.CPUTensorFlow, "cpu-tensorflow", false, "keep TensorFlow off the GPU")
	f.BoolVar(&grant.Growth, "growth", false, "take memory as it is needed in place of all at once; the lease caps it all the same")
	f.StringVar(&wait, "wait", "", "wait for room, at most `DURATION`; alone: as long as it takes (default: do not wait)")
	f.Lookup("wait").NoOptDefVal = "forever"
	f.StringVar(&reserve, "reserve", "", "`SIZE` to leave for the desktop and others")
	f.StringVar(&overhead, "overhead", "", "`SIZE` to leave of the lease for what lies outside of the pool (default: by framework, or as measured before)")
	f.StringVar(&record, "record", "", "record the program's memory to `FILE`, which must not be there; with several copies to FILE.1, FILE.2, ...")
	f.BoolVar(&printEnv, "print-env", false, "show what the program would be given, with reasons, and do not run it")
	return cmd
}

// exitStatus ends a command with a status; what there is to say has been said.
type exitStatus int

func (exitStatus) Error() string { return "ended" }

// noRoom is status 1 where the answer is no, said in one line.
func noRoom(stderr io.Writer, err error) error {
	var no *share.NoRoomError
	if !errors.As(err, &no) || errors.Is(err, context.Canceled) { // interrupted while it waited
		return err
	}
	fmt.Fprintln(stderr, "gpumem: "+oneLine(err.Error()))
	return errNo
}

func workingDir() string {
	dir, err := os.Getwd()
	if err != nil {
		return ""
	}
	return dir
}

// targets are the GPUs that the flags and the environment name.
func targets(plan *launch.Plan, gpus, words string) error {
	if gpus == "" {
		spec, note, err := open.Choose(words, os.LookupEnv, false)
		if err != nil {
			return err
		}
		if spec.Kind == open.Private && note != "" { // not named: there is no driver, which says why
			spec, err = open.Parse("cuda:0")
		}
		if err != nil {
			return err
		}
		if spec.Kind == open.Private {
			return fmt.Errorf("%s is private to each program, so there is nothing to share; name a GPU, cuda:N, or a simulated one that is shared, sim@FILE", spec.Text)
		}
		return addTarget(plan, spec)
	}
	seen := map[int]bool{}
	for word := range strings.SplitSeq(gpus, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil || n < 0 {
			return fmt.Errorf("--gpu %s: want numbers from 0 with commas between, such as 0,1", gpus)
		}
		if seen[n] {
			return fmt.Errorf("--gpu %s names %d twice", gpus, n)
		}
		seen[n] = true
		spec, err := open.Parse(fmt.Sprintf("cuda:%d", n))
		base := words
		if base == "" {
			base = os.Getenv(open.EnvVar)
		}
		if err == nil && strings.HasPrefix(base, "sim@") {
			shared, perr := open.Parse(base)
			if perr != nil {
				return perr
			}
			spec, err = open.Parse(fmt.Sprintf("sim@%s,device=%d", shared.File, n))
		}
		if err != nil {
			return err
		}
		if err := addTarget(plan, spec); err != nil {
			return err
		}
	}
	return nil
}

// meter is a device's status, looked up anew.
type meter struct{ spec open.Spec }

func (m meter) Status() (gpu.Status, error) {
	list, err := m.spec.Status()
	if err != nil {
		return gpu.Status{}, err
	}
	if len(list) == 0 {
		return gpu.Status{}, fmt.Errorf("%s has no device", m.spec.Text)
	}
	return list[0].Status, nil
}

func addTarget(plan *launch.Plan, spec open.Spec) error {
	list, err := spec.Status()
	if err != nil {
		return err
	}
	if len(list) == 0 {
		return fmt.Errorf("%s has no device", spec.Text)
	}
	d := list[0]
	t := launch.Target{Key: deviceKey(d), Visible: d.UUID, Words: spec.Text, Meter: meter{spec}}
	switch {
	case spec.Kind == open.Shared:
		t.Visible = ""
		if plan.Extra == nil { // a program has one simulated device: the first
			plan.Extra = []string{open.EnvVar + "=" + t.Key} // which are its words, too
		}
	case t.Key == "": // a GPU without a UUID
		t.Key = fmt.Sprintf("cuda:%d", d.Ordinal)
		t.Visible = strconv.Itoa(d.Ordinal)
	}
	plan.Targets = append(plan.Targets, t)
	return nil
}

// writeOutfit shows an environment's changes: what a shell would write, and why.
func writeOutfit(w io.Writer, o given.Outfit) error {
	var b strings.Builder
	for _, c := range o.Changes {
		if c.Kept {
			fmt.Fprintf(&b, "# %s: %s\n", oneLine(c.Name), oneLine(c.Why))
			continue
		}
		fmt.Fprintf(&b, "%s   # %s\n", oneLine(c.String()), oneLine(c.Why))
	}
	_, err := io.WriteString(w, b.String())
	return err
}
