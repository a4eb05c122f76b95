// Tests against XLA's GPU plugins: what real ones, with a stand-in for the
// driver, made of options and environments (testdata/xla).

package frameworks

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gpumem/policy"
)

// xlaRow is a line of pools.txt.
type xlaRow struct {
	line        int
	first, last string // releases
	device      policy.Device
	env         policy.Environment
	answer      string  // ok, error, abort
	limit       string  // "none" without statistics
	pool        string  // pool_bytes after the first put
	create, put []grant // the driver's calls at the client's creation, and at the first put
	arenas      string
	log         string
}

// grant is a driver's call.
type grant struct {
	call    string
	bytes   uint64
	refused bool
}

func readXLA(t *testing.T, name string) []xlaRow {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "xla", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	number := func(s string) uint64 {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	grants := func(s string) (list []grant) {
		if s == "-" {
			return nil
		}
		for _, word := range strings.Split(s, ",") {
			name, bytes, ok := strings.Cut(word, ":")
			if !ok { // "...": some were left out
				continue
			}
			digits, refused := strings.CutSuffix(bytes, "!")
			list = append(list, grant{name, number(digits), refused})
		}
		return list
	}
	var rows []xlaRow
	in := bufio.NewScanner(f)
	in.Buffer(nil, 1<<20)
	for n := 1; in.Scan(); n++ {
		if in.Text() == "" || in.Text()[0] == '#' {
			continue
		}
		head := strings.SplitN(in.Text(), " ", 6)
		quoted, err := strconv.QuotedPrefix(head[5])
		if err != nil {
			t.Fatalf("%s:%d: %v", name, n, err)
		}
		rest := strings.SplitN(strings.TrimSpace(head[5][len(quoted):]), " ", 12)
		env, _ := strconv.Unquote(quoted)
		log, err := strconv.Unquote(rest[11])
		if err != nil {
			t.Fatalf("%s:%d: %v", name, n, err)
		}
		rows = append(rows, xlaRow{
			line: n, first: head[0], last: head[1],
			device: policy.Device{Total: number(head[2]), Free: number(head[3]), CCMajor: int(number(head[4])) / 10},
			env:    policy.Environ(strings.Split(env, ";")),
			answer: rest[0], limit: rest[1], pool: rest[2], create: grants(rest[5]), put: grants(rest[6]), arenas: rest[10], log: log,
		})
	}
	if err := in.Err(); err != nil || len(rows) < 40 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	return rows
}

// xlaReleases are those asked.
var xlaReleases = strings.Fields(`0.4.23 0.4.26 0.4.30 0.4.33 0.4.35 0.4.38 0.5.3 0.6.2 0.7.2 0.8.3 0.9.2
	0.10.0 0.10.1 0.10.2 0.11.0 0.11.1 0.11.2 0.12.0 0.12.0.1`)

// TestXLAPools: limit, first grant, back-off, allocator and errors, to the byte.
func TestXLAPools(t *testing.T) {
	asked := 0
	for _, row := range readXLA(t, "pools.txt") {
		in := false
		for _, release := range xlaReleases {
			in = in || release == row.first
			// Before 0.4.30 we go by the XLA inside jaxlib, not by the plugin.
			if in && release != "0.4.23" && release != "0.4.26" {
				asked++
				row.check(t, release)
			}
			if release == row.last {
				break
			}
		}
	}
	t.Logf("%d answers", asked)
}

// TestXLAEdges: where the client or a first put fails or dies.
func TestXLAEdges(t *testing.T) {
	asked := 0
	for _, row := range readXLA(t, "edges.txt") {
		vmm, set := row.env.Lookup("STANDIN_VMM")
		row.device.NoPages = set && vmm == "0"
		row.env = row.env.Without("STANDIN_VMM").With(platformsVar, "cuda")
		in := false
		for _, release := range xlaReleases {
			if in = in || release == row.first; in && release != "0.4.23" && release != "0.4.26" && release != "0.4.30" {
				asked++
				row.checkEdge(t, release)
			}
			if release == row.last {
				break
			}
		}
	}
	t.Logf("%d answers", asked)
}

func (row xlaRow) checkEdge(t *testing.T, release string) {
	t.Helper()
	_, e := readAs(t, "jax", release, row.env, row.device)
	if strings.Contains(e.Then, "plugin configuration error") || release == "0.10.0" && row.device.NoPages && row.env.Get(allocatorVar) == "vmm" {
		return // JAX's Python refuses it before; the stand-in lacks more than such a device does
	}
	flags := strings.Contains(row.log, "Unknown flag") || strings.Contains(row.log, "Flag parsing failed")
	good := false
	switch {
	case row.answer == "ok":
		good = e.Text == ""
	case row.answer == "error":
		good = e.Text != "" && strings.Contains(row.log, e.Text)
	case flags:
		good = strings.Contains(e.Then, "aborts")
	default:
		good = strings.Contains(e.Then, "SIGSEGV")
	}
	if !good {
		t.Errorf("edges.txt:%d: %s %v: %+v; want %s %.300s", row.line, release, row.env, e, row.answer, row.log)
	}
}

func (row xlaRow) check(t *testing.T, release string) {
	t.Helper()
	where := fmt.Sprintf("pools.txt:%d: %s %v", row.line, release, row.env)
	v, _ := policy.ParseVersion(release, "", "")
	_, flags := row.env.Lookup(xlaFlagsVar)
	_, tfrt := row.env.Lookup(tfrtVar)
	if flags && release == "0.4.30" || tfrt && v.Less(policy.Version{0, 7, 1}) {
		return // flags are read later than the client is made; the variable is read by no Python yet
	}
	if v.Less(policy.Version{0, 4, 32}) { // asked with the name that it did not know yet
		if f, ok := row.env.Lookup(fractionVar); ok {
			row.env = row.env.Without(fractionVar).With(oldFractionVar, f)
		}
	}
	row.env = row.env.With(platformsVar, "cuda") // else the CPU's client comes first
	d := row.device
	for _, c := range row.put {
		if c.call == "cuMemAlloc" || c.call == "cuMemAllocManaged" {
			d.Granularity = 1 // the stand-in's
		}
	}
	a, e := readAs(t, "jax", release, row.env, d)
	if refused := row.answer == "abort" || row.answer == "error" && row.limit == "-"; refused != (e.Text != "") {
		t.Errorf("%s: errors %v, want %s %s", where, e, row.answer, row.log)
		return
	}
	if e.Text != "" {
		text, _, _ := strings.Cut(row.log, "\n")
		if row.log != "" && !strings.Contains(row.log, e.Text) && !strings.Contains(e.Text, "one of") && !strings.Contains(e.Text, "env var must be") {
			t.Errorf("%s: error %q, want %q", where, e.Text, text)
		}
		if aborts := strings.Contains(e.Then, "abort"); aborts != (row.answer == "abort") {
			t.Errorf("%s: %q, want %s", where, e.Then, row.answer)
		}
		return
	}
	p := a.Policy

	// The allocator, told by the driver's calls and the arenas.
	built := "bfc"
	calls := append(append([]grant(nil), row.create...), row.put...)
	switch {
	case len(row.create) > 0 && row.create[0].call == "threshold":
		built = "cuda_async"
	case row.limit == "none" && strings.Contains(row.log, "pa_budget"):
		built = "vmm"
	case row.limit == "none":
		built = "platform"
	}
	if got := strings.NewReplacer("address", "platform", "async", "cuda_async").Replace(p.Kind.String()); got != built {
		t.Errorf("%s: %s, want %s", where, p.Kind, built)
		return
	}

	switch built {
	case "bfc":
		if got := strconv.FormatInt(int64(p.LimitBytes(d)), 10); got != row.limit {
			t.Errorf("%s: limit %s, want %s", where, got, row.limit)
		}
		if len(calls) == 0 {
			if p.FirstGrant(d) != 0 || p.Granted(d) != 0 {
				t.Errorf("%s: asks for %d, gets %d; want no call", where, p.FirstGrant(d), p.Granted(d))
			}
			return
		}
		// cuMemCreate is asked for whole units, the pool asks for multiples of 256.
		first := p.FirstGrant(d)
		if calls[0].call == "cuMemCreate" {
			first = up(first)
		}
		if p.GrantLimit > 0 { // the stand-in hears only of what is below it
			first = calls[0].bytes
		}
		if calls[0].bytes != first {
			t.Errorf("%s: asks for %d first, want %d", where, first, calls[0].bytes)
		}
		if managed := calls[0].call == "cuMemAllocManaged"; managed != p.Managed {
			t.Errorf("%s: unified %v", where, p.Managed)
		}
		pool := row.pool
		if !slices.ContainsFunc(calls, func(c grant) bool { return !c.refused }) {
			pool = "0"
		}
		if got := strconv.FormatUint(p.Granted(d), 10); got != pool {
			t.Errorf("%s: gets %s, want %s", where, got, pool)
		}
	case "vmm":
		if want := fmt.Sprintf("pa_budget for device 0: %d bytes", p.LimitBytes(d)); !strings.Contains(row.log, want) {
			t.Errorf("%s: %s, want %q", where, want, row.log)
		}
	case "cuda_async":
		if problem := compareAsync(p, d, row.env, row.create); problem != "" {
			t.Errorf("%s: %s", where, problem)
		}
	}

	// The pool for collective memory.
	collective := strings.Contains(row.arenas, "collective")
	ours := false
	for _, pool := range a.Pools(d) {
		if pool.Space == "collective" && strings.Contains(pool.Name, "collective") {
			ours = true
			if want := fmt.Sprintf("%d bytes", *pool.Limit); strings.Contains(row.log, "Collective") && !strings.Contains(row.log, want) {
				t.Errorf("%s: collective pool of %s, want %q", where, want, row.log)
			}
		}
	}
	if ours != collective {
		t.Errorf("%s: a pool for collective memory: %v, want %v", where, ours, collective)
	}
}

// compareAsync compares what the driver's pool keeps, is asked for at the start, and
// gets of that with the driver's calls until then: the release threshold, and what was
// allocated after it. It is empty if all agree, those included that are nothing.
func compareAsync(p policy.Policy, d policy.Device, env policy.Environment, calls []grant) string {
	d.Granularity = 1 // the stand-in's
	var asked, taken uint64
	for _, c := range calls[1:] {
		if strings.HasPrefix(c.call, "cuMemAlloc") {
			if asked = c.bytes; !c.refused {
				taken += c.bytes
			}
		}
	}
	if n, err := strconv.ParseInt(env.Get(asyncVar), 10, 64); err == nil && n < -1 && asked == uint64(n) {
		asked = 0 // nearly 2^64 bytes, of which a warning speaks instead
	}
	keep, first := p.AsyncBytes(d)
	switch {
	case calls[0].bytes != keep:
		return fmt.Sprintf("keeps %d, want %d", keep, calls[0].bytes)
	case asked != first || asked != p.FirstGrant(d):
		return fmt.Sprintf("asks for %d and %d first, want %d", first, p.FirstGrant(d), asked)
	case taken != p.Granted(d):
		return fmt.Sprintf("gets %d of it, want %d", p.Granted(d), taken)
	}
	return ""
}

// TestNumbersOfVariablesByRelease: what releases of JAX themselves made of texts that some
// of them take, with a simulated driver: which variable ended the process or the client;
// none, or copies to the GPU worked.
func TestNumbersOfVariablesByRelease(t *testing.T) {
	const (
		device   = "TF_PER_DEVICE_MEMORY_LIMIT_MB"
		hostPre  = "XLA_PJRT_GPU_HOST_MEMORY_PREALLOCATE"
		host     = "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB"
		flags    = "XLA_FLAGS"
		ordered  = "TF_DETERMINISTIC_ALLOCATOR"
		async    = "XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async "
		everyone = "0.4.36 0.4.38 0.5.0 0.5.1 0.5.3 0.8.1 0.10.2 0.12.0.1"
	)
	asked := strings.Fields(everyone)
	for _, tc := range []struct {
		env         string
		pages       bool
		first, last string // releases in which it is refused
		name        string // of the variable
	}{
		{hostPre + "=yes", true, "0.5.1", "0.12.0.1", hostPre},
		{host + "=0x2", true, "0.5.1", "0.12.0.1", host},
		{host + "=+2", true, "", "", ""},
		{host + "=-1", true, "", "", ""},
		{device + "=+64", true, "0.4.36", "0.4.36", device},
		{device + "=64", true, "", "", ""},
		{async + ordered + "=x", true, "0.4.36", "0.12.0.1", ordered},
		{async + ordered + "= TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC=y", true, "0.4.36", "0.12.0.1", ordered},
		{async + ordered + "=TRUE", true, "", "", ""},
		{async + ordered + "=x " + device + "=x", true, "0.4.36", "0.12.0.1", device},
		{"XLA_PYTHON_CLIENT_ALLOCATOR=platform " + ordered + "=x", true, "", "", ""},
		{device + "=x XLA_FLAGS=--xla_nosuch=1", true, "0.4.36", "0.12.0.1", flags},
		{device + "=x", false, "0.4.36", "0.12.0.1", device},
		{async + ordered + "=x", false, "0.4.36", "0.8.1", ordered},
		{host + "=x", false, "0.5.1", "0.8.1", host},
	} {
		for _, release := range asked {
			i := slices.Index(asked, release)
			want := tc.first != "" && slices.Index(asked, tc.first) <= i && i <= slices.Index(asked, tc.last)
			env := policy.Environ(strings.Fields("JAX_PLATFORMS=cuda " + tc.env))
			d := policy.Device{Total: 8 << 30, Free: 8 << 30, CCMajor: 9, NoPages: !tc.pages}
			_, e := readAs(t, "jax", release, env, d)
			got := e.Name
			if !want && !tc.pages && slices.Index(asked, "0.10.2") <= i { // what is refused there is the GPU
				if !strings.Contains(e.Then, "no virtual memory management") {
					t.Errorf("%s %s: %+v, want the error of the pages", release, tc.env, e)
				}
				continue
			}
			if (got != "") != want || want && got != tc.name {
				t.Errorf("%s %s: %+v, want an error of %s: %v", release, tc.env, e, tc.name, want)
			}
		}
	}
}

// TestHostMemoryIsReadFirst: what each release asked says of two variables that make no sense.
func TestHostMemoryIsReadFirst(t *testing.T) {
	const async = "XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async "
	for _, tc := range []struct{ releases, env, name string }{
		{"0.10.2 0.11.0", async + asyncVar + "=y " + hostPreVar + "=x", asyncVar},
		{"0.11.1 0.11.2 0.12.0 0.12.0.1", async + asyncVar + "=y " + hostPreVar + "=x", hostPreVar},
		{"0.10.2", async + deterministicVar + "=y " + hostPreVar + "=x", deterministicVar},
		{"0.12.0.1", async + deterministicVar + "=y " + hostPreVar + "=x", hostPreVar},
		{"0.10.2 0.12.0.1", async + asyncVar + "=y " + hostLimitVar + "=x", asyncVar},
		{"0.10.2 0.12.0.1", perDeviceVar + "=y " + hostPreVar + "=x", perDeviceVar},
		{"0.10.2 0.12.0.1", "XLA_FLAGS=--xla_nosuch=1 " + hostPreVar + "=x", xlaFlagsVar},
	} {
		for _, release := range strings.Fields(tc.releases) {
			env := policy.Environ(strings.Fields("JAX_PLATFORMS=cuda XLA_PYTHON_CLIENT_PREALLOCATE=false " + tc.env))
			if _, e := readAs(t, "jax", release, env, policy.Device{Total: 8 << 30, Free: 8 << 30, CCMajor: 9}); e.Name != tc.name {
				t.Errorf("%s %s: %+v, want %s", release, tc.env, e, tc.name)
			}
		}
	}
}

// TestROCmReadsTheVariablesFirst: as jaxlib 0.4.36 to 0.5.3, whose wheels have no ROCm, say
// themselves.
func TestROCmReadsTheVariablesFirst(t *testing.T) {
	for _, release := range []string{"0.4.36", "0.4.38", "0.5.0", "0.5.1", "0.5.3"} {
		for env, want := range map[string]string{
			"JAX_PLATFORMS=rocm XLA_PYTHON_CLIENT_MEM_FRACTION=x": "Unable to initialize backend 'rocm': could not convert string to float: 'x' (set JAX_PLATFORMS='' to automatically choose an available backend)",
			"JAX_PLATFORMS=rocm": "Unable to initialize backend 'rocm': " + noROCm + " (set JAX_PLATFORMS='' to automatically choose an available backend)",
		} {
			if _, e := readAs(t, "jax", release, policy.Environ(strings.Fields(env)), policy.Device{Total: 8 << 30, Free: 8 << 30, CCMajor: 9}); e.Text != want {
				t.Errorf("%s %s: %q, want %q", release, env, e.Text, want)
			}
		}
	}
}

// TestDriversPoolGetsAllOrNothing: where less is free than the pool asks for at the start,
// it has nothing, whichever setting asks.
func TestDriversPoolGetsAllOrNothing(t *testing.T) {
	const gib = 1 << 30
	for _, tc := range []struct {
		as        string
		free      uint64 // of 16 GiB
		env       string
		ask, gets uint64
	}{
		{"jax", 16 * gib, "", 12 * gib, 12 * gib},
		{"jax", 12 * gib, "", 12 * gib, 12 * gib},
		{"jax", 12*gib - 1, "", 12 * gib, 0},
		{"jax", 11 * gib, "", 12 * gib, 0},
		{"jax", 11 * gib, "XLA_CLIENT_MEM_FRACTION=.6875", 11 * gib, 11 * gib},
		{"jax", 11 * gib, "XLA_CLIENT_MEM_FRACTION=2", 32 * gib, 0},
		{"jax", 11 * gib, "XLA_PYTHON_CLIENT_PREALLOCATE=false", 0, 0},
		{"jax", 11 * gib, "XLA_PYTHON_CLIENT_PREALLOCATE=false TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC=11811160064", 11 * gib, 11 * gib},
		{"jax", 11 * gib, "XLA_PYTHON_CLIENT_PREALLOCATE=false TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC=11811160065", 11*gib + 1, 0},
		{"jax", 16 * gib, "XLA_PYTHON_CLIENT_PREALLOCATE=false TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC=1099511627776", 1024 * gib, 0},
		{"jax@0.4.30", 11 * gib, "XLA_PYTHON_CLIENT_PREALLOCATE=false TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC=-1", 12 * gib, 0},
		{"gpumem", 11 * gib, "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC=-1", 12 * gib, 0},
		{"gpumem", 13 * gib, "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC=-1", 12 * gib, 12 * gib},
		{"tensorflow", 11 * gib, "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC=11811160064", 11 * gib, 11 * gib},
		{"tensorflow", 11 * gib, "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC=11811160065", 11*gib + 1, 0},
	} {
		t.Run(fmt.Sprintf("%s %d %s", tc.as, tc.free, tc.env), func(t *testing.T) {
			as, err := ParseRelease(tc.as)
			if err != nil {
				t.Fatal(err)
			}
			env := policy.Environ(strings.Fields("XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async TF_GPU_ALLOCATOR=cuda_malloc_async JAX_PLATFORMS=cuda " + tc.env))
			d := policy.Device{Total: 16 * gib, Free: tc.free, CCMajor: 8}
			r, raised := readAs(t, as.Name, as.Version, env, d)
			if raised.Text != "" {
				t.Fatal(raised)
			}
			if ask, gets := r.Policy.FirstGrant(d), r.Policy.Granted(d); ask != tc.ask || gets != tc.gets {
				t.Errorf("asks for %d, gets %d; want %d, %d", ask, gets, tc.ask, tc.gets)
			}
			if r.Pools != nil && r.Pools(d)[0].First != tc.gets {
				t.Errorf("the pool takes %d first, want %d", r.Pools(d)[0].First, tc.gets)
			}
		})
	}
}

// up is n in whole units of 2 MiB.
func up(n uint64) uint64 {
	const unit = 2 << 20
	if n%unit != 0 {
		n += unit - n%unit
	}
	return n
}

// TestClientOptionErrors: which option a release takes, of what type, and its
// errors.
func TestClientOptionErrors(t *testing.T) {
	f, err := os.Open(filepath.FromSlash("testdata/xla/options.txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	values := map[string]any{"string": "1", "bool": true, "int64": int64(1), "int64-list": []int64{0}, "float": 0.5}
	// What can be given to a client, apart from its memory, is not ours to check.
	others := []string{"abort_collectives_timeout", "platform_name", "mock_gpu_topology", "num_nodes", "node_id"}
	var all []string
	lines := 0
	in := bufio.NewScanner(f)
	for n := 1; in.Scan(); n++ {
		line := in.Text()
		if after, ok := strings.CutPrefix(line, "# Releases asked:"); ok || len(all) > 0 && strings.HasPrefix(line, "# 0.") {
			all = append(all, strings.Fields(strings.TrimPrefix(after, "# "))...)
			continue
		}
		if line == "" || line[0] == '#' {
			continue
		}
		head := strings.SplitN(line, " ", 4)
		name, rest := "", head[3]
		if q, err := strconv.QuotedPrefix(rest); err == nil {
			name, _ = strconv.Unquote(q)
			rest = rest[len(q)+1:]
		} else {
			name, rest, _ = strings.Cut(rest, " ")
		}
		given, quoted, _ := strings.Cut(rest, " ")
		want, err := strconv.Unquote(quoted)
		if err != nil {
			t.Fatalf("options.txt:%d: %v", n, err)
		}
		options := []Option{{"allocator", "default"}}
		switch head[2] {
		case "allocator":
			options[0].Value = name
		case "policy":
			options = append(options, Option{growOption, name})
		default:
			if given == "string" && slices.Contains(others, name) {
				continue
			}
			options = setOption(options, name, values[given])
		}
		lines++
		from, to := slices.Index(all, head[0]), slices.Index(all, head[1])
		if from < 0 || to < from {
			t.Fatalf("options.txt:%d: releases %v", n, all)
		}
		for _, release := range all[from : to+1] {
			v, err := policy.ParseVersion(release, "JAX", "")
			if err != nil {
				t.Fatal(err)
			}
			r := jaxReleases().At(v)
			got := ""
			if refused := checkOptions(policy.Environ(nil), options, v, r); refused != nil {
				got = refused.Text
			}
			if got != want {
				t.Errorf("options.txt:%d: %s %s=%v: %q, want %q", n, release, name, options[len(options)-1].Value, got, want)
			}
		}
	}
	if in.Err() != nil || lines < 100 {
		t.Errorf("%d lines, %v", lines, in.Err())
	}
}
