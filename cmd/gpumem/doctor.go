package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"

	"gpumem/doctor"
	"gpumem/internal/output"
	"gpumem/internal/report"
	"gpumem/node/machine"
	"gpumem/node/pip"
	"gpumem/node/probe"
	"gpumem/record/formats"
	"gpumem/record/trace"
)

type doctorOptions struct {
	call
	state   string
	machine bool
	pid     int
	hasPID  bool
	devices []string
	save    string
	with    string
	explain string
}

func doctorCommand() *cobra.Command {
	var o doctorOptions
	cmd := &cobra.Command{
		Use:   "doctor [FILE...]",
		Short: "Explain why a program ran out of GPU memory",
		RunE:  runner(&o, runDoctor),
	}

	fs := cmd.Flags()
	fs.StringVar(&o.state, "state", "", "read the state of the machine where it failed from `FILE`, as gpumem ps --json writes it")
	fs.BoolVar(&o.machine, "machine", false, "look at the GPUs of this machine and their processes")
	fs.IntVar(&o.pid, "pid", 0, "look at this machine and the running process `N`: frameworks, settings, memory")
	fs.StringArrayVar(&o.devices, "device", nil, "with --machine or --pid: only this `DEVICE`, cuda:N or sim@FILE (repeatable)")
	fs.StringVar(&o.save, "save-trace", "", "write the pool in the log's dump to `FILE`, as a recording")
	fs.StringVar(&o.with, "with", "", "read a snapshot, memory profile or pool dump taken beside the log from `FILE`")
	fs.StringVar(&o.explain, "explain", "", "show the section on the cause `ID`, such as fragmentation")
	o.addJSON(cmd)
	return cmd
}

func runDoctor(ctx context.Context, o *doctorOptions) error {
	if o.explain != "" {
		return o.showCause()
	}
	o.hasPID = o.given("pid")
	logs, err := o.logs(o.words, term.IsTerminal(os.Stdin.Fd()))
	if err != nil {
		return err
	}
	return o.diagnose(ctx, logs)
}

// showCause shows the section on a cause. It refuses what it would not heed: it reads no log and
// prints text.
func (o *doctorOptions) showCause() error {
	if len(o.words) > 0 {
		return fmt.Errorf("--explain shows the section on a cause and reads no log; leave out one of --explain and %s", o.words[0])
	}
	for _, name := range []string{"json", "state", "machine", "pid", "device", "save-trace", "with"} {
		if o.given(name) {
			return fmt.Errorf("--explain shows the section on a cause and reads nothing else; leave out one of --explain and --%s", name)
		}
	}
	text, err := doctor.Explain(o.explain, textWidth)
	if err == nil {
		_, err = io.WriteString(o.out, text)
	}
	return err
}

// looks reports whether this machine is to be read.
func (o *doctorOptions) looks() bool { return o.machine || o.hasPID }

// logs checks the flags, and returns the logs to read; "" is no log, where the question is
// about the machine alone.
func (o *doctorOptions) logs(files []string, terminal bool) ([]string, error) {
	switch {
	case o.state != "" && o.looks():
		return nil, errors.New("--state is of the machine where it failed, and --machine and --pid look at this one; give one of them")
	case len(o.devices) > 0 && !o.looks():
		return nil, errors.New("--device says which GPUs of this machine to look at; it goes with --machine or --pid")
	case o.save == "-":
		return nil, errors.New("--save-trace -: a recording is written to a file, not to standard output; name the FILE")
	case len(files) > 1 && o.save != "":
		return nil, fmt.Errorf("--save-trace saves the pool of one log, and %d were given", len(files))
	case len(files) == 0 && terminal && (o.looks() || o.state != ""):
		return []string{""}, nil
	case len(files) == 0 && terminal:
		return nil, errors.New("no log: name its FILE, or pipe it in, as in python train.py 2>&1 | gpumem doctor; " +
			"gpumem doctor - reads what is pasted, up to Ctrl-D")
	case len(files) == 0:
		files = []string{"-"}
	}

	stdin := slices.Index(files, "-")
	if stdin >= 0 && slices.Contains(files[stdin+1:], "-") {
		return nil, errors.New("- is standard input, which can be read only once")
	}
	if o.state == "-" && o.with == "-" && stdin < 0 {
		return nil, errors.New("--with -: standard input is that of --state already; name the file of one of them")
	}
	for _, x := range []struct{ flag, path string }{{"--state", o.state}, {"--with", o.with}} {
		switch {
		case x.path == "-" && stdin >= 0:
			return nil, fmt.Errorf("%s -: standard input is the log already; name the file of one of them", x.flag)
		case x.path != "" && o.save != "" && output.Same(x.path, o.save):
			return nil, fmt.Errorf("--save-trace %s: this is the file of %s; name another file", o.save, x.flag)
		}
	}

	for _, file := range files {
		if err := output.Check(file, "log", output.File{Flag: "--save-trace", Path: o.save}); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// diagnose reads the logs and writes the answers. Nothing is printed before all is known:
// with an error stderr has that one line alone.
func (o *doctorOptions) diagnose(ctx context.Context, logs []string) error {
	state, notes, err := o.readState(ctx)
	if err != nil {
		return err
	}
	beside, err := readBeside(ctx, o.with)
	if err != nil {
		return err
	}

	line := newProgress(o.errs)
	defer line.clear()
	var all []doctor.Answer
	for _, name := range logs {
		a, err := doctor.Read(ctx, name, state, beside, func(read, total int64) { line.bytes("reading", read, total) })
		if err != nil {
			return err
		}
		all = append(all, a)
	}
	line.clear()
	if o.save != "" {
		note, err := saveTrace(ctx, o.save, all[0])
		if err != nil {
			return err
		}
		notes = append(notes, note)
	}

	if other := pip.Warning(); other != "" && o.looks() {
		notes = append(notes, other)
	}
	o.note(notes...)
	if o.asJSON {
		return doctor.WriteJSON(o.out, all)
	}
	return doctor.WriteText(o.out, all, textWidth)
}

// readBeside reads the file of --with; "" is none. What is no recording may be a dump.
func readBeside(ctx context.Context, path string) (*doctor.Beside, error) {
	if path == "" {
		return nil, nil
	}
	t, err := formats.Open(ctx, path, trace.Options{})
	if err == nil {
		defer t.Close()
		return doctor.ReadBeside(ctx, t)
	}
	if d, dumpErr := doctor.ReadDump(ctx, path); dumpErr == nil && d != nil {
		return &doctor.Beside{Source: path, Dump: d}, nil
	}
	return nil, fmt.Errorf("--with: %w", err)
}

// readState returns the state in the file of --state, or that of this machine and the
// process of --pid, with notes for stderr; nil if none is to be read.
func (o *doctorOptions) readState(ctx context.Context) (s *machine.Snapshot, notes []string, err error) {
	if !o.looks() {
		if o.state != "" {
			s, err = doctor.ReadState(ctx, o.state)
		}
		return s, nil, err
	}
	_, s, err = startProbe(probe.Options{Devices: o.devices})
	if err != nil {
		return nil, nil, err
	}
	if len(s.Devices) == 0 {
		s.Notes = []string{"this machine shows no GPU, so nothing is known of one; gpumem devices says why, and --device names one"}
	}
	if o.hasPID {
		var note string
		if s.Process, note, err = probe.Process(o.pid); err != nil {
			return nil, nil, fmt.Errorf("--pid: %w", err)
		}
		if note != "" {
			s.Notes = append(s.Notes, note)
		}
	}
	return s, s.Notes, nil
}

// saveTrace writes the recording of a dump, whole or not at all. note says how to go on.
func saveTrace(ctx context.Context, path string, a doctor.Answer) (note string, err error) {
	name := a.Log
	if name == "" {
		name = "--save-trace"
	}
	switch {
	case a.Dump == nil:
		return "", fmt.Errorf("%s: no dump of a whole pool in it, so there is none to save; "+
			"XLA and TensorFlow print one when an allocation is refused", name)
	case len(a.Dump.Regions) == 0:
		return "", fmt.Errorf("%s: the dump has no lines for its chunks, so the pool cannot be rebuilt", name)
	}
	if err := writeFiles(ctx, namedFile{"--save-trace", path, a.Dump.Trace}); err != nil {
		return "", err
	}
	words := "the pool as it was dumped"
	if !a.Dump.Complete {
		words = "what is left of the pool (the dump is not whole)"
	}
	return fmt.Sprintf("%s: %s; go on: gpumem replay %s %s", path, words, report.ShellQuote(path), doctor.ReplayFlags(a.Dump)), nil
}
