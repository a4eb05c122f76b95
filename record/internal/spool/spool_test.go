package spool

import (
	"os"
	"path/filepath"
	"testing"
)

func left(dir string) []string {
	names, _ := filepath.Glob(filepath.Join(dir, "*"))
	return names
}

// TestSpoolRemovedOnClose stands for systems that cannot remove an open file.
func TestSpoolRemovedOnClose(t *testing.T) {
	dir := t.TempDir()
	f, err := os.CreateTemp(dir, "gpumem-trace-*")
	if err != nil {
		t.Fatal(err)
	}
	s := &Spool{file: f, path: f.Name()}
	if err := s.Close(); err != nil || len(left(dir)) > 0 {
		t.Errorf("%v, left %v", err, left(dir))
	}
}
