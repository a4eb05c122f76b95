package frameworks

import (
	"strings"
	"testing"

	"gpumem/policy"
)

// TestGrowthGrammar has the cases of XLA's own test, allocator_config_test.cc at HEAD of
// 2026-11: what each text means, and which are refused.
func TestGrowthGrammar(t *testing.T) {
	for text, want := range map[string][2]float64{
		"0.75": {.75, .75}, " 0.5 ": {.5, .5}, "0.75+": {.75, 1}, " 0.5+ ": {.5, 1}, "0.75-1.0": {.75, 1},
		"1+": {1, 1}, "0.75-0.85": {.75, .85}, "0.5-1.0": {.5, 1}, "0.75-0.75": {.75, .75}, "1.5-1.5": {1.5, 1.5},
		"1": {1, 1}, "1.5": {1.5, 1.5}, "1e-3": {1e-3, 1e-3}, "1e-3+": {1e-3, 1}, "1e-3-2e-3": {1e-3, 2e-3}, "1E-3-1E+0": {1e-3, 1},
	} {
		if start, most, problem := growth(text); problem != "" || start != want[0] || most != want[1] {
			t.Errorf("%q: %v to %v, %q; want %v", text, start, most, problem, want)
		}
	}
	for text, want := range map[string]string{
		"": "positive", "abc": "positive", "0": "positive", "-0.5": "positive", "nan": "positive", "inf": "positive", "0.5-": "positive",
		"0.5-abc": "positive", "0.5-0.7-0.9": "positive", "+": "positive", "0+": "positive", "-0.5+": "positive", "nan+": "positive",
		"inf+": "positive", "0.5++": "positive", "0.5+-1": "positive", "0.5-0.9+": "positive",
		"1.5+": "cap must be at least the start", "0.9-0.5": "cap must be at least the start", "0.5-1.5": "cannot exceed 1",
	} {
		if _, _, problem := growth(text); !strings.Contains(problem, want) || !strings.HasPrefix(problem, `Invalid memory fraction "`+text+`": `) || !strings.Contains(problem, "START-CAP") {
			t.Errorf("%q: %q, want one about %q", text, problem, want)
		}
	}
	for _, text := range []string{"0.75", "0.75+", "0.75-0.85", "1.5", "1e-08", "1e-08+", "1e-08-2e-08"} {
		start, most, _ := growth(text)
		if got := policy.FractionPolicy(start, most); got != text {
			t.Errorf("%q is written as %q", text, got)
		}
	}
}

// TestJAXNext: what the environment makes of the pool that JAX's documentation describes
// ahead of its releases, on a GPU of 80 GiB. Sizes are in GiB; most is 0 where the pool
// does not grow.
func TestJAXNext(t *testing.T) {
	d := policy.Device{Total: 80 << 30, Free: 80 << 30}
	for _, tc := range []struct {
		env         []string
		first, most float64
		note        string // of a setting, warning or error
	}{
		{nil, 60, 80, ""},
		{[]string{"XLA_CLIENT_MEM_FRACTION=.5"}, 40, 0, "50 % of the total memory"},
		{[]string{"XLA_PYTHON_CLIENT_MEM_FRACTION=.75"}, 60, 0, ""},
		{[]string{"XLA_CLIENT_MEM_FRACTION="}, 60, 80, ""}, // empty is unset
		{[]string{"XLA_CLIENT_MEM_FRACTION=0.75+"}, -1, 0, "could not convert string to float: '0.75+'"},
		{[]string{"XLA_PYTHON_CLIENT_PREALLOCATE=false"}, .001953125, 60, ""}, // grows by regions, to the 75 % as today
		{[]string{"XLA_PYTHON_CLIENT_PREALLOCATE=false", "XLA_FLAGS=--xla_gpu_memory_fraction_policy=0.5+"}, .001953125, 40, ""},
		{[]string{"XLA_PYTHON_CLIENT_ALLOCATOR=bfc"}, 60, 80, ""},
		{[]string{"XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async"}, 60, 0, ""},
		{[]string{"XLA_PYTHON_CLIENT_ALLOCATOR=vmm"}, 0, 60, ""},
		{[]string{"XLA_PYTHON_CLIENT_ALLOCATOR=platform"}, 0, 80, ""},
		{[]string{"XLA_FLAGS=--xla_gpu_memory_fraction_policy=0.5-0.85"}, 40, 68, "the pool begins with 50 % and grows to 85 %"},
		{[]string{"XLA_FLAGS=--xla_gpu_memory_fraction_policy=0.5"}, 40, 0, "the limit is 50 %, and the pool does not grow beyond it"},
		{[]string{"XLA_FLAGS=--xla_gpu_memory_fraction_policy=0.25+", "XLA_CLIENT_MEM_FRACTION=.5"}, 20, 80, "ignored: what XLA_FLAGS says of the fraction goes before it"},
		{[]string{"XLA_FLAGS=--xla_gpu_memory_fraction_policy=0.5-1.2"}, -1, 0, "a growth cap cannot exceed 1"},
		{[]string{"XLA_FLAGS=--xla_gpu_memory_fraction_policy"}, -1, 0, "Unknown flag"},
		{[]string{"XLA_FLAGS=--xla_gpu_enable_nccl_user_buffers_in_default_space=true"}, 60, 0, "keeps the pool at the 75 %"},
		{[]string{"XLA_FLAGS=--xla_gpu_enable_allocator_spatial_partitioning=false"}, 60, 0, ""},
		{[]string{"XLA_FLAGS=--xla_gpu_experimental_vmm_disabled=true"}, 60, 0, "not modelled"},
		{[]string{"TF_FORCE_UNIFIED_MEMORY=1"}, 80, 0, ""},
		{[]string{"JAX_PJRT_CLIENT_CREATE_OPTIONS=memory_fraction_policy:0.5-0.75"}, 40, 60, ""},
		{[]string{"JAX_PJRT_CLIENT_CREATE_OPTIONS=memory_fraction_policy:0.5x"}, -1, 0, "Invalid memory fraction"},
	} {
		t.Run(strings.Join(tc.env, " "), func(t *testing.T) {
			r, err := All[0].Read(policy.Environ(tc.env), policy.Next)
			notes := ""
			for _, s := range r.Settings {
				notes += s.Effect + "\n"
			}
			for _, w := range r.Warnings {
				notes += w.Text + "\n"
			}
			first, most := -1.0, 0.0
			if err == nil {
				first = float64(r.Policy.FirstGrant(d)) / (1 << 30)
				if limit := r.Policy.LimitBytes(d); r.Policy.Kind != policy.Async && limit != r.Policy.FirstGrant(d) {
					most = float64(limit) / (1 << 30)
				}
			} else {
				notes += err.Text
			}
			if first != tc.first || most != tc.most || !strings.Contains(notes, tc.note) {
				t.Errorf("%v, up to %v; want %v, up to %v\n%s; want %q", first, most, tc.first, tc.most, notes, tc.note)
			}
		})
	}
}

// TestOnlyNextGrows: no release does, nor what is newer than the newest known one, nor our
// own runtime.
func TestOnlyNextGrows(t *testing.T) {
	for _, spec := range []string{"jax", "jax@0.12.0", "jax@99.0", "env"} {
		if p, err := Parse(spec); err != nil || p.Grows() {
			t.Errorf("%s grows to %v (%v)", spec, p.Cap, err)
		}
	}
	if r, err := ParseRelease("jax@next"); err != nil || r.Note() != "" {
		t.Errorf("jax@next: %q, %v", r.Note(), err)
	}
	for _, bad := range []string{"tensorflow@next", "pytorch@next", "cupy@next", "jax@Next", "jax@next.1"} {
		if _, err := Parse(bad); err == nil {
			t.Errorf("%s is taken", bad)
		}
		if _, err := ParseRelease(bad); err == nil {
			t.Errorf("%s is taken as a release", bad)
		}
	}
}

// TestNextOnTheCommandLine: the keys of a policy that decide how far the pool grows.
func TestNextOnTheCommandLine(t *testing.T) {
	d := policy.Device{Total: 80 << 30}
	for spec, want := range map[string][2]uint64{ // GiB: first, at most
		"jax@next":                      {60, 80},
		"jax@next:fraction=0.5+":        {40, 80},
		"jax@next:fraction=0.75-0.85":   {60, 68},
		"jax@next:fraction=.75":         {60, 60},
		"jax@next:fraction=0.75-0.75":   {60, 60},
		"jax@next:limit=10GiB":          {10, 10},
		"jax@next:topdown=false":        {60, 60},
		"jax@next:of=free":              {0, 0},
		"jax@next:spatial=false":        {60, 60},
		"jax@next:fraction=.75,gc=true": {60, 60},
		"jax@next:preallocate=true":     {60, 80},
		"jax:fraction=.5":               {40, 40},
	} {
		p, err := Parse(spec)
		if !p.Grows() && p.Cap != 0 {
			t.Errorf("%s: a field that does not apply is %g", spec, p.Cap)
		}
		if err != nil || p.FirstGrant(d) != want[0]<<30 || p.LimitBytes(d) != want[1]<<30 || p.Grows() != (want[0] != want[1]) {
			t.Errorf("%s: %d of at most %d bytes, grows %v (%v); want %d GiB", spec, p.FirstGrant(d), p.LimitBytes(d), p.Grows(), err, want)
		}
	}
	for _, bad := range []string{"jax@next:fraction=0.85-0.75", "jax@next:fraction=1.5+", "jax:fraction=0.75+", "jax@next:gc=true", "jax@next:coalesce=true", "bfc:fraction=.5+",
		"jax@next:fraction=.5+,preallocate=false", "jax@next:limit=4GiB,fraction=.5+", "jax@next:fraction=.5+,of=free", "jax@next:fraction=.5+,topdown=false", "jax@next:fraction=.5+,spatial=false"} {
		if p, err := Parse(bad); err == nil {
			t.Errorf("%s is taken: %+v", bad, p)
		}
	}
}

// TestNextSaysWhatItIs: texts of the reading that differ where the pool grows, and only
// there.
func TestNextSaysWhatItIs(t *testing.T) {
	d := policy.Device{Total: 80 << 30, Free: 80 << 30}
	const grows, pinned, fixed = "more where nothing free is large enough", "keeps the pool at", "does not grow beyond"
	for _, tc := range []struct {
		v          policy.Version
		env        string
		has, hasNo string
	}{
		{policy.Next, "", grows, pinned},
		{policy.Next, "", "within what it takes first", fixed},
		{policy.Next, "XLA_CLIENT_MEM_FRACTION=.5", "the whole limit at the first operation", grows},
		{policy.Next, "XLA_CLIENT_MEM_FRACTION=.5", "", "within what it takes first"},
		{policy.Next, "XLA_FLAGS=--xla_gpu_enable_nccl_user_buffers_in_default_space=true", pinned, grows},
		{newestJAX, "XLA_FLAGS=--xla_gpu_enable_nccl_user_buffers_in_default_space=true", "", pinned},
		{policy.Next, "JAX_PJRT_CLIENT_CREATE_OPTIONS=memory_fraction_policy:0.5-0.75", grows, fixed},
		{newestJAX, "JAX_PJRT_CLIENT_CREATE_OPTIONS=memory_fraction_policy:0.5-0.75", fixed, grows},
		{policy.Next, "XLA_FLAGS=--xla_gpu_memory_fraction_policy=0.5-0.75\x00XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async", "is ignored: only the pool (bfc) reads it", "the pool begins with"},
		{policy.Next, "XLA_FLAGS=--xla_gpu_memory_fraction_policy=75%\x00XLA_PYTHON_CLIENT_ALLOCATOR=vmm", "is ignored", "the pool begins with"},
		{policy.Next, "XLA_FLAGS=--xla_gpu_memory_fraction_policy=0.5+\x00XLA_PYTHON_CLIENT_PREALLOCATE=false", "the limit is 50 %", "grows to"},
		{policy.Next, "XLA_FLAGS=--xla_gpu_memory_fraction_policy=0.5+ --xla_gpu_enable_allocator_spatial_partitioning=false", "and the pool does not grow\n", "grows to"},
		{policy.Next, "XLA_FLAGS=--xla_gpu_memory_fraction_policy=0.5+\x00TF_FORCE_UNIFIED_MEMORY=1", "may take 100 %", "grows to"},
		{policy.Next, "XLA_CLIENT_MEM_FRACTION=.8\x00JAX_PJRT_CLIENT_CREATE_OPTIONS=memory_fraction_policy:0.5", "what JAX_PJRT_CLIENT_CREATE_OPTIONS says", "of the total memory"},
		{newestJAX, "JAX_PJRT_CLIENT_CREATE_OPTIONS=memory_fraction_policy:0.5", "memory_fraction_policy: the limit is 50 %", grows},
		{newestJAX, "JAX_PJRT_CLIENT_CREATE_OPTIONS=memory_fraction_policy:0.5\x00XLA_PYTHON_CLIENT_ALLOCATOR=platform", "is ignored", "the limit is"},
		{newestJAX, "XLA_FLAGS=--xla_gpu_memory_fraction_policy=0.5-0.75", "no release knows it yet", grows},
	} {
		r, err := All[0].Read(policy.Environ(strings.Split(tc.env, "\x00")), tc.v)
		text := ""
		for _, s := range r.Settings {
			text += s.Effect + "\n"
		}
		for _, w := range r.Warnings {
			text += w.Text + "\n"
		}
		if err != nil {
			text += err.Text + err.Then
		} else {
			for _, p := range r.Pools(d) {
				text += p.Text + "\n"
			}
		}
		if !strings.Contains(text, tc.has) || strings.Contains(text, tc.hasNo) {
			t.Errorf("%s with %q: want %q and not %q in\n%s", tc.v, tc.env, tc.has, tc.hasNo, text)
		}
	}
}

// TestNextAsClientOptions: the options of a program that makes a client itself.
func TestNextAsClientOptions(t *testing.T) {
	d := policy.Device{Total: 80 << 30}
	for spec, want := range map[string]string{
		"jax@next":                    "xla:cuda,allocator=bfc,memory_fraction=0.75,memory_fraction_policy=0.75+,preallocate=true",
		"jax@next:fraction=0.75-0.85": "xla:cuda,allocator=bfc,memory_fraction=0.75,memory_fraction_policy=0.75-0.85,preallocate=true",
		"jax@next:fraction=.75":       "xla:cuda,allocator=bfc,memory_fraction=0.75,preallocate=true",
		"jax@next:limit=40GiB":        "xla:cuda,allocator=bfc,memory_fraction=0.5,preallocate=true",
	} {
		p, err := Parse(spec)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := p.GoMLX(d); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", spec, got, err, want)
		}
		if f := policy.FractionFor(40<<30, p, d); f != .5 {
			t.Errorf("%s: the fraction for half the GPU is %g", spec, f)
		}
	}
}

// TestWithoutPagesTheLimitOfOneGrantIsNotRead: jaxlib 0.12.0.1 with the flag takes 18 GiB of
// 24, whatever TF_PER_DEVICE_MEMORY_LIMIT_MB says (asked), in plain grants of 256 bytes.
func TestWithoutPagesTheLimitOfOneGrantIsNotRead(t *testing.T) {
	env := policy.Environ([]string{"XLA_FLAGS=--xla_gpu_experimental_vmm_disabled=true", "TF_PER_DEVICE_MEMORY_LIMIT_MB=1001"})
	r, err := All[0].Read(env, newestJAX)
	if err != nil || r.Policy.GrantLimit != 0 || r.Policy.RegionUnit != plainUnit || len(r.Warnings) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	d := policy.Device{Total: 24 << 30, Free: 4 << 30}
	if got := r.Policy.Granted(d); got != 3979329536 {
		t.Errorf("of 4 GiB it gets %d bytes, want 3979329536", got)
	}
}

// TestUnifiedMemoryIsNotPinned: nothing is said of a size that unified memory does not have.
func TestUnifiedMemoryIsNotPinned(t *testing.T) {
	env := policy.Environ([]string{"XLA_FLAGS=--xla_gpu_enable_nccl_user_buffers_in_default_space=true", "TF_FORCE_UNIFIED_MEMORY=1"})
	r, err := All[0].Read(env, policy.Next)
	if err != nil || len(r.Warnings) != 0 || !r.Policy.Managed {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestBlanksInTorchSettings: as PyTorch takes the text.
func TestBlanksInTorchSettings(t *testing.T) {
	p, err := Parse("pytorch:conf=max_split_size_mb:128, expandable_segments:True")
	if err != nil || !p.Torch.Expandable || p.Torch.MaxSplit != 128<<20 {
		t.Errorf("%+v, %v", p.Torch, err)
	}
}
