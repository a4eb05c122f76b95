// Tests against TensorFlow itself, which made its pools with a stand-in for the
// driver (testdata/tensorflow/pools.txt).

package frameworks

import (
	"bufio"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gpumem/internal/test/envtest"
	"gpumem/policy"
)

// tfCase is a case of pools.txt.
type tfCase struct {
	line   int
	device policy.Device
	config string
	env    policy.Environment
}

// TestTensorFlowPools: limit, first grant, allocator and what aborts.
func TestTensorFlowPools(t *testing.T) {
	f, err := os.Open(filepath.FromSlash("testdata/tensorflow/pools.txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var c tfCase
	asked, skipped := 0, 0
	var releases []string
	in := bufio.NewScanner(f)
	for n := 1; in.Scan(); n++ {
		line := in.Text()
		switch list, ok := strings.CutPrefix(line, "# Releases asked: "); {
		case ok:
			releases = strings.Split(strings.TrimSuffix(list, "."), ", ")
		case line == "" || line[0] == '#':
		case line[0] != ' ':
			c = readTFCase(t, n, line)
		default:
			span, answer, _ := strings.Cut(strings.TrimSpace(line), " ")
			first, last, many := strings.Cut(span, "..")
			if !many {
				last = first
			}
			from, to := slices.Index(releases, first), slices.Index(releases, last)
			if from < 0 || to < from {
				t.Fatalf("pools.txt:%d: releases %s", n, span)
			}
			for _, release := range releases[from : to+1] {
				if c.check(t, n, release, answer) {
					asked++
				} else {
					skipped++
				}
			}
		}
	}
	if in.Err() != nil || asked < 1500 {
		t.Errorf("%d answers, %v", asked, in.Err())
	}
	t.Logf("%d answers, %d about what is not memory of the GPU", asked, skipped)
}

func readTFCase(t *testing.T, n int, line string) tfCase {
	c := tfCase{line: n, device: policy.Device{Total: 6442450944, Free: 6291456000, Granularity: 1, CCMajor: 8}}
	if line == "usual" {
		return c
	}
	var vars []string
	for name, value := range envtest.Assignments(t, line) {
		number, _ := strconv.ParseUint(value, 10, 64)
		switch name {
		case "total":
			c.device.Total = number
		case "free":
			c.device.Free = number
		case "cc":
			major, _, _ := strings.Cut(value, ".")
			c.device.CCMajor, _ = strconv.Atoi(major)
		case "config":
			c.config = value
		default:
			vars = append(vars, name+"="+value)
		}
	}
	c.env = policy.Environ(vars)
	return c
}

// ours are the fields of a ConfigProto that GPUOptions has.
var ours = regexp.MustCompile(`^(gpu_options|experimental|virtual_devices|[{}]|per_process_gpu_memory_fraction:|allow_growth:|memory_limit_mb:|gpu_system_memory_size_in_mb:|use_unified_memory:|use_cuda_malloc_async:|true|[-0-9.e]+)$`)

// options reads a ConfigProto; false if it has other fields.
func (c tfCase) options() (o GPUOptions, ok bool) {
	words := strings.Fields(c.config)
	for i, w := range words {
		if !ours.MatchString(w) {
			return o, false
		}
		number := func() float64 { f, _ := strconv.ParseFloat(words[i+1], 64); return f }
		switch w {
		case "per_process_gpu_memory_fraction:":
			o.Fraction = number()
		case "allow_growth:":
			o.AllowGrowth = words[i+1] == "true"
		case "memory_limit_mb:":
			if o.Limit != nil {
				return o, false
			}
			f := number()
			o.Limit = &f
		case "gpu_system_memory_size_in_mb:":
			o.SystemMiB = int32(number())
		case "use_unified_memory:":
			o.Unified = true
		case "use_cuda_malloc_async:":
			o.Async = true
		}
	}
	return o, !(o.Limit != nil && o.Fraction != 0)
}

func (c tfCase) check(t *testing.T, n int, release, answer string) bool {
	t.Helper()
	o, ok := c.options()
	if !ok || strings.HasPrefix(answer, "! ParseError") {
		return false
	}
	v, _ := policy.ParseVersion(release, "", "")
	r, refused := readGPUOptions(c.env, tfReleases().At(v), o)
	if refused != nil && refused.Name == tfHostVar { // see TestTensorFlowHostLimit
		return false
	}
	untold := strings.HasPrefix(answer, "limit untold")
	if untold && refused != nil { // 2.6 ends over the question for the limit before it reads the variable
		return false
	}
	if crash := strings.HasPrefix(answer, "crash"); crash || refused != nil {
		if crash != (refused != nil) || refused != nil && refused.Then != aborts {
			t.Errorf("pools.txt:%d: %s: %v, want %s", n, release, refused, answer)
		}
		return true
	}
	p, d := r.Policy, c.device
	if untold { // only the allocator's name is known
		logged := map[policy.Kind]string{policy.Async: "Using CUDA malloc Async allocator", policy.Platform: "Using CUDA malloc allocator"}[p.Kind]
		if logged == "" || !strings.Contains(answer, logged) {
			t.Errorf("pools.txt:%d: %s: %v, want %s", n, release, p.Kind, answer)
		}
		return true
	}
	if err := p.Check(d); strings.HasPrefix(answer, "!") || err != nil {
		if err == nil || !strings.Contains(answer, err.Error()) {
			t.Errorf("pools.txt:%d: %s: %v, want %s", n, release, err, answer)
		}
		return true
	}
	limit, rest, _ := strings.Cut(strings.TrimPrefix(answer, "limit "), "; ")
	calls, _, _ := strings.Cut(rest, "; ")
	first, _, _ := strings.Cut(calls, ", ")
	call, bytes, _ := strings.Cut(strings.TrimSuffix(first, "!"), " ")
	grant, _ := strconv.ParseUint(bytes, 10, 64)
	switch {
	case p.Kind == policy.Platform:
		if call != "cuMemAlloc" || grant > 2000 {
			t.Errorf("pools.txt:%d: %s: platform, want %s", n, release, answer)
		}
		return true
	case p.Kind == policy.Async:
		made, ok := tfStart(calls)
		if !ok || call != "cuMemPoolSetAttribute" {
			t.Errorf("pools.txt:%d: %s: the driver's pool, want %s", n, release, answer)
		} else if problem := compareAsync(p, d, c.env, made); problem != "" {
			t.Errorf("pools.txt:%d: %s: %s: %s", n, release, problem, answer)
		}
		return true
	}
	if got := strconv.FormatInt(int64(p.LimitBytes(d)), 10); got != limit {
		t.Errorf("pools.txt:%d: %s: limit %s, want %s", n, release, got, limit)
	}
	if !strings.HasPrefix(call, "cuMemAlloc") { // an error instead
		if p.FirstGrant(d) != 0 || call != "then" {
			t.Errorf("pools.txt:%d: %s: asks for %d, want %s", n, release, p.FirstGrant(d), answer)
		}
		return true
	}
	if p.GrantLimit != 0 { // only what is below it comes to the driver
		if got := p.Granted(d); got != grant {
			t.Errorf("pools.txt:%d: %s: gets %d, want %s", n, release, got, answer)
		}
		return true
	}
	if (call == "cuMemAllocManaged") != p.Managed || p.FirstGrant(d) != grant {
		t.Errorf("pools.txt:%d: %s: asks for %d, unified %v; want %s", n, release, p.FirstGrant(d), p.Managed, answer)
	}
	// What it gets is the last of the calls, where the first was refused.
	got := strconv.FormatUint(p.Granted(d), 10)
	if strings.HasSuffix(first, "!") {
		all := strings.Split(calls, ", ")
		bytes = strings.Fields(all[len(all)-1])[1]
	}
	if got != bytes {
		t.Errorf("pools.txt:%d: %s: gets %s, want %s", n, release, got, bytes)
	}
	return true
}

// tfStart returns the calls before the first tensors, which are one of TensorFlow's own and
// two of the program's.
func tfStart(calls string) (made []grant, ok bool) {
	calls, ok = strings.CutSuffix(calls, ", cuMemAllocFromPoolAsync 1028, cuMemAllocFromPoolAsync 16, cuMemAllocFromPoolAsync 3145728")
	for _, words := range strings.Split(calls, ", ") {
		name, bytes, _ := strings.Cut(words, " ")
		digits, refused := strings.CutSuffix(bytes, "!")
		made = append(made, grant{name, number(digits), refused})
	}
	return made, ok
}

// TestTensorFlowEndsOver: which variable ended TensorFlow itself on a simulated driver.
func TestTensorFlowEndsOver(t *testing.T) {
	const async = "TF_GPU_ALLOCATOR=cuda_malloc_async "
	for _, tc := range []struct{ release, env, name string }{
		{"2.21.0", async + "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC=9223372036854775808 TF_PER_DEVICE_MEMORY_LIMIT_MB=x", perDeviceVar},
		{"2.21.0", async + "TF_DETERMINISTIC_ALLOCATOR=x TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC=x", deterministicVar},
		{"2.18.1", async + "TF_DETERMINISTIC_ALLOCATOR=", deterministicVar},
		{"2.18.1", async + "TF_DETERMINISTIC_ALLOCATOR=FALSE", ""},
		{"2.21.0", "TF_GPU_ALLOCATOR=cuda_malloc TF_DETERMINISTIC_ALLOCATOR=x", ""},
		{"2.21.0", "TF_PER_DEVICE_MEMORY_LIMIT_MB=+64", ""},
		{"2.18.1", "TF_PER_DEVICE_MEMORY_LIMIT_MB=+64", perDeviceVar},
		{"2.21.0", async + "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC=+1048576", ""},
		{"2.18.1", async + "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC=+1048576", asyncVar},
	} {
		_, e := readAs(t, "tensorflow", tc.release, policy.Environ(strings.Fields(tc.env)), policy.Device{Total: 24 << 30, Free: 24 << 30, CCMajor: 9})
		if e.Name != tc.name || tc.name != "" && e.Then != aborts {
			t.Errorf("%s %s: %+v, want %q", tc.release, tc.env, e, tc.name)
		}
	}
}

// TestTensorFlowHostLimit: what a limit of pinned host memory makes of copies of
// up to 3 MiB.
func TestTensorFlowHostLimit(t *testing.T) {
	b, err := os.ReadFile(filepath.FromSlash("testdata/tensorflow/host.txt"))
	if err != nil {
		t.Fatal(err)
	}
	var env policy.Environment
	var releases []string
	asked := 0
	for n, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		switch list, ok := strings.CutPrefix(line, "# Releases asked: "); {
		case ok:
			releases = strings.Split(strings.TrimSuffix(list, "."), ", ")
			continue
		case line == "" || line[0] == '#':
			continue
		case line[0] != ' ':
			env = envtest.Environ(t, line)
			continue
		}
		span, answer, _ := strings.Cut(strings.TrimSpace(line), " ")
		first, last, many := strings.Cut(span, "..")
		if !many {
			last = first
		}
		for _, release := range releases[slices.Index(releases, first) : slices.Index(releases, last)+1] {
			asked++
			a, raised := readAs(t, "tensorflow", release, env, policy.Device{Total: 6442450944, Free: 6291456000, CCMajor: 8})
			fails := strings.Contains(answer, "then !")
			small := slices.ContainsFunc(a.Warnings, func(w policy.Warning) bool { return strings.Contains(w.Text, "memory is 1 MiB") })
			if refused := raised.Text != ""; refused && !fails || !refused && fails != small {
				t.Errorf("host.txt:%d: %s %v: errors %v, warnings %v; want %s", n+1, release, env, raised, a.Warnings, answer)
			}
		}
	}
	if asked < 2*16 {
		t.Errorf("%d answers", asked)
	}
}
