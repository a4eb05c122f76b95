package main

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

func TestWriteWhole(t *testing.T) {
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
	if err := writeWhole(ended, path, hello); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	broken := errors.New("no space left")
	if err := writeWhole(t.Context(), path, func(io.Writer) error { return broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
	left(0)
	for range 2 { // made, and replaced
		if err := writeWhole(t.Context(), path, hello); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "hello" {
		t.Errorf("%q, %v", text, err)
	}
	left(1)
	if err := writeWhole(t.Context(), filepath.Join(dir, "none", "file"), hello); err == nil || !strings.Contains(err.Error(), "cannot be made: ") {
		t.Error(err)
	}
	if err := writeWhole(t.Context(), dir, hello); err == nil {
		t.Error("a directory was replaced")
	}
	if runtime.GOOS == "windows" {
		return
	}
	if err := os.Symlink(path, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := writeWhole(t.Context(), filepath.Join(dir, "link"), func(io.Writer) error { return nil }); err != nil {
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
	if err := writeWhole(t.Context(), fmt.Sprintf("/dev/fd/%d", in.Fd()), hello); err != nil {
		t.Error(err)
	}
	in.Close()
	if text, err := io.ReadAll(out); err != nil || string(text) != "hello" {
		t.Errorf("%q, %v", text, err)
	}
}
