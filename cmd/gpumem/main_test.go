package main

import (
	"bytes"
	"errors"
	"gpumem/internal/report"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"gpumem/internal/unhandled/early"
)

// programs are what the test binary is under other names.
var programs = map[string]func(){"gpumem": main}

// atEnd are called after all tests.
var atEnd []func()

// tests are those of a testing.M, with what follows them.
type tests struct{ *testing.M }

func (t tests) Run() int {
	early.Handled() // go test asks for stacks by SIGQUIT
	code := t.M.Run()
	for _, f := range atEnd {
		f()
	}
	return code
}

// TestMain lets scripts and tests run this very program by the name gpumem.
func TestMain(m *testing.M) { testscript.Main(tests{m}, programs) }

// TestHelp: every command explains itself and gives an example, on stdout.
func TestHelp(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		words := append(strings.Fields(c.CommandPath())[1:], "--help")
		var out, errs bytes.Buffer
		if code := run(t.Context(), words, &out, &errs); code != 0 || errs.Len() > 0 {
			t.Errorf("%v: status %d, stderr %q", words, code, errs.String())
		}
		if !strings.Contains(out.String(), "\nExamples:\n  ") && !strings.Contains(out.String(), "\nExamples:\n  source") {
			t.Errorf("%v gives no example:\n%s", words, out.String())
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRoot(io.Discard, io.Discard))
}

func TestOneLine(t *testing.T) {
	for in, want := range map[string]string{
		"plain":                   "plain",
		"two\nlines":              "two; lines",
		"  a \r\n\n  b  \n":       "a; b",
		"why?\n\n\treplay\n":      "why? replay",
		"two  blanks":             "two  blanks", // a file may be called that
		"\x1b[31mred\x00\u202eno": "?[31mred??no",
		"größe 😀":                 "größe 😀",
	} {
		if got := report.OneLine(in); got != want {
			t.Errorf("oneLine(%q) = %q, want %q", in, got, want)
		}
	}
}

// failing is an output that is full.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("no space left") }

// TestOutputFails: results that could not be written are not a success.
func TestOutputFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.txt")
	if err := os.WriteFile(path, []byte("a 1 5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"replay", path, "--device", "sim:1GiB"},
		{"replay", path, "--device", "sim:1GiB", "--json"},
		{"version"},
	} {
		var errs bytes.Buffer
		if code := run(t.Context(), args, failing{}, &errs); code != exitUsage || errs.String() != "gpumem: no space left\n" {
			t.Errorf("%v: status %d, stderr %q", args, code, errs.String())
		}
	}
}

// TestInterrupt sends a signal to a replay that reads from a pipe without end.
func TestInterrupt(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("an interrupt cannot be sent to a process there")
	}
	tmp := t.TempDir()
	cmd := exec.Command("gpumem", "replay", "-", "--device", "sim:1GiB")
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// A pipe holds far less than this, so once it is written most of it was
	// read: the program is at work. The pipe stays open, so it would wait for
	// more.
	line := []byte("a 1 100\nf 1\n")
	if _, err := in.Write(bytes.Repeat(line, 4<<20/len(line))); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != exitInterrupted {
		t.Errorf("%v, want status %d", err, exitInterrupted)
	}
	if out.Len() > 0 || errs.String() != "gpumem: interrupted\n" {
		t.Errorf("stdout %q, stderr %q", out.String(), errs.String())
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
