package remattest

import (
	"bufio"
	"os/exec"
	"strings"
	"testing"
)

// EachLine runs a command and calls f with each line of its output.
func EachLine(t *testing.T, cmd *exec.Cmd, f func(line []byte)) {
	t.Helper()
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for scan := bufio.NewScanner(out); scan.Scan(); {
		f(scan.Bytes())
	}
	if err := cmd.Wait(); err != nil {
		text := errs.String()
		t.Fatalf("%v: %s", err, text[max(0, len(text)-2000):])
	}
}
