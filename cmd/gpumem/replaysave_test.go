package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestSameFile: a file that is read is known by what it is, from stdin as well.
func TestSameFile(t *testing.T) {
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
		if got := sameFile(c.source, c.path); got != c.bad {
			t.Errorf("%s is read from %s: %v", c.path, c.source, got)
		}
	}
}
