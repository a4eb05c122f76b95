package standin_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gpumem/internal/test/standin"
)

// TestWorkspacesAreOfNoBytes: what is not written there programs take for a size, of many gigabytes. Of
// cuSOLVER that is said once for each of its libraries.
func TestWorkspacesAreOfNoBytes(t *testing.T) {
	c := exec.Command(standin.Compile(t, "testdata/gives.c"))
	c.Env = standin.Environ(standin.Library(t))
	var stderr strings.Builder
	c.Stderr = &stderr
	out, err := c.Output()
	const want = "0 0, 0 0 0, 0 0, 0 0, 0, 3 4 5, 0 0, 0 0, 9\n"
	if err != nil || string(out) != want {
		t.Errorf("%v\n%swant %s", err, out, want)
	}
	if n := strings.Count(stderr.String(), "cuSOLVER's workspaces are unknown"); n != 2 {
		t.Errorf("said %d times; want 2: %s", n, &stderr)
	}
}

// TestRecurrentLayers: the estimate is what cuDNN was seen to give (rnn.h), and PyTorch's views of the
// parameters, of which it asserts that they lie side by side, are of all of the space.
func TestRecurrentLayers(t *testing.T) {
	notes := filepath.Join(t.TempDir(), "notes")
	c := exec.Command(standin.Compile(t, "testdata/rnn.c"))
	c.Env = append(standin.Environ(standin.Library(t)), "GPUMEM_SIM_NOTES="+notes)
	out, err := c.CombinedOutput()
	const want = "736000000 17730560 0\n864000000 13169920 0\n13312 1 0 0\n"
	if err != nil || string(out) != want {
		t.Errorf("%v\n%swant %s", err, out, want)
	}
	if text, err := os.ReadFile(notes); err != nil || strings.Count(string(text), "cuDNN's recurrent layers are estimated") != 1 {
		t.Errorf("%q, %v", text, err)
	}
}
