package standin_test

import (
	"os/exec"
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
