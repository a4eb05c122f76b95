// Package hook writes the Python start-up files that limit the frameworks which no
// environment variable can limit: sitecustomize.py, which Python runs at its start,
// and the modules that it loads.
//
// They lie in a folder that only this user can write to, because every Python
// program of a lease executes them. gpumem_hook.py says what it reads from the
// environment.
package hook

import (
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"gpumem/node/internal/privdir"
	"gpumem/python"
)

//go:embed *.py
var files embed.FS

// separator stands between the folders of PYTHONPATH.
const separator = string(os.PathListSeparator)

// processesFile is where the processes of all leases are counted, see
// gpumem_hook.py. Its bytes are locked and never written.
const processesFile = "processes"

// content returns the files by name.
func content() map[string][]byte {
	content := map[string][]byte{processesFile: nil}
	names, _ := fs.Glob(files, "*.py")
	for _, name := range names {
		content[name], _ = files.ReadFile(name) // embedded: there
	}
	names, _ = fs.Glob(python.Keepers, "gpumem/*.py")
	for _, name := range names {
		content[path.Base(name)], _ = python.Keepers.ReadFile(name)
	}
	return content
}

// Install writes the Python files into this user's private folder, see
// [privdir.User], and returns the folder for PYTHONPATH. Each version of the files
// has its own folder, which stays: a program that outlives the one that started it
// still finds it. Several processes may call it at once.
//
// The error is that there is no folder to which only this user can write, or that their
// names cannot stand in PYTHONPATH.
func Install() (path string, err error) {
	dir, err := privdir.User(func(d *privdir.Dir) error {
		path, err = installIn(d.Path())
		return err
	})
	if err != nil {
		return "", err
	}
	return path, dir.Close()
}

// installIn writes the hook into a folder of a private folder.
func installIn(dir string) (path string, err error) {
	content := content()
	sum := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(content)) {
		fmt.Fprintf(sum, "%s %d\n%s", name, len(content[name]), content[name])
	}
	path = filepath.Join(dir, fmt.Sprintf("hook-%x", sum.Sum(nil)[:6]))
	if strings.Contains(path, separator) {
		return "", fmt.Errorf("its path has %q in it, which PYTHONPATH cannot hold", separator)
	}
	return path, write(path, content)
}

// write makes the folder have these files. One that is there as it should be is
// left alone, so that running programs keep what they have open.
func write(path string, content map[string][]byte) error {
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

// Found reports whether a Python with this environment finds the start-up files. It
// does not where another program has replaced PYTHONPATH, nor outside of a lease.
func Found(env []string) bool {
	for _, line := range env {
		folders, ok := strings.CutPrefix(line, "PYTHONPATH=")
		if !ok {
			continue
		}
		return slices.ContainsFunc(strings.Split(folders, separator), func(folder string) bool {
			_, err := os.Stat(filepath.Join(folder, "gpumem_hook.py"))
			return folder != "" && err == nil
		})
	}
	return false
}
