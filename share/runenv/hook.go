// The Python files that limit frameworks, and the folder where they lie.

package runenv

import (
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gpumem/internal/privdir"
)

//go:embed hook/*.py
var hookFiles embed.FS

// processesFile is where the processes of all leases are counted, see
// hook/gpumem_hook.py. Its bytes are locked and never written.
const processesFile = "processes"

// hookContent is the files by name.
func hookContent() map[string][]byte {
	content := map[string][]byte{processesFile: nil}
	names, _ := fs.Glob(hookFiles, "hook/*.py")
	for _, name := range names {
		content[filepath.Base(name)], _ = hookFiles.ReadFile(name) // embedded: there
	}
	return content
}

// Hook writes the Python files into this user's private folder, see
// [privdir.User], and returns the folder for PYTHONPATH. Each version of the files
// has its own folder, which stays: a program that outlives the one that started it
// still finds it. Several processes may call it at once.
//
// The error is that no folder is one that only this user can write to, or that all
// of them have a name that PYTHONPATH cannot hold.
func Hook() (path string, err error) {
	dir, err := privdir.User(func(d *privdir.Dir) error {
		path, err = hookIn(d.Path())
		return err
	})
	if err != nil {
		return "", err
	}
	return path, dir.Close()
}

// hookIn writes the hook into a folder of a private folder.
func hookIn(dir string) (path string, err error) {
	content := hookContent()
	sum := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(content)) {
		fmt.Fprintf(sum, "%s %d\n%s", name, len(content[name]), content[name])
	}
	path = filepath.Join(dir, fmt.Sprintf("hook-%x", sum.Sum(nil)[:6]))
	if strings.Contains(path, listSeparator) {
		return "", fmt.Errorf("its path has %q in it, which PYTHONPATH cannot hold", listSeparator)
	}
	return path, writeHook(path, content)
}

// writeHook makes the folder have these files. One that is there as it should be is
// left alone, so that programs that run keep what they have open.
func writeHook(path string, content map[string][]byte) error {
	dir, err := privdir.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	for name, want := range content {
		got, err := dir.ReadFile(name)
		if err == nil && string(got) == string(want) {
			continue
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: %w", filepath.Join(path, name), err)
		}
		if err := dir.WriteFile(name, want); err != nil {
			return err
		}
	}
	return nil
}

// Hooked reports whether a Python with this environment finds the hook: not if
// something between has set a PYTHONPATH of its own. It is false where no lease is.
func Hooked(env []string) bool {
	o := newOutfit(env)
	for _, folder := range strings.Split(o.get(pythonPath), listSeparator) {
		if _, err := os.Stat(filepath.Join(folder, "gpumem_hook.py")); folder != "" && err == nil {
			return true
		}
	}
	return false
}
