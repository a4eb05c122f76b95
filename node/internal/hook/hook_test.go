package hook

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// cache sets a folder of caches for one test and returns it.
func cache(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"HOME", "XDG_RUNTIME_DIR"} {
		t.Setenv(name, "")
	}
	t.Setenv("XDG_CACHE_HOME", dir)
	return dir
}

// whole is the error of a hook folder that does not have all files, or others.
func whole(path string) error {
	content := content()
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	if len(entries) != len(content) {
		return fmt.Errorf("%s has %v", path, entries)
	}
	for name, want := range content {
		if got, err := os.ReadFile(filepath.Join(path, name)); err != nil || string(got) != string(want) {
			return fmt.Errorf("%s is not as it was written: %v", name, err)
		}
	}
	return nil
}

// TestHookByManyAtOnceIsOneWholeFolder: none of the programs that start at once
// finds half a hook.
func TestHookByManyAtOnceIsOneWholeFolder(t *testing.T) {
	dir := cache(t)
	var wg sync.WaitGroup
	paths := make([]string, 32)
	for i := range paths {
		wg.Go(func() {
			path, err := Install()
			if err != nil {
				t.Error(err)
				return
			}
			for name := range content() {
				if _, err := os.Stat(filepath.Join(path, name)); err != nil {
					t.Error(err)
				}
			}
			paths[i] = path
		})
	}
	wg.Wait()
	for _, p := range paths {
		if p != paths[0] {
			t.Errorf("%s and %s", p, paths[0])
		}
	}
	if err := whole(paths[0]); err != nil || filepath.Dir(paths[0]) != filepath.Join(dir, "gpumem") {
		t.Errorf("%s: %v", paths[0], err)
	}
}

func TestHookRepairsDamagedFiles(t *testing.T) {
	cache(t)
	path, err := Install()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(path, "gpumem_hook.py")
	for name, damage := range map[string]func() error{
		"changed": func() error { return os.WriteFile(file, []byte("raise SystemExit"), 0o644) },
		"missing": func() error { return os.Remove(file) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		again, err := Install()
		if err != nil || again != path || whole(path) != nil {
			t.Fatalf("%s: %s, %v, %v", name, again, err, whole(path))
		}
	}
}

// TestHookIsNotWrittenWhereOthersMayWrite: a Python runs what lies there.
func TestHookIsNotWrittenWhereOthersMayWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	path, err := installIn(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{path, dir} {
		if err := os.Chmod(folder, 0o777); err != nil {
			t.Fatal(err)
		}
		if _, err := installIn(dir); err == nil || !strings.Contains(err.Error(), "other users may write to "+folder+" ") {
			t.Errorf("%v; want that others may write to %s", err, folder)
		}
		if err := os.Chmod(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// TestHookInFolderWithColonIsRefused: it would put a relative folder on sys.path.
func TestHookInFolderWithColonIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a:b")
	if path, err := installIn(dir); err == nil || !strings.Contains(err.Error(), `its path has ":" in it`) {
		t.Errorf("%s, %v", path, err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) > 0 {
		t.Errorf("something is there: %v", entries)
	}
}
