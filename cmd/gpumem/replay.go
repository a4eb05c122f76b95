package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"

	"github.com/spf13/cobra"

	"gpumem/device/open"
	"gpumem/internal/output"
	"gpumem/policy"
	"gpumem/policy/frameworks"
	"gpumem/record/compare"
	"gpumem/record/replay"
	"gpumem/record/trace"
)

type replayOptions struct {
	recordingOptions
	policies            []string
	device              string
	save, page, drawing string // files to write
	smallest            bool
	at                  uint64
}

func replayCommand() *cobra.Command {
	var o replayOptions
	cmd := &cobra.Command{
		Use:   "replay TRACE [AFTER]",
		Short: "Run a recording under several policies and compare",
		Args:  o.checkTraces,
		RunE:  runner(&o, runReplay),
	}

	fs := cmd.Flags()
	const policies = "`POLICY` to run, NAME[@VERSION][:key=value,...]; repeat for several (default: jax, " +
		"jax:preallocate=false, platform; " +
		"async, vmm, elastic, jax@next where the device can; pytorch for a recording of PyTorch)"
	fs.StringArrayVar(&o.policies, "policy", nil, policies)
	fs.StringVar(&o.device, "device", "", "`DEVICE`: sim:80GiB[,used=8GiB], sim@FILE or cuda:N "+defaultDevice)
	fs.StringVar(&o.save, "save", "", "also write the recording to `FILE` in gpumem's own format, which is small and read fast")
	fs.BoolVar(&o.smallest, "smallest", false, "also find the smallest device on which nothing is refused")
	fs.Uint64Var(&o.at, "at", 0, "also print what PyTorch's allocator holds after `EVENT`, counted from 1")
	fs.StringVar(&o.page, "report", "", "write a page of HTML to `FILE`: the timeline, what is alive, the pool's map, what was refused")
	fs.StringVar(&o.drawing, "svg", "", "write the timeline as SVG to `FILE`, for documents")
	o.addFlags(cmd)
	o.addPaths(cmd)
	return cmd
}

// checkTraces checks the arguments.
func (o *replayOptions) checkTraces(cmd *cobra.Command, words []string) error {
	switch {
	case len(words) == 0 || len(words) > 2:
		const format = "replay takes one TRACE, or two to compare, TRACE and AFTER, and got %d; gpumem replay --help has examples"
		return fmt.Errorf(format, len(words))
	case cmd.Flags().Changed("at") && o.at == 0:
		return errors.New("--at: events are counted from 1")
	case len(words) == 1:
		return nil
	case words[0] == "-" && words[1] == "-":
		return errors.New("standard input can be one of two recordings, not both")
	case o.save != "":
		return errors.New("--save is for one recording, and two are given")
	case o.drawing != "":
		return errors.New("--svg is for one recording, and two are given")
	case o.at != 0:
		return errors.New("--at is for one recording, and two are given")
	}
	return nil
}

// runReplay finds first what can be wrong without the recordings, because they may take long to read.
func runReplay(ctx context.Context, o *replayOptions) error {
	// Of a recording that is written over what is not read yet would be lost.
	files := []output.File{{Flag: "--save", Path: o.save}, {Flag: "--report", Path: o.page}, {Flag: "--svg", Path: o.drawing}}
	for _, path := range o.words {
		if err := output.Check(path, "recording", files...); err != nil {
			return err
		}
	}
	cfg, note, err := o.config()
	if err != nil {
		return err
	}
	if err := replay.CheckPolicies(cfg); err != nil {
		return err
	}

	line := newProgress(o.errs)
	defer line.clear()
	cfg.Progress = line.replay
	paths := o.paths || len(o.words) == 2 // of two they tell the program's files from a library's
	var traces []*trace.Trace
	var own []string // policies of the frameworks that were recorded
	for _, path := range o.words {
		t, err := o.open(ctx, path, paths, line)
		if err != nil {
			return err
		}
		defer t.Close()
		traces, own = append(traces, t), append(own, replay.FrameworkPolicies(t)...)
	}
	if len(o.policies) == 0 {
		defaults := cfg.Policies
		cfg.Policies = nil
		if err := addPolicies(&cfg, slices.Compact(own)); err != nil {
			return err
		}
		cfg.Policies = append(cfg.Policies, defaults...) // the program's own comes first
	}
	save := namedFile{"--save", o.save, func(w io.Writer) error { return traces[0].Save(ctx, w) }}
	if err := writeFiles(ctx, save); err != nil {
		return err
	}

	answer, fits, lines, err := o.ask(ctx, traces, cfg)
	if err != nil {
		return err
	}
	line.clear()
	if err := o.notes(cfg, note); err != nil {
		return err
	}
	return o.answer(answer, fits, lines)
}

// ask replays one recording or compares two, writes the page and the drawing, and returns the answer,
// whether the last recording fits with each policy, and what writes the text.
func (o *replayOptions) ask(ctx context.Context, t []*trace.Trace, cfg replay.Config) (
	answer any, fits bool, lines func(*text), err error,
) {
	if len(t) == 2 {
		rep, err := compare.Run(ctx, t[0], t[1], compare.Config{Replay: cfg, KeepPaths: o.paths})
		if err != nil {
			return nil, false, nil, err
		}
		lines = func(t *text) { rep.WriteText(&t.Text, o.smallest) }
		return rep, rep.Fits(), lines, writeFiles(ctx, namedFile{"--report", o.page, rep.WritePage})
	}

	rep, err := o.replayDrawn(ctx, t[0], cfg)
	if err != nil {
		return nil, false, nil, err
	}
	fits = !slices.ContainsFunc(rep.Results, func(r *replay.Result) bool { return !r.Fits })
	return rep, fits, func(t *text) { writeReplay(t, rep, o.smallest) }, nil
}

// notes prints what there is to say about the device, the releases and the environment.
// Not earlier than the answer: with an error stderr has that one line alone.
func (o *replayOptions) notes(cfg replay.Config, note string) error {
	if note != "" {
		o.note(note)
	}
	for _, p := range cfg.Policies {
		if note := (frameworks.Release{Name: p.Name, Version: p.Version}).Note(); note != "" {
			o.note(note)
		}
	}
	if slices.Contains(o.policies, "env") {
		_, warnings, err := frameworks.FromEnv(policy.Environ(os.Environ()))
		if err != nil {
			return err
		}
		for _, w := range warnings {
			o.note("warning: " + w.Name + ": " + w.Text)
		}
	}
	return nil
}

// config returns the replay that the flags ask for, and a note about its device.
func (o *replayOptions) config() (cfg replay.Config, note string, err error) {
	spec, note, err := open.Choose(o.device, os.LookupEnv, o.smallest)
	if err != nil {
		return cfg, "", err
	}
	if o.smallest && !spec.CanResize() {
		const format = "--smallest tries devices of other sizes, and the size of %s is fixed; name a simulated one, such as --device %s"
		return cfg, "", fmt.Errorf(format, spec.Text, open.Default)
	}
	info, err := spec.Info()
	if err != nil {
		return cfg, "", err
	}

	cfg = replay.Config{Device: spec.WithTotal, Total: info.Total, Pool: o.pool, Smallest: o.smallest, At: o.at}
	if spec.CanResize() { // a private one: one for each policy
		cfg.Workers = runtime.GOMAXPROCS(0)
	}
	policies := o.policies
	if len(policies) == 0 {
		policies = replay.DefaultPolicies(info)
	}
	return cfg, note, addPolicies(&cfg, policies)
}

// addPolicies adds policies by their names.
func addPolicies(cfg *replay.Config, names []string) error {
	for _, s := range names {
		p, err := frameworks.Parse(s)
		if err != nil {
			return err
		}
		cfg.Policies = append(cfg.Policies, p)
	}
	return nil
}
