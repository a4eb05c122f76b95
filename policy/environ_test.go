// Tests of the files that the values of an environment name.

package policy

import (
	"os"
	"path/filepath"
	"testing"
)

// TestFlagFileWaitsForNobody: a pipe without a writer is no file of flags, and
// neither is one that is too large.
func TestFlagFileWaitsForNobody(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "large"), make([]byte, maxFlagFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	names := []string{"large", "none", "."}
	if makePipe(t, filepath.Join(dir, "pipe")) {
		names = append(names, "pipe")
	}
	for _, name := range names {
		if text, err := Environ(nil).In("", dir).ReadFile(name); err == nil {
			t.Errorf("%s: %d bytes", name, len(text))
		}
	}
	if text, err := Environ(nil).In(dir, "").ReadFile("/large"); err == nil {
		t.Errorf("below the root: %d bytes", len(text))
	}
}
