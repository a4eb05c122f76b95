package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"gpumem/device/open"
	"gpumem/internal/proc"
	"gpumem/policy"
)

// visibleVar says which GPUs a program sees, and in which order.
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
		Short: "Explain the memory settings in the environment",
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
			q, err := ask(cmd, as, device, pid)
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("diff") {
				return explainDiff(cmd, q, diff, args[0], asJSON)
			}
			a, err := policy.Explain(q.env, q.as, q.policyDevice())
			if err != nil {
				return err
			}
			q.writeNotes(cmd.ErrOrStderr())
			if asJSON {
				err = encode(cmd.OutOrStdout(), explainJSON{a, q.deviceJSON(), q.processJSON()})
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

// A question is what is asked: an environment, a framework and a device.
type question struct {
	env       policy.Environment
	as        policy.Framework
	versioned bool // --as names a version
	device    open.Listed
	freeKnown bool
	gpus      int      // that the program sees; 0: not known
	process   *process // nil: the environment is this program's own
	notes     []string // for stderr
}

// A process is the one that --pid names.
type process struct {
	pid        int
	frameworks []proc.Framework
	holds      *uint64 // bytes of the device; nil: the driver does not tell
}

// ask reads the flags, and what they point at.
func ask(cmd *cobra.Command, as, device string, pid int) (*question, error) {
	q := &question{as: policy.Framework{Name: "jax"}}
	if cmd.Flags().Changed("as") {
		f, err := policy.ParseFramework(as)
		if err != nil {
			return nil, fmt.Errorf("--as: %w", err)
		}
		q.as, q.versioned = f, f.Version != ""
	}
	environ := os.Environ()
	if cmd.Flags().Changed("pid") {
		var err error
		if environ, err = proc.Environ(pid); err != nil {
			return nil, fmt.Errorf("--pid: %w", err)
		}
		q.process = &process{pid: pid}
		if q.process.frameworks, err = proc.Frameworks(pid); err != nil {
			return nil, fmt.Errorf("--pid: %w", err)
		}
		q.chooseLoaded(cmd.Flags().Changed("as"))
	}
	if note := policy.ReleaseNote(q.as); note != "" {
		q.note("%s", note)
	}
	q.env = policy.Environ(environ)
	if q.process != nil {
		q.env = environmentOf(pid, environ)
	}

	spec, note, err := open.Choose(device, os.LookupEnv, false)
	if err != nil {
		return nil, err
	}
	list, err := spec.Status()
	if err != nil {
		return nil, err
	}
	q.setDevice(list[0])
	if note != "" {
		q.note("%s", note)
	}
	theirs, ours := q.env.Get(visibleVar), os.Getenv(visibleVar)
	if theirs == ours {
		q.gpus = countGPUs(spec)
	} else if spec.Kind == open.CUDA && device == "" {
		q.note("process %d has %s=%q and this program %q: %s may be another GPU there; --device chooses", pid, visibleVar, theirs, ours, spec.Text)
	}
	return q, nil
}

// environmentOf is a process's environment, with the files that its values name
// where the process finds them.
func environmentOf(pid int, environ []string) policy.Environment {
	return policy.Environ(environ).In(fmt.Sprintf("/proc/%d/root", pid), fmt.Sprintf("/proc/%d/cwd", pid))
}

// countGPUs is how many there are of the kind of a device.
func countGPUs(spec open.Spec) int {
	var list []open.Listed
	var err error
	switch spec.Kind {
	case open.Private:
		return 1
	case open.Shared:
		list, err = open.Spec{Kind: open.Shared, File: spec.File, All: true}.Status()
	case open.CUDA:
		list, _, err = open.All(func(string) (string, bool) { return "", false })
	}
	if err != nil {
		return 0
	}
	return len(list)
}

func (q *question) note(format string, args ...any) {
	q.notes = append(q.notes, fmt.Sprintf(format, args...))
}

// writeNotes is called when nothing can fail any more: with an error stderr has
// that one line alone.
func (q *question) writeNotes(w io.Writer) {
	for _, n := range q.notes {
		fmt.Fprintln(w, "gpumem: "+oneLine(n))
	}
}

// chooseLoaded takes the framework, or the release of the one that was named,
// from what the process has loaded.
func (q *question) chooseLoaded(named bool) {
	p := q.process
	chosen := named
	var others []string
	for _, f := range p.frameworks {
		loaded := words(policy.Framework{Name: f.Name, Version: f.Version})
		_, err := policy.ParseFramework(f.Name)
		switch {
		case named && f.Name != q.as.Name:
		case named && q.versioned:
		case err != nil:
			q.note("process %d has loaded %s, which this version does not explain", p.pid, loaded)
		case named || !chosen:
			q.take(f)
			chosen = true
		default:
			others = append(others, loaded)
		}
	}
	if !chosen {
		q.note("process %d has loaded no framework known here: explained as jax; --as names another", p.pid)
	}
	if len(others) > 0 {
		q.note("process %d has also loaded %s; --as names the one to explain", p.pid, strings.Join(others, ", "))
	}
}

// take makes a loaded framework the one to explain.
func (q *question) take(f proc.Framework) {
	q.as = policy.Framework{Name: f.Name, Version: f.Version}
	if f.Version == "" {
		q.note("process %d: the release of %s cannot be told: the newest is explained; --as %s@VERSION names it", q.process.pid, f.Name, f.Name)
	} else if _, err := policy.ParseFramework(words(q.as)); err != nil {
		q.note("process %d: %v; the newest is explained", q.process.pid, err)
		q.as.Version = ""
	}
}

// words is NAME or NAME@VERSION.
func words(f policy.Framework) string {
	if f.Version == "" {
		return f.Name
	}
	return f.Name + "@" + f.Version
}

// setDevice takes in what is seen of the device.
func (q *question) setDevice(d open.Listed) {
	q.device = d
	// Where the driver does not tell what is free it does not tell what is
	// used, either.
	q.freeKnown = d.Free > 0 || d.Used > 0
	for _, n := range d.Notes {
		q.note("%s: %s", d.Words, n)
	}
	if q.process == nil {
		return
	}
	for _, p := range d.Processes {
		if p.PID != q.process.pid || !p.Known {
			continue
		}
		sum := p.Used
		if h := q.process.holds; h != nil { // one that computes and draws
			sum = max(sum, *h)
		}
		q.process.holds = &sum
	}
}

// policyDevice is the device as the framework finds it when it starts. What
// the process of --pid holds was free then.
func (q *question) policyDevice() policy.Device {
	d := q.device
	free := d.Free
	if !q.freeKnown {
		free = d.Total
	}
	if q.process != nil && q.process.holds != nil {
		free = min(d.Total, free+*q.process.holds)
	}
	return policy.Device{Ordinal: d.Ordinal, Total: d.Total, Free: free, Granularity: d.Granularity, CCMajor: d.CCMajor, NoPages: !d.HasPages}
}

// explainJSON is an answer with what it is about.
type explainJSON struct {
	policy.Answer
	Device  deviceSeen   `json:"device"`
	Process *processSeen `json:"process,omitempty"`
}

type deviceSeen struct {
	Words string  `json:"device"` // for --device
	Name  string  `json:"name"`
	Total uint64  `json:"total_bytes"`
	Free  *uint64 `json:"free_bytes"` // null: the driver does not tell
}

type processSeen struct {
	PID        int             `json:"pid"`
	Frameworks []frameworkSeen `json:"frameworks"`
	Holds      *uint64         `json:"used_bytes"` // of the device; null: the driver does not tell
}

type frameworkSeen struct {
	Name    string `json:"name"`
	Version string `json:"version"` // empty: not known
	Path    string `json:"path"`
}

func (q *question) deviceJSON() deviceSeen {
	d := deviceSeen{Words: q.device.Words, Name: q.device.Name, Total: q.device.Total}
	if q.freeKnown {
		d.Free = &q.device.Free
	}
	return d
}

func (q *question) processJSON() *processSeen {
	if q.process == nil {
		return nil
	}
	p := &processSeen{PID: q.process.pid, Frameworks: []frameworkSeen{}, Holds: q.process.holds}
	for _, f := range q.process.frameworks {
		p.Frameworks = append(p.Frameworks, frameworkSeen(f))
	}
	return p
}

func encode(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
