// gpumem replay: its flags, the files that it writes, and the report as text.

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"gpumem/device/open"
	"gpumem/internal/output"
	"gpumem/internal/report"
	"gpumem/policy"
	"gpumem/policy/frameworks"
	"gpumem/record/advise"
	"gpumem/record/compare"
	"gpumem/record/formats"
	"gpumem/record/leaks"
	"gpumem/record/replay"
	"gpumem/record/timeline"
	"gpumem/record/trace"
	"gpumem/size"
)

type replayOptions struct {
	recordingFlags
	policies            []string
	device              string
	save, page, drawing string // files to write
	smallest            bool
}

func replayCommand() *cobra.Command {
	var f replayOptions
	cmd := &cobra.Command{
		Use:   "replay TRACE [AFTER]",
		Short: "Run a recording under several policies and compare",
		Args:  f.traces,
		RunE:  func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	fs := cmd.Flags()
	fs.StringArrayVar(&f.policies, "policy", nil, "`POLICY` to run, NAME[@VERSION][:key=value,...]; repeat for several (default: jax, jax:preallocate=false, platform; async, vmm, elastic where the device can; pytorch for a recording of PyTorch)")
	fs.StringVar(&f.device, "device", "", "`DEVICE`: sim:80GiB[,used=8GiB], sim@FILE or cuda:N (default $GPUMEM_DEVICE, else cuda:0 if a driver loads, else "+open.Default+")")
	fs.StringVar(&f.save, "save", "", "also write the recording to `FILE` in gpumem's own format, which is small and read fast")
	fs.BoolVar(&f.smallest, "smallest", false, "also find the smallest device on which nothing is refused")
	fs.StringVar(&f.page, "report", "", "write a page of HTML to `FILE`: the timeline, what is alive, the pool's map, what was refused")
	fs.StringVar(&f.drawing, "svg", "", "write the timeline as SVG to `FILE`, for documents")
	f.add(cmd)
	f.addPaths(cmd)
	return cmd
}

// run is the command. What can be wrong without the recordings is found first, because
// they may take long to read.
func (f *replayOptions) run(cmd *cobra.Command, paths []string) error {
	// Of a recording that is written over what is not read yet would be lost.
	for _, path := range paths {
		if err := output.Check(path, "recording", output.File{Flag: "--save", Path: f.save}, output.File{Flag: "--report", Path: f.page}, output.File{Flag: "--svg", Path: f.drawing}); err != nil {
			return err
		}
	}
	byDefault := len(f.policies) == 0
	cfg, note, err := f.config()
	if err != nil {
		return err
	}
	if err := replay.CheckPolicies(cfg); err != nil {
		return err
	}
	line := newProgress(cmd.ErrOrStderr())
	defer line.clear()
	cfg.Progress = line.replay
	read := f.recordingFlags
	read.paths = f.paths || len(paths) == 2 // of two they tell the program's files from a library's
	var traces []*trace.Trace
	var own []string // policies of the frameworks that were recorded
	for _, path := range paths {
		t, err := read.open(cmd.Context(), path, line)
		if err != nil {
			return err
		}
		defer t.Close()
		traces, own = append(traces, t), append(own, replay.FrameworkPolicies(t)...)
	}
	if byDefault {
		if err := addPolicies(&cfg, slices.Compact(own)); err != nil {
			return err
		}
	}
	if f.save != "" {
		if err := output.Write(cmd.Context(), f.save, func(w io.Writer) error { return traces[0].Save(cmd.Context(), w) }); err != nil {
			return fmt.Errorf("--save: %w", err)
		}
	}
	var answer any
	var lines func(*text)
	var fits bool
	if len(traces) == 2 {
		rep, err := f.compare(cmd.Context(), traces, cfg)
		if err != nil {
			return err
		}
		answer, fits, lines = rep, rep.Fits(), func(t *text) { rep.WriteText(&t.Text, screenWidth, f.smallest) }
	} else {
		rep, err := f.replay(cmd.Context(), traces[0], cfg)
		if err != nil {
			return err
		}
		answer, lines = rep, func(t *text) { writeReplay(t, rep, f.smallest) }
		fits = !slices.ContainsFunc(rep.Results, func(r *replay.Result) bool { return !r.Fits })
	}
	line.clear()
	if err := f.notes(cmd, cfg, note); err != nil {
		return err
	}
	if err := show(cmd, f.asJSON, answer, lines); err != nil {
		return err
	}
	if !fits {
		return errNo
	}
	return nil
}

// traces checks the arguments.
func (f *replayOptions) traces(cmd *cobra.Command, args []string) error {
	if len(args) != 2 {
		return oneTrace(cmd, args)
	}
	if args[0] == "-" && args[1] == "-" {
		return errors.New("standard input can be one of two recordings, not both")
	}
	for _, x := range []output.File{{Flag: "--save", Path: f.save}, {Flag: "--svg", Path: f.drawing}} {
		if x.Path != "" {
			return fmt.Errorf("%s is for one recording, and two are given", x.Flag)
		}
	}
	return nil
}

// compare compares two recordings, and writes the page if it has a path. The exit status
// is that of a replay of the second, so that a script may add what was before.
func (f *replayOptions) compare(ctx context.Context, t []*trace.Trace, cfg replay.Config) (*compare.Report, error) {
	rep, err := compare.Run(ctx, t[0], t[1], compare.Config{Replay: cfg, KeepPaths: f.paths})
	if err != nil || f.page == "" {
		return rep, err
	}
	if err := output.Write(ctx, f.page, rep.WritePage); err != nil {
		return nil, fmt.Errorf("--report: %w", err)
	}
	return rep, nil
}

// notes prints what there is to say about the device, the releases and the environment.
// Not earlier than the answer: with an error stderr has that one line alone.
func (f *replayOptions) notes(cmd *cobra.Command, cfg replay.Config, note string) error {
	if note != "" {
		fmt.Fprintln(cmd.ErrOrStderr(), "gpumem: "+note)
	}
	for _, p := range cfg.Policies {
		if note := (frameworks.Release{Name: p.Name, Version: p.Version}).Note(); note != "" {
			fmt.Fprintln(cmd.ErrOrStderr(), "gpumem: "+note)
		}
	}
	if slices.Contains(f.policies, "env") {
		_, warnings, err := frameworks.FromEnv(policy.Environ(os.Environ()))
		if err != nil {
			return err
		}
		for _, w := range warnings {
			fmt.Fprintf(cmd.ErrOrStderr(), "gpumem: warning: %s: %s\n", w.Name, w.Text)
		}
	}
	return nil
}

// config returns the replay that the flags ask for, and a note about its device.
func (f *replayOptions) config() (cfg replay.Config, note string, err error) {
	spec, note, err := open.Choose(f.device, os.LookupEnv, f.smallest)
	if err != nil {
		return cfg, "", err
	}
	if f.smallest && !spec.CanResize() {
		return cfg, "", fmt.Errorf("--smallest tries devices of other sizes, and the size of %s is fixed; name a simulated one, such as --device %s", spec.Text, open.Default)
	}
	info, err := spec.Info()
	if err != nil {
		return cfg, "", err
	}
	if len(f.policies) == 0 {
		f.policies = replay.DefaultPolicies(info)
	}
	cfg = replay.Config{Device: spec.WithTotal, Total: info.Total, Pool: f.pool, Smallest: f.smallest}
	if spec.CanResize() { // a private one: one for each policy
		cfg.Workers = runtime.GOMAXPROCS(0)
	}
	return cfg, note, addPolicies(&cfg, f.policies)
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

// replay replays the recording, and writes its page and drawing if they have a path.
func (f *replayOptions) replay(ctx context.Context, t *trace.Trace, cfg replay.Config) (*replay.Report, error) {
	if f.page+f.drawing == "" {
		return replay.Run(ctx, t, cfg)
	}
	rep, p, err := timeline.Run(ctx, t, cfg)
	if err != nil {
		return nil, err
	}
	if p == nil {
		return nil, errors.New("--report, --svg: nothing happens in this pool of the recording; name another by --pool")
	}
	if f.drawing != "" && len(p.Pools) > 1 {
		return nil, errors.New("--svg draws one pool, and the recording has several; name one by --pool")
	}
	if f.page != "" && t.Events <= answerEvents {
		if err := f.answers(ctx, t, p); err != nil {
			return nil, err
		}
	}
	for _, x := range []struct {
		flag, path string
		write      func(io.Writer, *report.Page) error
	}{{"--report", f.page, report.WritePage}, {"--svg", f.drawing, report.WriteSVG}} {
		if x.path == "" {
			continue
		}
		if err := output.Write(ctx, x.path, func(w io.Writer) error { return x.write(w, p) }); err != nil {
			return nil, fmt.Errorf("%s: %w", x.flag, err)
		}
	}
	return rep, nil
}

// answerEvents is the most events of a recording whose page has the answers of other
// commands: some 30 replays of it take a second or two.
const answerEvents = 200_000

// answers adds what gpumem advise, for the same device, and gpumem leaks say of the
// recording. There is no advice for a device that cannot be simulated.
func (f *replayOptions) answers(ctx context.Context, t *trace.Trace, p *report.Page) error {
	spec, _, err := open.Choose(f.device, os.LookupEnv, true)
	if err != nil {
		return err
	}
	if spec.CanResize() {
		rep, err := advise.Run(ctx, t, advise.Config{Sim: spec.Sim, Context: max(spec.Sim.Context, advise.DefaultContext), Pool: f.pool})
		switch {
		case errors.Is(err, advise.ErrNoGPU):
			p.Answers = append(p.Answers, report.Answer{Question: "What to set", Text: "There is no advice: " + advise.ErrNoGPU.Error() + "."})
		case err != nil:
			return err
		default:
			p.Sections = append(p.Sections, adviceOnPage(rep))
			outside := fmt.Sprintf("With %s outside the pool, as for a CUDA context and libraries, ", size.Format(rep.ContextBytes))
			verdict := outside + lowerFirst(adviceVerdict(rep))
			if rep.FitsAsItIs {
				verdict = "Nothing: " + lowerFirst(outside) + "it fits as it is."
			} else if rep.Trace.Refused == 0 && slices.ContainsFunc(p.Pools[0].Layers, func(l *report.Layer) bool { return l.First == nil }) {
				p.Summary = append(p.Summary, "The replay has nothing outside the pool: no context, no libraries.")
			}
			if c := rep.Advice; c != nil && len(c.Set) > 0 {
				verdict += " " + strings.Join(c.Set, " ")
			}
			p.Answers = append(p.Answers, report.Answer{Question: "What to set", Text: verdict}, report.Answer{Question: "Smallest card", Text: strings.Join(pageLines(func(t *text) { writeSmallest(t, rep) }), " ")})
		}
	}
	found, err := leaks.Find(ctx, t, leaks.Config{Pool: f.pool, KeepPaths: f.paths})
	if err != nil {
		return err
	}
	grew := leaksOnPage(leaksReport{replay.Describe(t), found})
	p.Sections = append(p.Sections, grew)
	p.Answers = append(p.Answers, report.Answer{Question: "What grew", Text: grew.Sentences[0]})
	return nil
}

// lowerFirst begins a sentence small, to stand behind a colon.
func lowerFirst(s string) string { return strings.ToLower(s[:1]) + s[1:] }

// recordingFlags are the flags of every command that reads a recording.
type recordingFlags struct {
	pool, format string
	asJSON       bool
	paths        bool // keep whole paths in stacks
}

func (f *recordingFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.pool, "pool", "", "only the pool `NAME` of a recording that has several")
	fs.StringVar(&f.format, "format", "", "`FORMAT` of the recording: "+strings.Join(formats.All().Names(), ", ")+" (default: by its content)")
	fs.BoolVar(&f.asJSON, "json", false, "print JSON")
}

func (f *recordingFlags) addPaths(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.paths, "paths", false, "keep whole file paths in stacks")
}

// oneTrace checks the arguments of such a command.
func oneTrace(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%s takes one TRACE, a file or - for standard input, and got %d; gpumem %[1]s --help has examples", cmd.Name(), len(args))
	}
	return nil
}

// open reads the recording.
func (f *recordingFlags) open(ctx context.Context, path string, line *progress) (*trace.Trace, error) {
	return formats.Open(ctx, path, trace.Options{
		Format: f.format, KeepPaths: f.paths,
		Progress: func(done, total int64) { line.bytes("reading", done, total) },
	})
}

// policyWidth is where a policy of many keys is broken: room for the longest of
// the defaults and a bit more.
const policyWidth = 26

// writeReplay writes the report as text: a line about the recording, the table, then the
// messages of the policies and their first refusals.
func writeReplay(t *text, rep *replay.Report, smallest bool) {
	writeTrace(t, rep)
	t.section("")
	writeTable(t, rep, smallest)
	t.section("")
	for _, line := range timeline.Placements(rep) {
		t.Line("%s", line)
	}
	for _, r := range rep.Results {
		if len(r.Notes) > 0 || r.Failure != nil {
			writeResult(t, r, len(rep.Trace.PoolNames) > 1)
		}
	}
}

// writeTrace writes what concerns the recording alone.
func writeTrace(t *text, rep *replay.Report) {
	t.recording(rep.Trace)
	// The bound is the pool's, whatever the policy.
	var bounds []string
	seen := map[string]bool{}
	for _, r := range rep.Results {
		if seen[r.Pool] {
			continue
		}
		seen[r.Pool] = true
		bound := size.Format(r.LowerBound)
		if len(rep.Trace.PoolNames) > 1 {
			bound += " in " + r.Pool
		}
		bounds = append(bounds, bound)
	}
	t.fact("device of %s; any allocator must hold %s at the peak", size.Format(rep.Results[0].DeviceBytes), strings.Join(bounds, ", "))
}

// recording writes a line about a recording, and its notes.
func (t *text) recording(trace replay.TraceInfo) {
	t.fact("%s", timeline.Recording(trace))
	for _, n := range trace.Notes {
		t.Line("  %s", n)
	}
}

// writeTable writes a row for each result.
func writeTable(t *text, rep *replay.Report, smallest bool) {
	titles := []string{"policy"}
	several := len(rep.Trace.PoolNames) > 1
	if several {
		titles = append(titles, "pool")
	}
	tab := report.NewTable(append(titles, timeline.Columns(smallest)...)...)
	for _, r := range rep.Results {
		name := breakPolicy(r.Policy)
		cells := []string{name[0]}
		if several {
			cells = append(cells, r.Pool)
		}
		cells = append(cells, timeline.Cells(r, smallest)...)
		tab.Row(cells...)
		for _, rest := range name[1:] {
			tab.Row(rest)
		}
	}
	t.table(tab)
}

// breakPolicy breaks a policy with many keys after a comma, so that it does not push
// every column off the screen.
func breakPolicy(spec string) []string {
	var lines []string
	line := ""
	for part := range strings.SplitAfterSeq(spec, ",") {
		if line != "" && len(line)+len(part) > policyWidth {
			lines = append(lines, line)
			part, line = "  "+part, ""
		}
		line += part
	}
	return append(lines, line)
}

// writeResult writes the messages of one policy, and its first refusal.
func writeResult(t *text, r *replay.Result, several bool) {
	title := r.Policy
	if several {
		title += ", pool " + r.Pool
	}
	t.section(title)
	for _, n := range r.Notes {
		t.Line("  %s", n)
	}
	f := r.Failure
	if f == nil {
		return
	}
	too := ""
	if f.Recorded {
		too = ", which the recorded run was refused, too"
	}
	t.Line("  first refused: %s, %s%s", report.EventName(r.Number(f.Event)), size.Format(f.Bytes), too)
	if f.Stack != "" {
		t.Raw("    " + strings.ReplaceAll(strings.TrimSuffix(f.Stack, "\n"), "\n", "\n    "))
	}
	for line := range strings.Lines(f.Why) {
		t.Line("  %s", strings.TrimSuffix(line, "\n"))
	}
}
