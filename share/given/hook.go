// The Python files that cap frameworks, and where they lie.

package given

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
	"strconv"
)

//go:embed hook/*.py
var hookFiles embed.FS

// hookContent is the files by name.
func hookContent() map[string][]byte {
	content := map[string][]byte{}
	names, _ := fs.Glob(hookFiles, "hook/*.py")
	for _, name := range names {
		content[filepath.Base(name)], _ = hookFiles.ReadFile(name) // embedded: there
	}
	return content
}

// Hook writes the Python files into a folder under dir, which must exist, and
// gives that folder, for PYTHONPATH. Its name holds the user and what the files
// are, so that programs of several releases and users do not meet; it stays, for
// the next program. Several may call it at once: the folder appears whole.
//
// The error names the folder: it cannot be written, or another user has put one
// of that name there.
func Hook(dir string) (path string, err error) {
	if dir, err = filepath.Abs(dir); err != nil {
		return "", err
	}
	content := hookContent()
	sum := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(content)) {
		fmt.Fprintf(sum, "%s %d\n%s", name, len(content[name]), content[name])
	}
	path = filepath.Join(dir, ownName("hook")+fmt.Sprintf("-%x", sum.Sum(nil)[:6]))
	for range 3 { // others may put theirs there, or take a damaged one away, meanwhile
		if err = hookIsThere(path, content); err == nil {
			return path, nil
		}
		if err = putHook(dir, path, content); err != nil {
			break
		}
	}
	return "", fmt.Errorf("cannot write the Python hook to %s: %w; name another folder, or run without the hook", path, err)
}

// hookIsThere says whether the folder is this user's and holds these files.
func hookIsThere(path string, content map[string][]byte) error {
	if err := checkOwn(path); err != nil {
		return err
	}
	for name, want := range content {
		got, err := os.ReadFile(filepath.Join(path, name))
		if err != nil {
			return err
		}
		if string(got) != string(want) {
			return fmt.Errorf("%s was changed", name)
		}
	}
	return nil
}

// putHook makes the folder under another name and renames it.
func putHook(dir, path string, content map[string][]byte) error {
	temp, err := os.MkdirTemp(dir, ".hook-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	fresh := filepath.Join(temp, "new")
	if err := os.Mkdir(fresh, 0o755); err != nil {
		return err
	}
	for name, data := range content {
		if err := os.WriteFile(filepath.Join(fresh, name), data, 0o644); err != nil {
			return err
		}
	}
	if err := os.Chmod(fresh, 0o755); err != nil { // whatever the umask
		return err
	}
	if os.Rename(fresh, path) == nil {
		return nil
	}
	// Something is there. If another program put it there in time, it is what we
	// want; if it is our own and damaged, it goes.
	if hookIsThere(path, content) == nil {
		return nil
	}
	if err := checkOwn(path); err != nil {
		return err
	}
	if err := os.Rename(path, filepath.Join(temp, "old")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil // the next round puts ours there
}

// ownName is a name under a folder that all users share.
func ownName(what string) string { return what + "-" + strconv.Itoa(os.Getuid()) }

// ownFolder makes a folder of the user's own under dir, if it is not there.
func ownFolder(dir, what string) (string, error) {
	path := filepath.Join(dir, ownName(what))
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return path, checkOwn(path)
}

// checkOwn is the error of a folder that others can write into: in a folder that
// all share, anyone may have made one of that name.
func checkOwn(path string) error {
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is not a folder; remove it", path)
	case !ours(info):
		return fmt.Errorf("%s belongs to another user, or others may write there; remove it, or use another folder", path)
	}
	return nil
}
