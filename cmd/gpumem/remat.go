package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gpumem/device/open"
	"gpumem/hlo"
	"gpumem/hlo/cost"
	"gpumem/hlo/load"
	"gpumem/hlo/memory"
	"gpumem/policy"
	"gpumem/remat"
	"gpumem/size"
)

// rematFlags are what remat is told besides its module.
type rematFlags struct {
	limit     string
	algorithm string
	marks     []string
	save      string
	device    string
	as        string
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
	asJSON    bool

	line *progress
}

// algorithms are the names that --algorithm takes.
var algorithms = []string{"off", "xla", "gap"}

func rematCommand() *cobra.Command {
	var f rematFlags
	cmd := &cobra.Command{
		Use:   "remat MODULE",
		Short: "Say what recomputing saves in a compiled program, and at what price",
		Long: `remat does to a module of HLO what XLA's pass "rematerialization" does: where more
lives than the limit allows, values are computed again in place of being kept.
It says how far that goes, what it costs, and below what no plan can go.

The limit is that of XLA for this device and environment: 95 % of what the pool's
limit leaves beside arguments and results, so that XLA_CLIENT_MEM_FRACTION changes
the plan. --limit names another: bytes, or a part of the peak, as in 60%.
--algorithm off changes nothing, as JAX_COMPILER_ENABLE_REMAT_PASS=false does;
gap is our own, which goes much further and is never worse: it splits the gaps
between uses wherever memory is short, and then looks for better plans for --time.
--frontier shows what each amount of memory costs.

--mark PATTERN recomputes by hand first, as jax.checkpoint does: what the regular
expression finds in op_name or in names of instructions is computed again for the
backward pass, behind a barrier. --save says what is kept all the same: nothing
(the default), everything, dots, dots_no_batch, or names=PATTERN.

--host-bytes-per-second lets values wait in the host's memory while nobody needs
them, where the copies to it and back fit beside what runs meanwhile: 50e9 is about
a PCIe 5.0 x16, 400e9 what a Grace Hopper has. XLA's own pass may do so, too.

--fuse first puts chains of elementwise operations into fusions, as XLA does before
it recomputes: of a module that is not compiled yet, much of what seems to live
between operations never does. It is less than XLA fuses.

The limit is for what lives at once, as in XLA. The heap that it is packed into may
be larger by a few percent, or smaller, where results take the place of operands: it
is told beside, and --packed plans for it.

The module is measured in the order of its text, which is that of execution if it
is scheduled. --out writes the changed module; it parses again, and is measured
anew before anything is told.

Exit status: 0, also where the limit is not met; 2 bad usage or bad input.`,
		Example: `  gpumem remat step.hlo
  gpumem remat step.hlo --limit 60%
  gpumem remat step.hlo --algorithm gap --frontier
  gpumem remat step.hlo --algorithm gap --limit 60% --report plan.html
  XLA_CLIENT_MEM_FRACTION=.9 gpumem remat step.hlo --device sim:24GiB --as jax@0.11.0
  gpumem remat step.hlo --algorithm off --mark 'layer_\d+' --save dots --out marked.hlo`,
		Args: oneModule,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.limit, "limit", "", "the most that temporaries may take: `BYTES` such as 12GiB, or NN% of their peak as the module is given, with --fuse as it is fused (default: as XLA computes it for the device)")
	flags.StringVar(&f.algorithm, "algorithm", "xla", "`NAME`: xla (its pass), gap (ours, which looks at the whole schedule), or off")
	flags.StringArrayVar(&f.marks, "mark", nil, "recompute by hand what `PATTERN` finds; repeat for several regions")
	flags.StringVar(&f.save, "save", "nothing", "what marked regions keep: `POLICY` nothing, everything, dots, dots_no_batch, names=PATTERN")
	flags.StringVar(&f.device, "device", "", "`DEVICE` whose memory the limit goes by: sim:80GiB, cuda:0 (default $GPUMEM_DEVICE, else cuda:0 if a driver loads, else "+open.Default+")")
	flags.StringVar(&f.as, "as", "", "`JAX[@VERSION]` whose environment it is, such as jax@0.11.0 (default the newest)")
	flags.StringVar(&f.out, "out", "", "write the changed module to `FILE`, as text")
	flags.Float64Var(&f.bandwidth, "bytes-per-second", 3e12, "how fast the device moves memory, for the price")
	flags.Float64Var(&f.flops, "flops-per-second", 4e14, "how fast the device computes, for the price")
	flags.Float64Var(&f.host, "host-bytes-per-second", 0, "how fast the link to the host's memory is, in each direction: values may wait there while nobody needs them, where the copies fit beside what runs meanwhile (default 0: none do)")
	flags.StringVar(&f.report, "report", "", "also write what the plan does to `FILE`, a page of HTML, with plans for less memory")
	flags.BoolVar(&f.frontier, "frontier", false, "plans for ever less memory, in place of one limit")
	flags.DurationVar(&f.time, "time", 10*time.Second, "how long gap looks for a better plan for one limit; with --frontier and for the curve of --report it does not")
	flags.BoolVar(&f.packed, "packed", false, "the limit is for the heap that the temporaries are packed into; for gap")
	flags.BoolVar(&f.together, "recompute-collectives", false, "gap may also run collectives, and random bits made from a state, again; every device must run the same plan")
	flags.BoolVar(&f.fuse, "fuse", false, "fuse chains of elementwise operations first")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")
	_ = cmd.RegisterFlagCompletionFunc("algorithm", cobra.FixedCompletions(algorithms, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// A rematAnswer is what a plan does. Its JSON is relied on by scripts.
type rematAnswer struct {
	Algorithm    string `json:"algorithm"`
	Instructions int    `json:"instructions"`                // of the module as given
	Unfused      uint64 `json:"temp_peak_unfused,omitempty"` // and Fused fusions made of it, with --fuse
	Fused        int    `json:"fused,omitempty"`
	Limit        uint64 `json:"limit_bytes"`
	Before       uint64 `json:"temp_peak_before"`
	After        uint64 `json:"temp_peak_after"`
	// The heap that temporaries are packed into, results in place of operands, before
	// and after. With --packed it is what the limit is for.
	HeapBefore uint64 `json:"heap_before,omitempty"`
	HeapAfter  uint64 `json:"heap_after,omitempty"`
	HeapBest   uint64 `json:"heap_after_best,omitempty"` // by a better packing than XLA's
	Met        bool   `json:"met"`
	Recomputed int    `json:"recomputed"` // instructions that were added
	// What is on the host for a while, how often it is copied back, and the bytes copied in
	// both directions; with --host-bytes-per-second.
	HostValues  int     `json:"host_values,omitempty"`
	HostReloads int     `json:"host_reloads,omitempty"`
	HostBytes   uint64  `json:"host_bytes_copied,omitempty"`
	Extra       float64 `json:"extra_compute_percent"`
	LowerBound  uint64  `json:"lower_bound_bytes"`
	// LowerPercent is the least extra compute, as far as it is proven, of a plan for this
	// limit that runs each instruction at its place in the text, and some again. Plans that move
	// instructions may do better. 0: nothing is proven, or no such plan exists (see OutOfReach).
	LowerPercent float64 `json:"lower_bound_percent"`
	OutOfReach   bool    `json:"out_of_reach_in_order"` // proven
	Seconds      float64 `json:"seconds"`               // that planning took

	Marked []markAnswer `json:"marked,omitempty"`
	// What holds the memory at the peak, and what jax.checkpoint alone would do; with gap.
	Holders []holderAnswer `json:"holders,omitempty"`
	ByHand  []handAnswer   `json:"by_hand,omitempty"`

	name, from string // of the module; where the limit is from
	by         string // what made the plan
	packed     bool   // the limit is for the heap
	toHost     bool   // values may wait on the host
	marked     []remat.Region
	warnings   []string
}

// A markAnswer is what one --mark did in one computation.
type markAnswer struct {
	Pattern     string `json:"pattern"`
	Computation string `json:"computation"`
	Region      int    `json:"instructions"`
	Saved       int    `json:"saved"`
	Recomputed  int    `json:"recomputed"`
	Late        int    `json:"late_users"`
}

// check finds what is wrong with the flags, before anything takes time.
func (f *rematFlags) check(path string) error {
	if !slices.Contains(algorithms, f.algorithm) {
		return fmt.Errorf("--algorithm %q: want one of %s", f.algorithm, strings.Join(algorithms, ", "))
	}
	if !(f.bandwidth > 0) || !(f.flops > 0) {
		return errors.New("--bytes-per-second and --flops-per-second must be above 0")
	}
	switch {
	case f.packed && f.algorithm != "gap":
		return fmt.Errorf("--packed: %s plans for what lives at once; say --algorithm gap", f.algorithm)
	case f.time < 0:
		return fmt.Errorf("--time %s: want 0 or more", f.time)
	case !(f.host >= 0) || f.host > math.MaxFloat32:
		return fmt.Errorf("--host-bytes-per-second %g: want 0 or more, such as 50e9", f.host)
	case f.host > 0 && f.algorithm == "off":
		return errors.New("--host-bytes-per-second: off moves nothing; say --algorithm gap or xla")
	case f.together && f.algorithm != "gap":
		return fmt.Errorf("--recompute-collectives: %s has rules of its own; say --algorithm gap", f.algorithm)
	case f.packed && f.frontier:
		return errors.New("--packed is for one limit, and --frontier is for many: leave one of them out")
	}
	if f.out != "" && sameFile(path, f.out) {
		return fmt.Errorf("--out %s: this is the module itself; name another file", f.out)
	}
	if err := errors.Join(checkMakable("--out", f.out), checkMakable("--report", f.report)); err != nil {
		return err
	}
	return f.checkReport(path)
}

func (f *rematFlags) run(cmd *cobra.Command, path string) error {
	if err := f.check(path); err != nil {
		return err
	}
	save, err := savePolicy(f.save)
	if err != nil {
		return err
	}
	marks := make([]*regexp.Regexp, len(f.marks))
	for n, m := range f.marks {
		if marks[n], err = regexp.Compile(m); err != nil {
			return fmt.Errorf("--mark: %w", err)
		}
	}
	m, err := load.Module(cmd.Context(), path)
	if err != nil {
		return err
	}
	f.line = newProgress(cmd.ErrOrStderr())
	defer f.line.clear()
	a := &rematAnswer{Algorithm: f.algorithm, Instructions: m.Instructions(), name: m.Name, packed: f.packed, toHost: f.host > 0, marked: remat.Regions(m)}
	if f.fuse {
		if err := a.fuse(f, m); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	var page *rematReport
	if f.report != "" {
		if page, err = f.newReport(m); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	var curve []*rematAnswer
	// A plan may take many seconds and leaves nothing behind: who interrupts it does not wait.
	planned := make(chan error, 1)
	go func() {
		var err error
		m, curve, err = f.plan(cmd, a, m, marks, save)
		planned <- err
	}()
	select {
	case err = <-planned:
	case <-cmd.Context().Done():
		return cmd.Context().Err()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if f.out != "" {
		if err := writeWhole(cmd.Context(), f.out, m.Write); err != nil {
			return fmt.Errorf("--out: %w", err)
		}
	}
	if page != nil {
		if err := f.writeReport(cmd.Context(), page, a, m); err != nil {
			return fmt.Errorf("--report: %w", err)
		}
	}
	f.line.clear()
	for _, w := range a.warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), "gpumem: "+oneLine(w))
	}
	switch {
	case f.asJSON && f.frontier:
		return encode(cmd.OutOrStdout(), curve)
	case f.asJSON:
		return encode(cmd.OutOrStdout(), a)
	case f.frontier:
		return writeFrontier(cmd.OutOrStdout(), a, curve)
	}
	return writeRemat(cmd.OutOrStdout(), a, doctorWidth(cmd.OutOrStdout()))
}

// fuse fuses the module, and keeps what it took before.
func (a *rematAnswer) fuse(f *rematFlags, m *hlo.Module) (err error) {
	if a.Unfused, _, err = memory.TempPeak(m, f.memory()); err != nil {
		return err
	}
	a.Fused, err = remat.Fuse(m)
	return err
}

// plan changes the module, gives the changed one, and measures it before and
// after. With --frontier it gives plans for many limits instead.
func (f *rematFlags) plan(cmd *cobra.Command, a *rematAnswer, m *hlo.Module, marks []*regexp.Regexp, save remat.Policy) (_ *hlo.Module, curve []*rematAnswer, err error) {
	if a.Before, _, err = memory.TempPeak(m, f.memory()); err != nil {
		return nil, nil, err
	}
	if !f.frontier {
		if err := a.pack(m, &a.HeapBefore, nil); err != nil {
			return nil, nil, err
		}
	}
	if a.LowerBound, err = remat.LowerBound(m, f.memory()); err != nil {
		return nil, nil, err
	}
	if !f.frontier {
		if err = f.setLimit(cmd, a, m); err != nil {
			return nil, nil, err
		}
	}
	rates := cost.Rates{Bytes: f.bandwidth, Flops: f.flops}
	before, err := remat.Seconds(m, rates)
	if err != nil {
		return nil, nil, err
	}
	start := time.Now()
	for n, re := range marks {
		done, err := remat.Mark(m, re, save)
		if err != nil {
			return nil, nil, fmt.Errorf("--mark %s: %w", re, err)
		}
		if len(done) == 0 {
			return nil, nil, fmt.Errorf("--mark %s: no instruction has it in its op_name or name; gpumem hlo shows some", re)
		}
		for _, d := range done {
			a.Recomputed += d.Recomputed
			a.Marked = append(a.Marked, markAnswer{f.marks[n], d.Computation.Name, d.Region, d.Saved, d.Recomputed, d.Late})
		}
	}
	if f.frontier {
		curve, err = f.curve(cmd.Context(), a, m, rates, before, frontierStep)
		return m, curve, err
	}
	p, err := f.one(a, m, a.Limit, rates, f.time)
	if err != nil {
		return nil, nil, err
	}
	a.take(f, p, before, time.Since(start))
	if err := a.pack(p.Module, &a.HeapAfter, &a.HeapBest); err != nil {
		return nil, nil, err
	}
	if f.packed {
		a.Met = a.HeapAfter <= a.Limit // and what is proven is for what lives at once
	} else if err := a.prove(f, m, rates, before); err != nil {
		return nil, nil, err
	}
	if f.algorithm == "gap" && a.Before > a.Limit {
		if err := a.advise(m, rates, before); err != nil {
			return nil, nil, err
		}
	}
	return p.Module, nil, nil
}

// hostMemory is the host's memory, nil where nothing moves there.
func (f *rematFlags) hostMemory() *remat.HostMemory {
	if f.host == 0 {
		return nil
	}
	return &remat.HostMemory{ToHost: float32(f.host), FromHost: float32(f.host)}
}

// memory is how the device's memory is counted.
func (f *rematFlags) memory() memory.Options { return memory.Options{HostFree: f.host > 0} }

// one is the plan of the algorithm for a limit.
func (f *rematFlags) one(a *rematAnswer, m *hlo.Module, limit uint64, rates cost.Rates, search time.Duration) (*remat.Plan, error) {
	o := remat.BestOptions{Search: search, Host: f.hostMemory(), Collectives: f.together}
	switch f.algorithm {
	case "gap":
		if f.packed {
			p, _, err := remat.BestPacked(m, limit, rates, o)
			return p, err
		}
		return remat.BestFor(m, limit, rates, o)
	case "xla":
		p, warnings, err := remat.XLAPlan(m, limit, rates, o.Host)
		a.warnings = append(a.warnings, warnings...)
		if err == nil && o.Host != nil {
			if link := float64(p.Host.Bytes) / 2 / f.host; link > p.Seconds {
				a.warnings = append(a.warnings, fmt.Sprintf("XLA plans each copy as if it had the link to the host for itself: one way they take %.3g s together, and a step %.3g s; --algorithm gap lets them take turns", link, p.Seconds))
			}
		}
		return p, err
	}
	return remat.AsGiven(m, rates)
}

// take is what a plan does.
func (a *rematAnswer) take(f *rematFlags, p *remat.Plan, before float64, took time.Duration) {
	a.After, a.Met = p.Peak, p.Peak <= a.Limit
	a.Recomputed += p.Added
	if f.host > 0 {
		a.HostValues, a.HostReloads, a.HostBytes = p.Host.Values, p.Host.Reloads, p.Host.Bytes
	}
	a.Seconds, a.by = took.Seconds(), p.By
	if before > 0 {
		a.Extra = percentMore(p.Seconds, before)
	}
}

// packWork is how hard a better packing is searched for: a second at most.
const packWork = 8e8

// pack tells the heap of a module, as XLA packs it and, if best is not nil, better.
// That it has none is an error if the limit is for it, and otherwise a warning.
func (a *rematAnswer) pack(m *hlo.Module, heap, best *uint64) error {
	x, err := memory.AnalyzeModule(m)
	var s *memory.Assignment
	if err == nil {
		s, err = x.Assign()
	}
	switch {
	case err == nil:
		*heap = s.Temp
	case a.packed:
		return fmt.Errorf("--packed: %w", err)
	default:
		a.warnings = append(a.warnings, "no heap: "+err.Error())
	}
	if err == nil && best != nil {
		if s, err = x.AssignBest(packWork); err != nil {
			return err
		}
		*best = s.Temp
	}
	return nil
}

// percentMore is how much more now is than before. Sums in another order differ in
// their last digits: these are cut off.
func percentMore(now, before float64) float64 {
	return math.Round(1e6*(now-before)/before)/1e4 + 0 // not -0
}

// prove says what the limit costs at least, where values do not move to the host.
func (a *rematAnswer) prove(f *rematFlags, m *hlo.Module, rates cost.Rates, before float64) error {
	if f.host > 0 {
		return nil // the proof is for plans that keep values or compute them again
	}
	c, err := cost.New(m, rates)
	if err != nil {
		return err
	}
	least, err := remat.MinimumExtra(m, a.Limit, func(i *hlo.Instruction) float64 { return c.Of(i).Seconds })
	if err != nil {
		return err
	}
	if a.OutOfReach = math.IsInf(least, 1); !a.OutOfReach && before > 0 {
		a.LowerPercent = math.Round(1e6*least/before) / 1e4
	}
	return nil
}

// frontierStep is how far the limits of a frontier are apart, in percent of the peak.
const frontierStep = 5

// curve are plans for ever less memory, those left out that are beaten in both
// memory and time. step is in percent of the peak.
func (f *rematFlags) curve(ctx context.Context, a *rematAnswer, m *hlo.Module, rates cost.Rates, before float64, step int) ([]*rematAnswer, error) {
	const patience = 4 // limits in a row that were not met
	missed, least := 0, 0.0
	live := *f
	live.packed = false
	all := []*rematAnswer{}
	for part := 100; part >= step; part -= step {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		f.line.show("plans for less memory", float64(100-part)/100)
		start := time.Now()
		limit := a.Before / 100 * uint64(part)
		p, err := live.one(a, m, limit, rates, 0)
		if err != nil {
			return nil, err
		}
		k := *a
		k.Limit, k.warnings = limit, nil
		k.take(f, p, before, time.Since(start))
		if err := k.prove(f, m, rates, before); err != nil {
			return nil, err
		}
		if len(all) > 0 { // what more memory costs at least, less does, too
			k.LowerPercent = max(k.LowerPercent, least)
		}
		least = k.LowerPercent
		// A later plan may be smaller and faster than those before.
		for len(all) > 0 && k.After <= all[len(all)-1].After && k.Extra <= all[len(all)-1].Extra {
			all = all[:len(all)-1]
		}
		if len(all) == 0 || k.After < all[len(all)-1].After {
			all = append(all, &k)
		}
		if k.Met {
			missed = 0
		} else if missed++; missed == patience {
			break // it goes no further
		}
	}
	return all, nil
}

// setLimit is --limit, or what XLA computes for the device and the environment.
func (f *rematFlags) setLimit(cmd *cobra.Command, a *rematAnswer, m *hlo.Module) error {
	if part, ok := strings.CutSuffix(f.limit, "%"); ok {
		p, err := strconv.ParseFloat(strings.TrimSpace(part), 64)
		if err != nil || !(p >= 0) || p > 1000 {
			return fmt.Errorf("--limit %q: want a part of the peak such as 60%%", f.limit)
		}
		now := a.Before
		if f.packed {
			now = a.HeapBefore
		}
		a.Limit, a.from = uint64(float64(now)*p/100), fmt.Sprintf("%v %% of what the module takes now", p)
		return nil
	}
	if f.limit != "" {
		n, err := size.Parse(f.limit)
		if err != nil {
			return fmt.Errorf("--limit: %w", err)
		}
		a.Limit, a.from = n, "as told"
		return nil
	}
	return f.deviceLimit(cmd, a, m)
}

func savePolicy(word string) (remat.Policy, error) {
	switch name, pattern, _ := strings.Cut(word, "="); name {
	case "nothing":
		return remat.SaveNothing, nil
	case "everything":
		return remat.SaveEverything, nil
	case "dots":
		return remat.SaveDots, nil
	case "dots_no_batch":
		return remat.SaveDotsWithoutBatch, nil
	case "names":
		re, err := regexp.Compile(pattern)
		if err != nil || pattern == "" {
			return nil, fmt.Errorf("--save %s: %w", word, cmp.Or(err, errors.New("want names=PATTERN, a regular expression")))
		}
		return remat.SaveNames(re), nil
	}
	return nil, fmt.Errorf("--save %q: want nothing, everything, dots, dots_no_batch or names=PATTERN", word)
}

// deviceLimit is the limit that XLA computes for the device, as the release
// reads the environment. Where that switches the pass off, the algorithm is off.
func (f *rematFlags) deviceLimit(cmd *cobra.Command, a *rematAnswer, m *hlo.Module) error {
	q, err := ask(cmd, f.as, f.device, 0)
	if err != nil {
		return err
	}
	if q.as.Name != "jax" {
		return fmt.Errorf("--as %s: the limit is computed as JAX has it; want jax or jax@VERSION", q.as.Name)
	}
	e, err := policy.Explain(q.env.OnGPU(), q.as, q.policyDevice())
	if err != nil {
		return err
	}
	if len(e.Errors) > 0 {
		return fmt.Errorf("%s is refused: %s; gpumem explain says what to write", e.Errors[0].Name, e.Errors[0].Text)
	}
	total := q.policyDevice().Total
	base, from := total/100*remat.FallbackPercent+total%100*remat.FallbackPercent/100, fmt.Sprintf("%d %% of %s", remat.FallbackPercent, size.Format(total))
	switch e.Policy.Kind {
	case policy.BFC, policy.VMM, policy.Async:
		base = e.Policy.LimitBytes(q.policyDevice())
		from = "the pool's " + size.Format(base)
	}
	if a.Limit, err = remat.Limit(m, base); err != nil {
		return fmt.Errorf("%w: %s on %s; --device or --limit name another", err, from, q.device.Words)
	}
	a.from = fmt.Sprintf("95 %% of what %s leave beside arguments and results, on %s", from, q.device.Words)
	a.warnings = append(a.warnings, q.notes...)
	if e.NoRemat && !cmd.Flags().Changed("algorithm") {
		f.algorithm, a.Algorithm = "off", "off"
		a.warnings = append(a.warnings, "the environment switches the pass off, so nothing is recomputed; --algorithm xla does all the same")
	}
	return nil
}
