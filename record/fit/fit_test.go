package fit_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"

	"gpumem/device/sim"
	"gpumem/internal/test/standin"
	"gpumem/record/fit"
)

func TestMain(m *testing.M) {
	if program := os.Getenv("GPUMEM_TEST_FIT"); program != "" { // see TestTerminal
		r, err := fit.Run(context.Background(), fit.Config{Command: []string{"sh", "-c", `read n; exec "$0" "$n"`, program}, Env: os.Environ(), Sim: sim.Config{Total: 4 << 30}, Stderr: os.Stderr})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("peak", r.PeakBytes)
		os.Exit(0)
	}
	debug.SetGCPercent(800) // the tables of the many pools that are tried are the most of it
	code := m.Run()
	if folder, err := front(); err == nil {
		os.RemoveAll(folder)
	}
	standin.Remove()
	os.Exit(code)
}

// front builds the pool library once.
var front = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "gpumem-fit-test")
	if err != nil {
		return "", err
	}
	if out, err := exec.Command("../../scripts/libgpumem", dir).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return dir, nil
})

// environ is an environment in which fit finds the libraries.
func environ(t *testing.T) []string {
	t.Helper()
	driver := standin.Library(t)
	folder, err := front()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(driver, filepath.Join(folder, "sim")); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	return append(os.Environ(), "GPUMEM_LIB="+folder)
}

// TestHazardDoesNotEndAFit: the simulated driver refuses what most GPUs let pass, and the program
// was reported to fail, whatever the card; with GPUMEM_SIM_HAZARDS of the caller, too.
func TestHazardDoesNotEndAFit(t *testing.T) {
	env := append(environ(t), "GPUMEM_SIM_HAZARDS=refuse")
	program := standin.Compile(t, "testdata/hazard.c")
	r, err := fit.Run(t.Context(), fit.Config{Command: []string{program}, Env: env, Sim: sim.Config{Total: 1 << 30}})
	if err != nil || !r.Fits || r.PeakBytes < 64<<20 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestRun(t *testing.T) {
	env := environ(t)
	program := standin.Compile(t, "testdata/program.c")
	for _, tc := range []struct {
		name     string
		args     []string
		total    uint64
		smallest bool
		as       string
		fits     bool
		ranOn    uint64
		tried    []uint64 // cards; the last one does not fit
	}{
		{name: "fits", args: []string{"1000"}, total: 4 << 30, fits: true, ranOn: 4 << 30},
		{name: "as a framework's", args: []string{"1000"}, total: 4 << 30, fits: true, ranOn: 4 << 30, as: "tensorflow@2.21"},
		{name: "larger than the card", args: []string{"3000"}, total: 2 << 30, ranOn: 1 << 40},
		{name: "larger than the card with its context", args: []string{"1800"}, total: 2 << 30, ranOn: 1 << 40},
		{name: "smaller cards", args: []string{"9000"}, total: 24 << 30, smallest: true, fits: true, ranOn: 24 << 30, tried: []uint64{12 << 30, 8 << 30}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := fit.Run(t.Context(), fit.Config{Command: append([]string{program}, tc.args...), Env: env, Sim: sim.Config{Total: tc.total}, Context: 1 << 30, Smallest: tc.smallest, As: tc.as})
			if err != nil {
				t.Fatal(err)
			}
			var tried []uint64
			for i, c := range r.Tried {
				if tried = append(tried, c.Card); c.Fits == (i == len(r.Tried)-1) {
					t.Errorf("%+v", r.Tried)
				}
			}
			var want uint64
			fmt.Sscan(tc.args[0], &want)
			if (r.Advice != nil) != tc.fits || r.Program.RanOn != tc.ranOn || r.Trace.PeakLive != want<<20 || r.DeviceBytes != tc.total || !slices.Equal(tried, tc.tried) {
				t.Errorf("advice %v, ran on %d, peak %d, device %d, tried %v", r.Advice, r.Program.RanOn, r.Trace.PeakLive, r.DeviceBytes, tried)
			}
			if as := strings.TrimSuffix(r.Name+"@"+r.Version, "@"); as != cmp.Or(tc.as, "none") {
				t.Errorf("answered as %s", as)
			}
			for _, x := range r.Tried {
				if x.Fits && len(x.Set) == 0 { // of 9000 MiB no preallocated pool serves all
					t.Errorf("nothing set in %+v", x)
				}
			}
			if s := r.Summary; s.Fits != tc.fits || s.PeakBytes != want<<20 || s.Outside != 1<<30 || (s.Refusal == nil) != r.FitsAsItIs || len(s.Differs) == 0 {
				t.Errorf("%+v", s)
			}
			if r.Breaks != nil { // no function of JAX
				t.Errorf("%+v", r.Breaks)
			}
			if r.Trace.Source != program+" "+tc.args[0] {
				t.Errorf("source %q", r.Trace.Source)
			}
		})
	}
}

func TestRunErrors(t *testing.T) {
	env := environ(t)
	program := standin.Compile(t, "testdata/program.c")
	for _, tc := range []struct {
		name    string
		command []string
		env     []string
		want    string
	}{
		{"no program", []string{"/no/such/program"}, env, "no such file"},
		{"no GPU memory", []string{program, "0"}, env, fit.ErrNoGPU.Error()},
		{"fails before", []string{program, "0", "3"}, env, "not for lack of memory (exit status 3): cannot open the dataset"},
		{"fails after", []string{program, "5", "4"}, env, "not for lack of memory (exit status 4): cannot open the dataset"},
		{"an exception with a note", []string{"sh", "-c", `printf 'Traceback\n  x\njax.errors.JaxRuntimeError: INTERNAL: no\n-----\nFor simplicity, frames were removed.\n' >&2; exit 1`}, env, "(exit status 1): jax.errors.JaxRuntimeError: INTERNAL: no"},
		{"another machine's GPU", []string{program, "5"}, append(slices.Clone(env), "CUDA_VISIBLE_DEVICES=3"), "CUDA_VISIBLE_DEVICES=3 hides the simulated GPUs, of which there are 1: unset it"},
		{"no libraries", []string{program, "5"}, []string{"GPUMEM_LIB=" + t.TempDir()}, "build the library with scripts/libgpumem"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out bytes.Buffer
			_, err := fit.Run(t.Context(), fit.Config{Command: tc.command, Env: tc.env, Sim: sim.Config{Total: 4 << 30}, Context: 1 << 30, Stderr: &out})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			if failed := new(fit.FailedError); errors.As(err, &failed) && !strings.Contains(out.String(), failed.Last) {
				t.Errorf("the program's output is lost: %q", out.String())
			}
		})
	}
}

// TestProcessesShareTheCard: each has its memory and its context on the same GPU, what one took
// the others do not have, and which one a line of the answer is about can be seen.
func TestProcessesShareTheCard(t *testing.T) {
	env := environ(t)
	program := standin.Compile(t, "testdata/program.c")
	const script = `"$0" 300 0 children; "$0" 500` // the last one runs when the others have ended
	record := filepath.Join(t.TempDir(), "record")
	r, err := fit.Run(t.Context(), fit.Config{Command: []string{"sh", "-c", script, program}, Env: env, Sim: sim.Config{Total: 4 << 30}, Context: 1 << 30, Record: record})
	if err != nil {
		t.Fatal(err)
	}
	if kept, err := filepath.Glob(record + ".*"); err != nil || len(kept) != 4 || r.NotKept != nil {
		t.Errorf("recordings: %q, %v, %v", kept, err, r.NotKept)
	}
	if len(r.Program.Shares) != 4 || r.Program.RanOn < 4<<30 {
		t.Fatalf("%+v", r.Program)
	}
	var most, sum uint64
	for _, s := range r.Program.Shares {
		if s.GPU != "cuda:0" || s.Peak != 300<<20 && s.Peak != 500<<20 || s.AtPeak > s.Peak {
			t.Errorf("%+v", s)
		}
		most, sum = max(most, s.Peak), sum+s.AtPeak
	}
	// How far the three overlap is not known.
	if r.PeakBytes != sum || most != 500<<20 || r.PeakBytes < 500<<20 || r.PeakBytes > 900<<20 {
		t.Errorf("peak %d, at the peak %d, the largest %d", r.PeakBytes, sum, most)
	}
	smallest := *r.SmallestDevice
	if smallest < r.PeakBytes+1<<30 || smallest > 2*r.PeakBytes+4<<30 {
		t.Errorf("smallest device %d for a peak of %d", smallest, r.PeakBytes)
	}
}

// TestProcessesOfTwoFrameworksAreRefused by their names, unless the answer is to be in the settings
// of one of them.
func TestProcessesOfTwoFrameworksAreRefused(t *testing.T) {
	python, env := python(t)
	const script = `"$0" testdata/driver.py jax 200 end; "$0" testdata/driver.py tensorflow 200 end`
	for as, want := range map[string]string{"": "use jax and tensorflow, and the answer is in the settings of one: --as jax", "jax": ""} {
		_, err := fit.Run(t.Context(), fit.Config{Command: []string{"sh", "-c", script, python}, Env: env, Sim: sim.Config{Total: 4 << 30}, As: as, Stderr: io.Discard})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("as %q: %v, want %q", as, err, want)
		}
	}
}

// TestTemporaryFolder: its name may have signs that patterns and lists of folders have.
func TestTemporaryFolder(t *testing.T) {
	env := environ(t)
	program := standin.Compile(t, "testdata/program.c")
	for _, tc := range []struct{ name, want string }{
		{"a[b", ""},
		{"a*", ""},
		{"a:b", "its name has a comma or colon; set TMPDIR to one without"},
		{"a,b", "its name has a comma or colon; set TMPDIR to one without"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			temp := filepath.Join(t.TempDir(), tc.name)
			if err := os.Mkdir(temp, 0o700); err != nil {
				t.Fatal(err)
			}
			t.Setenv("TMPDIR", temp)
			r, err := fit.Run(t.Context(), fit.Config{Command: []string{program, "5", "0", "children"}, Env: env, Sim: sim.Config{Total: 4 << 30}, Context: 1 << 30})
			served := err == nil && len(r.Program.Shares) == 3
			refused := err != nil && tc.want != "" && strings.Contains(err.Error(), tc.want)
			if wants := tc.want == ""; wants != served || wants == refused {
				t.Errorf("%v, want %q", err, tc.want)
			}
			if left, _ := os.ReadDir(temp); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// TestSmallestCardHasFeatures: smaller cards are like the one that is given, and no other
// program is on them.
func TestSmallestCardHasFeatures(t *testing.T) {
	r, err := fit.Run(t.Context(), fit.Config{
		Command: []string{standin.Compile(t, "testdata/program.c"), "9000"}, Env: environ(t), Smallest: true, As: "jax", Context: 1 << 30,
		Sim: sim.Config{Total: 24 << 30, Used: 4 << 30, Display: 1 << 30, NoPages: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	if first := r.Tried[0]; first.Card != 12<<30 || !first.Fits || first.Set[0] != "XLA_FLAGS=--xla_gpu_experimental_vmm_disabled=true" {
		t.Errorf("%+v", r.Tried)
	}
	if last := r.Tried[len(r.Tried)-1]; last.Fits || last.Set == nil {
		t.Errorf("%+v", r.Tried)
	}
}

// TestSettings: what is set where there is no framework, where only this project's pool
// fits, and where nothing is to be set.
func TestSettings(t *testing.T) {
	env := environ(t)
	program, holes := standin.Compile(t, "testdata/program.c"), standin.Compile(t, "testdata/holes.c")
	for _, tc := range []struct {
		name    string
		command []string
		total   uint64
		fits    bool
		want    string // in JSON
	}{
		{"as it is", []string{program, "100"}, 4 << 30, true, `[]`},
		{"a policy", []string{program, "800"}, 1 << 30, true, `[{"name":"policy","value":"bfc:fraction=.78"}]`},
		{"this project's pool", []string{holes, "600"}, 620 << 20, true, `[{"name":"","value":"gpumem run --pool elastic -- COMMAND"}]`},
		{"nothing fits", []string{program, "1000"}, 900 << 20, false, `[]`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := fit.Run(t.Context(), fit.Config{Command: tc.command, Env: env, Sim: sim.Config{Total: tc.total}})
			if err != nil {
				t.Fatal(err)
			}
			if got, err := json.Marshal(r.Program); err != nil || !strings.Contains(string(got), `"compiled":[]`) {
				t.Errorf("%s, %v", got, err)
			}
			if got, err := json.Marshal(r.Settings); err != nil || string(got) != tc.want || r.Fits != tc.fits {
				t.Errorf("fits %v, %s, %v", r.Fits, got, err)
			}
		})
	}
}

// TestAborted: a program that is aborted after its own end has an answer, and no other that
// dies by a signal. The script is what PyTorch and its start-up file do.
func TestAborted(t *testing.T) {
	env := append(environ(t), "SNAPSHOT=../trace/testdata/torch2023.pickle")
	for _, tc := range []struct{ name, script, want string }{
		{"after its end", `echo '{"framework":"pytorch","version":"2.8.0","reason":"end"}' >"$GPUMEM_FIT.$$"; kill -ABRT $$`, ""},
		{"killed after its end", `echo '{"framework":"pytorch","version":"2.8.0","reason":"end"}' >"$GPUMEM_FIT.$$"; kill -KILL $$`, "signal: killed"},
		{"a fault after its end", `echo '{"framework":"pytorch","version":"2.8.0","reason":"end"}' >"$GPUMEM_FIT.$$"; kill -SEGV $$`, "signal: segmentation fault"},
		{"before its end", `kill -ABRT $$`, "signal: aborted"},
		{"before its end, when it repeated", `echo '{"framework":"pytorch","version":"2.8.0","reason":"repeats"}' >"$GPUMEM_FIT.$$"; kill -ABRT $$`, "signal: aborted"},
		{"an exit status", `echo '{"framework":"pytorch","version":"2.8.0","reason":"end"}' >"$GPUMEM_FIT.$$"; exit 134`, "exit status 134"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := fit.Run(t.Context(), fit.Config{Command: []string{"sh", "-c", `cp "$SNAPSHOT" "$GPUMEM_FIT.$$.torch"; ` + tc.script}, Env: env, Sim: sim.Config{Total: 24 << 30}})
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

// TestEarlierPeak: a recording that begins after the peak has a note.
func TestEarlierPeak(t *testing.T) {
	env := append(environ(t), "SNAPSHOT=../trace/testdata/torch2023.pickle")
	for peak, want := range map[string]bool{"1": false, "99000000000": true} {
		script := `cp "$SNAPSHOT" "$GPUMEM_FIT.$$.torch"; echo '{"framework":"pytorch","version":"2.8.0","reason":"end","peak_bytes":` + peak + `}' >"$GPUMEM_FIT.$$"`
		r, err := fit.Run(t.Context(), fit.Config{Command: []string{"sh", "-c", script}, Env: env, Sim: sim.Config{Total: 24 << 30}})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(strings.Join(r.Trace.Notes, "\n"), "came before them"); got != want {
			t.Errorf("a peak of %s: %q", peak, r.Trace.Notes)
		}
	}
}

// started cancels a context when the program has written something.
type started struct{ cancel context.CancelFunc }

func (s started) Write(p []byte) (int, error) { s.cancel(); return len(p), nil }

func TestInterruptedRunLeavesNothing(t *testing.T) {
	env := environ(t)
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := fit.Run(ctx, fit.Config{Command: []string{"sh", "-c", "echo; sleep 1000 & sleep 1000"}, Env: env, Sim: sim.Config{Total: 4 << 30}, Context: 1 << 30, Stdout: started{cancel}, Stderr: io.Discard})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if left, _ := os.ReadDir(temp); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestStoppedRunIsAnsweredFor: what ran until then is, as far as it is recorded, and nothing is left.
func TestStoppedRunIsAnsweredFor(t *testing.T) {
	env := append(environ(t), "SNAPSHOT=../trace/testdata/torch2023.pickle")
	program := standin.Compile(t, "testdata/program.c")
	for _, tc := range []struct {
		name, script string
		peak         uint64 // 0: there is no answer
	}{
		{"nothing", "echo; sleep 1000 & sleep 1000", 0},
		{"memory of a program that has ended", `"$0" 300; echo; sleep 1000 & sleep 1000`, 300 << 20},
		{"a program that the signal ends", `"$0" 300; echo; sleep .2; exit 130`, 300 << 20},
	} {
		t.Run(tc.name, func(t *testing.T) {
			temp := t.TempDir()
			t.Setenv("TMPDIR", temp)
			stop := make(chan struct{})
			once := sync.OnceFunc(func() { close(stop) })
			r, err := fit.Run(t.Context(), fit.Config{
				Command: []string{"sh", "-c", tc.script, program}, Env: env, Sim: sim.Config{Total: 4 << 30}, Stop: stop, Stdout: started{once}, Stderr: io.Discard,
			})
			if tc.peak == 0 {
				if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			} else if err != nil || r.PeakBytes != tc.peak || !r.Program.Interrupted || r.Doubts[0].Kind != fit.Ended {
				t.Errorf("%+v, %v", r, err)
			}
			if left, _ := os.ReadDir(temp); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// TestSteps ends a program after as many steps as it is to make. The program makes them without
// end.
func TestSteps(t *testing.T) {
	for _, tc := range []struct{ name, variable, command string }{
		{"jax", "GPUMEM_TEST_JAX", "../../internal/test/standin/python/jax_step.py 100000000"},
		{"pytorch", "GPUMEM_TEST_TORCH", "testdata/torch_programs.py dense 1 1000000"},
		{"tensorflow", "GPUMEM_TEST_TENSORFLOW", "../../internal/test/standin/python/tensorflow_step.py 1000000"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			python := os.Getenv(tc.variable)
			if python == "" {
				t.Skipf("SKIPPED: %s names no Python with %s and CUDA", tc.variable, tc.name)
			}
			r, err := fit.Run(t.Context(), fit.Config{
				Command: append([]string{python}, strings.Fields(tc.command)...), Env: environ(t), Sim: sim.Config{Total: 4 << 30}, Steps: 3, Stderr: os.Stderr,
			})
			if err != nil {
				t.Fatal(err)
			}
			if p := r.Program; !p.Stepped || p.Repeats || r.Doubts[0].Kind != fit.Ended {
				t.Errorf("%+v", p)
			}
			if p := r.Program; p.Steps != 3 || p.Framework != tc.name {
				t.Errorf("%+v", p)
			}
		})
	}
}

// TestTensorFlowRepeats: one that runs without end is ended when its memory repeats.
func TestTensorFlowRepeats(t *testing.T) {
	python := os.Getenv("GPUMEM_TEST_TENSORFLOW")
	if python == "" {
		t.Skip("SKIPPED: GPUMEM_TEST_TENSORFLOW names no Python with TensorFlow for CUDA")
	}
	r, err := fit.Run(t.Context(), fit.Config{
		Command: []string{python, "../../internal/test/standin/python/tensorflow_step.py", "100000000"}, Env: environ(t), Sim: sim.Config{Total: 4 << 30}, Stderr: os.Stderr,
	})
	if err != nil {
		t.Fatal(err)
	}
	if p := r.Program; !p.Repeats || p.Steps < 10 || r.PeakBytes < 4<<20 {
		t.Errorf("%+v, peak %d", p, r.PeakBytes)
	}
}

// TestJAX runs a real JAX program. GPUMEM_TEST_JAX is a Python with jax and its CUDA
// plugin, such as scripts/frameworks-on-sim makes.
func TestJAX(t *testing.T) {
	python := os.Getenv("GPUMEM_TEST_JAX")
	if python == "" {
		t.Skip("SKIPPED: GPUMEM_TEST_JAX names no Python with jax and its CUDA plugin")
	}
	r, err := fit.Run(t.Context(), fit.Config{
		Command: []string{python, "../../internal/test/standin/python/jax_step.py", "100000000"}, Env: append(environ(t), "XLA_PYTHON_CLIENT_MEM_FRACTION=.5"), Sim: sim.Config{Total: 2 << 30}, Context: 1 << 30, Stderr: os.Stderr,
	})
	if err != nil {
		t.Fatal(err)
	}
	p := r.Program
	if p.Framework != "jax" || p.Version == "" || !p.Repeats || len(p.Compiled) == 0 || p.Compiled[0].Name != "jit_train" || p.Compiled[0].Argument != 8<<20 || p.Compiled[0].Output != 4<<20 || !slices.Equal(p.Own, []string{"XLA_PYTHON_CLIENT_MEM_FRACTION=.5"}) {
		t.Errorf("%+v", p)
	}
	if r.Advice == nil || r.Trace.PeakLive < p.Compiled[0].Total()-p.Compiled[0].Code { // code may lie outside of the pool
		t.Errorf("%+v", r.Trace)
	}
}

// TestJAXIsNotRefused: a program that is larger than the card runs to its end, so that its
// whole peak is known. XLA compiles for the card all the same.
func TestJAXIsNotRefused(t *testing.T) {
	python := os.Getenv("GPUMEM_TEST_JAX")
	if python == "" {
		t.Skip("SKIPPED: GPUMEM_TEST_JAX names no Python with jax and its CUDA plugin")
	}
	r, err := fit.Run(t.Context(), fit.Config{
		Command: []string{python, "testdata/programs.py", "mlp", "16", "4"}, Env: environ(t), Sim: sim.Config{Total: 250 << 20}, Stderr: os.Stderr,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Trace.Refused > 0 || r.Trace.PeakLive < 300<<20 || r.Fits || r.SmallestDevice == nil || *r.SmallestDevice < r.Trace.PeakLive {
		t.Errorf("%+v, smallest device %v", r.Trace, r.SmallestDevice)
	}
	// Its results are as large as its temporaries.
	if b := r.Breaks; b == nil || b.Function != "jit_step" || b.For != fit.Results {
		t.Errorf("%+v", b)
	}
}
