package doctor

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"gpumem/internal/test/doctortest"
)

// leaning is how a step begins that continues what was said before it.
var leaning = regexp.MustCompile(`^(?:or|else|otherwise|and|then) `)

// TestFirstStepStandsAlone: where a fact is wanted the settings are not shown, so the
// first step is the first line under "If A".
func TestFirstStepStandsAlone(t *testing.T) {
	logs := []string{"jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.\n"}
	for _, c := range doctortest.Cases() {
		logs = append(logs, c.Log)
	}
	seen := map[string]bool{}
	for _, log := range logs {
		for _, c := range diagnose(t, log, "").Causes {
			if len(c.Steps) > 0 && leaning.MatchString(c.Steps[0]) && !seen[c.Steps[0]] {
				seen[c.Steps[0]] = true
				t.Errorf("%s: the first step is %q", c.ID, c.Steps[0])
			}
		}
	}
}

// TestOtherVendors: AMD's and Intel's GPUs have other tools than NVIDIA's, and gpumem
// itself does not know them.
func TestOtherVendors(t *testing.T) {
	const log = "torch.OutOfMemoryError: NAME out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.98 GiBFREE. Of the allocated memory 1.20 GiB is allocated by PyTorch, and 310.50 MiB is reserved by PyTorch but unallocated.\n"
	for _, tc := range []struct{ name, free, tool, variable string }{
		{"HIP", " of which 1.00 GiB is free", "rocm-smi", "HIP_VISIBLE_DEVICES"},
		{"XPU", "", "xpu-smi", "ZE_AFFINITY_MASK"},
		{"CUDA", " of which 1.00 GiB is free", "nvidia-smi", "CUDA_VISIBLE_DEVICES"},
	} {
		d := diagnose(t, strings.NewReplacer("NAME", tc.name, "FREE", tc.free).Replace(log), "")
		i := slices.IndexFunc(d.Causes, func(c Cause) bool { return c.ID == DeviceOccupied })
		if i != 0 {
			t.Errorf("%s: others are not the likeliest: %v", tc.name, ids(d))
			continue
		}
		steps := strings.Join(d.Causes[0].Steps, "\n")
		if !strings.HasPrefix(d.Decide, tc.tool) || !strings.Contains(steps, tc.tool) || !strings.Contains(steps, tc.variable) {
			t.Errorf("%s: decide %q, steps\n%s", tc.name, d.Decide, steps)
		}
		if tc.name != "CUDA" && (strings.Contains(steps, "gpumem") || strings.Contains(steps, "nvidia") || strings.Contains(steps, "CUDA_")) {
			t.Errorf("%s: a tool of NVIDIA's:\n%s", tc.name, steps)
		}
	}
}

// TestOneDNNIsNotCuDNN: TensorFlow prints this line at each start, and "errors" is in it.
func TestOneDNNIsNotCuDNN(t *testing.T) {
	const log = "I0000 00:00:1795946350.419598     974 port.cc:153] oneDNN custom operations are on. You may see slightly different numerical results " +
		"due to floating-point round-off errors from different computation orders. To turn them off, set the environment variable `TF_ENABLE_ONEDNN_OPTS=0`.\n"
	for name, c := range map[string]struct{ after, verdict string }{
		"alone":         {"", "unknown"},
		"above cuDNN's": {"E0000 00:00:1795946350.519598     974 cuda_dnn.cc:500] Could not create cudnn handle: CUDNN_STATUS_NOT_INITIALIZED\n", "either"},
	} {
		if d := diagnose(t, log+c.after, ""); string(d.Verdict) != c.verdict {
			t.Errorf("%s: %s %v, want %s", name, d.Verdict, ids(d), c.verdict)
		}
	}
}

// TestFreeThatIsNotTold: XPU's message does not say what is free, so nothing is said of it.
func TestFreeThatIsNotTold(t *testing.T) {
	d := diagnose(t, "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.98 GiB. Of the allocated memory 1.20 GiB is allocated by PyTorch, and 310.50 MiB is reserved by PyTorch but unallocated.\n", "")
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	for _, invented := range []string{"is free", "neither free"} {
		if strings.Contains(string(text), invented) {
			t.Errorf("%q in %s", invented, text)
		}
	}
}

// TestExplainNames: a cause is found as the answer writes it, and a misspelt one is named.
func TestExplainNames(t *testing.T) {
	want, err := Explain("pool_limit", 80)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pool limit", "pool-limit", "Pool_Limit", " pool limit "} {
		if got, err := Explain(name, 80); err != nil || got != want {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := Explain("fragmentaton", 80); err == nil || !strings.Contains(err.Error(), `did you mean "fragmentation"?`) {
		t.Errorf("misspelt: %v", err)
	}
	if _, err := Explain("list", 80); err == nil || !strings.Contains(err.Error(), "the causes are bad_setting, ") {
		t.Errorf("unknown: %v", err)
	}
}

// TestExplainWidth: no line is longer than the screen but what programs print, and words
// that cannot be broken.
func TestExplainWidth(t *testing.T) {
	for id := range titles {
		for _, width := range []int{40, 60, 80} {
			text, err := Explain(string(id), width)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(text) {
				line = strings.TrimRight(line, "\n")
				if utf8.RuneCountInString(line) > width && !strings.HasPrefix(line, "    ") && strings.Contains(strings.TrimLeft(line, " -"), " ") {
					t.Errorf("%s at %d: %q", id, width, line)
				}
			}
		}
	}
}
