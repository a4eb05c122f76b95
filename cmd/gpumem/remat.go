package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gpumem/device/open"
	"gpumem/internal/output"
	"gpumem/internal/report"
	"gpumem/policy/explain"
	"gpumem/size"
	"gpumem/xla/measure"
	"gpumem/xla/page"
	"gpumem/xla/remat"
)

// rematFlags are the flags of remat.
type rematFlags struct {
	limit     string
	algorithm string
	marks     []string
	save      string
	device    string
	as        string
	total     string
	inUse     string
	out       string
	report    string
	bandwidth float64
	flops     float64
	host      float64
	together  bool
	frontier  bool
	fuse      bool
	packed    bool
	time      time.Duration
	advice    bool
	asJSON    bool
}

func rematCommand() *cobra.Command {
	var f rematFlags
	cmd := &cobra.Command{
		Use:   "remat MODULE",
		Short: "Trade computation for memory in a compiled program",
		Args:  oneModule,
		RunE:  func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.limit, "limit", "", "limit for temporaries: `BYTES` such as 12GiB, or NN% of what they take now (default: as XLA computes it)")
	flags.StringVar(&f.algorithm, "algorithm", "xla", "`NAME`: xla (its pass), gap (this project's planner), or off")
	flags.StringArrayVar(&f.marks, "mark", nil, "recompute what the regular expression `PATTERN` finds (repeatable)")
	flags.StringVar(&f.save, "save", "nothing", "`POLICY` of marked regions: nothing, everything, dots, dots_no_batch, names=PATTERN")
	flags.StringVar(&f.device, "device", "", "`DEVICE` for the default limit (default $GPUMEM_DEVICE, else cuda:0, else "+open.Default+")")
	flags.StringVar(&f.as, "as", "", "`JAX[@VERSION]` that reads the environment, such as jax@0.11.0 (default: the newest)")
	flags.StringVar(&f.total, "total", "", "the limit with which the program fits `SIZE`, arguments and results included")
	flags.StringVar(&f.inUse, "in-use", "0", "with --total: `SIZE` of that is in use, arguments of the program among it")
	flags.StringVar(&f.out, "out", "", "write the changed module to `FILE`, as text; to FILE.pb a binary one, if MODULE is binary")
	flags.Float64Var(&f.bandwidth, "bytes-per-second", remat.DefaultRates.Bytes, "memory bandwidth of the device, in bytes per second")
	flags.Float64Var(&f.flops, "flops-per-second", remat.DefaultRates.Flops, "speed of the device, in operations per second")
	flags.Float64Var(&f.host, "host-bytes-per-second", 0, "bandwidth of the link to the host, each way: offload values there (default 0: none)")
	flags.StringVar(&f.report, "report", "", "write a page of HTML about the plan to `FILE`")
	flags.BoolVar(&f.frontier, "frontier", false, "plan for less and less memory instead of one limit")
	flags.DurationVar(&f.time, "time", 10*time.Second, "time that gap searches for a better plan for one limit")
	flags.BoolVar(&f.packed, "packed", false, "gap: the limit is for the heap that temporaries are packed into")
	flags.BoolVar(&f.together, "recompute-collectives", false, "gap: also recompute collectives and random bits; all devices must run the same plan")
	flags.BoolVar(&f.fuse, "fuse", false, "fuse chains of elementwise operations first")
	flags.BoolVar(&f.advice, "advice", true, "gap: say what holds the memory, and what jax.checkpoint would do")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")
	_ = cmd.RegisterFlagCompletionFunc("algorithm", cobra.FixedCompletions(remat.Algorithms, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// check finds what is wrong with the flags, before anything takes time.
func (f *rematFlags) check(path string, flags *pflag.FlagSet) error {
	if !slices.Contains(remat.Algorithms, f.algorithm) {
		return fmt.Errorf("--algorithm %q: want one of %s", f.algorithm, strings.Join(remat.Algorithms, ", "))
	}
	changed, gap := flags.Changed, f.algorithm == "gap"
	for _, wrong := range []struct {
		is   bool
		text string
	}{
		{!(f.bandwidth > 0) || !(f.flops > 0), "--bytes-per-second and --flops-per-second must be above 0"},
		{f.packed && !gap, fmt.Sprintf("--packed: %s plans for what lives at once; say --algorithm gap", f.algorithm)},
		{f.time < 0, fmt.Sprintf("--time %s: want 0 or more", f.time)},
		{changed("time") && f.time > 0 && !gap, fmt.Sprintf("--time: %s does not search; say --algorithm gap", f.algorithm)},
		{!(f.host >= 0) || f.host > math.MaxFloat32, fmt.Sprintf("--host-bytes-per-second %g: want 0 or more, such as 50e9", f.host)},
		{f.host > 0 && f.algorithm == "off", "--host-bytes-per-second: off moves nothing; say --algorithm gap or xla"},
		{f.together && !gap, fmt.Sprintf("--recompute-collectives: %s has fixed rules; say --algorithm gap", f.algorithm)},
		{f.packed && f.frontier, "--packed is for one limit, and --frontier is for many: leave one of them out"},
		{changed("save") && len(f.marks) == 0, "--save says what a marked region keeps: give --mark, too"},
		{f.limit != "" && f.frontier, "--limit is one limit, and --frontier is for many: leave one of them out"},
		{f.as != "" && f.limit != "", "--as is for the default limit: leave it or --limit out"},
		{f.total != "" && (f.limit != "" || f.frontier), "--total says what the limit is: leave --limit and --frontier out"},
		{f.total == "" && f.inUse != "0", "--in-use says how much of --total is in use: give both"},
		{f.report != "" && f.frontier, "--report: the page has the frontier, and a plan for one limit besides; leave --frontier out"},
	} {
		if wrong.is {
			return errors.New(wrong.text)
		}
	}
	return output.Check(path, "module", output.File{Flag: "--out", Path: f.out}, output.File{Flag: "--report", Path: f.report})
}

func (f *rematFlags) run(cmd *cobra.Command, path string) error {
	if err := f.check(path, cmd.Flags()); err != nil {
		return err
	}
	line := newProgress(cmd.ErrOrStderr())
	defer line.clear()
	r, err := f.request(line)
	if err != nil {
		return err
	}
	total, err := size.ParseFlag(cmp.Or(f.total, "0"))
	if err != nil {
		return fmt.Errorf("--total: %w", err)
	}
	inUse, err := size.ParseFlag(f.inUse)
	if err != nil {
		return fmt.Errorf("--in-use: %w", err)
	}
	program, err := measure.Open(cmd.Context(), path)
	if err != nil {
		return err
	}
	toBinary := strings.HasSuffix(f.out, ".pb")
	if toBinary && !program.IsBinary() {
		return fmt.Errorf("--out %s: %s is a text, and a binary module is made of a binary one", f.out, path)
	}
	m := program.Module
	var notes []string
	switch {
	case f.total != "":
		limit, from, err := remat.RoomLimit(m, total, inUse)
		if err != nil {
			return fmt.Errorf("%s: %w: %s", m.Name, err, from)
		}
		r.Limit, r.LimitFrom = remat.Bytes(limit), "95 % of what is left of "+from
	case f.limit == "" && !f.frontier:
		if notes, err = f.deviceLimit(cmd, program, r); err != nil {
			return err
		}
	}
	if f.report != "" {
		r.Frontier = page.Step(m)
	}
	a, err := remat.Run(cmd.Context(), m, *r)
	switch {
	case errors.Is(err, remat.ErrNoMatch):
		return fmt.Errorf("%s: %w; gpumem hlo shows some", path, err)
	case err != nil && cmd.Context().Err() != nil:
		return err
	case err != nil:
		return fmt.Errorf("%s: %w", path, err)
	}
	a.Warnings = append(notes, a.Warnings...)
	if f.out != "" && !a.Given.Scheduled && len(f.marks) == 0 && a.Recomputed > 0 {
		a.Warnings = append(a.Warnings, "--out: "+path+" is not scheduled, so that XLA merges what is computed twice, and the plan changes nothing; --mark survives, and gpumem.jax.remat plans after scheduling")
	}
	if f.out != "" {
		write := a.Module.Write
		if toBinary {
			write = func(w io.Writer) error { return program.WriteBinary(w, a.Module) }
		}
		if err := output.Write(cmd.Context(), f.out, write); err != nil {
			return fmt.Errorf("--out: %w", err)
		}
	}
	if f.report != "" {
		if err := output.Write(cmd.Context(), f.report, func(w io.Writer) error { return page.Write(w, a) }); err != nil {
			return fmt.Errorf("--report: %w", err)
		}
	}
	line.clear()
	for _, w := range a.Warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), "gpumem: "+report.OneLine(w))
	}
	if f.frontier {
		return show(cmd, f.asJSON, a.Frontier, func(t *text) { writeFrontier(t, a) })
	}
	if err := show(cmd, f.asJSON, a, func(t *text) { writeRemat(t, a) }); err != nil {
		return err
	}
	if !a.Met {
		return errNo
	}
	return nil
}

// request returns what the flags ask for. Its limit is missing if it is that of the device.
func (f *rematFlags) request(line *progress) (r *remat.Request, err error) {
	r = &remat.Request{
		Algorithm: f.algorithm, Advice: f.advice, Packed: f.packed, BestHeap: !f.asJSON, Fuse: f.fuse, Collectives: f.together, HostSpeed: f.host,
		Search:   f.time,
		Progress: func(done float64) { line.show("plans for less memory", done) },
	}
	r.Rates.Bytes, r.Rates.Flops = f.bandwidth, f.flops
	if r.Save, err = remat.SavePolicyNamed(f.save); err != nil {
		return nil, fmt.Errorf("--save %s", notRegular(err))
	}
	for _, pattern := range f.marks {
		re, err := regexp.Compile(pattern)
		if err != nil {
			return nil, fmt.Errorf("--mark %s: %s", pattern, notRegular(err))
		}
		r.Marks = append(r.Marks, re)
	}
	if f.frontier {
		r.Frontier = remat.FrontierStep
		return r, nil
	}
	if part, ok := strings.CutSuffix(f.limit, "%"); ok {
		p, err := strconv.ParseFloat(strings.TrimSpace(part), 64)
		if err != nil || !(p > 0) || p > 100 {
			return nil, fmt.Errorf("--limit %q: want a part of the peak such as 60%%, at most 100%%", f.limit)
		}
		r.Limit, r.LimitFrom = remat.Percent(p), fmt.Sprintf("%v %% of what the module takes now", p)
	} else if f.limit != "" {
		n, err := size.ParseFlag(f.limit)
		if err != nil {
			return nil, fmt.Errorf("--limit: %w; a part of the peak is written as 60%%", err)
		}
		r.Limit, r.LimitFrom = remat.Bytes(n), "as requested"
	}
	return r, nil
}

// notRegular returns an error in the words of package regexp, if it is one of its.
func notRegular(err error) string {
	return strings.Replace(err.Error(), "error parsing regexp", "not a regular expression", 1)
}

// deviceLimit sets the limit that XLA computes for the device, as the release
// reads the environment, and returns notes about it. If the environment
// switches the pass off, the algorithm is off.
func (f *rematFlags) deviceLimit(cmd *cobra.Command, program *measure.Program, r *remat.Request) (notes []string, err error) {
	q, _, err := question(cmd, f.as, f.device, 0)
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
	limit, from, err := remat.DeviceLimit(program.Module, e.Policy, q.On)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s on %s; --device or --limit name another", program.Module.Name, err, from, q.Device.Spec)
	}
	r.Limit, r.LimitFrom = remat.Bytes(limit), fmt.Sprintf("95 %% of what %s leave beside arguments and results, on %s", from, q.Device.Spec)
	notes = q.Notes
	if e.NoRemat && !cmd.Flags().Changed("algorithm") {
		r.Algorithm = "off"
		notes = append(notes, "the environment switches the pass off, so nothing is recomputed; --algorithm xla does all the same")
	}
	return notes, nil
}

// The text that remat prints.

// regionsShown is how many marked regions are shown.
const regionsShown = 6

func writeRemat(t *text, a *remat.Answer) {
	t.Line("%s", a.Headline())
	t.section("")
	row := func(what string, n uint64, more string) { t.Line("  %-12s  %10s  %s", what, size.Format(n), more) }
	row("limit", a.Limit, a.Request.LimitFrom)
	if a.Unfused > 0 {
		row("unfused", a.Unfused, "before "+report.Counted(uint64(a.Fused), "fusion")+" were made")
	}
	row("now", a.Before, "temporaries at their peak, in "+report.Counted(uint64(a.Instructions), "instruction"))
	row("then", a.After, report.Part(a.After, a.Before)+" of that")
	if a.HostValues > 0 {
		row("on the host", a.HostBytes, fmt.Sprintf("copied to it and back beside what runs meanwhile: %s, %s", report.Counted(uint64(a.HostValues), "value"), report.Counted(uint64(a.HostReloads), "reload")))
	}
	if a.HeapBefore > 0 && a.HeapAfter > 0 {
		better := ""
		if a.HeapBest > 0 && a.HeapBest < a.HeapAfter/1000*999 {
			better = "; " + size.Format(a.HeapBest) + " if packed better than XLA does"
		}
		if !a.Request.Packed && a.Met && a.HeapAfter > a.Limit {
			better += "; above the limit: --packed plans for it"
		}
		row("packed", a.HeapAfter, "the heap that this takes, and "+size.Format(a.HeapBefore)+" before"+better)
	}
	row("lower bound", a.LowerBound, "no plan goes below, in any order")
	switch {
	case a.OutOfReach:
		t.Line("  Proven: out of reach while each instruction also runs at its place.")
	case a.LowerPercent >= .05:
		t.Line("  Proven: at least %.1f %% more compute while each instruction also runs at its place; moving some may do better.", a.LowerPercent)
	}
	for _, k := range a.Marked {
		t.Line("  marked %s in %s: %s, %d kept; %d added for %s", k.Pattern, k.Computation, report.Counted(uint64(k.Region), "instruction"), k.Saved, k.Recomputed, report.Counted(uint64(k.Late), "late user"))
	}
	writeRematAdvice(t, a)
	if len(a.Regions) > 0 {
		t.section("Marked by jax.checkpoint before")
		for _, r := range a.Regions[:min(len(a.Regions), regionsShown)] {
			t.Raw(fmt.Sprintf("  %7d instructions, %7d of them recomputed: %s", r.Instructions, r.Recomputed, tailOf(report.OneLine(r.Name), textWidth-52)))
		}
		if n := len(a.Regions) - regionsShown; n > 0 {
			t.Line("  and %d more", n)
		}
	}
}

// writeRematAdvice is the advice in words.
func writeRematAdvice(t *text, a *remat.Answer) {
	if len(a.Holders) > 0 {
		t.section("What holds the memory at the peak")
		for _, h := range a.Holders {
			t.Raw(report.Fit(fmt.Sprintf("  %10s  %5s  %s", size.Format(h.Bytes), report.Part(h.Bytes, a.Before), tailOf(report.OneLine(h.Part), textWidth-24)), textWidth))
		}
	}
	if a.Holds != "" {
		t.Line("  %s", a.Holds)
	}
	for _, section := range a.Text {
		t.section(section.Title)
		for _, l := range section.Lines {
			switch {
			case l.Code:
				t.Raw("    " + l.Text)
			case l.Bytes > 0:
				t.Raw(report.Fit(fmt.Sprintf("  %10s  %s", size.Format(l.Bytes), tailOf(report.OneLine(l.Text), textWidth-16)), textWidth))
			default:
				t.Line("  %s", l.Text)
			}
		}
	}
}

// writeFrontier is the curve of memory and compute, as a table.
func writeFrontier(t *text, a *remat.Answer) {
	t.Raw(fmt.Sprintf("%s: what less memory costs, by %s; no plan goes below %s", report.OneLine(a.Given.Name), a.Algorithm, size.Format(a.LowerBound)))
	t.section("")
	table := report.NewTable("temporaries", "of the peak", "more compute", "at least", "added", "")
	for _, p := range a.Frontier {
		bar := strings.Repeat("#", int(min(max(p.Extra, 0), 60)/2+.5))
		table.Row(size.Format(p.After), report.Part(p.After, p.Before), fmt.Sprintf("%.1f %%", p.Extra), p.Least(), report.Count(uint64(p.Recomputed)), bar)
	}
	t.table(table)
	t.section("")
	if a.Request.HostSpeed > 0 {
		t.Line("Values may wait on the host, so that nothing is proven of the least compute. In the order of the text.")
	} else {
		t.Line("at least: proven for plans that run each instruction at its place, too; moving some may do better. In the order of the text.")
	}
}
