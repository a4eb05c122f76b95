package gpumem_test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"gpumem/internal/report"
)

// benchmarks runs another package's benchmarks as anyone would, and is the least
// (or for a rate the largest) value of each unit, by "Name unit".
func benchmarks(t testing.TB, pkg, pattern string, args ...string) map[string]float64 {
	t.Helper()
	cmd := exec.Command("go", append([]string{"test", pkg, "-run", "^$", "-bench", pattern}, args...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as where there is no C compiler
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	best := map[string]float64{}
	for sc := bufio.NewScanner(bytes.NewReader(out)); sc.Scan(); {
		f := strings.Fields(sc.Text())
		if len(f) < 4 || !strings.HasPrefix(f[0], "Benchmark") {
			continue
		}
		// The last dash and number are the processors.
		name := strings.TrimPrefix(f[0], "Benchmark")
		name = name[:max(strings.LastIndex(name, "-"), 0)]
		for i := 2; i+1 < len(f); i += 2 {
			v, err := strconv.ParseFloat(f[i], 64)
			if err != nil {
				t.Fatalf("%s: %v", sc.Text(), err)
			}
			key := name + " " + f[i+1]
			if old, ok := best[key]; !ok || v < old != strings.HasSuffix(key, "/s") {
				best[key] = v
			}
		}
	}
	return best
}

// deviceTables measures what a call of a device costs by itself: the way to the
// driver and back, and the simulated GPU, private and shared.
func deviceTables(t testing.TB) string {
	cuda := benchmarks(t, "./device/internal/cuda", "^Benchmark(Plain|Call)$", "-count", "5")
	sim := benchmarks(t, "./device/sim", "^Benchmark(AllocFree|Programs)$", "-count", "3", "-parallel-for", "3s")
	file := benchmarks(t, "./device/internal/shared", "^Benchmark(TakeGive|Lock|Free|Look)$", "-count", "3")
	ns := func(from map[string]float64, name string) string {
		v, ok := from[name+" ns/op"]
		if !ok {
			t.Fatalf("no benchmark is called %q: %v", name, from)
		}
		return report.Count(uint64(v + .5))
	}
	allocs := func(name string) string { return fmt.Sprint(cuda[name+" allocs/op"]) }

	var b bytes.Buffer
	way := report.NewTable("the way to a driver's function that does nothing", ">ns", ">heap allocations")
	way.Row("purego.SyscallN, arguments made anew (reference)", ns(cuda, "Plain/new"), allocs("Plain/new"))
	way.Row("the same, arguments in a block that is used again: a bare call", ns(cuda, "Plain/reused"), allocs("Plain/reused"))
	way.Row("thread locked, context is current, call, unlocked, time taken", ns(cuda, "Call/run"), allocs("Call/run"))
	way.Row("a whole method of Device", ns(cuda, "Call/FillAsync"), allocs("Call/FillAsync"))
	way.Row("of that, one of its two readings of the clock", ns(cuda, "Plain/clock"), "0")
	way.WriteTo(&b)
	b.WriteByte('\n')
	sims := report.NewTable("the simulated GPU", ">ns")
	sims.Row("private: Alloc and Free, 1,000 live", ns(sim, "AllocFree/live=1000/oldest=false"))
	sims.Row("shared: the same in the file (take and give)", ns(file, "TakeGive"))
	sims.Row("of that, one of its two locks and unlocks in the kernel", ns(file, "Lock"))
	for _, n := range []string{"1", "10", "100"} {
		sims.Row("shared: what is free, programs on it: "+n, ns(file, "Free/"+n))
	}
	sims.Row("shared: a look by a program that does not use it", ns(file, "Look"))
	sims.WriteTo(&b)
	fmt.Fprintf(&b, "\n8 programs of 8 threads on one shared device: %s allocations a second, each with its free\n",
		report.Count(uint64(sim["Programs allocs/s"])))
	return b.String()
}
