// Package preload tests the driver library as programs meet it: built by its script, in front
// of the simulated driver, or of a real one.
package preload

import (
	"bytes"
	"debug/elf"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// built are the folders of the two libraries, and of the C programs.
type built struct{ front, driver, programs string }

// idleDriver is the file of a driver whose calls do nothing.
func (b built) idleDriver() string { return filepath.Join(b.programs, "nothing.so") }

var (
	builtIn = flag.String("built", "", "the `folder` of a bundle (scripts/gpu-check) that has the programs in c and the driver in sim")
	frontIn = flag.String("front", "", "with -built: the `folder` of the library in front")
)

// build builds them, once, into a folder of the first test that asks.
var build = sync.OnceValues(func() (b built, err error) {
	if *builtIn != "" {
		return built{*frontIn, filepath.Join(*builtIn, "sim"), filepath.Join(*builtIn, "c")}, nil
	}
	dir, err := os.MkdirTemp("", "gpumem-lib")
	if err != nil {
		return b, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // a program that changes its user loads from it
		return b, err
	}
	b = built{filepath.Join(dir, "front"), filepath.Join(dir, "front", "sim"), dir} // where run --simulate has it, too
	for _, c := range [][]string{
		{"../scripts/libgpumem", b.front},
		{"../scripts/libcudasim", b.driver},
		{"gcc", "-O1", "-Wall", "-o", filepath.Join(dir, "conformance"), "testdata/conformance.c", "-ldl", "-lpthread"},
		{"gcc", "-O1", "-Wall", "-o", filepath.Join(dir, "random"), "testdata/random.c", "-ldl"},
		{"gcc", "-O1", "-Wall", "-o", filepath.Join(dir, "signals"), "testdata/signals.c", "-ldl", "-lpthread"},
		{"gcc", "-O1", "-Wall", "-o", filepath.Join(dir, "ids"), "testdata/ids.c", "-ldl", "-lpthread"},
		{"gcc", "-O1", "-Wall", "-o", filepath.Join(dir, "life"), "testdata/life.c", "-ldl", "-lpthread"},
		{"gcc", "-O2", "-shared", "-fPIC", "-o", b.idleDriver(), "testdata/nothing.c"},
		{"gcc", "-O2", "-Wall", "-o", filepath.Join(dir, "cost"), "testdata/cost.c", "-ldl", "-lpthread"},
	} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			return b, fmt.Errorf("%s: %w\n%s", strings.Join(c, " "), err, out)
		}
	}
	return b, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if b, err := build(); err == nil && *builtIn == "" {
		os.RemoveAll(b.programs)
	}
	os.Exit(code)
}

func libraries(t testing.TB) built {
	t.Helper()
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		t.Skip("the library is for linux on amd64 and arm64")
	}
	if _, err := exec.LookPath("gcc"); err != nil && *builtIn == "" {
		t.Skip("no C compiler: gcc is not there")
	}
	b, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// run runs a program with the library in front of the simulated driver, and returns what
// it and the library wrote, on either output. It ends within a minute.
func run(t testing.TB, b built, env []string, program string, args ...string) string {
	t.Helper()
	driver := filepath.Join(b.driver, "libcuda.so.1")
	if program == "cost" {
		driver = b.idleDriver()
	}
	if real := os.Getenv("GPUMEM_TEST_LIBCUDA"); real != "" {
		driver = real
	}
	cmd := exec.Command(filepath.Join(b.programs, program), args...)
	cmd.Env = append(append(os.Environ(), "LD_LIBRARY_PATH="+b.front, "GPUMEM_LIBCUDA="+driver, "GPUMEM_DEVICE=sim:1GiB", "GPUMEM_REPORT=0"), env...)
	cmd.WaitDelay = time.Second
	timer := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out.String())
	}
	return out.String()
}

// TestAllFormsOfAFunctionAreServed: of a function that is served, the driver's forms for other
// releases and for streams of each thread's own are, too: a program by one of them would get
// memory that nobody counts. Without, cuCtxDetach's likes were the driver's, and
// cuGetProcAddress_v2_ptsz gave out all of its functions.
func TestAllFormsOfAFunctionAreServed(t *testing.T) {
	front, err := os.ReadFile("front/front.c")
	names, err2 := os.ReadFile("names/cuda.txt")
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	base := regexp.MustCompile(`(_v\d+)?(_ptsz|_ptds)?$`)
	served, bases := map[string]bool{}, map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^API (cu\w+)\(`).FindAllStringSubmatch(string(front), -1) {
		served[m[1]], bases[base.ReplaceAllString(m[1], "")] = true, true
	}
	if len(served) < 50 {
		t.Fatalf("%d functions are served", len(served))
	}
	for line := range strings.Lines(string(names)) {
		name := strings.Fields(line)[0]
		// No block of a pool has an address of 32 bits.
		if bases[base.ReplaceAllString(name, "")] && !served[name] && name != "cuMemGetAddressRange" {
			t.Errorf("%s is the driver's", name)
		}
	}
}

// TestConformance runs a C program that asks for everything and checks the answers. The
// library has two lines to write: about a request that no lease serves, and about memory
// that cannot be shared. With GPUMEM_TEST_LIBCUDA=/path/of/libcuda.so.1 the program runs on
// a real GPU.
func TestConformance(t *testing.T) {
	b := libraries(t)
	for _, env := range [][]string{nil, {"GPUMEM_FREES=stream"}} {
		t.Run(strings.Join(env, " "), func(t *testing.T) {
			out := run(t, b, append(env, "GPUMEM_LIMIT=67108864"), "conformance")
			for _, note := range []string{
				"gpumem: GPU 0: out of memory: a request of 8 EiB, ",
				"gpumem: cuIpcGetMemHandle: memory that the pool serves cannot be shared",
			} {
				line, rest, _ := strings.Cut(out, "\n")
				if !strings.HasPrefix(line, note) {
					t.Fatalf("%q, want a line %q", line, note)
				}
				out = rest
			}
			if out != "" {
				t.Error(out)
			}
		})
	}
}

func TestRandom(t *testing.T) {
	b := libraries(t)
	for seed := range 10 {
		if out := run(t, b, nil, "random", fmt.Sprint(seed)); out != "" {
			t.Errorf("seed %d: %s", seed, out)
		}
	}
}

// TestSignals: a program's handlers run where they find themselves, and Go's threads take
// none of its signals.
func TestSignals(t *testing.T) {
	b := libraries(t)
	for range 3 {
		if out := run(t, b, nil, "signals"); out != "" {
			t.Error(out)
		}
	}
}

// TestIDsChangeWhileGoThreadsRun: setuid and its like return, a thread is cancelled where the
// program can be, and timers' signals reach who waits for them. With signals of the C library
// blocked in a thread, the first waited for ever.
func TestIDsChangeWhileGoThreadsRun(t *testing.T) {
	b := libraries(t)
	for _, tc := range []struct {
		name string
		env  []string
	}{
		{"pool", nil},
		{"pool with a lease", []string{"GPUMEM_LIMIT=67108864", "GPUMEM_REPORT=1"}}, // a line about the refusal
		{"no pool", []string{"GPUMEM_OFF=1"}},
		{"the simulated driver alone", []string{"LD_LIBRARY_PATH=" + b.driver}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, args := range [][]string{nil, {"65534"}} { // as a user without rights, where this one has them
				if out := run(t, b, tc.env, "ids", args...); out != "" {
					t.Errorf("%q: %s", args, out)
				}
			}
		})
	}
}

// TestFaults has each of the driver calls fail in turn.
func TestFaults(t *testing.T) {
	b := libraries(t)
	for seed := range 3 {
		if out := run(t, b, nil, "random", fmt.Sprint(seed), "faults"); out != "" {
			t.Errorf("seed %d: %s", seed, out)
		}
	}
}

// TestFiles: the names that programs find, and how large the files are.
func TestFiles(t *testing.T) {
	b := libraries(t)
	total := int64(0)
	for _, f := range []struct{ name, prefix string }{{"libcuda.so.1", "cu"}, {"libnvidia-ml.so.1", "nvml"}, {"libgpumem.so", ""}} {
		path := filepath.Join(b.front, f.name)
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		total += info.Size()
		if f.prefix == "" {
			continue
		}
		e, err := elf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		if so, _ := e.DynString(elf.DT_SONAME); len(so) != 1 || so[0] != f.name {
			t.Errorf("%s: SONAME %q", f.name, so)
		}
		symbols, err := e.DynamicSymbols()
		if err != nil {
			t.Fatal(err)
		}
		names := 0
		for _, s := range symbols {
			if s.Section == elf.SHN_UNDEF {
				continue
			}
			if names++; !strings.HasPrefix(s.Name, f.prefix) {
				t.Errorf("%s exports %s", f.name, s.Name)
			}
		}
		if names < 300 {
			t.Errorf("%s exports %d names", f.name, names)
		}
	}
	// 4 MiB without turns: a ledger's record and plan of them, what moves memory, and why it stays, have the rest.
	const most = 4<<20 + 320<<10
	if total > most {
		t.Errorf("the library has %d bytes, want at most %d", total, most)
	}
}

// TestMissing: what the program is told where a part is missing.
func TestMissing(t *testing.T) {
	b := libraries(t)
	alone := t.TempDir()
	for _, name := range []string{"libcuda.so.1"} {
		data, err := os.ReadFile(filepath.Join(b.front, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(alone, name), data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name, libcuda, folder, want string
	}{
		{"driver not named", "", b.front, "GPUMEM_LIBCUDA does not name the driver's libcuda.so.1"},
		{"no driver", "/nowhere/libcuda.so.1", b.front, "/nowhere/libcuda.so.1: cannot open"},
		{"no pools", filepath.Join(b.driver, "libcuda.so.1"), alone, "the pools are not loaded: " + alone},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := exec.Command(filepath.Join(b.programs, "random"), "1")
			cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+c.folder, "GPUMEM_LIBCUDA="+c.libcuda, "GPUMEM_DEVICE=sim:1GiB")
			out, _ := cmd.CombinedOutput()
			if n := strings.Count(string(out), "gpumem: "); n != 1 || !strings.Contains(string(out), c.want) {
				t.Errorf("said %q, want one line with %q", out, c.want)
			}
		})
	}
}

// BenchmarkCost runs the cost program in front of a driver that does nothing: nanoseconds
// of CPU time of each kind of call.
func BenchmarkCost(b *testing.B) {
	l := libraries(b)
	for b.Loop() {
		for line := range strings.Lines(run(b, l, nil, "cost")) {
			name, ns, _ := strings.Cut(strings.TrimSpace(line), " ")
			var v float64
			if _, err := fmt.Sscan(ns, &v); err != nil {
				b.Fatalf("%q: %v", line, err)
			}
			b.ReportMetric(v, name)
		}
	}
}

// TestPoolsAskForNoVariable: the Go code behind the C fronts reads no variable of the environment, see gm_settings in gpumem.h.
func TestPoolsAskForNoVariable(t *testing.T) {
	asks := regexp.MustCompile(`\bos\.(Getenv|LookupEnv|Environ|ExpandEnv)\b`)
	for _, folder := range []string{"libgpumem", "sim", "internal/shim", "internal/guest"} {
		files, err := filepath.Glob(filepath.Join(folder, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", folder, len(files), err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if found := asks.Find(text); found != nil && !strings.HasSuffix(file, "_test.go") {
				t.Errorf("%s: %s; its front reads variables, with getenv", file, found)
			}
		}
	}
}
