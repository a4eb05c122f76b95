package input

import (
	"os"
	"os/exec"
	"testing"
)

// A process that reads a module from its standard input ends when the one that waits for the
// answer is gone, and not before.
func TestEndsWithParent(t *testing.T) {
	if os.Getenv("GPUMEM_TEST_WAITS") != "" {
		r, err := Open(t.Context(), "-", Options{})
		if err != nil {
			t.Fatal(err)
		}
		_ = r
		_, _ = os.Stdout.WriteString("read\n")
		select {}
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	other, alive, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-test.run=^TestEndsWithParent$")
	cmd.Env = append(os.Environ(), "GPUMEM_TEST_WAITS=1", "GPUMEM_ALIVE_FD=3")
	cmd.ExtraFiles = []*os.File{other}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	other.Close()
	if _, err := out.Read(make([]byte, 4)); err != nil {
		t.Fatalf("it ended with the pipe open: %v", err)
	}
	alive.Close()
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("%v, want status 1", err)
	}
}
