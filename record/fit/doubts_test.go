package fit_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"gpumem/device/sim"
	"gpumem/record/fit"
)

// doubtsProgram returns the calls that a program of a file of testdata makes, by its comments.
func doubtsProgram(t *testing.T, file, name string) (calls []fit.SizeCall) {
	t.Helper()
	text, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	head, comment, within := regexp.MustCompile(`^def (\w+)\(`), regexp.MustCompile(`# (\w+) (\d+)$`), ""
	for i, line := range strings.Split(string(text), "\n") {
		if m := head.FindStringSubmatch(line); m != nil {
			within = m[1]
		}
		if m := comment.FindStringSubmatch(line); m != nil && within == name {
			n, _ := strconv.ParseUint(m[2], 10, 64)
			calls = append(calls, fit.SizeCall{Name: m[1], Where: file + ":" + strconv.Itoa(i+1), Count: n})
		}
	}
	return calls
}

// TestDoubts: the answer carries what the start-up files of all processes found, each call once,
// and nothing where there is nothing. The script writes what the start-up file of PyTorch does.
func TestDoubts(t *testing.T) {
	const sizes = `[{"call":"nonzero","where":"moe.py:40","count":3},{"call":"item","where":"a.py:1","count":1},{"call":"nonzero","where":"","count":2},` +
		`{"call":"unique with dim","where":"b.py:2","count":1},{"call":"nonzero","where":"c.py:1","count":2},{"call":"nonzero","where":"d.py:1","count":1}]`
	const ended = "ended: What came later, such as an evaluation, is not in this answer: it was ended "
	for _, tc := range []struct {
		name, reason, more string
		assume             fit.Assume
		steps              int      // that are asked for
		want               []string // KIND: TEXT
		differs            bool     // in general, since the calls are not known
	}{
		{name: "none", reason: "end", more: `"steps":12,"sizes":[]`},
		{name: "not known", reason: "end", more: `"steps":12`, differs: true},
		{name: "repeats", reason: "repeats", more: `"steps":12,"sizes":[]`, want: []string{ended + "after 12 steps when its memory repeated; --full runs it to its end."}},
		{name: "one step", reason: "steps", more: `"steps":1,"sizes":[]`, want: []string{ended + "after 1 step as --steps asks for; --full runs it to its end."}},
		{name: "no steps", reason: "repeats", more: `"sizes":[]`, want: []string{ended + "when its memory repeated; --full runs it to its end."}},
		{name: "steps", reason: "end", more: `"steps":12,"sizes":[]`, steps: 20},
		{name: "no step to count", reason: "repeats", more: `"sizes":[]`, steps: 20, want: []string{
			ended + "when its memory repeated; --full runs it to its end.",
			"steps: No step was seen that --steps could count: runs of JAX's largest function or of a tf.function, or updates of an optimizer of PyTorch.",
		}},
		{name: "caught", reason: "end", more: `"sizes":[],"beyond":true,"caught":4,"caught_at":["train.py:8","memory.py:150"]`, want: []string{
			"caught: It was refused memory 4 times, as on the card, and caught the error (memory.py:150, train.py:8): " +
				"what it did then is in this answer, and not what it would do on another card.",
		}},
		{name: "caught once", reason: "end", more: `"sizes":[],"beyond":true,"caught":1,"caught_at":["train.py:8"]`, want: []string{
			"caught: It was refused memory once, as on the card, and caught the error (train.py:8): " +
				"what it did then is in this answer, and not what it would do on another card.",
		}},
		{name: "buckets", reason: "end", more: `"sizes":[],"buckets":134217728`, want: []string{
			"watched: DistributedDataParallel's first buckets, 128 MiB, were free in the second step. PyTorch frees them when its thread that watches NCCL " +
				"next looks, each .1 s: where that is later, as much more is live in that step.",
		}},
		{name: "sizes", reason: "end", more: `"sizes":` + sizes, want: []string{
			"sizes: Sizes from nonzero() or a mask (moe.py:40, 4 calls; the backward pass, 2 calls; c.py:1, 2 calls; and 1 more place), unique() with dim (b.py:2, 1 call) were those of zeros.",
			"read: Integers that it read from the GPU (a.py:1, 1 call) were 0: sizes that it makes of them are those of 0.",
		}},
		{name: "assumed", reason: "end", more: `"sizes":` + sizes, assume: fit.Assume{"nonzero": "0.25", "item": "7"}, want: []string{
			"sizes: Sizes from unique() with dim (b.py:2, 1 call) were those of zeros.",
			"assumed: Sizes from nonzero() or a mask (moe.py:40, 4 calls; the backward pass, 2 calls; c.py:1, 2 calls; and 1 more place) were 0.25 of the elements, as --assume says.",
			"assumed: Integers that it read from the GPU (a.py:1, 1 call) were 7, as --assume says.",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			env := append(environ(t), "SNAPSHOT=../trace/testdata/torch2023.pickle", `FOUND={"framework":"pytorch","version":"2.8.0","reason":"`+tc.reason+`",`+tc.more+`}`)
			// Another process has made one of the calls, too.
			const script = `cp "$SNAPSHOT" "$GPUMEM_FIT.$$.torch"; echo "$FOUND" >"$GPUMEM_FIT.$$"; case $FOUND in *moe*)
				echo '{"framework":"pytorch","version":"2.8.0","reason":"end","sizes":[{"call":"nonzero","where":"moe.py:40","count":1}]}' >"$GPUMEM_FIT.1" ;; esac`
			r, err := fit.Run(t.Context(), fit.Config{Command: []string{"sh", "-c", script}, Env: env, Sim: sim.Config{Total: 24 << 30}, Assume: tc.assume, Steps: tc.steps})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, d := range r.Doubts {
				got = append(got, d.Kind+": "+d.Text)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
			}
			if differs := strings.Contains(strings.Join(r.Differs, " "), "nonzero()"); differs != tc.differs {
				t.Errorf("%q", r.Differs)
			}
			if text, err := json.Marshal(r.Summary); err != nil || len(tc.want) == 0 && !strings.Contains(string(text), `"doubts":[]`) {
				t.Errorf("%s, %v", text, err)
			}
		})
	}
}

// TestGrowth: a program that keeps 1 MiB in each of 64 steps fits 1 GiB for about 950, and so not for
// 2000; where what is needed beside that grows ever faster, for how many is unknown, and whether one that ran for three steps grows is not known.
func TestGrowth(t *testing.T) {
	var grows, short, small, uneven, sizes, longer, losses strings.Builder
	for i := range 64 {
		fmt.Fprintf(&longer, "a t%d 4194304\na s%d 8192\na k%d %d\nf t%d\nf s%d\n", i, i, i, (i+1)<<18, i, i)
		if i > 0 {
			fmt.Fprintf(&longer, "f k%d\n", i-1)
		}
		fmt.Fprintf(&losses, "a t%d 4194304\na s%d 8192\na k%d %d\nf t%d\nf s%d\n", i, i, i, 1+i%13, i, i)
		fmt.Fprintf(&sizes, "a t%d 4194304\na s%d 8192\na k%d %d\nf t%d\nf s%d\n", i, i, i, 1<<16+i*7919%61<<14, i, i)
		fmt.Fprintf(&uneven, "a t%d 4194304\na k%d 1048576\na u%d %d\nf u%d\nf t%d\n", i, i, i, 4096+(i*i)<<14, i, i)
		fmt.Fprintf(&small, "a t%d 4194304\na k%d 4\nf t%d\n", i, i, i)
		fmt.Fprintf(&grows, "a t%d 4194304\na k%d 1048576\nf t%d\n", i, i, i)
	}
	for i := range 3 {
		fmt.Fprintf(&short, "a t%d 4194304\nf t%d\n", i, i)
	}
	for _, tc := range []struct {
		name, events string
		steps, ran   uint64
		fits         bool
		want         string // in its doubt
	}{
		{"grows", grows.String(), 0, 64, true, "grows: It grows by 1 MiB in each step, at requests of 1 MiB: if it goes on as in the 64 steps that were seen, it fits for about 9"},
		{"grows, for some steps", grows.String(), 900, 64, true, "grows: It grows by 1 MiB in each step"},
		{"grows, for more steps", grows.String(), 2000, 64, false, "grows: It grows by 1 MiB in each step"},
		{"unevenly", uneven.String(), 0, 64, true, "grows: It grows by 1 MiB in each step, at requests of 1 MiB; what it needs at the peaks of the 64 steps that were seen did not grow evenly"},
		{"unevenly, for the steps that ran", uneven.String(), 64, 64, true, "grows: It grows by 1 MiB in each step"},
		{"unevenly, for one more step", uneven.String(), 65, 64, false, "grows: It grows by 1 MiB in each step"},
		{"unevenly, for the steps that ran beyond it", uneven.String(), 80, 80, true, "grows: It grows by 1 MiB in each step"},
		{"grows by 4 bytes", small.String(), 0, 64, true, ""},
		{"grows by 4 bytes, for some steps", small.String(), 5000, 64, true, ""},
		{"grows by 4 bytes, for more steps", small.String(), 400_000_000, 64, false, "grows: It grows by 4 B in each step"},
		{"longer", longer.String(), 0, 0, true, "grows: It grows by about 247.21 KiB in each step, at no one place: if it goes on as in the 65 steps that were seen, it fits for about "},
		{"longer, for some steps", longer.String(), 1000, 0, true, "grows: It grows by about 247.21 KiB"},
		{"longer, for more steps", longer.String(), 4000, 0, false, "grows: It grows by about 247.21 KiB"},
		{"of other sizes", sizes.String(), 0, 0, true, "grows: It grows by 29.70 MiB at least in the recording, at requests of 512 KiB to 1 MiB, " +
			"and in how many steps is unknown: for how many it fits is unknown."},
		{"of other sizes, for a step", sizes.String(), 1, 0, false, "grows: It grows by 29.70 MiB at least"},
		{"of other sizes, in steps that are counted", sizes.String(), 0, 64, true, "grows: It grows by 53"},
		{"of other sizes, for the steps that ran", sizes.String(), 64, 64, true, "grows: It grows by 53"},
		{"of other sizes, for more than ever", sizes.String(), 4000, 64, false, "grows: It grows by 53"},
		{"losses", losses.String(), 0, 0, true, ""},
		{"short", short.String(), 0, 3, true, ""},
		{"short, for some steps", short.String(), 900, 3, true, "short: Whether it grows over 900 steps is not known: 3 steps ran, and it takes 10 to see."},
		{"one step, for two", short.String(), 2, 1, true, "short: Whether it grows over 2 steps is not known: 1 step ran, and it takes 10 to see."},
		{"short, for the steps that ran", short.String(), 3, 3, true, ""},
		{"unknown, for some steps", short.String(), 900, 0, true, "short: Whether it grows over 900 steps is not known: how many ran is unknown, and it takes 10 to see."},
		{"unknown, for one step", short.String(), 1, 0, true, ""},
		{"nine, for ten", short.String(), 10, 9, true, "short: "},
		{"long, for some steps", short.String(), 900, 10, true, ""},
		{"for more steps than the card has memory for any", strings.ReplaceAll(short.String(), "4194304", "2147483648"), 900, 3, false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			record := filepath.Join(t.TempDir(), "record")
			if err := os.WriteFile(record, []byte(tc.events), 0o600); err != nil {
				t.Fatal(err)
			}
			script := fmt.Sprintf(`cp "$0" "$GPUMEM_FIT.$$.torch"; echo '{"framework":"pytorch","version":"2.8.0","reason":"end","sizes":[],"steps":%d}' >"$GPUMEM_FIT.$$"`, tc.ran)
			r, err := fit.Run(t.Context(), fit.Config{Command: []string{"sh", "-c", script, record}, Env: environ(t), Sim: sim.Config{Total: 1 << 30}, For: tc.steps})
			if err != nil {
				t.Fatal(err)
			}
			if text, err := json.Marshal(r); err != nil || strings.Contains(string(text), `"grows":{"bytes_per_step":1048576,`) != (tc.events == grows.String() || tc.events == uneven.String()) {
				t.Errorf("%s, %v", text, err)
			}
			got := ""
			for _, d := range r.Doubts {
				got += d.Kind + ": " + d.Text
			}
			if !strings.HasPrefix(got, tc.want) || (tc.want == "") != (got == "") || r.Fits != tc.fits || r.For != tc.steps {
				t.Errorf("fits %v, %q; want %v, %q", r.Fits, got, tc.fits, tc.want)
			}
			// The rest of the summary has the same verdict, and no card for more steps than it was found for.
			known := r.Grows == nil || tc.steps <= max(tc.ran, r.Grows.RecordedSteps)
			if r.AsItIs != tc.fits || (r.SmallestDevice != nil) != known || (r.Card != "") != known {
				t.Errorf("as it is %v, smallest device %v, card %q; want %v, known %v", r.AsItIs, r.SmallestDevice, r.Card, tc.fits, known)
			}
		})
	}
}

// TestGrowthWithASetting: a setting with which a program fits for the steps that ran is none with which it fits for more than there
// is memory for.
func TestGrowthWithASetting(t *testing.T) {
	var events strings.Builder
	for i := range 64 {
		fmt.Fprintf(&events, "a t%d 754974720\na k%d 1048576\nf t%d\n", i, i, i)
	}
	record := filepath.Join(t.TempDir(), "record")
	if err := os.WriteFile(record, []byte(events.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	const script = `cp "$0" "$GPUMEM_FIT.$$.torch"; echo '{"framework":"jax","version":"0.10.1","reason":"end","sizes":[]}' >"$GPUMEM_FIT.$$"`
	for steps, want := range map[uint64]int{0: 1, 64: 1, 4000: 0} {
		r, err := fit.Run(t.Context(), fit.Config{Command: []string{"sh", "-c", script, record}, Env: environ(t), Sim: sim.Config{Total: 1 << 30}, For: steps})
		if err != nil {
			t.Fatal(err)
		}
		if r.Fits != (want > 0) || len(r.Settings) != want || r.AsItIs {
			t.Errorf("for %d steps: fits %v, as it is %v, with %v", steps, r.Fits, r.AsItIs, r.Settings)
		}
	}
}

// TestFailedProgramSaysItsSizes: a shape that does not match a mask of zeros is an error of the run alone.
func TestFailedProgramSaysItsSizes(t *testing.T) {
	const script = `echo '{"framework":"pytorch","version":"2.8.0","reason":"failed","sizes":[{"call":"nonzero","where":"a.py:4","count":1}]}' >"$GPUMEM_FIT.$$"
		echo 'RuntimeError: shape mismatch' >&2; exit 1`
	const want = "(exit status 1): RuntimeError: shape mismatch. Sizes from nonzero() or a mask (a.py:4, 1 call) were those of zeros. --assume has others: gpumem fit --help"
	_, err := fit.Run(t.Context(), fit.Config{Command: []string{"sh", "-c", script}, Env: environ(t), Sim: sim.Config{Total: 24 << 30}})
	if err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Error(err)
	}
}

// TestEndedBeforeItWrote: what was ended before it wrote why has the doubt all the same.
func TestEndedBeforeItWrote(t *testing.T) {
	const script = `cp "$SNAPSHOT" "$GPUMEM_FIT.$$.torch"; echo '{"framework":"pytorch","version":"2.8.0","reason":"begun"}' >"$GPUMEM_FIT.$$"; printf repeats >"$GPUMEM_FIT.stop"; sleep 1000`
	env := append(environ(t), "SNAPSHOT=../trace/testdata/torch2023.pickle")
	r, err := fit.Run(t.Context(), fit.Config{Command: []string{"sh", "-c", script}, Env: env, Sim: sim.Config{Total: 24 << 30}})
	if err != nil || len(r.Doubts) != 1 || r.Doubts[0].Kind != fit.Ended {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestAssumeWantsPyTorch: what cannot be assumed is not answered for as if it was.
func TestAssumeWantsPyTorch(t *testing.T) {
	env := append(environ(t), "SNAPSHOT=../trace/testdata/torch2023.pickle")
	const script = `cp "$SNAPSHOT" "$GPUMEM_FIT.$$.torch"; echo '{"framework":"pytorch","version":"2.3.0","reason":"end"}' >"$GPUMEM_FIT.$$"`
	_, err := fit.Run(t.Context(), fit.Config{Command: []string{"sh", "-c", script}, Env: env, Sim: sim.Config{Total: 24 << 30}, Assume: fit.Assume{"item": "1"}})
	if err == nil || !strings.HasPrefix(err.Error(), "--assume is for programs of JAX and of PyTorch") {
		t.Error(err)
	}
}

func TestParseAssume(t *testing.T) {
	for text, want := range map[string]string{
		"nonzero=.125":                   `map[nonzero:0.125]`,
		"nonzero=1,unique=0,item=500000": `map[item:500000 nonzero:1 unique:0]`,
		"nonzero=2":                      `"nonzero=2": want nonzero=PART or unique=PART, from 0 to 1, or item=INTEGER`,
		"item=1.5":                       `"item=1.5": want nonzero=PART or unique=PART, from 0 to 1, or item=INTEGER`,
		"nonzero=NaN":                    `"nonzero=NaN": want nonzero=PART or unique=PART, from 0 to 1, or item=INTEGER`,
		"item=-1":                        `"item=-1": want nonzero=PART or unique=PART, from 0 to 1, or item=INTEGER`,
		"bincount=1":                     `"bincount=1": want nonzero=PART or unique=PART, from 0 to 1, or item=INTEGER`,
		"":                               `"": want nonzero=PART or unique=PART, from 0 to 1, or item=INTEGER`,
		"item=1,item=2":                  `"item=1,item=2": item is given twice`,
	} {
		a, err := fit.ParseAssume(text)
		if got := fmt.Sprint(a); err == nil && got != want || err != nil && err.Error() != want {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
}

func FuzzParseAssume(f *testing.F) {
	f.Add("nonzero=.125,item=3")
	f.Fuzz(func(t *testing.T, text string) {
		a, err := fit.ParseAssume(text)
		for name, value := range a {
			// sizes.py splits at these.
			if err != nil || value == "" || strings.ContainsAny(name+value, "=,") {
				t.Errorf("%q: %q, %v", text, a, err)
			}
		}
	})
}

// TestSizesWatch: the calls are counted where PyTorch has a library of operators that hands on their keys, which torch itself
// knows, and not the modules that were imported.
func TestSizesWatch(t *testing.T) {
	python := pythonPath(t)
	out, err := exec.Command(python, "testdata/watched.py", "sizes.py").CombinedOutput()
	if err != nil || len(bytes.TrimSpace(out)) != 0 {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestRepeats: when memory repeats. A program that looks for its batch size was ended while it was still refused memory.
func TestRepeats(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("SKIPPED: there is no python3 on PATH")
	}
	out, err := exec.Command(python, "testdata/repeating.py", "repeats.py").CombinedOutput()
	if err != nil || len(bytes.TrimSpace(out)) != 0 {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestTorchSizes: each call that has a size by values of the GPU is named with its line, whoever
// makes it, and no other; what is assumed of them is what the program gets. GPUMEM_TEST_TORCH is
// as in TestTorch.
func TestTorchSizes(t *testing.T) {
	python := os.Getenv("GPUMEM_TEST_TORCH")
	if python == "" {
		t.Skip("SKIPPED: GPUMEM_TEST_TORCH names no Python with torch for CUDA")
	}
	for _, tc := range []struct {
		name, assume string // the assumption, if there is one
		kind         string
		slow         bool
	}{
		{name: "mask", assume: "nonzero=.25", kind: fit.Sizes},
		{name: "select", assume: "nonzero=1", kind: fit.Sizes},
		{name: "places", assume: "nonzero=.5", kind: fit.Sizes},
		{name: "where", assume: "nonzero=0.125", kind: fit.Sizes},
		{name: "experts", assume: "nonzero=.125", kind: fit.Sizes},
		{name: "unique", assume: "unique=.75", kind: fit.Sizes},
		{name: "item", assume: "item=300", kind: fit.Read},
		{name: "counted", assume: "item=300", kind: fit.Read},
		{name: "lists", assume: "item=300", kind: fit.Read},
		{name: "repeated", kind: fit.Sizes},
		{name: "backward", kind: fit.Sizes},
		{name: "scripted", assume: "nonzero=.25", kind: fit.Sizes},
		{name: "compiled", kind: fit.Sizes, slow: true},
		{name: "losses"},
	} {
		assumptions := []string{""}
		if tc.assume != "" {
			assumptions = append(assumptions, tc.assume)
		}
		for _, assume := range assumptions {
			t.Run(tc.name+" "+assume, func(t *testing.T) {
				if tc.slow && testing.Short() {
					t.Skip("SKIPPED: -short; torch.compile runs gcc, which takes a minute")
				}
				testTorchSizes(t, python, tc.name, assume, tc.kind)
			})
		}
	}
}

func testTorchSizes(t *testing.T, python, name, assume, kind string) {
	var all fit.Assume
	if assume != "" {
		var err error
		if all, err = fit.ParseAssume(assume); err != nil {
			t.Fatal(err)
		}
		kind = fit.Assumed
	}
	var out bytes.Buffer
	r, err := fit.Run(t.Context(), fit.Config{
		Command: []string{python, "testdata/doubts.py", name}, Env: environ(t), Sim: sim.Config{Total: 4 << 30, CCMajor: 8}, Stdout: &out, Stderr: os.Stderr, Assume: all,
	})
	if err != nil {
		t.Fatal(err)
	}
	var torch struct {
		Peak      uint64 `json:"requested_peak_bytes"`
		Requested uint64 `json:"requested_bytes"`
		Expected  uint64 `json:"expected_bytes"`
	}
	if err := json.Unmarshal(out.Bytes(), &torch); err != nil {
		t.Fatalf("%v: %s", err, out.Bytes())
	}
	if r.PeakBytes != torch.Peak || torch.Requested != torch.Expected {
		t.Errorf("peak %d, PyTorch's %d; at the end %d, by construction %d", r.PeakBytes, torch.Peak, torch.Requested, torch.Expected)
	}
	want := doubtsProgram(t, "doubts.py", name)
	if name == "backward" {
		want = append([]fit.SizeCall{{Name: "nonzero", Count: 2}}, want...)
	}
	// It keeps what each call finds.
	r.Doubts = slices.DeleteFunc(r.Doubts, func(d fit.Doubt) bool { return d.Kind == fit.Grows })
	switch {
	case kind == "" && len(r.Doubts) > 0:
		t.Errorf("%+v", r.Doubts)
	case kind != "" && (len(r.Doubts) != 1 || r.Doubts[0].Kind != kind || !slices.Equal(r.Doubts[0].Calls, want)):
		t.Errorf("%+v, want %s of %+v", r.Doubts, kind, want)
	}
}

// TestTorchEnds: a program whose last step is the largest is answered for as far as it ran, or with
// --full as it is; one that grows by 1 MiB in each step fits for some.
func TestTorchEnds(t *testing.T) {
	python := os.Getenv("GPUMEM_TEST_TORCH")
	if python == "" {
		t.Skip("SKIPPED: GPUMEM_TEST_TORCH names no Python with torch for CUDA")
	}
	run := func(t *testing.T, name, steps string, cfg fit.Config) (*fit.Report, uint64) {
		t.Helper()
		var out bytes.Buffer
		cfg.Command, cfg.Env, cfg.Sim = []string{python, "testdata/doubts.py", name, steps}, environ(t), sim.Config{Total: 4 << 30, CCMajor: 8}
		cfg.Stderr = os.Stderr
		if cfg.Stdout == nil {
			cfg.Stdout = &out
		}
		r, err := fit.Run(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		var torch struct {
			Peak uint64 `json:"requested_peak_bytes"`
		}
		_ = json.Unmarshal(out.Bytes(), &torch) // nothing of one that was ended
		return r, torch.Peak
	}
	t.Run("late", func(t *testing.T) {
		r, _ := run(t, "late", "1000000", fit.Config{})
		if len(r.Doubts) != 1 || r.Doubts[0].Kind != fit.Ended || r.Program.Steps < 10 || !r.Program.Repeats {
			t.Errorf("%+v, %+v", r.Doubts, r.Program)
		}
		whole, peak := run(t, "late", "60", fit.Config{Full: true})
		if len(whole.Doubts) > 0 || whole.Program.Steps != 60 || whole.PeakBytes != peak || peak <= r.PeakBytes {
			t.Errorf("peak %d, PyTorch's %d, as far as it ran %d; %+v", whole.PeakBytes, peak, r.PeakBytes, whole.Doubts)
		}
	})
	t.Run("stopped", func(t *testing.T) {
		stop := make(chan struct{})
		r, _ := run(t, "growing", "1000000", fit.Config{Stop: stop, Stdout: started{sync.OnceFunc(func() { close(stop) })}})
		if len(r.Doubts) != 2 || r.Doubts[0].Kind != fit.Ended || r.Doubts[1].Kind != fit.Grows || r.Program.Steps < 30 || r.Grows.BytesPerStep != 1<<20 {
			t.Errorf("%+v, %+v", r.Doubts, r.Program)
		}
	})
	t.Run("growing", func(t *testing.T) {
		for steps, fits := range map[uint64]bool{0: true, 2000: true, 8000: false} {
			r, peak := run(t, "growing", "40", fit.Config{For: steps})
			if len(r.Doubts) != 1 || r.Doubts[0].Kind != fit.Grows || r.Grows.BytesPerStep != 1<<20 || r.Fits != fits || r.PeakBytes != peak {
				t.Errorf("for %d: fits %v, peak %d, PyTorch's %d, %+v", steps, r.Fits, r.PeakBytes, peak, r.Doubts)
			}
		}
	})
}

// TestJAXSizes: a size of what kernels write is that of zeros, and named, and one that the program
// wrote is as it is. GPUMEM_TEST_JAX is as in TestJAX.
func TestJAXSizes(t *testing.T) {
	python := os.Getenv("GPUMEM_TEST_JAX")
	if python == "" {
		t.Skip("SKIPPED: GPUMEM_TEST_JAX names no Python with jax and its CUDA plugin")
	}
	for _, tc := range []struct {
		name, kind, want string // kept rows
		assume           fit.Assume
	}{
		{name: "mask", kind: fit.Sizes, want: "[0, 0]"},
		{name: "mask", kind: fit.Assumed, want: "[1024, 1024]", assume: fit.Assume{"nonzero": "0.25"}},
		{name: "nonzero", kind: fit.Read, want: "[0, 0]"},
		{name: "item", kind: fit.Read, want: "[0, 0]"},
		{name: "item", kind: fit.Assumed, want: "[300, 300]", assume: fit.Assume{"item": "300"}},
		{name: "repeated", kind: fit.Read, want: "[0, 0]"},
		{name: "written", want: "[4096, 5, 7]"},
		{name: "compiled", want: "[100, 100]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out bytes.Buffer
			r, err := fit.Run(t.Context(), fit.Config{
				Command: []string{python, "testdata/doubts_jax.py", tc.name}, Env: environ(t), Sim: sim.Config{Total: 4 << 30}, Stdout: &out, Stderr: os.Stderr, Assume: tc.assume,
			})
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.TrimSpace(out.String()); got != tc.want {
				t.Errorf("kept %s, want %s", got, tc.want)
			}
			want := doubtsProgram(t, "doubts_jax.py", tc.name)
			switch {
			case tc.kind == "" && len(r.Doubts) > 0:
				t.Errorf("%+v", r.Doubts)
			case tc.kind != "" && (len(r.Doubts) != 1 || r.Doubts[0].Kind != tc.kind || !slices.Equal(r.Doubts[0].Calls, want)):
				t.Errorf("%+v, want %s of %+v", r.Doubts, tc.kind, want)
			}
		})
	}
}
