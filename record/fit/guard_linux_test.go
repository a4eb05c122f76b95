package fit_test

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestKilledFitLeavesNothing: when fit is killed all processes of its program end, and its folder goes.
func TestKilledFitLeavesNothing(t *testing.T) {
	env := environ(t)
	folder, program := t.TempDir(), filepath.Join(t.TempDir(), "program")
	const script = "#!/bin/sh\nsh -c 'echo up >&3; exec sleep 90' &\nwait\n"
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe() // that fit and all that it starts have
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c := exec.CommandContext(t.Context(), os.Args[0])
	c.Env = append(env, "GPUMEM_TEST_FIT="+program, "TMPDIR="+folder)
	c.ExtraFiles, c.Stdin, c.Stderr = []*os.File{w}, strings.NewReader("1\n"), testLog{t}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	_ = r.SetReadDeadline(time.Now().Add(time.Minute))
	up := make([]byte, 3)
	_, err = io.ReadFull(r, up)
	list, _ := os.ReadDir(folder)
	_ = c.Process.Kill()
	if err != nil || len(list) == 0 {
		t.Fatalf("it has not begun: %v, %v", list, err)
	}
	if _, err := io.ReadAll(r); err != nil {
		t.Errorf("a process is left: %v", err)
	}
	if list, err := os.ReadDir(folder); err != nil || len(list) > 0 {
		t.Errorf("left: %v, %v", list, err)
	}
	_ = c.Wait()
}
