package pytorch_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpumem/policy"
)

// TestAgainstPyTorch runs random programs of several streams, with record_stream, events
// that are held up, empty_cache, private pools, captures and settings, by the allocators
// of real releases, too. GPUMEM_TEST_ALLOCATORS names a folder that scripts/pytorch-allocators
// makes: RELEASE/run runs PyTorch's libc10_cuda.so on a stand-in device. GPUMEM_TEST_SEEDS
// is the number of programs for each; 500 if it is not set.
func TestAgainstPyTorch(t *testing.T) {
	folder := os.Getenv("GPUMEM_TEST_ALLOCATORS")
	if folder == "" {
		t.Skip("SKIPPED: GPUMEM_TEST_ALLOCATORS names no folder with PyTorch's allocators")
	}
	seeds := 500
	if s := os.Getenv("GPUMEM_TEST_SEEDS"); s != "" {
		fmt.Sscan(s, &seeds)
	}
	programs, err := filepath.Glob(filepath.Join(folder, "*", "run"))
	if err != nil || len(programs) == 0 {
		t.Fatalf("no RELEASE/run in %s: %v", folder, err)
	}
	for _, program := range programs {
		release := filepath.Base(filepath.Dir(program))
		t.Run(release, func(t *testing.T) { t.Parallel(); againstPyTorch(t, program, release, seeds) })
	}
}

func againstPyTorch(t *testing.T, program, release string, seeds int) {
	v, err := policy.ParseVersion(release, "pytorch", "2.15")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	allocs, refused, different := 0, 0, 0
	for seed := range seeds {
		head, lines := randomProgram(rand.New(rand.NewPCG(uint64(seed), 7)), v)
		want := runReal(t, program, dir, head, lines)
		got := probe(t, "--release "+release+" "+head, lines)
		// How often it waits is not PyTorch's: after the latest event of a stream the others have passed.
		for _, all := range [][]string{got, want} {
			for i, line := range all {
				all[i], _, _ = strings.Cut(line, " ev_sync")
			}
		}
		for _, line := range want {
			if strings.HasSuffix(line, " refused") {
				refused++
			}
		}
		for _, line := range lines {
			if strings.HasPrefix(line, "a ") {
				allocs++
			}
		}
		if slices.Equal(got, want) {
			continue
		}
		file := filepath.Join(os.TempDir(), fmt.Sprintf("pytorch-%s-%d.txt", release, seed))
		t.Errorf("seed %d (%s), the program is in %s:\n%s", seed, head, file, differences(got, want))
		if err := os.WriteFile(file, []byte("# "+head+"\n"+strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if different++; different > 5 {
			t.Fatal("too many differences")
		}
	}
	t.Logf("%d programs, %d allocations, %d of them refused, %d programs with a difference", seeds, allocs, refused, different)
}

// differences returns the first one among the counters, the placements and the calls.
func differences(got, want []string) string {
	var b strings.Builder
	for len(got) > 0 && len(want) > 0 {
		if got[0] == want[0] {
			got, want = got[1:], want[1:]
			continue
		}
		fmt.Fprintf(&b, "  got %q, PyTorch %q\n", got[0], want[0])
		g, w := slices.Index(got, "placements"), slices.Index(want, "placements")
		if g < 0 {
			g, w = slices.Index(got, "calls"), slices.Index(want, "calls")
		}
		if g < 0 || w < 0 {
			break
		}
		got, want = got[g+1:], want[w+1:]
	}
	return b.String()
}

// runReal returns what the real allocator did with a program, as probe writes it.
func runReal(t *testing.T, program, dir, head string, lines []string) []string {
	t.Helper()
	events, places, calls := filepath.Join(dir, "events"), filepath.Join(dir, "places"), filepath.Join(dir, "calls")
	if err := os.WriteFile(events, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, events, "--placements", places, "--calls", calls)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Dir(program))
	for _, w := range strings.Fields(head) {
		if strings.HasPrefix(w, "PYTORCH_") {
			cmd.Env = append(cmd.Env, w)
		} else {
			cmd.Args = append(cmd.Args, w)
		}
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", head, err, stderr.String())
	}
	var out []string
	for line := range strings.Lines(stderr.String()) {
		if strings.HasPrefix(line, "stat at ") {
			out = append(out, strings.TrimSpace(line))
		}
	}
	out = append(append(out, "placements"), readLines(t, places)...)
	return append(append(out, "calls"), readLines(t, calls)...)
}

// randomProgram returns a program of some hundred lines for a release, and its device and
// settings.
func randomProgram(r *rand.Rand, v policy.Version) (head string, lines []string) {
	total := uint64(100+r.IntN(400)) << 20
	head = fmt.Sprintf("--total %d", total)
	fraction := r.IntN(3) == 0
	if fraction {
		head += fmt.Sprintf(" --fraction 0.%d", 5+r.IntN(5))
	}
	var conf []string
	if r.IntN(3) == 0 {
		conf = append(conf, "expandable_segments:True")
	} else if r.IntN(3) == 0 {
		conf = append(conf, fmt.Sprintf("max_split_size_mb:%d", 21+r.IntN(80)))
	}
	if r.IntN(4) == 0 {
		conf = append(conf, fmt.Sprintf("roundup_power2_divisions:%d", 1<<r.IntN(4)))
	}
	if fraction && r.IntN(2) == 0 {
		conf = append(conf, fmt.Sprintf("garbage_collection_threshold:0.%d", 1+r.IntN(9)))
	}
	if len(conf) > 0 {
		head += " PYTORCH_CUDA_ALLOC_CONF=" + strings.Join(conf, ",")
	}
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	streams := 1 + r.IntN(4)
	private := r.IntN(3) == 0
	var live []string // in the order of allocation
	inPool, pools := false, 0
	for i := range 150 + r.IntN(300) {
		switch k := r.IntN(100); {
		case k < 48 || len(live) == 0:
			n := uint64(math.Exp(r.Float64() * math.Log(float64(total)/3)))
			if r.IntN(3) == 0 {
				n = up(n, 1<<r.IntN(22)) // equal sizes, for the ties
			}
			id := fmt.Sprintf("b%d", i)
			add("a %s %d %d", id, n, 16*r.IntN(streams))
			live = append(live, id)
		case k < 88:
			at := r.IntN(len(live))
			if k < 60 {
				at = len(live) - 1
			}
			add("f %s", live[at])
			live = append(live[:at], live[at+1:]...)
		case k < 93 && streams > 1:
			add("r %s %d", live[r.IntN(len(live))], 16*r.IntN(streams))
		case k < 95:
			add("e %d", r.IntN(2))
		case k < 96 && (!inPool || !v.Less(policy.Version{2, 8})): // an assertion failed
			add("c")
		case k < 98 && private:
			if inPool {
				add("g end %d", pools)
			} else {
				pools++
				add("g %s %d", []string{"begin", "capture"}[r.IntN(2)], pools)
			}
			inPool = !inPool
		default:
			add("s")
		}
	}
	if inPool {
		add("g end %d", pools)
	}
	add("s")
	return head, lines
}
