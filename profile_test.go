package gpumem_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"gpumem"
	"gpumem/device/sim"
	"gpumem/policy/frameworks"
)

// profileOf writes the pool's profile and parses it.
func profileOf(t testing.TB, pool *gpumem.Pool) *profile.Profile {
	t.Helper()
	var b bytes.Buffer
	if err := pool.WriteProfile(&b); err != nil {
		t.Fatal(err)
	}
	p, err := profile.Parse(&b)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// functions are the names of a sample's stack, innermost first, with their
// lines' file.
func functions(s *profile.Sample) (names []string) {
	for _, l := range s.Location {
		for _, line := range l.Line {
			names = append(names, fmt.Sprintf("%s (%s:%d)", line.Function.Name, filepath.Base(line.Function.Filename), line.Line))
		}
	}
	return names
}

// inner is small enough to be inlined into its caller, and outer into its.
func inner(p *gpumem.Pool) (gpumem.Block, error) { return p.Alloc(context.Background(), 3*mib) }
func outer(p *gpumem.Pool) (gpumem.Block, error) { return inner(p) }

// TestProfile: under every policy the profile has the stacks, blocks and bytes
// of Live, sample for sample, before and after frees.
func TestProfile(t *testing.T) {
	for _, spec := range append(specs, "async", "vmm", "elastic") {
		t.Run(spec, func(t *testing.T) {
			dev, err := sim.New(sim.Config{Total: 1 << 30})
			if err != nil {
				t.Fatal(err)
			}
			pool := newPool(t, dev, spec, gpumem.WithStacks(true))
			check := func(uses int) {
				t.Helper()
				live, p := pool.Live(), profileOf(t, pool)
				if len(live) != uses || len(p.Sample) != uses {
					t.Fatalf("%d uses, %d samples; want %d of each", len(live), len(p.Sample), uses)
				}
				for i, u := range live {
					s := p.Sample[i]
					if s.Value[0] != int64(u.Blocks) || s.Value[1] != int64(u.Bytes) {
						t.Errorf("sample %d is %v, want %d blocks of %d bytes", i, s.Value, u.Blocks, u.Bytes)
					}
					if got := strings.Join(functions(s), "\n") + "\n"; got != u.Stack {
						t.Errorf("stack of sample %d:\n%swant:\n%s", i, got, u.Stack)
					}
				}
			}
			check(0)
			for range 3 {
				weights(t, pool)
			}
			activations(t, pool)
			check(2)
			b, err := outer(pool)
			if err != nil {
				t.Fatal(err)
			}
			check(3)
			if err := pool.Free(b); err != nil {
				t.Fatal(err)
			}
			check(2)
			if err := pool.Close(); err != nil {
				t.Fatal(err)
			}
			check(0)
		})
	}
}

// TestProfileUnknown: where there is no stack to tell, all is there nevertheless,
// under a name that says why.
func TestProfileUnknown(t *testing.T) {
	pool := newPool(t, device64(t), "jax")
	weights(t, pool)
	activations(t, pool)
	p := profileOf(t, pool)
	if len(p.Sample) != 1 || p.Sample[0].Value[0] != 2 || uint64(p.Sample[0].Value[1]) != pool.Stats().BytesInUse {
		t.Fatalf("%v, want one sample of 2 blocks", p)
	}
	if name := p.Sample[0].Location[0].Line[0].Function.Name; !strings.Contains(name, "WithStacks") {
		t.Errorf("the function is %q", name)
	}

	pool = newPool(t, device64(t), "jax", gpumem.WithStacks(true))
	go pool.TryAlloc(mib) // its stack is the pool's and the runtime's alone
	for pool.Stats().NumAllocs == 0 {
		runtime.Gosched()
	}
	if p := profileOf(t, pool); len(p.Sample) != 1 || !strings.HasPrefix(p.Sample[0].Location[0].Line[0].Function.Name, "unknown") {
		t.Errorf("%v, want one sample of an unknown function", p)
	}
}

// TestProfileWriter: what the writer says comes back.
func TestProfileWriter(t *testing.T) {
	pool := newPool(t, device64(t), "jax")
	weights(t, pool)
	f, err := os.Create(filepath.Join(t.TempDir(), "gone"))
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := pool.WriteProfile(f); err == nil {
		t.Error("a closed file was written to")
	}
}

// TestProfileIsLikeJAX: sample types and labels are those of a device memory
// profile that JAX wrote.
func TestProfileIsLikeJAX(t *testing.T) {
	pool := newPool(t, device64(t), "jax", gpumem.WithStacks(true))
	weights(t, pool)
	p := profileOf(t, pool)
	if got := p.Sample[0].Label; !maps.EqualFunc(got, map[string][]string{"kind": {"buffer"}, "device": {"sim:0"}}, slices.Equal) {
		t.Errorf("labels %v", got)
	}
	data, err := os.ReadFile(filepath.Join("..", "shared", "data", "traces", "microjax.memory.prof"))
	if err != nil {
		t.Skip("no recording of JAX's beside the checkout: ", err)
	}
	jax, err := profile.ParseData(data)
	if err != nil {
		t.Fatal(err)
	}
	types := func(p *profile.Profile) (out []profile.ValueType) {
		for _, s := range p.SampleType {
			out = append(out, *s)
		}
		return out
	}
	if got, want := types(p), types(jax); !slices.EqualFunc(got, want, func(a, b profile.ValueType) bool { return a.Type == b.Type && a.Unit == b.Unit }) {
		t.Errorf("sample types %v, JAX has %v", got, want)
	}
	labels := func(p *profile.Profile) (keys, kinds []string) {
		for _, s := range p.Sample {
			for k, v := range s.Label {
				keys = append(keys, k)
				if k == "kind" {
					kinds = append(kinds, v...)
				}
			}
		}
		slices.Sort(keys)
		slices.Sort(kinds)
		return slices.Compact(keys), slices.Compact(kinds)
	}
	keys, kinds := labels(p)
	jaxKeys, jaxKinds := labels(jax)
	if !slices.Equal(keys, jaxKeys) || !slices.Contains(jaxKinds, kinds[0]) {
		t.Errorf("labels %v of kind %v; JAX has %v of kinds %v", keys, kinds, jaxKeys, jaxKinds)
	}
}

// TestProfileIsFiltered: by label and by function, as go tool pprof does it, what is left has
// the sums of Live. Bytes come last, which is what the tool shows if it is not told otherwise.
func TestProfileIsFiltered(t *testing.T) {
	pool := newPool(t, device64(t), "jax", gpumem.WithStacks(true))
	for range 3 {
		weights(t, pool)
	}
	activations(t, pool)
	var blocks, bytes uint64
	for _, u := range pool.Live() {
		blocks += uint64(u.Blocks)
		bytes += u.Bytes
	}
	for _, tc := range []struct {
		name          string
		label, value  string
		focus         string
		blocks, bytes uint64
	}{
		{"all", "", "", "", blocks, bytes},
		{"its device", "device", "sim:0", "", blocks, bytes},
		{"another device", "device", "cuda:1", "", 0, 0},
		{"buffers of a function", "kind", "buffer", "weights", 3, 27 * mib},
		{"buffers of another", "kind", "buffer", "activations", blocks - 3, bytes - 27*mib},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := profileOf(t, pool)
			if tc.label != "" {
				p.FilterSamplesByTag(func(s *profile.Sample) bool { return slices.Contains(s.Label[tc.label], tc.value) }, nil)
			}
			if tc.focus != "" {
				p.FilterSamplesByName(regexp.MustCompile(tc.focus), nil, nil, nil)
			}
			var sum [2]uint64
			for _, s := range p.Sample {
				sum[0] += uint64(s.Value[0])
				sum[1] += uint64(s.Value[1])
			}
			if sum != [2]uint64{tc.blocks, tc.bytes} {
				t.Errorf("%d blocks of %d bytes, want %d of %d", sum[0], sum[1], tc.blocks, tc.bytes)
			}
			if last := p.SampleType[len(p.SampleType)-1]; last.Type != "space" || last.Unit != "bytes" {
				t.Errorf("the last type is %v, want space in bytes", last)
			}
		})
	}
}

var withPprof = flag.Bool("pprof", false, "run go tool pprof, which Go compiles first")

// TestPprof: go tool pprof itself reads a profile, by bytes, by blocks and by label, and has
// the sums of Live.
func TestPprof(t *testing.T) {
	if !*withPprof {
		t.Skip("SKIPPED: -pprof is not set")
	}
	if out, err := exec.Command("go", "tool", "pprof", "-h").CombinedOutput(); err != nil && !bytes.Contains(out, []byte("usage")) {
		t.Skipf("no go tool pprof here: %v", err)
	}
	pool := newPool(t, device64(t), "jax", gpumem.WithStacks(true))
	for range 3 {
		weights(t, pool)
	}
	activations(t, pool)
	var blocks, bytes uint64
	for _, u := range pool.Live() {
		blocks += uint64(u.Blocks)
		bytes += u.Bytes
	}
	file := filepath.Join(t.TempDir(), "gpu.pb.gz")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := pool.WriteProfile(f); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		want []string // as regular expressions, in the output
	}{
		{[]string{"-unit=B"}, []string{
			"(?m)^Type: space$", fmt.Sprintf(" of %dB total", bytes),
			`(?m)^ +28311552B .* gpumem_test.weights$`,
		}},
		{[]string{"-sample_index=allocations"}, []string{
			"(?m)^Type: allocations$", fmt.Sprintf(" of %d total", blocks), `(?m)^ +3 .* gpumem_test.weights$`,
		}},
		{[]string{"-tagfocus=device=sim:0", "-unit=B"}, []string{fmt.Sprintf("accounting for %dB, 100%%", bytes)}},
		{[]string{"-tagfocus=device=cuda:1", "-unit=B"}, []string{"accounting for 0"}},
		{[]string{"-tagfocus=kind=buffer", "-focus=activations", "-unit=B"}, []string{fmt.Sprintf("accounting for %dB", bytes-27*mib)}},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			cmd := exec.Command("go", append(append([]string{"tool", "pprof", "-top", "-nodecount=1000", "-nodefraction=0"}, tc.args...), file)...)
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
			}
			for _, want := range tc.want {
				if !regexp.MustCompile(want).Match(out) {
					t.Errorf("%v lacks %q:\n%s", cmd.Args, want, out)
				}
			}
		})
	}
}

// load asks for memory, for an example.
func load(pool *gpumem.Pool, n int) {
	for range n {
		pool.Alloc(context.Background(), 64<<20)
	}
}

// What is alive, by who asked for it, for go tool pprof.
func ExamplePool_WriteProfile() {
	dev, _ := sim.New(sim.Config{Total: 24 << 30})
	pool, _ := gpumem.Open(dev, frameworks.Default(), gpumem.WithStacks(true))
	defer pool.Close()
	load(pool, 3)

	var file bytes.Buffer // or os.Create("gpu.pb.gz"), and then: go tool pprof -top gpu.pb.gz
	if err := pool.WriteProfile(&file); err != nil {
		fmt.Println(err)
		return
	}
	p, _ := profile.Parse(&file)
	for _, s := range p.Sample {
		fmt.Println(s.Location[0].Line[0].Function.Name, s.Value[0], "blocks,", s.Value[1]>>20, "MiB on", s.Label["device"][0])
	}
	// Output:
	// gpumem_test.load 3 blocks, 192 MiB on sim:0
}

// BenchmarkProfile is a profile of 100,000 live blocks. The pool is locked for most
// of it.
func BenchmarkProfile(b *testing.B) {
	pool := perfPool(b, 8<<30)
	for range 100_000 {
		if _, err := pool.TryAlloc(4096); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if err := pool.WriteProfile(&bytes.Buffer{}); err != nil {
			b.Fatal(err)
		}
	}
}
