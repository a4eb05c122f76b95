// The real frameworks, where Python has them: what starts, and what it reads.

package runenv

import (
	"os/exec"
	"strings"
	"testing"
)

// installed skips a test aloud where Python cannot import a module.
func installed(t *testing.T, module string) {
	t.Helper()
	if out, err := exec.Command(python(t), "-c", "import "+module).CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		t.Skipf("skipped: %s is not installed: %s", module, lines[len(lines)-1])
	}
}

func TestRealJAX(t *testing.T) {
	installed(t, "jax")
	stdout, stderr := script{grant: Limits{Growth: true}, env: []string{"XLA_CLIENT_MEM_FRACTION=.9", "JAX_PLATFORMS=cpu"}, code: `
import jax, jaxlib.xla_client as x
options = x.generate_pjrt_gpu_plugin_options()
print(options["memory_fraction"], options["preallocate"], float(jax.numpy.ones(3).sum()))`}.run(t)
	if stdout != "0.25 False 3.0" || strings.Contains(stderr, "gpumem") {
		t.Errorf("stdout %q, stderr %q", stdout, stderr)
	}
}

func TestRealTensorFlow(t *testing.T) {
	installed(t, "tensorflow")
	for _, cpu := range []bool{false, true} {
		stdout, stderr := script{grant: Limits{CPUTensorFlow: cpu}, env: []string{"TF_CPP_MIN_LOG_LEVEL=3"}, code: `
import tensorflow as tf
from tensorflow.python.eager import context
print(context.Context.ensure_initialized.__wrapped__.__name__)
print(int(tf.constant(1) + 1))
print(hasattr(context.Context.ensure_initialized, "__wrapped__"))
with tf.Graph().as_default():
    with tf.compat.v1.Session() as s:
        options = s._config
        print(options.gpu_options.per_process_gpu_memory_fraction, options.gpu_options.allow_growth, options.device_count["GPU"])
        print(int(s.run(tf.constant(1) + 1)))`}.run(t)
		want := "ensure_initialized\n2\nFalse\n0.25 True 0\n2"
		if cpu {
			want = "ensure_initialized\n2\nFalse\n0.0 False 0\n2"
		}
		if stdout != want || strings.Contains(stderr, "gpumem") {
			t.Errorf("off the GPU: %v: stdout %q, want %q; stderr %q", cpu, stdout, want, stderr)
		}
	}
}

func TestRealTorch(t *testing.T) {
	installed(t, "torch")
	stdout, stderr := script{code: `
import torch
print(torch.cuda.is_initialized(), any(f.__name__ == "cap" for f, _ in torch.cuda._queued_calls), float(torch.ones(3).sum()))`}.run(t)
	if stdout != "False True 3.0" || strings.Contains(stderr, "gpumem") {
		t.Errorf("stdout %q, stderr %q", stdout, stderr)
	}
}
