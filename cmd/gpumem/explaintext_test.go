package main

import (
	"math"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"gpumem/internal/report"
	"gpumem/node/probe"
	"gpumem/policy"
	"gpumem/policy/explain"
	"gpumem/policy/frameworks"
)

// asked is a question on a device of 80 GiB.
func asked(environ ...string) *probe.Question {
	free := uint64(79 << 30)
	return &probe.Question{
		Env: policy.Environ(environ), On: policy.Device{Total: 80 << 30, Free: free, NoPages: true},
		About: probe.About{Device: probe.Device{Spec: "cuda:0", Name: "NVIDIA H200", Total: 80 << 30, Free: &free}},
	}
}

// TestWriteExplain: the whole of what people read, with one of everything. The
// answer is not one that any framework gives.
func TestWriteExplain(t *testing.T) {
	q := asked("GOOD=1", "LONG="+strings.Repeat("x", 200), "ODD=two\nlines\x1b[31m", "EMPTY=")
	q.Process = &probe.Running{PID: 7}
	q.GPUs = 8
	host := uint64(64 << 30)
	a := explain.Answer{
		Framework: "jax", Version: "0.11.0", Preallocate: true, First: 1 << 30, Gets: 1 << 30, Read: "once, at the start",
		Policy: policy.Policy{Preallocate: true}, Device: policy.Device{Total: 80 << 30},
		Pools: []policy.Pool{
			{Name: "main", Space: "device"}, {Name: "main", Space: "collective", Text: "of the same"},
			{Name: "c", Space: "collective", First: 1 << 20, Text: "at once"}, {Name: "h", Space: "host", Limit: &host, Text: "pinned"}, {Name: "o", Space: "other", Text: "small"},
		},
		Settings: []policy.Setting{{Name: "GOOD", Value: "1", Effect: "does what it says, which takes so many words that they are broken"}},
		Warnings: []policy.Warning{
			{Name: "LONG", Text: "this is too long: " + strings.Repeat("y", 200)}, {Name: "LONG", Text: "and nobody reads it"},
			{Name: "ODD", Text: "is odd:\x07"}, {Name: "EMPTY", Text: "is empty"}, {Name: "GONE", Text: "is not set"},
		},
		Set: []string{"-LONG", "ODD=one 'line'"},
	}
	want := `jax 0.11.0 on cuda:0, NVIDIA H200: 80 GiB, 79 GiB free
Process 7, by the environment that it was started with: what it set itself later
  is not seen.
` + report.Wrap(a.Summary(), textWidth) + `
As much on each of the machine's 8 GPUs: CUDA_VISIBLE_DEVICES is not set.
Besides (collective): 1 MiB, at once.
Besides (host): up to 64 GiB, pinned.
Besides (other): small.

Settings that count
  GOOD=1
    does what it says, which takes so many words that they are broken

Settings that do not do what they seem to
  LONG=xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
    this is too long: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy
      yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy
      yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy
    and nobody reads it
  ODD="two\nlines\x1b[31m"
    is odd:?
  EMPTY=""
    is empty
  GONE
    is not set

Write instead
  env -u LONG ODD='one '\''line'\''' COMMAND

Variables are read once, at the start.
`
	var b strings.Builder
	if err := printText(&b, func(t *text) { writeExplain(t, q, a) }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestWriteRaised: what is raised, and what comes of it, once.
func TestWriteRaised(t *testing.T) {
	a := explain.Answer{
		Framework: "gpumem", Read: "at the start",
		Errors: []policy.SettingError{{Name: "A", Text: "A is bad", Then: "it stops"}, {Name: "B", Text: "B is bad", Then: "it burns"}},
	}
	want := `gpumem on cuda:0, NVIDIA H200: 80 GiB, 79 GiB free
` + report.Wrap(a.Summary(), textWidth) + `

What is raised
  A=1
    A is bad
  B
    B is bad
    it burns

Variables are read at the start.
`
	var b strings.Builder
	if err := printText(&b, func(t *text) { writeExplain(t, asked("A=1"), a) }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// answers are two that differ in everything.
func answers() (a, b explain.Answer) {
	half, limit, most := 0.5, uint64(math.MaxUint64), uint64(64<<30)
	a = explain.Answer{
		Framework: "jax", Version: "0.4.0", Allocator: "bfc", Preallocate: true, Fraction: &half, Of: "free", Limit: &limit, First: 5 << 30, Gets: 4 << 30,
		Pools:    []policy.Pool{{Name: "GPU_0_bfc", Space: "device", Limit: &limit}, {Name: "p1", Space: "collective", First: 1 << 30, Text: "at once"}},
		Settings: []policy.Setting{{Name: "A", Value: "1", Effect: "does this"}},
		Warnings: []policy.Warning{{Name: "B", Text: "does nothing"}, {Name: "B", Text: "nor that"}},
		Read:     "at the start",
	}
	b = explain.Answer{
		Framework: "tensorflow", Version: "2.15", Allocator: "platform",
		Pools:    []policy.Pool{{Name: "none", Space: "device"}, {Name: "p2", Space: "collective", Text: "as needed"}, {Name: "host", Space: "host", Limit: &most, Text: "pinned"}},
		Settings: []policy.Setting{{Name: "C", Value: "3", Effect: "does that"}},
		Warnings: []policy.Warning{{Name: "A", Text: "is ignored"}},
		Read:     "later",
	}
	return a, b
}

// TestWriteDiff: the comparison for people, with one of everything.
func TestWriteDiff(t *testing.T) {
	a, b := answers()
	d := explain.Compare(a, b)
	d.Changes = []policy.Change{{Version: "0.5", Date: "2024", Text: "`A` is new."}}
	// The summaries are package explain's.
	summaries := report.Wrap("jax 0.4.0: "+a.Summary(), textWidth) + "\n" + report.Wrap("tensorflow 2.15: "+b.Summary(), textWidth)
	want := `jax 0.4.0 and tensorflow 2.15 on cuda:0, NVIDIA H200: 80 GiB, 79 GiB free

` + summaries + `

                jax 0.4.0    tensorflow 2.15
allocator       bfc          platform
preallocates    yes          no
fraction        0.5 of free  -
limit           16.00 EiB    none
asks for first  5 GiB        0 B
gets            4 GiB        0 B

Variables
  A=1
    jax 0.4.0: does this
    tensorflow 2.15: is ignored
  B
    jax 0.4.0: does nothing; nor that
    tensorflow 2.15: plays no part
  C
    jax 0.4.0: plays no part
    tensorflow 2.15: does that

Other pools
  collective, jax 0.4.0: 1 GiB, at once
  collective, tensorflow 2.15: as needed
  host, jax 0.4.0: none
  host, tensorflow 2.15: up to 64 GiB, pinned

What the releases between changed
  0.5 (2024): A is new.
`
	var out strings.Builder
	if err := printText(&out, func(t *text) { writeDiff(t, asked("A=1"), d) }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}

	// With an error there is nothing to compare but words.
	d.B = explain.Answer{Framework: "jax", Version: "0.5", Errors: []policy.SettingError{{Name: "A", Text: "A is bad", Then: "it stops"}}}
	d = explain.Compare(d.A, d.B)
	out.Reset()
	if err := printText(&out, func(t *text) { writeDiff(t, asked("A=1"), d) }); err != nil {
		t.Fatal(err)
	}
	if s := out.String(); !strings.Contains(s, "\n    jax 0.5: raised: A is bad\n") || strings.Contains(s, "allocator ") || strings.Contains(s, "Other pools") {
		t.Error(s)
	}

	// The same sentence is said once.
	d.B = a
	d.B.Version, d.B.Read = "0.5", "never"
	d = explain.Compare(d.A, d.B)
	out.Reset()
	if err := printText(&out, func(t *text) { writeDiff(t, asked(), d) }); err != nil {
		t.Fatal(err)
	}
	if s := out.String(); !strings.Contains(s, "\nBoth: ") {
		t.Error(s)
	}
}

func TestReadable(t *testing.T) {
	for in, want := range map[string]string{
		".9": ".9", "": `""`, " .9": `" .9"`, "a b": "a b", "a\nb": `"a\nb"`, "\u202e": `"\u202e"`, "größe": "größe", "\xff": `"\xff"`, `"`: `"`,
	} {
		if got := readable(in); got != want {
			t.Errorf("readable(%q) = %s, want %s", in, got, want)
		}
	}
}

// TestExplainAnything: whatever the variables hold, the text is printable
// lines, of which only the command is longer than the screen is wide, and the
// JSON can be written.
func TestExplainAnything(t *testing.T) {
	names := []string{
		"XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_ALLOCATOR", "XLA_FLAGS",
		"TF_GPU_ALLOCATOR", "TF_FORCE_UNIFIED_MEMORY", "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC", "CUDA_VISIBLE_DEVICES", "XLA_PYTHON_CLIENT_MEM_FRACTON",
	}
	values := rapid.OneOf(rapid.String(), rapid.StringMatching(`-?[0-9.e+]{0,8}|nan|inf|platform|cuda_async|vmm|off|[a-z]{90,300}`))
	rapid.Check(t, func(t *rapid.T) {
		var environ []string
		for _, n := range rapid.SliceOfN(rapid.SampledFrom(names), 0, 4).Draw(t, "names") {
			environ = append(environ, n+"="+values.Draw(t, n))
		}
		q := asked(environ...)
		as := frameworks.Release{Name: rapid.SampledFrom(knownFrameworks()).Draw(t, "as")}
		a, err := explain.Environment(q.Env, as, q.On)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		if err := printText(&b, func(t *text) { writeExplain(t, q, a) }); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			line = strings.TrimSuffix(line, "\n")
			if n := utf8.RuneCountInString(line); n > textWidth && !strings.HasPrefix(line, "  env ") {
				t.Errorf("%d characters: %s", n, line)
			}
			if strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%q", line)
			}
		}
		if err := encode(&b, probe.Explained{Answer: a, About: q.About}); err != nil {
			t.Error(err)
		}
	})
}
