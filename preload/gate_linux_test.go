package preload

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

var closings = flag.Int("closings", 100000, "how often the gate closes among `64` threads that submit work; a hundredth without the right to SCHED_FIFO")

// buildGate makes a folder with the library before the driver of gate_driver.c, and in the place of
// the pools those of gate_pools.c, which hand the gate to the program gate.
var buildGate = sync.OnceValues(func() (string, error) {
	b, err := build()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(b.programs, "at-gate")
	for _, c := range []string{
		"mkdir DIR",
		"cp " + filepath.Join(b.front, "libcuda.so.1") + " DIR",
		"gcc -O1 -shared -fPIC -Ifront -o DIR/libgpumem.so testdata/gate_pools.c",
		"gcc -O1 -Wall -shared -fPIC -o DIR/driver.so testdata/gate_driver.c -ldl",
		"gcc -O1 -Wall -Ifront -o DIR/gate testdata/gate.c -ldl -lpthread",
	} {
		words := strings.Fields(strings.ReplaceAll(c, "DIR", dir))
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w\n%s", c, err, out)
		}
	}
	return dir, nil
})

func gateBuilt(t testing.TB) string {
	t.Helper()
	libraries(t)
	if *builtIn != "" {
		t.Skip("SKIPPED: -built: the machine of a bundle may have no C compiler, which the gate's own driver needs")
	}
	dir, err := buildGate()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// runGate runs a mode of the program. It returns what that and the library write, and ends one that
// hangs.
func runGate(t testing.TB, dir, environ string, mode ...string) (out, said string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(dir, "gate"), mode...)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, "GPUMEM_LIBCUDA="+filepath.Join(dir, "driver.so"), "GATE_POOLS="+filepath.Join(dir, "libgpumem.so"))
	cmd.Env = append(cmd.Env, strings.Fields(environ)...)
	cmd.WaitDelay = time.Second
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	timer := time.AfterFunc(5*time.Minute, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	if err := cmd.Run(); err != nil {
		t.Errorf("%s: %v\n%s%s", strings.Join(mode, " "), err, o.String(), e.String())
	}
	return o.String(), e.String()
}

const lend = "GPUMEM_LEND=30000000000"

// TestGateLetsNoCallPassWhileItIsClosed has 64 threads submit at full speed by each way that a
// program has, while others begin and end, and the gate closes and opens. It refuses a gate whose
// threads look before they mark, or leave before the driver returns; mostly, too, one without the
// kernel's barrier, for which TestGate has a case of its own.
func TestGateLetsNoCallPassWhileItIsClosed(t *testing.T) {
	n := *closings
	if testing.Short() {
		n = min(n, 2000)
	}
	out, said := runGate(t, gateBuilt(t), lend, "race", "64", fmt.Sprint(n))
	if out != "" {
		t.Error(out)
	}
	t.Log(said)
}

// TestGate: calls with all their arguments, calls within calls, threads that end in the middle or are
// cancelled, more threads than records, children, handlers of signals, pointers of cuGetProcAddress,
// streams, and a kernel without the barrier.
func TestGate(t *testing.T) {
	dir := gateBuilt(t)
	const unseen = "gpumem: this process keeps its memory and takes no turns any more: it has asked cuGetProcAddress for more functions than the gate has slots\n"
	const refused = "gpumem: this process keeps its memory and takes no turns: the kernel refuses membarrier(2), which Linux has since 4.14; a container's seccomp profile may forbid it\n"
	for _, tc := range []struct{ name, mode, environ, says string }{
		{"arguments", "arguments", lend, ""},
		{"by turns", "arguments", "GPUMEM_TURNS=auto", ""},
		{"open for a moment", "again 1000", lend, ""},
		{"nested calls", "nested", lend, ""},
		{"threads that end", "ends", lend, ""},
		{"many threads", "many 200", lend, ""},
		{"children", "forks", lend, ""},
		{"signals", "signals", lend, ""},
		{"pointers", "pointers", lend, ""},
		{"more pointers than slots", "full", lend, unseen},
		{"streams", "streams", lend, ""},
		{"barrier behind the mark", "barrier", lend, ""},
		{"barrier refused later", "no-barrier", lend, ""},
		{"barrier refused", "refused", lend, refused},
		{"no gate", "none", "GPUMEM_LEND=", ""},
		{"switched off", "forwarded", lend + " GPUMEM_OFF=1", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out, said := runGate(t, dir, tc.environ, strings.Fields(tc.mode)...)
			if out != "" || said != tc.says {
				t.Errorf("%s%q, want %q", out, said, tc.says)
			}
		})
	}
}

// TestCallsWithoutTurnsAreTheDriversOwn: in a program that lends nothing and takes no turns, a function that
// is not served is one jump to the driver's own, also of those that pass the gate elsewhere. With turns these
// go to the gate, so that the test would see it.
func TestCallsWithoutTurnsAreTheDriversOwn(t *testing.T) {
	b := libraries(t)
	if *builtIn != "" {
		t.Skip("SKIPPED: -built: the machine of a bundle may have no C compiler, which this program needs")
	}
	program := filepath.Join(t.TempDir(), "table")
	gcc := exec.Command("gcc", "-O1", "-Wall", "-o", program, "testdata/table.c", "-ldl")
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	front, err := os.ReadFile("front/front.c")
	must(t, err)
	served := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^API (cu\w+)\(`).FindAllStringSubmatch(string(front), -1) {
		served[m[1]] = true
	}
	marks := map[string]bool{} // not served, and pass the gate
	names, err := os.ReadFile("names/cuda.txt")
	must(t, err)
	for line := range strings.Lines(string(names)) {
		if words := strings.Fields(line); len(words) > 1 && !served[words[0]] {
			marks[words[0]] = true
		}
	}
	driver := filepath.Join(b.driver, "libcuda.so.1")
	for _, environ := range []string{"GPUMEM_LEND=", lend} {
		cmd := exec.Command(program, driver, "names/cuda.txt")
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+b.front, "GPUMEM_LIBCUDA="+driver)
		cmd.Env = append(cmd.Env, "GPUMEM_DEVICE=sim:1GiB", environ)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		forwarded, gated := 0, 0
		for line := range strings.Lines(string(out)) {
			name, where, _ := strings.Cut(strings.TrimSpace(line), " ")
			want := "driver"
			switch {
			case served[name]:
				want = "served"
			case environ == lend && where == "elsewhere": // to the gate, or to what notes streams and what is shared
				want = where
				gated++
			case environ == lend && marks[name]:
				want = "elsewhere"
			default:
				forwarded++
			}
			if where != want {
				t.Errorf("%s, %s: %s, want %s", environ, name, where, want)
			}
		}
		if forwarded < 300 || (gated >= 100) != (environ == lend) {
			t.Errorf("%s: %d functions are forwarded, and %d pass the gate", environ, forwarded, gated)
		}
	}
}

// TestContainersHaveNoGate: the mark of a container's folder decides, not its environment.
func TestContainersHaveNoGate(t *testing.T) {
	dir := t.TempDir()
	must(t, os.CopyFS(dir, os.DirFS(gateBuilt(t))))
	if err := os.WriteFile(filepath.Join(dir, "leased"), []byte("/nowhere/lease\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	out, said := runGate(t, dir, lend, "forwarded")
	if out != "" || !strings.HasPrefix(said, "gpumem: no GPU memory is served: ") {
		t.Errorf("%s%s", out, said)
	}
}

// TestProgramsUnderGate: programs run as before with the pools and a gate that nobody closes.
func TestProgramsUnderGate(t *testing.T) {
	b := libraries(t)
	for _, program := range []string{"random 1", "random 2", "signals", "life threads"} {
		name, args, _ := strings.Cut(program, " ")
		if out := run(t, b, []string{lend}, name, strings.Fields(args)...); out != "" {
			t.Errorf("%s: %s", program, out)
		}
	}
}

// BenchmarkGate measures a call that is forwarded, with the gate and without, beside the driver's
// own: nanoseconds of CPU time. No call takes memory.
func BenchmarkGate(b *testing.B) {
	dir := gateBuilt(b)
	for b.Loop() {
		figures := map[string]float64{}
		for _, environ := range []string{"GPUMEM_LEND=", lend} {
			out, _ := runGate(b, dir, environ, "cost")
			for line := range strings.Lines(out) {
				var name string
				var ns float64
				if _, err := fmt.Sscan(line, &name, &ns); err != nil {
					b.Fatalf("%q: %v", line, err)
				}
				if environ == lend {
					name = "gated-" + name
				}
				figures[name] = ns
			}
		}
		b.ReportMetric(figures["direct-ns"], "direct-ns")
		b.ReportMetric(figures["forwarded-ns"], "forwarded-ns")
		b.ReportMetric(figures["gated-forwarded-ns"], "gated-ns")
		b.ReportMetric(figures["gated-forwarded-ns"]/figures["forwarded-ns"], "ratio")
	}
}
