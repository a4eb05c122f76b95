package output

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	hello := func(w io.Writer) error { _, err := io.WriteString(w, "hello"); return err }
	left := func(want int) {
		t.Helper()
		if list, err := os.ReadDir(dir); err != nil || len(list) != want {
			t.Errorf("%d files, want %d, %v", len(list), want, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Write(ended, path, hello); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	broken := errors.New("no space left")
	if err := Write(t.Context(), path, func(io.Writer) error { return broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
	left(0)
	for range 2 { // made, and replaced
		if err := Write(t.Context(), path, hello); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "hello" {
		t.Errorf("%q, %v", text, err)
	}
	left(1)
	if err := Write(t.Context(), filepath.Join(dir, "none", "file"), hello); err == nil || !strings.Contains(err.Error(), "cannot be made: ") {
		t.Error(err)
	}
	if err := Write(t.Context(), dir, hello); err == nil {
		t.Error("a directory was replaced")
	}
	if runtime.GOOS == "windows" {
		return
	}
	if err := os.Symlink(path, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := Write(t.Context(), filepath.Join(dir, "link"), func(io.Writer) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || len(text) > 0 {
		t.Errorf("%q, %v", text, err)
	}
	left(2)
	// A pipe and not /dev/null, which a fault here would replace for the whole machine.
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if err := Write(t.Context(), fmt.Sprintf("/dev/fd/%d", in.Fd()), hello); err != nil {
		t.Error(err)
	}
	in.Close()
	if text, err := io.ReadAll(out); err != nil || string(text) != "hello" {
		t.Errorf("%q, %v", text, err)
	}
}

// TestSame: a file that is read is known by what it is, from stdin as well.
func TestSame(t *testing.T) {
	dir := t.TempDir()
	in, other := filepath.Join(dir, "in"), filepath.Join(dir, "other")
	for _, path := range []string{in, other} {
		if err := os.WriteFile(path, []byte("a 1 1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hard := filepath.Join(dir, "hard")
	if err := os.Link(in, hard); err != nil {
		t.Skip("skipped: this file system has no second names for a file: ", err)
	}
	f, err := os.Open(in)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	defer func(old *os.File) { os.Stdin = old }(os.Stdin)
	os.Stdin = f
	for _, c := range []struct {
		path, source string
		bad          bool
	}{
		{in, in, true},
		{hard, in, true},
		{other, in, false},
		{in, "-", true},
		{hard, "-", true},
		{other, "-", false},
		{filepath.Join(dir, "new"), in, false},
		{in, filepath.Join(dir, "none"), false}, // reading will say so
	} {
		if got := Same(c.source, c.path); got != c.bad {
			t.Errorf("%s is read from %s: %v", c.path, c.source, got)
		}
	}
}
