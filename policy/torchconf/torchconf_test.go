// Tests of PyTorch's settings against PyTorch itself, by the tables in
// testdata/pytorch.

package torchconf

import (
	"bufio"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpumem/internal/test/envtest"
	"gpumem/policy"
	"gpumem/policy/internal/literal"
)

// A torchAnswer is what one release made of a text, or of an environment.
type torchAnswer struct {
	line    int
	head    string // the text, or the assignments
	release string
	said    string
}

// torchTable reads a table of testdata/pytorch: an entry's head, and a line for
// each run of releases.
func torchTable(t *testing.T, name string) []torchAnswer {
	t.Helper()
	f, err := os.Open("testdata/pytorch/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var releases []string
	var answers []torchAnswer
	head := ""
	in := bufio.NewScanner(f)
	for n := 1; in.Scan(); n++ {
		line := in.Text()
		asked, list := strings.CutPrefix(line, "# Releases asked: ")
		rest, answer := strings.CutPrefix(line, "  ")
		switch {
		case list:
			for one := range strings.SplitSeq(strings.TrimSuffix(asked, "."), ", ") {
				one, _, _ = strings.Cut(one, " ")
				releases = append(releases, one)
			}
		case strings.HasPrefix(line, "#"), line == "":
		case answer:
			span, said, _ := strings.Cut(rest, " ")
			from, to, many := strings.Cut(span, "..")
			if !many {
				to = from
			}
			i, j := slices.Index(releases, from), slices.Index(releases, to)
			if i < 0 || j < i {
				t.Fatalf("%s:%d: releases %s", name, n, span)
			}
			for _, release := range releases[i : j+1] {
				answers = append(answers, torchAnswer{n, head, release, said})
			}
		default:
			head = line
		}
	}
	if err := in.Err(); err != nil || len(answers) == 0 {
		t.Fatalf("%s: %d answers, %v", name, len(answers), err)
	}
	return answers
}

// refused is the text of the exception in an answer; the rest is what follows.
func (a torchAnswer) refused(t *testing.T) (text, rest string, ok bool) {
	t.Helper()
	said, ok := strings.CutPrefix(a.said, "! ")
	if !ok {
		return "", strings.TrimPrefix(a.said, "ok"), false
	}
	_, said, _ = strings.Cut(said, " ") // the class
	quoted, err := strconv.QuotedPrefix(said)
	if err != nil {
		t.Fatalf("line %d: %v", a.line, err)
	}
	text, _ = strconv.Unquote(quoted)
	return text, said[len(quoted):], true
}

// reported is what PyTorch's own report of its settings has, less defaults.
func (s torchSettings) reported() string {
	out := map[string]string{}
	for key, value := range s.values {
		name := map[string]string{keyMaxSplit: "max_split_size", keyRoundMost: "max_round_threshold", keyCacheMost: "max_cached_size"}[key]
		switch v := value.(type) {
		case uint64:
			if key == "pinned_num_register_threads" && v != 1 {
				name = key
			}
			out[name] = strconv.FormatInt(int64(v), 10)
		case float64:
			if key == keyGC {
				out[key] = literal.PyFloatText(v)
			}
		case bool:
			if slices.Contains([]string{keyExpandable, "release_lock_on_cudamalloc", "pinned_use_cuda_host_register", "graph_capture_record_stream_reuse"}, key) && v {
				out[key] = "True"
			}
		case [16]uint64:
			var list []string
			for _, n := range v {
				list = append(list, strconv.FormatUint(n, 10))
			}
			if len(slices.Compact(slices.Clone(list))) == 1 {
				list = list[:1]
			}
			if text := strings.Join(list, ","); text != "0" {
				out[key] = text
			}
		}
	}
	delete(out, "")
	text := ""
	for _, name := range slices.Sorted(maps.Keys(out)) {
		text += " " + name + "=" + out[name]
	}
	return text
}

// TestTorchSettings: what each text changes, or the exception it is refused
// with, in every release that was asked.
func TestTorchSettings(t *testing.T) {
	agree, differ, skipped := 0, 0, 0
	for _, a := range torchTable(t, "settings.txt") {
		text, err := strconv.Unquote(a.head)
		if err != nil {
			t.Fatal(err)
		}
		v, err := policy.ParseVersion(a.release, "PyTorch", "")
		if err != nil {
			t.Fatal(err)
		}
		want, rest, refused := a.refused(t)
		if strings.HasPrefix(want, "CUDA error") { // it asked the driver's version, and there was none
			skipped++
			continue
		}
		if a.said == "crash signal 11" {
			want, rest, refused = errTorchCrash.Error(), "", true
		}
		rest, warns, warned := strings.Cut(rest, " warn ")
		r := Releases().At(v)
		s, err := r.parse(text, torchNative) // set by a call: the native backend is loaded
		got := ""
		if err != nil {
			got = strings.TrimSpace(err.Error())
		}
		ok := refused == (err != nil) && got == want
		if !v.Less(policy.Version{2, 4}) && a.said != "crash signal 11" { // the others do not report
			ok = ok && s.reported() == rest
		}
		if warned && strings.Contains(warns, "reserve value") {
			ok = ok && len(s.odd) > 0
		}
		if !ok {
			differ++
			t.Errorf("settings.txt:%d: %s %s: %q%s, want %s", a.line, a.release, a.head, got, s.reported(), a.said)
		} else {
			agree++
		}
	}
	t.Logf("%d answers agree, %d differ, %d need a GPU", agree, differ, skipped)
}

// TestTorchVariables: which variable counts, and what it is refused with.
func TestTorchVariables(t *testing.T) {
	agree, skipped := 0, 0
	for _, a := range torchTable(t, "env.txt") {
		said, looked := strings.CutPrefix(a.said, "look ")
		if !looked || strings.HasPrefix(said, "! AttributeError") { // no answer, or the list of names
			skipped++
			continue
		}
		var env policy.Environment
		if a.head != "unset" {
			env = envtest.Environ(t, a.head)
		}
		v, err := policy.ParseVersion(a.release, "PyTorch", "")
		if err != nil {
			t.Fatal(err)
		}
		a.said = said
		want, rest, refused := a.refused(t)
		rest, _, deprecated := strings.Cut(rest, " warn ")
		got, raised := Read(env, v)
		r := Releases().At(v)
		common, _ := r.variables(env)
		// A look asks for the common settings first, other than a program does.
		s, problem := r.parse(env.Get(common), torchNative)
		switch where := fmt.Sprintf("env.txt:%d: %s %s", a.line, a.release, a.head); {
		case strings.HasPrefix(want, "Calling snapshot with backend:cudaMallocAsync"):
			if raised != nil || got.Policy.Kind != policy.Async {
				t.Errorf("%s: %v, %v", where, got.Policy, raised)
			}
		case refused != (raised != nil), refused && problem.Error() != want:
			t.Errorf("%s: %v, %v, want %q", where, raised, problem, want)
		case s.reported() != rest:
			t.Errorf("%s: %s, want %s", where, s.reported(), rest)
		case deprecated && env.Get(pytorchCudaConf) != "" && !refused && !strings.Contains(got.Settings[0].Effect, "deprecated"):
			t.Errorf("%s: %v", where, got.Settings)
		}
		agree++
	}
	t.Logf("%d answers, %d tell nothing", agree, skipped)
}

// TestTorchLoading: what PyTorch 2.14.1 and 2.3.1 did at import and at the first
// use of a GPU, asked by hand (with a stand-in for CUDA, as CuPy is in
// testdata/cupy).
func TestTorchLoading(t *testing.T) {
	old, recent := policy.Version{2, 3, 1}, policy.Version{2, 14, 1}
	const end = "i < config_.size() INTERNAL ASSERT FAILED, please report a bug to PyTorch. Index out of bounds in ConfigTokenizer"
	for _, tc := range []struct {
		name       string
		v          policy.Version
		env        string
		text, then string // of the error
		kind       policy.Kind
	}{
		{"a word", recent, "PYTORCH_CUDA_ALLOC_CONF=bogus", end, torchAtLoad, 0},
		{"a key", recent, "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb", end, torchAtLoad, 0},
		{"backend alone", recent, "PYTORCH_CUDA_ALLOC_CONF=backend", end, torchAtLoad, 0},
		{"no bracket", recent, "PYTORCH_CUDA_ALLOC_CONF=roundup_power2_divisions:[256:1,512:2", torchNoBracket("config_").Error(), torchAtLoad, 0},
		{"a blank", recent, "PYTORCH_CUDA_ALLOC_CONF=backend: cudaMallocAsync", "", "", policy.Async},
		{"no colon to look for", recent, "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64\tbackend:cudaMallocAsync", end, torchAtLoad, 0},
		{"two backends", recent, "PYTORCH_CUDA_ALLOC_CONF=backend:native,backend:cudaMallocAsync", "tokenizer[i] == get()->name() INTERNAL ASSERT FAILED, please report a bug to PyTorch. Allocator backend parsed at runtime != allocator backend parsed at load time, cudaMallocAsync != native", torchAtUse, 0},
		{"HIP is for all", recent, "PYTORCH_HIP_ALLOC_CONF=bogus:1", "Unrecognized key 'bogus' in Accelerator allocator config.", torchAtUse, 0},
		{"not for CUDA", recent, "PYTORCH_HIP_ALLOC_CONF=backend:cudaMallocAsync", "", "", policy.Caching},
		{"not for CUDA either", recent, "PYTORCH_HIP_ALLOC_CONF=per_process_memory_fraction:2", "", "", policy.Caching},
		{"two lists", recent, "PYTORCH_HIP_ALLOC_CONF=\nPYTORCH_ALLOC_CONF=bogus:1", "Unrecognized key 'bogus' in CUDA allocator config.", torchAtUse, 0},
		{"CUDA's own first", recent, "PYTORCH_ALLOC_CONF=max_split_size_mb:1,per_process_memory_fraction:2", "per_process_memory_fraction is invalid, set it in [0.0, 1.0]", torchAtUse, 0},
		{"an unknown key", recent, "PYTORCH_ALLOC_CONF=bogus:1", "Unrecognized key 'bogus' in CUDA allocator config.", torchAtUse, 0},
		{"without a pool", recent, "PYTORCH_NO_CUDA_MEMORY_CACHING=1\nPYTORCH_ALLOC_CONF=bogus:1", "Unrecognized key 'bogus' in CUDA allocator config.", torchAtUse, 0},
		{"a newer key", recent, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments_reserve:0.5", "Unrecognized key 'expandable_segments_reserve' in CUDA allocator config.", torchAtUse + "; PyTorch 2.15.0 and later know expandable_segments_reserve", 0},
		{"an old blank", old, "PYTORCH_CUDA_ALLOC_CONF=backend: cudaMallocAsync", "config[i] == get()->name() INTERNAL ASSERT FAILED, please report a bug to PyTorch. Allocator backend parsed at runtime != allocator backend parsed at load time", torchAtUse, 0},
		{"an old tab", old, "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64\tbackend:cudaMallocAsync", "Error parsing CachingAllocator settings, expected ,", torchAtUse, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Read(policy.Environ(strings.Split(tc.env, "\n")), tc.v)
			switch {
			case tc.text == "" && (err != nil || got.Policy.Kind != tc.kind):
				t.Errorf("%v, %v", got.Policy, err)
			case tc.text != "" && (err == nil || err.Text != tc.text || !strings.HasPrefix(err.Then, tc.then)):
				t.Errorf("%+v", err)
			}
		})
	}
}

// TestTorchPolicy: what is built, said and warned of.
func TestTorchPolicy(t *testing.T) {
	const cuda, both, hip = "PYTORCH_CUDA_ALLOC_CONF=", "PYTORCH_ALLOC_CONF=", "PYTORCH_HIP_ALLOC_CONF="
	for _, tc := range []struct {
		name    string
		v       policy.Version
		env     string
		want    policy.Policy
		effect  string // part of the first
		warning string // part of one, with its fix after a bar
	}{
		{"nothing", Newest, "", policy.Policy{Kind: policy.Caching}, "", ""},
		{"a fraction", Newest, both + "per_process_memory_fraction:0.5", policy.Policy{Kind: policy.Caching, Fraction: 0.5}, "may take 50 % of the GPU's memory; the CUDA context, NCCL", ""},
		{"the whole", Newest, both + "per_process_memory_fraction:1.0", policy.Policy{Kind: policy.Caching}, "no limit", ""},
		{"nothing to allocate", Newest, both + "per_process_memory_fraction:0", policy.Policy{Kind: policy.Caching, Limit: 1}, "may take 0 %", "leaves no memory|"},
		{"old", policy.Version{2, 8}, both + "expandable_segments:True", policy.Policy{Kind: policy.Caching}, "", "counts since PyTorch 2.10|-PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"},
		{"old, with a new key", policy.Version{2, 8}, both + "per_process_memory_fraction:0.5", policy.Policy{Kind: policy.Caching}, "", "counts since PyTorch 2.10|-PYTORCH_ALLOC_CONF"},
		{"old, both", policy.Version{2, 8}, cuda + "max_split_size_mb:64\n" + both + "expandable_segments:True", policy.Policy{Kind: policy.Caching}, "64 MiB", "counts since|-PYTORCH_ALLOC_CONF"},
		{"2.9", policy.Version{2, 9}, both + "expandable_segments:True", policy.Policy{Kind: policy.Caching}, "", "own warning recommends it|-PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"},
		{"2.9 scolds", policy.Version{2, 9}, cuda + "expandable_segments:True", policy.Policy{Kind: policy.Caching}, "grow page by page, which wastes less; this release calls the name deprecated", ""},
		{"old AMD", policy.Version{2, 8}, hip + "expandable_segments:True", policy.Policy{Kind: policy.Caching}, "", "do not go by it|-PYTORCH_HIP_ALLOC_CONF"},
		{"two", Newest, cuda + "max_split_size_mb:64\n" + both + "per_process_memory_fraction:0.5", policy.Policy{Kind: policy.Caching}, "64 MiB", "PYTORCH_CUDA_ALLOC_CONF is set, too, and wins|-PYTORCH_ALLOC_CONF"},
		{"two alike", Newest, cuda + "max_split_size_mb:64\n" + both + "max_split_size_mb:64", policy.Policy{Kind: policy.Caching}, "64 MiB", ""},
		{"empty wins", Newest, cuda + "\n" + both + "per_process_memory_fraction:0.5", policy.Policy{Kind: policy.Caching}, "", "PYTORCH_CUDA_ALLOC_CONF is set, too, and wins|-PYTORCH_ALLOC_CONF"},
		{"AMD's list", Newest, hip + "max_split_size_mb:64,per_process_memory_fraction:0.5", policy.Policy{Kind: policy.Caching}, "64 MiB", "do not take per_process_memory_fraction from it|"},
		{"AMD's and the new one", Newest, hip + "max_split_size_mb:64\n" + both + "per_process_memory_fraction:0.5", policy.Policy{Kind: policy.Caching, Fraction: 0.5}, "64 MiB", ""},
		{"async", Newest, both + "backend:cudaMallocAsync", policy.Policy{Kind: policy.Async, Fraction: 1, AsyncKeep: true}, "the driver's own pool", ""},
		{"async with others", Newest, both + "backend:cudaMallocAsync,per_process_memory_fraction:0.5", policy.Policy{Kind: policy.Async, Fraction: 1, AsyncKeep: true}, "the driver's own pool", "per_process_memory_fraction is ignored with backend:cudaMallocAsync|"},
		{"no pool", Newest, "PYTORCH_NO_CUDA_MEMORY_CACHING=1", policy.Policy{Kind: policy.Platform}, "one of the driver's", ""},
		{"no pool, meant otherwise", policy.Version{2, 6}, "PYTORCH_NO_CUDA_MEMORY_CACHING=0", policy.Policy{Kind: policy.Platform}, "", "whatever it says|-PYTORCH_NO_CUDA_MEMORY_CACHING"},
		{"no pool, old", policy.Version{2, 6}, "PYTORCH_NO_CUDA_MEMORY_CACHING=", policy.Policy{Kind: policy.Platform}, "one of the driver's", ""},
		{"a pool", policy.Version{2, 7}, "PYTORCH_NO_CUDA_MEMORY_CACHING=0", policy.Policy{Kind: policy.Caching}, "the pool is on", ""},
		{"a pool, meant otherwise", policy.Version{2, 7}, "PYTORCH_NO_CUDA_MEMORY_CACHING=true", policy.Policy{Kind: policy.Caching}, "", "only 1 turns it off|PYTORCH_NO_CUDA_MEMORY_CACHING=1"},
		{"a pool, empty", Newest, "PYTORCH_NO_CUDA_MEMORY_CACHING=", policy.Policy{Kind: policy.Caching}, "", "only 1 turns it off|-PYTORCH_NO_CUDA_MEMORY_CACHING"},
		{"both names", Newest, "PYTORCH_NO_CUDA_MEMORY_CACHING=0\nPYTORCH_NO_HIP_MEMORY_CACHING=1", policy.Policy{Kind: policy.Platform}, "the pool is on", ""},
		{"AMD's name", policy.Version{2, 6}, "PYTORCH_NO_HIP_MEMORY_CACHING=1", policy.Policy{Kind: policy.Platform}, "one of the driver's", ""},
		{"AMD's name before", policy.Version{2, 5}, "PYTORCH_NO_HIP_MEMORY_CACHING=1", policy.Policy{Kind: policy.Caching}, "", "do not read it, only PYTORCH_NO_CUDA|-PYTORCH_NO_HIP_MEMORY_CACHING"},
		{"no pool and a list", Newest, "PYTORCH_NO_CUDA_MEMORY_CACHING=1\n" + both + "max_split_size_mb:64", policy.Policy{Kind: policy.Platform}, "one of the driver's", "without the pool|"},
		{"no pool and async", Newest, "PYTORCH_NO_CUDA_MEMORY_CACHING=1\n" + both + "backend:cudaMallocAsync", policy.Policy{Kind: policy.Async, Fraction: 1, AsyncKeep: true}, "backend: the driver's own pool (cudaMallocAsync)", "does not look at it|-PYTORCH_NO_CUDA_MEMORY_CACHING"},
		{"collection alone", Newest, both + "garbage_collection_threshold:0.8", policy.Policy{Kind: policy.Caching}, "from 80 % of the limit", "does nothing unless per_process_memory_fraction is below 1|"},
		{"collection alone, old", policy.Version{2, 8}, cuda + "garbage_collection_threshold:0.8", policy.Policy{Kind: policy.Caching}, "from 80 %", "does nothing unless the program calls|"},
		{"collection", Newest, both + "garbage_collection_threshold:0.8,per_process_memory_fraction:0.5", policy.Policy{Kind: policy.Caching, Fraction: 0.5}, "from 80 %", ""},
		{"pages and unsplit blocks", policy.Version{2, 4, 1}, cuda + "expandable_segments:True,max_split_size_mb:64", policy.Policy{Kind: policy.Caching}, "64 MiB", "INTERNAL ASSERT FAILED, up to PyTorch 2.4|"},
		{"pages and unsplit blocks, later", policy.Version{2, 5}, cuda + "expandable_segments:True,max_split_size_mb:64", policy.Policy{Kind: policy.Caching}, "64 MiB", ""},
		{"throwing alone", Newest, both + "throw_on_cudamalloc_oom:True", policy.Policy{Kind: policy.Caching}, "refused at once", "throw_on_cudamalloc_oom does nothing unless|"},
		{"twice", Newest, both + "max_split_size_mb:64,max_split_size_mb:128", policy.Policy{Kind: policy.Caching}, "128 MiB", "more than once|"},
		{"a unit", Newest, both + "max_split_size_mb:64MB", policy.Policy{Kind: policy.Caching}, "64 MiB", "'64MB' is not read, or only the number|"},
		{"minus", Newest, both + "max_split_size_mb:-1", policy.Policy{Kind: policy.Caching}, "no limit", ""},
		{"addresses alone", Newest, both + "expandable_segments_reserve:0.5", policy.Policy{Kind: policy.Caching}, "addresses", "does nothing without expandable_segments:True|"},
		{"passed over", policy.Version{1, 13}, cuda + "max_split_size_mb: 64", policy.Policy{Kind: policy.Caching}, "", "'max_split_size_mb:' is not read|"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Read(policy.Environ(strings.Split(tc.env, "\n")), tc.v)
			if err != nil {
				t.Fatal(err)
			}
			tc.want.Name = "pytorch"
			got.Policy.Torch = policy.Torch{} // see TestTorchPool
			if got.Policy != tc.want {
				t.Errorf("%+v, want %+v", got.Policy, tc.want)
			}
			if tc.effect == "" && len(got.Settings) > 0 || tc.effect != "" && (len(got.Settings) == 0 || !strings.Contains(got.Settings[0].Effect, tc.effect)) {
				t.Errorf("effects %+v, want %q", got.Settings, tc.effect)
			}
			text, fix, _ := strings.Cut(tc.warning, "|")
			if tc.warning == "" && len(got.Warnings) > 0 || tc.warning != "" && !slices.ContainsFunc(got.Warnings, func(w policy.Warning) bool { return strings.Contains(w.Text, text) && w.Fix == fix }) {
				t.Errorf("warnings %+v, want %q", got.Warnings, tc.warning)
			}
		})
	}
}

// TestTorchFixes: what to set in place of what is refused.
func TestTorchFixes(t *testing.T) {
	for _, tc := range []struct {
		name      string
		v         policy.Version
		list, fix string
		then      string
	}{
		{"percent", Newest, "expandable_segments:True,per_process_memory_fraction:80", "expandable_segments:True,per_process_memory_fraction:.8", ""},
		{"percent sign", Newest, "per_process_memory_fraction:50%", "per_process_memory_fraction:.5", ""},
		{"collection", policy.Version{2, 8}, "garbage_collection_threshold:80", "garbage_collection_threshold:.8", ""},
		{"too small", policy.Version{2, 8}, "max_split_size_mb:20", "max_split_size_mb:21", ""},
		{"true", Newest, "expandable_segments:true", "expandable_segments:True", ""},
		{"off", policy.Version{2, 8}, "expandable_segments:off,max_split_size_mb:64", "expandable_segments:False,max_split_size_mb:64", ""},
		{"newer", policy.Version{2, 8}, "max_split_size_mb:64,per_process_memory_fraction:0.5", "max_split_size_mb:64", "PyTorch 2.10.0 and later know per_process_memory_fraction"},
		{"newer alone", policy.Version{2, 0}, "expandable_segments:True", "-", "PyTorch 2.1.0 and later know expandable_segments"},
		{"misspelt", Newest, "expandable_segment:True", "expandable_segments:True", "did you mean expandable_segments?"},
		{"not a number", Newest, "max_split_size_mb:abc", "", ""},
		{"crash", policy.Version{2, 4}, "roundup_power2_divisions:[256:1", "", "crashes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Read(policy.Environ([]string{pytorchCudaConf + "=" + tc.list}), tc.v)
			want := tc.fix
			switch want {
			case "-":
				want += pytorchCudaConf
			case "":
			default:
				want = pytorchCudaConf + "=" + want
			}
			if err == nil || err.Fix != want || !strings.Contains(err.Then, tc.then) {
				t.Fatalf("%+v, want %q, %q", err, want, tc.then)
			}
		})
	}
}

// TestTorchPools: the main pool's limit and first grant.
func TestTorchPools(t *testing.T) {
	d := policy.Device{Total: 8000000001}
	for _, tc := range []struct {
		list, text string
		first      uint64
		limit      uint64 // 0: none
	}{
		{"", "of 20 MiB up to 10 MiB", 2 << 20, 0},
		{"large_segment_size_mb:64", "of 64 MiB up to 10 MiB", 2 << 20, 0},
		{"expandable_segments:True", "one segment", 2 << 20, 0},
		{"per_process_memory_fraction:0.25", "segments of 2 MiB", 2 << 20, 2000000000},
		{"per_process_memory_fraction:0.0001", "segments of 2 MiB", 0, 800000},
		{"backend:cudaMallocAsync", "the driver's pool", 0, 0},
	} {
		got, err := Read(policy.Environ([]string{pytorchConf + "=" + tc.list}), Newest)
		if err != nil {
			t.Fatal(err)
		}
		pools := got.Pools(d)
		limit := uint64(0)
		if pools[0].Limit != nil {
			limit = *pools[0].Limit
		}
		if !strings.Contains(pools[0].Text, tc.text) || pools[0].First != tc.first || limit != tc.limit {
			t.Errorf("%s: %+v, limit %d", tc.list, pools[0], limit)
		}
	}
}

// TestMerge names the variable, the text, or what stands in the way.
func TestMerge(t *testing.T) {
	for _, tc := range []struct {
		name, env, v, key, value string
		want                     string // NAME=text, or a part of the error
	}{
		{"nothing yet", "", "", "per_process_memory_fraction", "0.5", "PYTORCH_ALLOC_CONF=per_process_memory_fraction:0.5"},
		{"kept", "PYTORCH_ALLOC_CONF=expandable_segments:True", "", "per_process_memory_fraction", "0.5", "PYTORCH_ALLOC_CONF=expandable_segments:True,per_process_memory_fraction:0.5"},
		{"where it counts", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\nPYTORCH_ALLOC_CONF=max_split_size_mb:64", "2.12", "per_process_memory_fraction", "0.5", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,per_process_memory_fraction:0.5"},
		{"AMD's list, CUDA's key", "PYTORCH_HIP_ALLOC_CONF=expandable_segments:True", "", "per_process_memory_fraction", "0.5", "PYTORCH_ALLOC_CONF=per_process_memory_fraction:0.5"},
		{"AMD's list", "PYTORCH_HIP_ALLOC_CONF=expandable_segments:True", "", "max_split_size_mb", "64", "PYTORCH_HIP_ALLOC_CONF=expandable_segments:True,max_split_size_mb:64"},
		{"replaced", "PYTORCH_ALLOC_CONF=per_process_memory_fraction:0.9,expandable_segments:True", "", "per_process_memory_fraction", "0.5", "PYTORCH_ALLOC_CONF=per_process_memory_fraction:0.5,expandable_segments:True"},
		{"replaced twice", "PYTORCH_ALLOC_CONF=max_split_size_mb:64,max_split_size_mb:128", "", "max_split_size_mb", "32", "PYTORCH_ALLOC_CONF=max_split_size_mb:32"},
		{"a list and blanks", "PYTORCH_ALLOC_CONF= roundup_power2_divisions : [ 256 : 1 , > : 4 ] , ", "", "max_split_size_mb", "32", "PYTORCH_ALLOC_CONF=roundup_power2_divisions:[256:1,>:4],max_split_size_mb:32"},
		{"AMD's key", "PYTORCH_ALLOC_CONF=pinned_use_hip_host_register:True", "", "pinned_use_cuda_host_register", "False", "PYTORCH_ALLOC_CONF=pinned_use_cuda_host_register:False"},
		{"old", "", "2.8.0", "expandable_segments", "True", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"},
		{"1.13", "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64 garbage_collection_threshold:0.5", "1.13.1", "roundup_power2_divisions", "4", "cannot put"},
		{"too old", "", "2.8.0", "per_process_memory_fraction", "0.5", "PyTorch 2.8.0 does not know per_process_memory_fraction, only 2.10.0 and later do"},
		{"misspelt", "", "", "expandable_segment", "True", `does not know expandable_segment (did you mean "expandable_segments"?)`},
		{"refused value", "", "", "per_process_memory_fraction", "50", "refuses per_process_memory_fraction:50: per_process_memory_fraction is invalid"},
		{"refused before", "PYTORCH_ALLOC_CONF=bogus:1", "", "max_split_size_mb", "64", "refuses PYTORCH_ALLOC_CONF=bogus:1: Unrecognized key"},
		{"two in one", "", "", "max_split_size_mb", "64,expandable_segments:True", "cannot put"},
		{"odd separators", "PYTORCH_ALLOC_CONF=max_split_size_mb:64:expandable_segments:True", "", "garbage_collection_threshold", "0.5", "PYTORCH_ALLOC_CONF=max_split_size_mb:64:expandable_segments:True,garbage_collection_threshold:0.5"},
		{"no release", "", "new", "max_split_size_mb", "64", `"new" is not a PyTorch release`},
		{"before all", "", "1.12", "max_split_size_mb", "64", "PyTorch 1.12 is not known; the oldest known release is 1.13.0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			name, text, err := Merge(policy.Environ(strings.Split(tc.env, "\n")), tc.v, tc.key, tc.value)
			got := name + "=" + text
			if err != nil {
				got = err.Error()
			}
			if got != tc.want && (err == nil || !strings.Contains(got, tc.want)) {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}

// TestMergeKeeps: the result parses, has the setting, and all others as
// before.
func TestMergeKeeps(t *testing.T) {
	values := map[string][]string{
		keyMaxSplit: {"21", "64", "512"}, keyGC: {"0.5", ".9"}, keyRoundup: {"4", "[256:1,>:4]", "[]"}, keyExpandable: {"True", "False"},
		keyFraction: {"0.5", "1", "0"}, keyBackend: {torchNative, torchAsync}, "release_lock_on_hipmalloc": {"True"}, "release_lock_on_cudamalloc": {"False"},
		keyReserve: {"1", "256"}, keyAddresses + "_by_class": {"[main:0.5,nccl:2G]"}, keyLarge: {"20", "21"},
	}
	keys := slices.Sorted(maps.Keys(values))
	rapid.Check(t, func(t *rapid.T) {
		draw := func(i int) string {
			key := rapid.SampledFrom(keys).Draw(t, fmt.Sprint("key", i))
			blank := rapid.SampledFrom([]string{"", " "}).Draw(t, fmt.Sprint("blank", i))
			return key + blank + ":" + blank + rapid.SampledFrom(values[key]).Draw(t, fmt.Sprint("value", i))
		}
		var items []string
		for i := range rapid.IntRange(0, 4).Draw(t, "n") {
			items = append(items, draw(i))
		}
		key, value, _ := strings.Cut(strings.ReplaceAll(draw(-1), " ", ""), ":")
		env := policy.Environ([]string{pytorchConf + "=" + strings.Join(items, ",")})
		r := Releases().At(Newest)
		before, err := r.check(env.Get(pytorchConf))
		name, text, merr := Merge(env, "", key, value)
		if err != nil { // two backends, or sizes that do not go together
			if merr == nil {
				t.Fatalf("%v, but %s=%s", err, name, text)
			}
			return
		}
		if merr != nil {
			if key != keyLarge && key != keyMaxSplit { // one of which may be too small for the other
				t.Fatal(merr)
			}
			return
		}
		after, err := r.check(text)
		if err != nil || name != pytorchConf {
			t.Fatalf("%s=%s: %v", name, text, err)
		}
		alone, err := r.check(key + ":" + value)
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(before.values, alone.values)
		if !maps.Equal(before.values, after.values) {
			t.Fatalf("%v, want %v", after.values, before.values)
		}
	})
}

// caughtIn reads the only token of a reader, and returns the refusal.
func caughtIn[T any](read func(key string, i int) T) (v T, err error) {
	defer caught(&err)
	return read("", 0), nil
}

// TestTorchNumbers compares with C's own functions on what people write.
func TestTorchNumbers(t *testing.T) {
	p := func(token string) *reader {
		return &reader{r: &release{Grammar: torchTwice}, tokens: []string{token}, torchSettings: torchSettings{values: map[string]any{}}}
	}
	for token, want := range map[string]float64{"0.8": 0.8, ".8": 0.8, "8.": 8, "1e3": 1000, "1e": 1, "0x1p-1": 0.5, "0x10": 16, "0x.8": 0.5, "0x": 0, "-0.5": -0.5, "+2": 2, "inf": math.Inf(1), "-Infinity": math.Inf(-1), "0e999": 0, "0.8f": 0.8, "0x1p-1022": 0x1p-1022, "1e-300": 1e-300} {
		if got, err := caughtIn(p(token).real); err != nil || got != want {
			t.Errorf("stod(%q) = %v, %v, want %v", token, got, err, want)
		}
	}
	for _, token := range []string{"", "abc", ".", "+", "e5", "1e400", "1e-400", "4.9e-324", "0x1p-1030", "-1e999"} {
		if got, err := caughtIn(p(token).real); err == nil {
			t.Errorf("stod(%q) = %v", token, got)
		}
	}
	for token, want := range map[string]uint64{"64": 64, "+64": 64, "-1": math.MaxUint64, "-18446744073709551615": 1, "64.7": 64, "6e1": 6, "0x40": 0, "007": 7} {
		if got, err := caughtIn(p(token).number); err != nil || got != want {
			t.Errorf("stoull(%q) = %v, %v, want %v", token, got, err, want)
		}
	}
}

// TestTorchEffects: each key that the newest release knows has words of its own.
func TestTorchEffects(t *testing.T) {
	values := map[string]string{keyGC: "0.5", keyFraction: "0.5", keyRoundup: "4", keyBackend: torchNative, keyAddresses: "0.5", keyAddresses + "_by_class": "[main:0.5]"}
	for _, k := range Releases().At(Newest).Keys {
		value, ok := values[k.name]
		for _, value := range []string{value, "64", "True", "False"} {
			got, err := Read(policy.Environ([]string{pytorchConf + "=" + k.name + ":" + value}), Newest)
			if err != nil {
				continue // not a value of this kind
			}
			if ok = len(got.Settings) == 1 && strings.HasPrefix(got.Settings[0].Effect, k.name+": "); !ok {
				t.Errorf("%s:%s: %+v", k.name, value, got.Settings)
			}
		}
		if !ok {
			t.Errorf("%s takes none of the values", k.name)
		}
	}
}

func ExampleMerge() {
	env := policy.Environ([]string{"PYTORCH_ALLOC_CONF=expandable_segments:True"})
	fmt.Println(Merge(env, "2.12", "per_process_memory_fraction", "0.5"))
	fmt.Println(Merge(env, "2.8", "expandable_segments", "False"))
	// Output:
	// PYTORCH_ALLOC_CONF expandable_segments:True,per_process_memory_fraction:0.5 <nil>
	// PYTORCH_CUDA_ALLOC_CONF expandable_segments:False <nil>
}

func FuzzPyTorchSettings(f *testing.F) {
	for _, text := range []string{"", "expandable_segments:True", "max_split_size_mb:64,garbage_collection_threshold:0.8", "roundup_power2_divisions:[256:1,>:4]", "backend:cudaMallocAsync", "expandable_segments_reserve_by_class:[main:0.5]", "[", "a:b:c", "per_process_memory_fraction:80"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		env := policy.Environ([]string{pytorchCudaConf + "=" + text, pytorchConf + "=" + text})
		for _, row := range Releases() {
			got, err := Read(env, row.Version)
			if err != nil {
				if err.Text == "" || err.Then == "" {
					t.Fatalf("%s: %+v", row.Version, err)
				}
				if fixed, ok := strings.CutPrefix(err.Fix, pytorchCudaConf+"="); ok {
					if _, again := Read(env.With(pytorchCudaConf, fixed), row.Version); again != nil {
						t.Fatalf("%s: %q is no better: %v", row.Version, fixed, again)
					}
				}
				continue
			}
			got.Pools(policy.Device{Total: 1 << 33})
			for _, key := range []string{keyMaxSplit, keyExpandable} {
				Merge(env, row.Version.String(), key, "64")
			}
		}
	})
}

// TestPyTorchFirstUseErrors: the first error of random lists, word for word, as
// PyTorch prints it at import or at the first use of a GPU.
func TestPyTorchFirstUseErrors(t *testing.T) {
	b, err := os.ReadFile("testdata/pytorch/firstuse.txt")
	if err != nil {
		t.Fatal(err)
	}
	var env policy.Environment
	asked := 0
	for n, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		said, answer := strings.CutPrefix(line, "  ")
		switch {
		case line == "" || line[0] == '#':
			continue
		case !answer:
			env = envtest.Environ(t, line)
			continue
		}
		asked++
		var e policy.SettingError
		if _, raised := Read(env, policy.Version{2, 15}); raised != nil {
			e = *raised
		}
		when, text, refused := strings.Cut(said, " ! ")
		switch {
		case !refused && e.Text != "" && strings.Contains(e.Then, "for pinned memory"): // later than the first use
		case refused != (e.Text != ""):
			t.Errorf("line %d: %v: errors %v; want %s", n+1, env, e, said)
		case refused && (e.Text != text || strings.Contains(e.Then, "import torch aborts") != (when == "import")):
			t.Errorf("line %d: %v: %q, %s; want %s", n+1, env, e.Text, e.Then, said)
		}
	}
	if asked != 300 {
		t.Errorf("%d answers; want 300", asked)
	}
}

// TestTorchPool: the settings that decide where blocks lie, and what the releases do
// of themselves.
func TestTorchPool(t *testing.T) {
	steps := func(first, rest uint64) (d [16]uint64) {
		for i := range d {
			d[i] = rest
		}
		d[0] = first
		return d
	}
	for _, tc := range []struct {
		name string
		v    policy.Version
		list string
		want policy.Torch
	}{
		{"nothing", policy.Version{2, 15}, "", policy.Torch{}},
		{"nothing in 2.12", policy.Version{2, 12, 1}, "", policy.Torch{TorchRules: policy.TorchRules{Order: policy.OldestBlock, PoolCaptures: true, FloorLimit: true}}},
		{"nothing in 2.11", policy.Version{2, 11}, "", policy.Torch{TorchRules: policy.TorchRules{Order: policy.LowestAddress, PoolCaptures: true, FloorLimit: true}}},
		{"nothing in 2.4", policy.Version{2, 4, 1}, "", policy.Torch{TorchRules: policy.TorchRules{Order: policy.LowestAddress, PoolCaptures: true, FloorLimit: true, PrivateGrants: true}}},
		{"nothing in 2.3", policy.Version{2, 3, 1}, "", policy.Torch{TorchRules: policy.TorchRules{Order: policy.LowestAddress, PoolCaptures: true, FloorLimit: true, PrivateGrants: true, KeepSizes: true, CaptureEvents: true}}},
		{"sizes", policy.Version{2, 15}, "max_split_size_mb:64,max_non_split_rounding_mb:48,large_segment_size_mb:40", policy.Torch{MaxSplit: 64 << 20, NonSplit: 48 << 20, Segment: 40 << 20}},
		{"steps", policy.Version{2, 15}, "roundup_power2_divisions:4", policy.Torch{Divisions: steps(4, 4)}},
		{"a list of steps", policy.Version{2, 15}, "roundup_power2_divisions:[1:2,>:8]", policy.Torch{Divisions: steps(2, 8)}},
		{"a list of steps, whose last key > overwrites", policy.Version{2, 9}, "roundup_power2_divisions:[1:2,>:8]", policy.Torch{Divisions: steps(8, 8), TorchRules: policy.TorchRules{Order: policy.LowestAddress, PoolCaptures: true, FloorLimit: true}}},
		{"pages and collection", policy.Version{2, 15}, "expandable_segments:True,garbage_collection_threshold:0.75", policy.Torch{Expandable: true, GC: 0.75}},
		{"addresses in bytes", policy.Version{2, 15}, "expandable_segments_reserve:1.5G", policy.Torch{Addresses: 3 << 29}},
		{"addresses as a part", policy.Version{2, 15}, "expandable_segments_reserve:0.5", policy.Torch{AddressPart: 0.5}},
		{"no pool of PyTorch's", policy.Version{2, 15}, "max_split_size_mb:64,backend:cudaMallocAsync", policy.Torch{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Read(policy.Environ([]string{pytorchCudaConf + "=" + tc.list}), tc.v)
			if err != nil || got.Policy.Torch != tc.want {
				t.Errorf("%+v, %v; want %+v", got.Policy.Torch, err, tc.want)
			}
		})
	}
}
