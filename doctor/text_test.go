package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"gpumem/internal/report"
	"gpumem/internal/test/doctortest"
	"gpumem/record/dump"
)

// causeOf is one with a line of evidence.
func causeOf(id CauseID, title string, line int, text, reading string) Cause {
	return Cause{
		ID: id, Title: title, Evidence: []Evidence{{Line: line, Text: text, Reading: reading}}, Doc: "docs/causes.md#" + string(id),
	}
}

const (
	refusedLine = "Allocator (GPU_0_bfc) ran out of memory trying to allocate 6.50GiB (rounded to 6979321856)requested by op "
	handleLine  = "Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR"
	readingLine = "the pool may take 18 GiB of the GPU's 24 GiB, and 17.2 GiB are in use; 6 GiB are outside of its reach"
)

func readDump(t testing.TB, text string) *dump.Dump {
	t.Helper()
	d, _, err := dump.ReadLog(strings.NewReader(text))
	if err != nil || d == nil {
		t.Fatal(d, err)
	}
	return d
}

// diagnoses are one of each kind, made by hand.
func diagnoses(t testing.TB) map[string]*Diagnosis {
	limit := causeOf(PoolLimit, "the pool reached its own limit", 1204, refusedLine, readingLine)
	limit.Evidence = append(limit.Evidence,
		Evidence{Line: 3, Text: "jax 0.4.30", Reading: "this release reads XLA_PYTHON_CLIENT_MEM_FRACTION"},
		Evidence{Line: 0, Text: "devices[0].total_bytes 25769803776", Reading: "the GPU has 24 GiB"},
		Evidence{Line: 1300, Text: "Limit: 19327352832"}, Evidence{Line: 1301, Text: "InUse: 18468359372"}, Evidence{Line: 1302, Text: "x"})
	limit.Settings = []Advice{
		{Name: "XLA_PYTHON_CLIENT_MEM_FRACTION", Value: ".95",
			Why: "0.95 of 24 GiB is 22.8 GiB, which takes the 17.2 GiB in use and most of the 6.5 GiB asked for"},
		{Name: "TF_GPU_ALLOCATOR", Why: "jax 0.4.30 does not read it"},
		{Name: "XLA_FLAGS", Value: "--xla_a=1 --xla_b=2", Why: "both in one"},
	}
	limit.Steps = []string{"Set it before Python starts: what comes after the first use of the GPU has no effect.",
		"If it still fails, the program is too big: halve the batch, or recompute (jax.remat)."}
	limit.Check = "gpumem explain --as jax@0.4.30 --device cuda:0  # the limit must be 22.8 GiB"
	frag := causeOf(Fragmentation, "enough is free, but not in one piece", 1290, "Free  at 7f1c2a000000 of size 4294967296 next 12",
		"the largest hole has 4 GiB")

	several := causeOf(MultiProcess, "several processes preallocate on one GPU", 41,
		"failed to create cublas handle: CUBLAS_STATUS_NOT_INITIALIZED", "the library found no room for itself")
	several.Settings = []Advice{{Name: "XLA_PYTHON_CLIENT_MEM_FRACTION", Value: ".45", Why: "two programs, each less than half"}}
	starves := causeOf(PreallocStarves, "the pool left too little for a library", 41,
		"failed to create cublas handle: CUBLAS_STATUS_NOT_INITIALIZED", "the library found no room for itself")
	starves.Settings = []Advice{{Name: "XLA_PYTHON_CLIENT_PREALLOCATE", Value: "false",
		Why: "the pool takes what it needs, and the library finds room"}}

	growth := causeOf(JAXAndTensorFlow, "JAX and TensorFlow share one process, and both take the GPU", 7, handleLine, "")
	growth.Settings = []Advice{{Name: "tf.config.set_visible_devices([], 'GPU')", Why: "before TensorFlow's first use of a GPU"},
		{Name: "--gpu-memory-utilization", Value: "0.8"}}
	growth.Steps = []string{"Or install tensorflow-cpu."}

	mismatch := causeOf(LibraryMismatched, "a library is missing, or does not fit", 2, "Could not load dynamic library 'libcudnn.so.8'",
		"cuDNN 8 is not there")
	warning := causeOf(NonfatalWarning, "a warning; the program can go on", 5,
		"... The caller indicates that this is not a failure, but this may mean that there could be performance gains if more memory were available.", "the message says itself that it is no failure")
	other := causeOf(NotMemory, "this is no failure of memory", 9, "CUDNN_STATUS_EXECUTION_FAILED", "98 % of the GPU is free")
	return map[string]*Diagnosis{
		"cause": {Verdict: VerdictCause, Causes: []Cause{limit, frag}, Certain: []string{"The pool is full: 17.2 of 18 GiB are in use."}},
		"other": {Verdict: VerdictCause, Causes: []Cause{growth}},
		"library": {Verdict: VerdictCause, Causes: []Cause{mismatch}, Missing: []string{"process.env: LD_LIBRARY_PATH"},
			Decide: "ldconfig -p | grep cudnn"},
		"either": {Verdict: VerdictEither, Causes: []Cause{several, starves},
			Decide:  "nvidia-smi --query-compute-apps=pid,used_memory --format=csv    # two programs: A; one: B",
			Missing: []string{"devices.processes: who holds memory on the GPU"},
			Certain: []string{"It is a failure of memory: the library could not be started."}},
		"needs": {Verdict: VerdictNeeds, Causes: []Cause{several, starves},
			Missing: []string{"devices.processes: who holds memory on the GPU"}},
		"unknown": {Verdict: VerdictUnknown, Certain: []string{"The pool is full: 470 of 480 MiB are in use.",
			"The GPU has more than that."}, Missing: []string{"process.env: who set a limit of 480 MiB"}, Decide: "gpumem explain --pid PID"},
		"nothing":   {Verdict: VerdictUnknown},
		"warning":   {Verdict: VerdictNonfatal, Causes: []Cause{warning}},
		"notmemory": {Verdict: VerdictNotMemory, Causes: []Cause{other}},
		"dump":      {Verdict: VerdictCause, Causes: []Cause{frag}, Dump: readDump(t, doctortest.SmallDump), Program: &dump.Program{}},
	}
}

// TestText: the whole of what people read. go test -update writes it anew.
func TestText(t *testing.T) {
	for name, d := range diagnoses(t) {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("testdata", "answers", name+".txt")
			var b strings.Builder
			if err := WriteText(&b, []Answer{{Log: "train.log", Diagnosis: d}}, 80); err != nil {
				t.Fatal(err)
			}
			if *update {
				if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), b.String()); diff != "" {
				t.Errorf("other than %s, which -update writes anew (-file +now):\n%s", path, diff)
			}
		})
	}
}

// TestSeveral: each log has its heading.
func TestSeveral(t *testing.T) {
	d := &Diagnosis{Verdict: VerdictUnknown}
	var b strings.Builder
	if err := WriteText(&b, []Answer{{Log: "a.log", Diagnosis: d}, {Log: "b\n.log", Diagnosis: d}}, 80); err != nil {
		t.Fatal(err)
	}
	const sentence = "The cause is not known: nothing in the log decides.\n" +
		"\nThis would tell\n  all that the program printed, on stderr as well; the lines before its end\n    count most\n"
	if want := "== a.log ==\n" + sentence + "\n== b; .log ==\n" + sentence; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

// TestStepsStandAlone: where settings are left out, no step goes on from them.
func TestStepsStandAlone(t *testing.T) {
	log := "E cuda_dnn.cc:439] Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR\nE cuda_dnn.cc:443] Memory usage: 214958080 bytes free, 8361017344 bytes total.\n"
	full := "Allocator (GPU_0_bfc) ran out of memory trying to allocate 3.00GiB (rounded to 3221225472) requested by op \nLimit:                     19327352832\nInUse:                     19320000000\n"
	for text, want := range map[string]string{log: "  - in JAX: XLA_PYTHON_CLIENT_MEM_FRACTION=0.67", full: "  - in TensorFlow, whose code"} {
		d, err := Diagnose(strings.NewReader(text), nil)
		if err != nil || d.Verdict != VerdictNeeds {
			t.Fatal(d, err)
		}
		var b strings.Builder
		if err := WriteText(&b, []Answer{{Diagnosis: d}}, 80); err != nil {
			t.Fatal(err)
		}
		if got := b.String(); !strings.Contains(got, want) || strings.Contains(got, "\n  or ") || strings.Contains(got, "\n  else ") {
			t.Errorf("%s\nlacks %q", got, want)
		}
	}
}

// TestNarrowScreens: accounts and dumps are no wider than the screen, and none of their figures is cut.
func TestNarrowScreens(t *testing.T) {
	all := map[string]*Diagnosis{"dump": {Verdict: VerdictUnknown, Certain: []string{"x"}, Dump: readDump(t, doctortest.SmallDump),
		Program: &dump.Program{}}}
	names, of := accountCases(t)
	for _, name := range names {
		all[name] = diagnose(t, of[name]["log"], of[name]["state.json"])
	}
	for name, d := range all {
		wide := figuresOf(t, d, 200)
		for _, width := range []int{40, 60, 80, 100} {
			var b strings.Builder
			if err := WriteText(&b, []Answer{{Log: "x", Diagnosis: d}}, width); err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(b.String()) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width {
					t.Errorf("%s at %d: %d characters: %s", name, width, n, line)
				}
			}
			if d.Verdict != VerdictAccount || strings.Contains(b.String(), "--json has all") {
				continue // what is quoted may be cut
			}
			for _, f := range wide {
				if !slices.Contains(figuresOf(t, d, width), f) {
					t.Errorf("%s at %d: no %s in\n%s", name, width, f, b.String())
				}
			}
		}
	}
}

// figuresOf are the sizes in an answer.
func figuresOf(t *testing.T, d *Diagnosis, width int) []string {
	var b strings.Builder
	if err := WriteText(&b, []Answer{{Log: "x", Diagnosis: d}}, width); err != nil {
		t.Fatal(err)
	}
	return sizes.FindAllString(strings.Join(strings.Fields(b.String()), " "), -1)
}

// TestAnyText: whatever a diagnosis holds, it is written in printable
// lines, no wider than the screen but for what is to be copied.
func TestAnyText(t *testing.T) {
	anything := rapid.OneOf(rapid.String(), rapid.StringMatching(`[ a-z]{0,300}`), rapid.StringMatching(`[a-z]{100,200}`))
	verdicts := []Verdict{VerdictCause, VerdictEither, VerdictNeeds, VerdictNonfatal, VerdictNotMemory, VerdictUnknown, ""}
	causes := rapid.Custom(func(t *rapid.T) Cause {
		c := Cause{ID: CauseID(anything.Draw(t, "id")), Title: anything.Draw(t, "title"), Doc: anything.Draw(t, "doc"),
			Steps: rapid.SliceOfN(anything, 0, 3).Draw(t, "steps")}
		for range rapid.IntRange(0, 15).Draw(t, "evidence") {
			c.Evidence = append(c.Evidence, Evidence{Line: rapid.IntRange(0, 1<<40).Draw(t, "line"), Text: anything.Draw(t, "text"),
				Reading: anything.Draw(t, "reading")})
		}
		return c
	})
	rapid.Check(t, func(t *rapid.T) {
		d := &Diagnosis{
			Verdict: rapid.SampledFrom(verdicts).Draw(t, "verdict"), Causes: rapid.SliceOfN(causes, 0, 4).Draw(t, "causes"),
			Missing: rapid.SliceOfN(anything, 0, 3).Draw(t, "missing"), Certain: rapid.SliceOfN(anything, 0, 3).Draw(t, "certain"),
		}
		width := rapid.IntRange(80, 100).Draw(t, "width")
		var b strings.Builder
		if err := WriteText(&b, []Answer{{Log: "x", Diagnosis: d}}, width); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			line = strings.TrimSuffix(line, "\n")
			if n := utf8.RuneCountInString(line); n > width {
				t.Errorf("%d characters: %s", n, line)
			}
			if strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%q", line)
			}
		}
	})
}

// TestQuotes: a line is quoted once, whatever it shows to how many causes.
func TestQuotes(t *testing.T) {
	long := strings.TrimSpace(strings.Repeat("some words of a long line ", 10))
	one := func(evidence ...Evidence) Cause { return Cause{Evidence: evidence} }
	for _, tc := range []struct {
		name   string
		causes []Cause
		want   string
	}{
		{"none", []Cause{one()}, ""},
		{"in order", []Cause{one(Evidence{Text: "pid 7", Reading: "it has 4 GiB"}, Evidence{Line: 2, Text: "b"}),
			one(Evidence{Line: 1, Text: "a\tc", Reading: "r"})},
			"      1 | a c\n          B: r\n      2 | b\n  state | pid 7\n          A: it has 4 GiB\n"},
		{"alike for all", []Cause{one(Evidence{Line: 1, Text: "a", Reading: "r"}), one(Evidence{Line: 1, Text: "a and on", Reading: "r"})},
			"      1 | a\n          r\n"},
		{"in common", []Cause{
			one(Evidence{Line: 1, Text: "a", Reading: "r"}),
			one(Evidence{Line: 1, Text: "a", Reading: "s"}, Evidence{Line: 1, Text: "b", Reading: "s"}),
			one(Evidence{Line: 1, Text: "a", Reading: "r"})},
			"      1 | a\n          A, C: r\n          B: s\n"},
		{"state by text", []Cause{one(Evidence{Text: "a"}, Evidence{Text: "b"})}, "  state | a\n  state | b\n"},
		{"too many", []Cause{one(Evidence{Line: 1}, Evidence{Line: 2}, Evidence{Line: 3}, Evidence{Line: 4, Reading: "x"},
			Evidence{Line: 4, Reading: "y"})},
			"      1 |\n      2 |\n          (and 2 more lines; --json has all)\n"},
		{"long", []Cause{one(Evidence{Line: 12345678, Text: long})},
			"12345678 | some words of a long line some words of a long line some words of a\n        |   long line some words of a long line some words of a long line...\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := text{Text: report.Text{Width: 80}, extent: extent{quotes: 2, rows: 2}}
			a.quotes(tc.causes)
			if diff := cmp.Diff(tc.want, a.String()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestShort: a long answer and a long dump are made to fit, and the answer
// goes before the dump.
func TestShort(t *testing.T) {
	var text strings.Builder
	text.WriteString("Allocator (GPU_0_bfc) ran out of memory trying to allocate 6.00MiB (rounded to 6291456)requested by op\nNext region of size 8388608\n")
	at := 0
	for size := 256; at+2*size < 8<<20; size += 256 {
		fmt.Fprintf(&text, "InUse at %x of size %d next 1\nFree  at %x of size %[2]d next 1\n", at, size, at+size)
		at += 2 * size
	}
	whole := *diagnoses(t)["cause"]
	whole.Dump = readDump(t, text.String())
	a := Answer{Diagnosis: &whole}
	if n := len(a.dumped(80, screenLines)); n <= poolLines {
		t.Fatalf("the dump has only %d lines", n)
	}
	got := a.onScreen(80)
	for _, want := range []string{"The cause: ", "\n  export ", "\nThe pool, as it was dumped at line 1", "\n  GPU_0_bfc: ",
		"\n  would fit: "} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Count(got, "\n") > screenLines {
		t.Errorf("%d lines\n%s", strings.Count(got, "\n"), got)
	}
}
