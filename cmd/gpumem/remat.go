// gpumem remat: its flags, and the files that it writes.

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gpumem/device/open"
	"gpumem/internal/output"
	"gpumem/policy/explain"
	"gpumem/xla/measure"
	"gpumem/xla/page"
	"gpumem/xla/remat"
)

type rematOptions struct {
	call
	request      remat.Request
	marks        []string
	save         string
	limit        string
	device, as   string // of the default limit
	total, inUse uint64 // another limit, with --total
	out, page    string // files to write
	frontier     bool
}

func rematCommand() *cobra.Command {
	var o rematOptions
	cmd := &cobra.Command{
		Use:   "remat MODULE",
		Short: "Trade computation for memory in a compiled program",
		Args:  oneModule,
		RunE:  runner(&o, runRemat),
	}

	fs, r := cmd.Flags(), &o.request
	fs.StringVar(&o.limit, "limit", "", "limit for temporaries: `BYTES` such as 12GiB, or NN% of what they take now (default: as XLA computes it)")
	fs.StringVar(&r.Algorithm, "algorithm", "xla", "`NAME`: xla (its pass), gap (this project's planner), or off")
	fs.StringArrayVar(&o.marks, "mark", nil, "recompute what the regular expression `PATTERN` finds (repeatable)")
	fs.StringVar(&o.save, "save", "nothing", "`POLICY` of marked regions: nothing, everything, dots, dots_no_batch, names=PATTERN")
	fs.StringVar(&o.device, "device", "", "`DEVICE` for the default limit (default $GPUMEM_DEVICE, else cuda:0, else "+open.Default+")")
	fs.StringVar(&o.as, "as", "", "`JAX[@VERSION]` that reads the environment, such as jax@0.11.0 (default: the newest)")
	addSize(fs, &o.total, "total", "", "the limit with which the program fits `SIZE`, arguments and results included")
	addSize(fs, &o.inUse, "in-use", "0", "with --total: `SIZE` of that is in use, arguments of the program among it")
	fs.StringVar(&o.out, "out", "", "write the changed module to `FILE`, as text; to FILE.pb a binary one, if MODULE is binary")
	fs.Float64Var(&r.Rates.Bytes, "bytes-per-second", remat.DefaultRates.Bytes, "memory bandwidth of the device, in bytes per second")
	fs.Float64Var(&r.Rates.Flops, "flops-per-second", remat.DefaultRates.Flops, "speed of the device, in operations per second")
	fs.Float64Var(&r.HostSpeed, "host-bytes-per-second", 0, "bandwidth of the link to the host, each way: offload values there (default 0: none)")
	fs.StringVar(&o.page, "report", "", "write a page of HTML about the plan to `FILE`")
	fs.BoolVar(&o.frontier, "frontier", false, "plan for less and less memory instead of one limit")
	fs.DurationVar(&r.Search, "time", 10*time.Second, "time that gap searches for a better plan for one limit")
	fs.BoolVar(&r.Packed, "packed", false, "gap: the limit is for the heap that temporaries are packed into")
	fs.BoolVar(&r.Collectives, "recompute-collectives", false, "gap: also recompute collectives and random bits; all devices must run the same plan")
	fs.BoolVar(&r.Fuse, "fuse", false, "fuse chains of elementwise operations first")
	fs.BoolVar(&r.Advice, "advice", true, "gap: say what holds the memory, and what jax.checkpoint would do")
	o.addJSON(cmd)
	_ = cmd.RegisterFlagCompletionFunc("algorithm", cobra.FixedCompletions(remat.Algorithms, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func runRemat(ctx context.Context, o *rematOptions) error {
	path, r := o.words[0], &o.request
	if err := o.check(path); err != nil {
		return err
	}

	line := newProgress(o.errs)
	defer line.clear()
	r.BestHeap = !o.asJSON
	r.Progress = func(done float64) { line.show("plans for less memory", done) }
	program, err := o.open(ctx, path)
	if err != nil {
		return err
	}

	notes, err := o.defaultLimit(program)
	if err != nil {
		return err
	}
	a, err := remat.Run(ctx, program.Module, *r)
	switch {
	case errors.Is(err, remat.ErrNoMatch):
		return fmt.Errorf("%s: %w; gpumem hlo shows some", path, err)
	case err != nil && ctx.Err() != nil:
		return err
	case err != nil:
		return fmt.Errorf("%s: %w", path, err)
	}

	a.Warnings = append(notes, a.Warnings...)
	if o.out != "" && !a.Given.Scheduled && len(o.marks) == 0 && a.Recomputed > 0 {
		a.Warnings = append(a.Warnings, "--out: "+path+" is not scheduled, so that XLA merges what is computed twice, "+
			"and the plan changes nothing; --mark survives, and gpumem.jax.remat plans after scheduling")
	}
	if err := o.writeFiles(ctx, program, a); err != nil {
		return err
	}

	line.clear()
	o.note(a.Warnings...)
	if o.frontier {
		return o.show(a.Frontier, func(t *text) { writeFrontier(t, a) })
	}
	return o.answer(a, a.Met, func(t *text) { writeRemat(t, a) })
}

// check finds what is wrong with the flags, before anything takes time.
func (o *rematOptions) check(path string) error {
	if err := o.request.Check(); err != nil {
		return err
	}
	for _, wrong := range []struct {
		is   bool
		text string
	}{
		{o.given("time") && o.request.Search > 0 && o.request.Algorithm != "gap",
			"--time: " + o.request.Algorithm + " does not search; say --algorithm gap"},
		{o.given("advice") && o.request.Advice && o.request.Algorithm != "gap",
			"--advice: it is of the plans of gap; say --algorithm gap"},
		{o.request.Packed && o.frontier, "--packed is for one limit, and --frontier is for many: leave one of them out"},
		{o.given("save") && len(o.marks) == 0, "--save says what a marked region keeps: give --mark, too"},
		{o.limit != "" && o.frontier, "--limit is one limit, and --frontier is for many: leave one of them out"},
		{o.as != "" && o.limit != "", "--as is for the default limit: leave it or --limit out"},
		{o.given("total") && (o.limit != "" || o.frontier), "--total says what the limit is: leave --limit and --frontier out"},
		{!o.given("total") && o.inUse > 0, "--in-use says how much of --total is in use: give both"},
		{o.page != "" && o.frontier, "--report: the page has the frontier, and a plan for one limit besides; leave --frontier out"},
	} {
		if wrong.is {
			return errors.New(wrong.text)
		}
	}
	return output.Check(path, "module", output.File{Flag: "--out", Path: o.out}, output.File{Flag: "--report", Path: o.page})
}

// open fills in what the words of the flags mean, and reads the module.
func (o *rematOptions) open(ctx context.Context, path string) (*measure.Program, error) {
	r := &o.request
	if err := r.SetMarks(o.marks, o.save); err != nil {
		return nil, err
	}
	if o.limit != "" {
		if err := r.SetLimit(o.limit); err != nil {
			return nil, err
		}
	}

	program, err := measure.Open(ctx, path)
	switch {
	case err != nil:
		return nil, err
	case strings.HasSuffix(o.out, ".pb") && !program.IsBinary():
		return nil, fmt.Errorf("--out %s: %s is a text, and a binary module is made of a binary one", o.out, path)
	case o.frontier:
		r.Frontier = remat.FrontierStep
	case o.page != "":
		r.Frontier = page.Step(program.Module)
	}
	if o.given("total") {
		err = r.SetRoomLimit(program.Module, o.total, o.inUse)
	}
	return program, err
}

// defaultLimit sets the limit that XLA computes for the device, as the release reads the
// environment, if no other is asked for, and returns notes about it. If the environment switches the
// pass off, the algorithm is off.
func (o *rematOptions) defaultLimit(program *measure.Program) (notes []string, err error) {
	if o.frontier || o.request.Limit != nil {
		return nil, nil
	}
	q, _, err := question(o.as, o.device, nil)
	if err != nil {
		return nil, err
	}
	if q.As.Name != "jax" {
		return nil, fmt.Errorf("--as %s: the limit is computed as JAX has it; want jax or jax@VERSION", q.As.Name)
	}

	e, err := explain.Environment(q.Env.OnGPU(), q.As, q.On)
	if err != nil {
		return nil, err
	}
	if len(e.Errors) > 0 {
		return nil, fmt.Errorf("%s is refused: %s; gpumem explain says what to write", e.Errors[0].Name, e.Errors[0].Text)
	}

	notes = q.Notes
	if e.NoRemat && !o.given("algorithm") {
		o.request.Algorithm = "off"
		notes = append(notes, "the environment switches the pass off, so nothing is recomputed; --algorithm xla does all the same")
	}
	return notes, o.request.SetDeviceLimit(program.Module, e.Policy, q.On, q.Device.Spec)
}

// writeFiles writes the planned module and the page, if they have a path.
func (o *rematOptions) writeFiles(ctx context.Context, program *measure.Program, a *remat.Answer) error {
	module := a.Module.Write
	if strings.HasSuffix(o.out, ".pb") {
		module = func(w io.Writer) error { return program.WriteBinary(w, a.Module) }
	}
	return writeFiles(ctx,
		namedFile{"--out", o.out, module},
		namedFile{"--report", o.page, func(w io.Writer) error { return page.Write(w, a) }})
}
