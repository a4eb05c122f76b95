package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"

	"gpumem/doctor"
	"gpumem/doctor/dump"
	"gpumem/internal/proc"
	"gpumem/policy"
)

// doctorFlags are what doctor is told besides its logs.
type doctorFlags struct {
	state   string
	machine bool
	pid     int
	hasPID  bool
	devices []string
	save    string
	asJSON  bool
}

func doctorCommand() *cobra.Command {
	var f doctorFlags
	cmd := &cobra.Command{
		Use:   "doctor [FILE...]",
		Short: "Explain why a program ran out of GPU memory",
		Long: `doctor reads what a program printed when it failed: JAX, XLA, TensorFlow, PyTorch,
CuPy, RMM, vLLM, Ollama, NCCL, CUDA's libraries, the kernel. It names the cause
and how certain it is, quotes the lines that show it, and says what to set and
how to check that it took effect. Where the log does not decide, it names what
is missing. Where memory is not to blame, it says so.

FILE is a log, gzip or not, of any size; - or none is standard input. Each FILE
has a separate answer. A whole pool dump in a log is shown on one screen, and
--save-trace makes a recording of it.

This machine is examined with --machine and --pid only: a log may come from
another. There gpumem ps --json writes the file that --state reads. --pid shows
the environment that the process was started with, not what it set later.

--json prints an object, and for several FILEs an array of them, in their order.

Exit status: 0 whatever the answer is, 2 bad usage or bad input.`,
		Example: `  gpumem doctor train.log
  python train.py 2>&1 | gpumem doctor
  gpumem doctor train.log --machine
  gpumem doctor --pid 4242
  gpumem ps --json > state.json; gpumem doctor train.log --state state.json
  gpumem doctor train.log --save-trace pool.txt; gpumem replay pool.txt`,
		RunE: func(cmd *cobra.Command, files []string) error {
			f.hasPID = cmd.Flags().Changed("pid")
			logs, err := f.logs(files, term.IsTerminal(os.Stdin.Fd()))
			if err != nil {
				return err
			}
			return f.diagnose(cmd.Context(), logs, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.state, "state", "", "read the state of the machine where it failed from `FILE`, as gpumem ps --json writes it")
	flags.BoolVar(&f.machine, "machine", false, "look at the GPUs of this machine and their processes")
	flags.IntVar(&f.pid, "pid", 0, "look at this machine and the running process `N`: frameworks, settings, memory")
	flags.StringArrayVar(&f.devices, "device", nil, "with --machine or --pid: only this `DEVICE`, cuda:N or sim@FILE (repeatable)")
	flags.StringVar(&f.save, "save-trace", "", "write the pool in the log's dump to `FILE`, as a recording")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")
	return cmd
}

// looks says whether this machine is to be looked at.
func (f *doctorFlags) looks() bool { return f.machine || f.hasPID }

// logs checks what was asked for, and gives the logs to read; "" is an empty
// one, where only the machine is asked about.
func (f *doctorFlags) logs(files []string, terminal bool) ([]string, error) {
	switch {
	case f.state != "" && f.looks():
		return nil, errors.New("--state is of the machine where it failed, and --machine and --pid look at this one; give one of them")
	case len(f.devices) > 0 && !f.looks():
		return nil, errors.New("--device says which GPUs of this machine to look at; it goes with --machine or --pid")
	case len(files) > 1 && f.save != "":
		return nil, fmt.Errorf("--save-trace saves the pool of one log, and %d were given", len(files))
	case len(files) == 0 && terminal && f.looks():
		return []string{""}, nil
	case len(files) == 0 && terminal:
		return nil, errors.New("no log: name its FILE, or pipe it in, as in python train.py 2>&1 | gpumem doctor; gpumem doctor - reads what is pasted, up to Ctrl-D")
	case len(files) == 0:
		files = []string{"-"}
	}
	stdin := slices.Index(files, "-")
	switch {
	case stdin >= 0 && slices.Contains(files[stdin+1:], "-"):
		return nil, errors.New("- is standard input, which can be read only once")
	case stdin >= 0 && f.state == "-":
		return nil, errors.New("--state -: standard input is the log already; name the file of one of them")
	}
	for _, file := range files {
		if f.save != "" && sameFile(file, f.save) {
			return nil, fmt.Errorf("--save-trace %s: this is the log itself; name another file", f.save)
		}
	}
	return files, nil
}

// sameFile says whether two paths lead to one file that is there.
func sameFile(a, b string) bool {
	one, err := os.Stat(a)
	if err != nil || !one.Mode().IsRegular() {
		return false
	}
	two, err := os.Stat(b)
	return err == nil && os.SameFile(one, two)
}

// A diagnosed is a log with its diagnosis.
type diagnosed struct {
	log string // what messages call it; empty: there is none
	*doctor.Diagnosis
}

// diagnose does what the command is for. Nothing is printed before all is known:
// with an error stderr has that one line alone.
func (f *doctorFlags) diagnose(ctx context.Context, logs []string, stdout, stderr io.Writer) error {
	state, notes, err := f.readState(ctx)
	if err != nil {
		return err
	}
	line := newProgress(stderr)
	defer line.clear()
	var all []diagnosed
	for _, name := range logs {
		if name == "" {
			d, err := doctor.Diagnose(strings.NewReader(""), state)
			if err != nil {
				return err
			}
			all = append(all, diagnosed{"", d})
			continue
		}
		in, err := openLog(ctx, name, "a log", line)
		if err != nil {
			return err
		}
		d, err := doctor.Diagnose(in, state)
		in.Close()
		switch {
		case in.failed != nil:
			return in.failed
		case err != nil:
			return fmt.Errorf("%s: %w", in.Name(), err)
		case in.size == 0 && !f.looks():
			notes = append(notes, in.Name()+": the log is empty; messages often go to stderr: python train.py > train.log 2>&1")
		case d.Verdict == doctor.VerdictUnknown && d.Dump == nil:
			note := recordingNote(ctx, name)
			switch {
			case in.strange && note == "":
				notes = append(notes, in.Name()+": this is no text; a log is what the program printed")
			case in.strange:
				notes = append(notes, in.Name()+": this is no text; "+note)
			case note != "":
				notes = append(notes, in.Name()+": this is no log; "+note)
			}
		}
		all = append(all, diagnosed{in.Name(), d})
	}
	line.clear()
	if f.save != "" {
		note, err := saveTrace(ctx, f.save, all[0])
		if err != nil {
			return err
		}
		notes = append(notes, note)
	}
	for _, n := range notes {
		fmt.Fprintln(stderr, "gpumem: "+oneLine(n))
	}
	if f.asJSON {
		return writeDoctorJSON(stdout, all)
	}
	return writeDoctor(stdout, all, textWidth)
}

// readState gives what is known of the machine, nil for nothing, and notes for
// stderr.
func (f *doctorFlags) readState(ctx context.Context) (*doctor.State, []string, error) {
	switch {
	case f.looks():
		return f.machineState()
	case f.state == "":
		return nil, nil, nil
	}
	in, err := openLog(ctx, f.state, "a state", nil)
	if err != nil {
		return nil, nil, err
	}
	defer in.Close()
	state, err := doctor.ReadState(in)
	if in.failed != nil {
		return nil, nil, in.failed
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", in.Name(), err)
	}
	return state, nil, nil
}

// machineState is what gpumem ps --json shows, with the process of --pid.
func (f *doctorFlags) machineState() (*doctor.State, []string, error) {
	look, err := psLooker(f.devices)
	if err != nil {
		return nil, nil, err
	}
	seen, err := look()
	if err != nil {
		return nil, nil, err
	}
	if len(seen.devices) == 0 {
		seen.notes = []string{"this machine shows no GPU, so nothing is known of one; gpumem devices says why, and --device names one"}
	}
	var text bytes.Buffer
	if err := writePsJSON(&text, seen); err != nil {
		return nil, nil, err
	}
	state, err := doctor.ReadState(&text)
	if err != nil {
		return nil, nil, err
	}
	if f.hasPID {
		var note string
		if state.Process, note, err = processState(f.pid); err != nil {
			return nil, nil, fmt.Errorf("--pid: %w", err)
		}
		if note != "" {
			seen.notes = append(seen.notes, note)
		}
	}
	return state, seen.notes, nil
}

// processState is a running process: what it has loaded, and the variables about
// GPU memory that it was started with. Others are nobody's business. A process
// that hides its environment, as those with a title of their own do, still
// shows what it has loaded; note says so.
func processState(pid int) (state *doctor.ProcessState, note string, err error) {
	loaded, err := proc.Frameworks(pid)
	if err != nil {
		return nil, "", err
	}
	state = &doctor.ProcessState{PID: pid, Frameworks: []string{}, Versions: map[string]string{}}
	for _, f := range loaded {
		state.Frameworks = append(state.Frameworks, f.Name)
		if f.Version != "" {
			state.Versions[f.Name] = f.Version
		}
	}
	environ, err := proc.Environ(pid)
	if err != nil {
		return state, err.Error(), nil
	}
	env := policy.Environ(environ)
	state.Env = map[string]string{}
	for _, v := range policy.Variables {
		if value, set := env.Lookup(v.Name); set {
			state.Env[v.Name] = value
		}
	}
	return state, "", nil
}

// saveTrace writes the recording of a dump. The file is there when it is whole,
// or not at all. note says how to go on.
func saveTrace(ctx context.Context, path string, d diagnosed) (note string, err error) {
	name := d.log
	if name == "" {
		name = "--save-trace"
	}
	switch {
	case d.Dump == nil:
		return "", fmt.Errorf("%s: no dump of a whole pool in it, so there is none to save; XLA and TensorFlow print one when an allocation is refused", name)
	case len(d.Dump.Regions) == 0:
		return "", fmt.Errorf("%s: the dump has no lines for its chunks, so the pool cannot be rebuilt", name)
	}
	if err := writeWhole(ctx, path, d.Dump.Trace); err != nil {
		return "", fmt.Errorf("--save-trace: %w", err)
	}
	words := "the pool as it was dumped"
	if !d.Dump.Complete {
		words = "what is left of the pool (the dump is not whole)"
	}
	return fmt.Sprintf("%s: %s; go on: gpumem replay %s %s", path, words, shellQuote(path), replayFlags(d.Dump)), nil
}

// replayFlags make the pool that a dump's recording rebuilds: it has all of the
// dump's bytes from the start, not rounded, and two ends if the dump had.
func replayFlags(d *dump.Dump) string {
	ends := ""
	if slices.ContainsFunc(d.Regions, func(r dump.Region) bool {
		return slices.ContainsFunc(r.Chunks, func(c dump.Chunk) bool { return c.Tag == dump.Upper })
	}) {
		ends = ",spatial=true"
	}
	return fmt.Sprintf("--policy bfc:limit=%d%s --device sim:%[1]d,granularity=1", d.Pool, ends)
}

// checkMakable says whether the file of a flag can be made, as far as its folder tells:
// before work that may take long. An empty path is none.
func checkMakable(flag, path string) error {
	if path == "" {
		return nil
	}
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		return fmt.Errorf("%s: %s: is a directory; name a file in it", flag, path)
	}
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return fmt.Errorf("%s: %s: cannot be made: %w", flag, path, reason(err))
	}
	return nil
}

// reason is an error of a file without its path, which the message has already.
func reason(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// writeWhole makes a file of what write gives. A regular file is replaced at
// the end; a pipe or a device is written to.
func writeWhole(ctx context.Context, path string, write func(io.Writer) error) (err error) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	at, flags := fmt.Sprintf("%s.%d.tmp", path, os.Getpid()), os.O_CREATE|os.O_EXCL
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() {
		at, flags = path, 0
	}
	file, err := os.OpenFile(at, flags|os.O_WRONLY, 0o666)
	if err != nil {
		return fmt.Errorf("%s: cannot be made: %w", path, reason(err))
	}
	err = errors.Join(write(file), file.Close(), ctx.Err())
	if at == path {
		return err
	}
	if err == nil {
		err = os.Rename(at, path)
	}
	if err != nil {
		os.Remove(at)
	}
	return err
}
