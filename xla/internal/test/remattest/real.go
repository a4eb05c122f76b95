// Package remattest has modules to plan for, and independent measures of what plans do to
// them, for the tests of remat.
package remattest

// Real modules.

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/test/hlotest"
)

// Real returns the files of modules of JAX, XLA and PyTorch in shared/data beside the
// checkout, and skips the test if there are none.
func Real(t testing.TB) []string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil || dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "../shared/data/hlo/*.hlo.gz"))
	if len(files) == 0 {
		t.Skip("no modules in ../shared/data/hlo: not tried on real ones")
	}
	return files
}

// Read reads one of them.
func Read(t testing.TB, file string) *hlo.Module {
	t.Helper()
	return hlotest.Module(t, strings.TrimSuffix(filepath.Base(file), ".hlo.gz"))
}
