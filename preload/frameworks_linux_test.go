// Real PyTorch, JAX and TensorFlow that share a simulated GPU by turns.

package preload

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gpumem/internal/hostmem"
	"gpumem/node/ledger"
	"gpumem/size"
)

// The simulated GPU, on which work takes time. What lies outside of a process's pool, the context,
// is small, so that three programs of 83 % are told from three that do not fit.
const (
	turnsTotal   = 2 << 30
	turnsOutside = 32 << 20
	turnsKernel  = 2 * time.Millisecond
	turnsLink    = 25e9 // bytes a second
)

// turnsGPU runs programs of testdata/turns.py on it, in one lease.
type turnsGPU struct {
	gpumem, library, program string
	python                   map[string]string // by framework
}

// turnsProgram is what testdata/turns.py says of itself.
type turnsProgram struct {
	Program                       string
	Bytes, Kernels, Read, Written uint64
	Checked, Wrong                int
}

// alone is how long its work takes on a GPU that it has for itself.
func (p turnsProgram) alone() time.Duration {
	copies := float64(p.Read+p.Written) / turnsLink * float64(time.Second)
	return time.Duration(p.Kernels)*turnsKernel + time.Duration(copies)
}

// turnsRun is what came of a run.
type turnsRun struct {
	text     string
	programs []turnsProgram
	kernels  time.Duration
	copies   time.Duration // to the device and to the host
	hazards  int
	swaps    uint64 // of all processes
	most     uint64 // that they held together
	reasons  map[ledger.Reason]bool
}

func (r *turnsRun) alone() (sum time.Duration) {
	for _, p := range r.programs {
		sum += p.alone()
	}
	return sum
}

func (r *turnsRun) ratio() float64 { return float64(r.kernels+r.copies) / float64(r.alone()) }

// newTurnsGPU skips the test unless GPUMEM_TEST_TURNS names Pythons, with a colon between them, that
// have the frameworks. A case whose framework none of them has is skipped.
func newTurnsGPU(t *testing.T) *turnsGPU {
	t.Helper()
	list := os.Getenv("GPUMEM_TEST_TURNS")
	if list == "" {
		t.Skip("SKIPPED: GPUMEM_TEST_TURNS names no Python with torch, jax and tensorflow for CUDA (several: P:Q)")
	}
	b := libraries(t)
	g := &turnsGPU{gpumem: filepath.Join(t.TempDir(), "gpumem"), library: t.TempDir(), python: map[string]string{}}
	if out, err := exec.Command("go", "build", "-o", g.gpumem, "gpumem/cmd/gpumem").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// gpumem finds the simulated driver in a folder of the library's.
	files, err := filepath.Glob(filepath.Join(b.front, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if file == b.driver {
			continue
		}
		if err := os.Symlink(file, filepath.Join(g.library, filepath.Base(file))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(b.driver, filepath.Join(g.library, "sim")); err != nil {
		t.Fatal(err)
	}
	if g.program, err = filepath.Abs("testdata/turns.py"); err != nil {
		t.Fatal(err)
	}
	for _, framework := range []string{"torch", "jax", "tensorflow"} {
		for _, python := range filepath.SplitList(list) {
			find := fmt.Sprintf("import importlib.util, sys; sys.exit(importlib.util.find_spec(%q) is None)", framework)
			if exec.Command(python, "-c", find).Run() == nil {
				g.python[framework] = cmp.Or(g.python[framework], python)
			}
		}
	}
	return g
}

// command is the shell's words for a program.
func (g *turnsGPU) command(t *testing.T, framework string, args ...any) string {
	t.Helper()
	python := g.python[framework]
	if python == "" {
		t.Skipf("SKIPPED: no Python of GPUMEM_TEST_TURNS has %s", framework)
	}
	return fmt.Sprint(python, " ", g.program, " ", framework, " ", strings.TrimSuffix(fmt.Sprintln(args...), "\n"))
}

// together is a script of programs that begin at the same time. Its status is 1 if one fails.
func (g *turnsGPU) together(t *testing.T, frameworks []string, args ...any) string {
	t.Helper()
	dir := t.TempDir()
	var script strings.Builder
	fmt.Fprintf(&script, "cd %s && mkfifo ready go && exec 3<>ready || exit\n", dir)
	for i, f := range frameworks {
		words := g.command(t, f, append(args, "--seed", i+1, "--together", dir)...)
		fmt.Fprintf(&script, "%s & all=\"$all $!\"\n", words)
	}
	script.WriteString("for p in $all; do read x <&3; done; exec 4>go\n")
	script.WriteString("for p in $all; do wait $p || failed=1; done; exit $failed")
	return script.String()
}

// run runs a script of the shell. Contents are kept if the host's memory for them is not 0.
func (g *turnsGPU) run(t *testing.T, total, contents uint64, script string, flags ...string) *turnsRun {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	mib := func(n uint64) string { return fmt.Sprintf("%dMiB", n>>20) }
	words := []string{"run", "--simulate", mib(total) + ",context=" + mib(turnsOutside), "--overhead", mib(turnsOutside)}
	words = append(words, flags...)
	cmd := exec.CommandContext(ctx, g.gpumem, append(words, "--", "sh", "-c", script)...)
	cmd.Env = append(os.Environ(), "GPUMEM_LIB="+g.library, "GPUMEM_RUN_DIR="+dir, "GPUMEM_SIM_LOG="+log,
		"GPUMEM_SIM_KERNEL="+turnsKernel.String(), fmt.Sprintf("GPUMEM_SIM_LINK=%.0fMB/s", turnsLink/1e6),
		"GPUMEM_SIM_CONTENTS="+mib(contents), "GOGC=20", // the contents are in Go's heap
		"TF_CPP_MIN_LOG_LEVEL=3")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	r := &turnsRun{reasons: map[ledger.Reason]bool{}}
	ended := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { r.watch(dir, ended) })
	err := cmd.Run()
	close(ended)
	watching.Wait()
	if r.text = out.String(); err != nil {
		t.Fatalf("%v\n%s", err, r.text)
	}
	r.read(t, log)
	return r
}

// watch follows the ledger of what runs by turns.
func (r *turnsRun) watch(dir string, ended <-chan struct{}) {
	var l *ledger.Ledger
	swaps := map[int]uint64{}
	for tick := time.Tick(10 * time.Millisecond); ; {
		select {
		case <-ended:
			for _, n := range swaps {
				r.swaps += n
			}
			if l != nil {
				l.Close()
			}
			return
		case <-tick:
		}
		if l == nil {
			if files, _ := filepath.Glob(filepath.Join(dir, "*.turns")); len(files) == 1 {
				l, _ = ledger.Open(files[0])
			}
			continue
		}
		r.most = max(r.most, l.Held())
		for _, e := range l.Turns() {
			swaps[e.PID] = max(swaps[e.PID], e.Swaps)
			r.reasons[e.Reason] = true
		}
	}
}

var turnsBusy = regexp.MustCompile(`of its work: kernels (\S+), copies to the device (\S+), copies to the host (\S+)`)

// read reads what the programs, gpumem and the simulated driver wrote.
func (r *turnsRun) read(t *testing.T, log string) {
	t.Helper()
	for line := range strings.Lines(r.text) {
		if strings.HasPrefix(line, "{") {
			var p turnsProgram
			if err := json.Unmarshal([]byte(line), &p); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			r.programs = append(r.programs, p)
		}
	}
	m := turnsBusy.FindStringSubmatch(r.text)
	if m == nil {
		t.Fatalf("no time of the GPU's work:\n%s", r.text)
	}
	var of [3]time.Duration
	for i, text := range m[1:] {
		var err error
		if of[i], err = time.ParseDuration(strings.TrimSuffix(text, ",")); err != nil {
			t.Fatal(err)
		}
	}
	r.kernels, r.copies = of[0], of[1]+of[2]
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if r.hazards = bytes.Count(text, []byte("hazard:")); r.hazards > 0 {
		t.Errorf("%s", text)
	}
}

// check checks what holds in every run, and logs a line of the table.
func (r *turnsRun) check(t *testing.T, total uint64, programs int) {
	t.Helper()
	wrong, checked := 0, 0
	for _, p := range r.programs {
		wrong += p.Wrong
		checked += p.Checked
	}
	if r.hazards > 0 || wrong > 0 || len(r.programs) != programs || r.most > total || r.ratio() > 1.5 {
		t.Errorf("a run is not right:\n%s", r.text)
	}
	delete(r.reasons, ledger.NoReason)
	t.Logf("%d hazards, %d of %d blocks wrong, time %.2f, %d ways out, %s held at most, not asked for %v",
		r.hazards, wrong, checked, r.ratio(), r.swaps, size.Format(r.most), r.reasons)
}

// turnsCases are programs, each of an equal part of a sum of percents of the GPU.
var turnsCases = []struct {
	programs string
	percent  int
	policy   string
}{
	{"torch jax", 90, "elastic"}, // they fit
	{"torch torch", 140, "elastic"},
	{"torch jax", 140, "elastic"},
	{"jax tensorflow", 140, "elastic"},
	{"tensorflow torch", 140, "elastic"},
	{"torch jax", 180, "elastic"},
	{"jax jax", 180, "elastic"},
	{"tensorflow tensorflow", 180, "elastic"},
	{"torch jax tensorflow", 140, "elastic"},
	{"torch jax tensorflow", 180, "elastic"},
	{"torch jax tensorflow", 250, "elastic"},
	{"torch jax", 140, "vmm"},
	{"jax torch", 140, "platform"},
}

// TestFrameworksByTurns: pairs and triples of real programs whose memory exceeds the GPU together.
// No work meets memory that is not there, what they wrote is what they read, the ledger never has
// more than the GPU, and by the GPU's clock it takes at most 1.5 times what they take one after the
// other. Programs that fit are not moved.
//
//	GPUMEM_TEST_TURNS=/env/bin/python:/tf/bin/python go test ./preload -run ByTurns -v -timeout 3h
func TestFrameworksByTurns(t *testing.T) {
	g := newTurnsGPU(t)
	for _, tc := range turnsCases {
		t.Run(fmt.Sprintf("%s %d%% %s", tc.programs, tc.percent, tc.policy), func(t *testing.T) {
			frameworks := strings.Fields(tc.programs)
			mib := turnsTotal >> 20 * tc.percent / 100 / len(frameworks)
			script := g.together(t, frameworks, "--mib", mib, "--kernels", 1500, "--steps", 9)
			r := g.run(t, turnsTotal, 3*turnsTotal, script, "--pool", tc.policy, "--turns")
			r.check(t, turnsTotal, len(frameworks))
			if fits := tc.percent < 100; fits && (r.swaps > 0 || r.ratio() > 1.02) {
				t.Errorf("programs that fit were moved:\n%s", r.text)
			} else if !fits && r.swaps == 0 {
				t.Errorf("nothing was moved:\n%s", r.text)
			}
		})
	}
}

// TestLargeGPUByTurns: the same on a GPU of 24 GiB without contents, whose books are looked at; where the
// host has no room for that, of 8.
func TestLargeGPUByTurns(t *testing.T) {
	g := newTurnsGPU(t)
	room, err := hostmem.Free()
	if err != nil {
		t.Fatal(err)
	}
	total := uint64(24 << 30)
	if room.Bytes < total {
		total = 8 << 30
	}
	if room.Bytes < total {
		t.Skipf("SKIPPED: the host has room for %s", size.Format(room.Bytes))
	}
	mib := total >> 20 * 7 / 10
	script := g.together(t, []string{"torch", "jax"}, "--mib", mib, "--kernels", 1500, "--steps", 9, "--unchecked")
	r := g.run(t, total, 0, script, "--pool", "elastic", "--turns")
	r.check(t, total, 2)
	if r.swaps == 0 {
		t.Errorf("nothing was moved:\n%s", r.text)
	}
}

// TestNotebookBesideTraining: a notebook has filled 80 % of the GPU and idles; a training that wants
// 75 % starts and ends meanwhile, for which the notebook's memory leaves once. The notebook's next
// cell finds its arrays.
func TestNotebookBesideTraining(t *testing.T) {
	g := newTurnsGPU(t)
	for _, programs := range [][2]string{{"torch", "torch"}, {"jax", "torch"}, {"tensorflow", "jax"}} {
		t.Run(strings.Join(programs[:], " "), func(t *testing.T) {
			dir := t.TempDir()
			const text = "cd %s && mkfifo filled cell || exit\n%s & all=$!\nread x <filled\n%s && echo >cell && wait $all"
			script := fmt.Sprintf(text, dir, g.command(t, programs[0], "--mib", turnsTotal>>20*80/100, "--notebook", dir),
				g.command(t, programs[1], "--mib", turnsTotal>>20*75/100, "--kernels", 500, "--steps", 2, "--seed", 2))
			r := g.run(t, turnsTotal, 3*turnsTotal, script, "--pool", "elastic", "--lend", "1s")
			r.check(t, turnsTotal, 2)
			if r.swaps != 1 {
				t.Errorf("%d ways out, want the notebook's\n%s", r.swaps, r.text)
			}
		})
	}
}
