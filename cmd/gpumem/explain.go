package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"gpumem/device/open"
	"gpumem/machine/probe"
	"gpumem/policy"
)

// visibleVar chooses the GPUs that a program sees, and their order.
const visibleVar = "CUDA_VISIBLE_DEVICES"

func explainCommand() *cobra.Command {
	var (
		as     string
		device string
		diff   string
		pid    int
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "explain",
		Short: "Say what the memory settings in the environment really do",
		Long: `explain reads the environment as a framework of a given release reads it: which
allocator is built, how much memory is taken and when, which variables play a
part, which do not do what they seem to, what would be raised, and what to
write instead. Nothing is run, and no memory is taken on the device.

FRAMEWORK is one of ` + strings.Join(knownFrameworks(), ", ") + `.
gpumem is this project's own runtime with the policy env.

With --pid it is the environment that a running process was started with; what
the process set itself later is not seen. Without --as it is explained as the
framework that the process has loaded, and without @VERSION as its release.

--diff A B compares two releases on the same environment and device.

Exit status: 0 the settings are accepted; 1 the framework would raise, die, or
run on the CPU; 2 bad usage.`,
		Example: `  gpumem explain
  XLA_PYTHON_CLIENT_PREALLOCATE=off gpumem explain
  gpumem explain --as jax@0.4.30 --device sim:24GiB,used=20GiB
  gpumem explain --pid 4242
  gpumem explain --diff 0.4.30 0.11.0
  gpumem explain --json`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case !cmd.Flags().Changed("diff") && len(args) > 0:
				return fmt.Errorf("explain takes no words but flags, and got %q; to name a framework: --as jax@0.4.30", args[0])
			case cmd.Flags().Changed("diff") && len(args) != 1:
				return fmt.Errorf("--diff takes two releases, as in --diff 0.4.30 0.11.0, and got %d", 1+len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			q, named, err := question(cmd, as, device, pid)
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("diff") {
				if named.Version != "" {
					return fmt.Errorf("--diff names the releases: write --as %s alone, and got --as %s", named.Name, as)
				}
				return explainDiff(cmd, q, diff, args[0], asJSON)
			}
			a, err := policy.Explain(q.Env, q.As, q.On)
			if err != nil {
				return err
			}
			writeNotes(cmd.ErrOrStderr(), q.Notes)
			if asJSON {
				err = encode(cmd.OutOrStdout(), explainJSON{a, q.About})
			} else {
				err = writeExplain(cmd.OutOrStdout(), q, a)
			}
			if err == nil && len(a.Errors) > 0 {
				err = errNo
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&as, "as", "", "`FRAMEWORK[@VERSION]` whose reading is explained (default the newest jax, or what the process of --pid has loaded)")
	f.StringVar(&device, "device", "", "`DEVICE`: sim:80GiB[,used=8GiB], sim@FILE or cuda:N (default $GPUMEM_DEVICE, else cuda:0 if a driver loads, else "+open.Default+")")
	f.IntVar(&pid, "pid", 0, "explain the environment of the running process `N`")
	f.StringVar(&diff, "diff", "", "compare the release `A` with B, the word that follows; each VERSION or FRAMEWORK[@VERSION]")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	_ = cmd.RegisterFlagCompletionFunc("as", cobra.FixedCompletions(knownFrameworks(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// knownFrameworks are the names that package policy takes, in the order of its
// documentation.
func knownFrameworks() []string {
	return slices.DeleteFunc([]string{"jax", "tensorflow", "pytorch", "cupy", "gpumem"}, func(name string) bool {
		_, err := policy.ParseFramework(name)
		return err != nil
	})
}

// question reads the flags, and what they point at.
func question(cmd *cobra.Command, as, device string, pid int) (q *probe.Question, framework policy.Framework, err error) {
	if cmd.Flags().Changed("as") {
		if framework, err = policy.ParseFramework(as); err != nil {
			return nil, framework, fmt.Errorf("--as: %w", err)
		}
	}
	var of *probe.Running
	if cmd.Flags().Changed("pid") {
		if of, err = probe.ReadRunning(pid); err != nil {
			return nil, framework, fmt.Errorf("--pid: %w", err)
		}
	}
	q, err = probe.Ask(framework, device, of)
	return q, framework, err
}

// explainJSON is an answer with what it is about.
type explainJSON struct {
	policy.Answer
	probe.About
}

func encode(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
