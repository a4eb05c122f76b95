package remat

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"gpumem/internal/test/standin"
	"gpumem/xla/internal/test/remattest"
)

var jaxLimits = flag.String("jax-limits", "60%", "limits for TestInJAX, with commas between")

// TestInJAX: what JAX compiles with plans takes what was predicted, to the byte by XLA's own statistics, and
// its results are the same to the bit. Real JAX on the CPU, of the Python that GPUMEM_TEST_JAX
// names.
func TestInJAX(t *testing.T) {
	python := os.Getenv("GPUMEM_TEST_JAX")
	if python == "" {
		t.Skip("SKIPPED: GPUMEM_TEST_JAX names no Python with JAX of release 0.10.2 or later")
	}
	inJAX(t, python, os.Environ(), nil)
}

// TestInJAXOnGPU: the same with JAX's plugin for CUDA, for a simulated GPU, on which nothing runs.
// GPUMEM_TEST_JAX_GPU names a Python that has the plugin. It takes an hour: -timeout 90m.
func TestInJAXOnGPU(t *testing.T) {
	python := os.Getenv("GPUMEM_TEST_JAX_GPU")
	if python == "" {
		t.Skip("SKIPPED: GPUMEM_TEST_JAX_GPU names no Python with JAX and its CUDA plugin")
	}
	t.Cleanup(standin.Remove)
	// The compiler makes an asynchronous all-reduce synchronous after the transformation.
	more := map[string]float64{"sharded": 512}
	inJAX(t, python, standin.JAX(t, python, "sim@"+filepath.Join(t.TempDir(), "gpus")+",create,total=2GiB/2GiB/2GiB/2GiB"), more)
}

// inJAX runs testdata/jax_check.py in an environment. known is how many bytes more are predicted
// than XLA takes, by program, where that is so.
func inJAX(t *testing.T, python string, env []string, known map[string]float64) {
	bin := t.TempDir()
	if out, err := exec.Command("go", "build", "-o", bin+"/", "gpumem/cmd/gpumem").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	args := []string{"testdata/jax_check.py", filepath.Join(bin, "gpumem"), "../../node/internal/hook"}
	for limit := range strings.SplitSeq(*jaxLimits, ",") {
		args = append(args, "--limit", limit)
	}
	cmd := exec.Command(python, append(args, flag.Args()...)...)
	cmd.Env = append(env, "XDG_CACHE_HOME="+t.TempDir())
	lines := 0
	t.Log("program | limit | temporaries, XLA | with the plan | predicted | results equal | more compute, % | compiling, s | with the plan")
	remattest.EachLine(t, cmd, func(line []byte) {
		lines++
		var r struct {
			Name, Limit string
			Temp        float64  `json:"temp_bytes"`
			After       float64  `json:"temp_after_bytes"`
			Predicted   float64  `json:"predicted_bytes"`
			Equal       *bool    `json:"equal"` // null: nothing ran
			More        *float64 `json:"more_compute_percent"`
			Seconds     float64  `json:"compile_seconds"`
			Longer      float64  `json:"with_plan_seconds"`
			Said        []string
			Failed      string
		}
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if r.Failed != "" {
			t.Errorf("%s at %s does not compile: %s", r.Name, r.Limit, r.Failed)
			return
		}
		more, equal := 0.0, "-"
		if r.More != nil && r.After != r.Temp {
			more = *r.More
		}
		if r.Equal != nil {
			equal = strconv.FormatBool(*r.Equal)
		}
		t.Logf("%s | %s | %.0f | %.0f | %.0f | %s | %.1f | %.2f | %.2f", r.Name, r.Limit, r.Temp, r.After, r.Predicted, equal, more, r.Seconds, r.Longer)
		if equal == "false" {
			t.Errorf("%s at %s: other results", r.Name, r.Limit)
		}
		if r.After > r.Temp {
			t.Errorf("%s at %s: %.0f bytes with the plan, %.0f without", r.Name, r.Limit, r.After, r.Temp)
		}
		if r.Predicted != r.After+known[r.Name] {
			t.Errorf("%s at %s: %.0f bytes predicted, %.0f by XLA", r.Name, r.Limit, r.Predicted, r.After)
		}
		for _, line := range r.Said {
			if strings.Contains(line, "compiled as it is") {
				t.Errorf("%s at %s: %s", r.Name, r.Limit, line)
			}
		}
	})
	if lines == 0 {
		t.Error("no program was tried")
	}
}
