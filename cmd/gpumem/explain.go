package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"gpumem/device/open"
	"gpumem/internal/proc"
	"gpumem/policy"
	"gpumem/policy/explain"
	"gpumem/policy/frameworks"
	"gpumem/report"
	"gpumem/size"
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
			q, err := ask(cmd, as, device, pid)
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("diff") {
				return explainDiff(cmd, q, diff, args[0], asJSON)
			}
			a, err := explain.Environment(q.env, q.as, q.policyDevice())
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

// knownFrameworks are the names that --as takes, the default first.
func knownFrameworks() []string {
	var names []string
	for _, f := range frameworks.All {
		names = append(names, f.Name)
	}
	return names
}

// A question is what is asked: an environment, a framework and a device.
type question struct {
	env       policy.Environment
	as        frameworks.Release
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
	q := &question{as: frameworks.Release{Name: "jax"}}
	if cmd.Flags().Changed("as") {
		f, err := frameworks.ParseRelease(as)
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
		loaded := frameworks.Release{Name: f.Name, Version: f.Version}.String()
		_, err := frameworks.ParseRelease(f.Name)
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
	q.as = frameworks.Release{Name: f.Name, Version: f.Version}
	if f.Version == "" {
		q.note("process %d: the release of %s cannot be told: the newest is explained; --as %s@VERSION names it", q.process.pid, f.Name, f.Name)
	} else if _, err := frameworks.ParseRelease(q.as.String()); err != nil {
		q.note("process %d: %v; the newest is explained", q.process.pid, err)
		q.as.Version = ""
	}
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
	explain.Answer
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

// explainDiff is --diff: the same question of two releases.
func explainDiff(cmd *cobra.Command, q *question, a, b string, asJSON bool) error {
	if cmd.Flags().Changed("as") && q.versioned {
		return fmt.Errorf("--diff names the releases: write --as %s alone, and got --as %s", q.as.Name, q.as.String())
	}
	var answers [2]explain.Answer
	for i, word := range []string{a, b} {
		f, err := parseSide(word, q.as.Name)
		if err == nil {
			answers[i], err = explain.Environment(q.env, f, q.policyDevice())
		}
		if err != nil {
			return fmt.Errorf("--diff: %w", err)
		}
	}
	d := explain.Compare(answers[0], answers[1])
	q.writeNotes(cmd.ErrOrStderr())
	var err error
	if asJSON {
		err = encode(cmd.OutOrStdout(), comparedJSON{d, q.deviceJSON(), q.processJSON()})
	} else {
		err = writeDiff(cmd.OutOrStdout(), q, d)
	}
	if err == nil && len(d.A.Errors)+len(d.B.Errors) > 0 {
		err = errNo
	}
	return err
}

// parseSide reads VERSION or FRAMEWORK[@VERSION].
func parseSide(word, framework string) (frameworks.Release, error) {
	if word == "" {
		return frameworks.Release{}, errors.New("a release is empty; want two, as in --diff 0.4.30 0.11.0")
	}
	if !strings.Contains(word, "@") && word[0] >= '0' && word[0] <= '9' {
		word = framework + "@" + word
	}
	return frameworks.ParseRelease(word)
}

// comparedJSON is a comparison with what it is about.
type comparedJSON struct {
	explain.Comparison
	Device  deviceSeen   `json:"device"`
	Process *processSeen `json:"process,omitempty"`
}

// writeExplain is the answer for people, the news first: what happens, then why,
// then what to write instead.
func writeExplain(w io.Writer, q *question, a explain.Answer) error {
	t := text{env: q.env}
	t.about(q, a.Release())
	summary := a.Summary()
	t.line("%s", summary)
	if a.Preallocate && a.First > 0 && q.gpus > 1 {
		if value, set := q.env.Lookup(visibleVar); set {
			t.line("As much on each of the %d GPUs of %s=%s.", q.gpus, visibleVar, readable(value))
		} else {
			t.line("As much on each of the machine's %d GPUs: %s is not set.", q.gpus, visibleVar)
		}
	}
	for i, p := range a.Pools {
		if i > 0 && p.Name != a.Pools[0].Name {
			t.line("Besides (%s): %s.", p.Space, poolLine(p))
		}
	}

	t.section("Settings that count")
	for _, s := range a.Settings {
		t.entry(s.Name, s.Effect)
	}
	t.section("Settings that do not do what they seem to")
	for _, w := range a.Warnings {
		t.entry(w.Name, w.Text)
	}
	t.section("What is raised")
	for _, e := range a.Errors {
		t.entry(e.Name, e.Text)
		if !strings.Contains(summary, e.Then) {
			t.entry(e.Name, e.Then)
		}
	}
	if command := a.Command("COMMAND"); command != "" {
		t.section("Write instead")
		t.raw("  " + oneLine(command)) // to be copied: one line, however long
	}
	read := "Variables are read " + a.Read + "."
	if len(a.Settings)+len(a.Warnings)+len(a.Errors) == 0 {
		t.head = "" // no sections
		read = "Nothing is set that plays a part. " + read
	} else {
		t.section("")
	}
	t.line("%s", read)
	_, err := io.WriteString(w, t.b.String())
	return err
}

// about is what the answer is about.
func (t *text) about(q *question, releases string) {
	t.line("%s on %s", releases, q.deviceLine())
	if q.process != nil {
		t.line("Process %d, by the environment that it was started with: what it set itself later is not seen.", q.process.pid)
	}
}

// deviceLine is the device in a few words.
func (q *question) deviceLine() string {
	d := q.device
	s := d.Words
	if d.Name != d.Words && d.Name != "" {
		s += ", " + d.Name
	}
	s += ": " + size.Format(d.Total)
	switch {
	case !q.freeKnown:
		s += ", how much of it is free is not known"
	case d.Free == d.Total:
		s += ", all of it free"
	default:
		s += ", " + size.Format(d.Free) + " free"
	}
	if d.Unified {
		s += ", shared with the host's programs"
	}
	if q.process != nil && q.process.holds != nil {
		s += fmt.Sprintf(", %s held by process %d", size.Format(*q.process.holds), q.process.pid)
	}
	return s
}

// poolLine is how much a pool takes, and when.
func poolLine(p policy.Pool) string {
	switch {
	case p.First > 0:
		return size.Format(p.First) + ", " + p.Text
	case p.Limit != nil:
		return "up to " + size.Format(*p.Limit) + ", " + p.Text
	}
	return p.Text
}

// writeDiff is the comparison for people.
func writeDiff(w io.Writer, q *question, d explain.Comparison) error {
	t := text{env: q.env}
	nameA, nameB := d.A.Release(), d.B.Release()
	t.about(q, nameA+" and "+nameB)
	t.section("")
	a, b := d.A.Summary(), d.B.Summary()
	switch {
	case len(d.Differences) == 0:
		t.line("No difference in this environment, on this device: %s", a)
	case a == b:
		t.line("Both: %s", a)
	default:
		t.line("%s: %s", nameA, a)
		t.line("%s: %s", nameB, b)
	}

	raises := len(d.A.Errors)+len(d.B.Errors) > 0
	if !raises { // else there is nothing to compare with
		if err := diffTable(&t, d); err != nil {
			return err
		}
	}
	t.section("Variables")
	for _, v := range d.Variables() {
		t.entry(v.Name, nameA+": "+cmp.Or(v.A, "plays no part"))
		t.entry(v.Name, nameB+": "+cmp.Or(v.B, "plays no part"))
	}
	t.section("Other pools")
	for _, f := range d.Differences {
		if space, ok := strings.CutPrefix(f.Field, "pools."); ok && space != "device" && !raises {
			t.line("  %s, %s: %s", space, nameA, poolsLine(f.A))
			t.line("  %s, %s: %s", space, nameB, poolsLine(f.B))
		}
	}
	t.section("What the releases between changed")
	for _, c := range d.Changes {
		t.line("  %s (%s): %s", c.Version, c.Date, strings.ReplaceAll(c.Text, "`", ""))
	}
	_, err := io.WriteString(w, t.b.String())
	return err
}

// diffTable is what differs in a word or a number.
func diffTable(t *text, d explain.Comparison) error {
	tab := report.NewTable("", d.A.Release(), d.B.Release())
	rows := 0
	row := func(title string, value func(explain.Answer) string) {
		if a, b := value(d.A), value(d.B); a != b {
			rows++
			tab.Row(title, a, b)
		}
	}
	row("allocator", func(a explain.Answer) string { return a.Allocator })
	row("preallocates", func(a explain.Answer) string {
		if a.Preallocate {
			return "yes"
		}
		return "no"
	})
	row("fraction", func(a explain.Answer) string {
		if a.Fraction == nil {
			return "-"
		}
		return strconv.FormatFloat(*a.Fraction, 'g', 6, 64) + " of " + a.Of
	})
	row("limit", func(a explain.Answer) string {
		if a.Limit == nil {
			return "none"
		}
		return size.Format(*a.Limit)
	})
	row("asks for first", func(a explain.Answer) string { return size.Format(a.First) })
	if d.A.Gets < d.A.First || d.B.Gets < d.B.First {
		row("gets", func(a explain.Answer) string { return size.Format(a.Gets) })
	}
	if rows == 0 {
		return nil
	}
	t.b.WriteString("\n")
	_, err := tab.WriteTo(&t.b)
	return err
}

// poolsLine is a list of pools in the difference of a field.
func poolsLine(v any) string {
	list, _ := v.([]any)
	if len(list) == 0 {
		return "none"
	}
	var out []string
	for _, p := range list {
		out = append(out, poolLine(p.(policy.Pool)))
	}
	return strings.Join(out, "; ")
}

// A text is lines in sections.
type text struct {
	b    strings.Builder
	env  policy.Environment
	head string // of the section that has no lines yet
	name string // of the last entry
}

// section begins one; without lines it does not show.
func (t *text) section(title string) {
	t.head, t.name = "\n", ""
	if title != "" {
		t.head += title + "\n"
	}
}

// line is a line, broken where it is too long.
func (t *text) line(format string, args ...any) {
	t.raw(report.Wrap(clean(fmt.Sprintf(format, args...)), textWidth))
}

// raw is a line as it is.
func (t *text) raw(line string) {
	t.b.WriteString(t.head + line + "\n")
	t.head = ""
}

// entry is what is told of a variable; its name and value stand above what is
// told first.
func (t *text) entry(name, about string) {
	if name != t.name {
		t.name = name
		head := clean(name)
		if value, set := t.env.Lookup(name); set {
			head += "=" + readable(value)
		}
		t.raw(shorten("  "+head, textWidth))
	}
	t.line("    %s", about)
}

// readable is a value as it is where it can be read, and else in quotes.
func readable(value string) string {
	strange := func(r rune) bool { return !unicode.IsPrint(r) }
	if value == "" || !utf8.ValidString(value) || strings.TrimSpace(value) != value || strings.ContainsFunc(value, strange) {
		return strconv.Quote(value)
	}
	return value
}

// clean is oneLine for a text with blanks in front, and no word in it is longer
// than a line.
func clean(s string) string {
	text := oneLine(s)
	indent := s[:len(s)-len(strings.TrimLeft(s, " "))]
	words := strings.Split(text, " ")
	for i, w := range words {
		words[i] = shorten(w, textWidth-len(indent)-2)
	}
	return indent + strings.Join(words, " ")
}
