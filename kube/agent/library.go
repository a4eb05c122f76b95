// The library on the host: a folder that is mounted into containers.

package agent

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Where a container finds what it is given.
const (
	LeaseFile     = "/etc/gpumem/lease.json"
	LibraryFolder = "/opt/gpumem/lib"
	ledgerFolder  = "/run/gpumem"
)

// mark is the file beside the library that binds it to the lease file, whatever the
// environment says.
const mark = "leased"

// Install copies the files of a folder into a new folder of dir, named by their content,
// and returns that. Containers keep the one that they were started with, so an upgrade
// changes nothing beneath them. With leased it gets the mark.
func Install(from, dir, prefix string, leased bool) (string, error) {
	list, err := os.ReadDir(from)
	if err != nil {
		return "", fmt.Errorf("the library: %w", err)
	}
	sum := sha256.New()
	var files []file
	for _, e := range list {
		f := file{name: e.Name()}
		switch {
		case e.Type()&fs.ModeSymlink != 0:
			if f.link, err = os.Readlink(filepath.Join(from, f.name)); err == nil && filepath.Base(f.link) != f.link {
				err = fmt.Errorf("%s is a link out of its folder", filepath.Join(from, f.name))
			}
		case e.Type().IsRegular():
			f.content, err = os.ReadFile(filepath.Join(from, f.name))
		default:
			continue
		}
		if err != nil {
			return "", fmt.Errorf("the library: %w", err)
		}
		fmt.Fprintf(sum, "%q %q %d\n", f.name, f.link, len(f.content))
		sum.Write(f.content)
		files = append(files, f)
	}
	if _, err := os.Stat(filepath.Join(from, "libcuda.so.1")); err != nil {
		return "", fmt.Errorf("the library: %w; scripts/libgpumem and scripts/libcudasim build it", err)
	}
	if leased {
		fmt.Fprintln(sum, LeaseFile)
		files = append(files, file{name: mark, content: []byte(LeaseFile + "\n")})
	}
	// A folder with the name and other content, as a cleaner leaves it, is not used again.
	named := filepath.Join(dir, fmt.Sprintf("%s-%x", prefix, sum.Sum(nil)[:6]))
	out := named
	for n := 2; ; n++ {
		same, err := has(out, files)
		if same {
			return out, nil
		}
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		out = fmt.Sprintf("%s-%d", named, n)
	}
	left, _ := filepath.Glob(filepath.Join(dir, ".new-*")) // of agents that were killed
	for _, l := range left {
		_ = os.RemoveAll(l)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	fresh, err := os.MkdirTemp(dir, ".new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(fresh)
	for _, f := range files {
		path := filepath.Join(fresh, f.name)
		if f.link != "" {
			err = os.Symlink(f.link, path)
		} else if err = os.WriteFile(path, f.content, 0o644); err == nil {
			err = os.Chmod(path, 0o755)
		}
		if err != nil {
			return "", err
		}
	}
	if err := os.Chmod(fresh, 0o755); err != nil {
		return "", err
	}
	if err := os.Rename(fresh, out); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return out, nil
}

type file struct {
	name, link string
	content    []byte
}

// has reports whether a folder has these files. The error is that of the folder.
func has(dir string, files []file) (bool, error) {
	if _, err := os.Lstat(dir); err != nil {
		return false, err
	}
	for _, f := range files {
		path := filepath.Join(dir, f.name)
		if link, _ := os.Readlink(path); link != f.link {
			return false, nil
		}
		if content, err := os.ReadFile(path); f.link == "" && (err != nil || !bytes.Equal(content, f.content)) {
			return false, nil
		}
	}
	return true, nil
}
