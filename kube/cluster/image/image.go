// Package image finds what programs need to run in an image of their own.
package image

import (
	"debug/elf"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
)

// Needs returns the loader and the shared libraries that the programs and libraries of
// files need, as they lie on this machine, with the paths under which the loader finds
// them. Libraries that files has by their own names are left out. It asks gcc where
// libraries are.
func Needs(files ...string) (map[string]string, error) {
	have := map[string]bool{}
	for _, f := range files {
		have[filepath.Base(f)] = true
	}
	found := map[string]string{}
	for len(files) > 0 {
		file := files[0]
		files = files[1:]
		libraries, loader, err := needed(file)
		if err != nil {
			return nil, fmt.Errorf("libraries of %s: %w", file, err)
		}
		if loader != "" {
			real, err := filepath.EvalSymlinks(loader)
			if err != nil {
				return nil, err
			}
			found[loader] = real
			have[filepath.Base(loader)] = true
		}
		for _, l := range libraries {
			if have[l] {
				continue
			}
			have[l] = true
			out, err := exec.Command("gcc", "-print-file-name="+l).Output()
			at := strings.TrimSpace(string(out))
			if err == nil && at == l { // gcc's answer where it knows none
				err = fs.ErrNotExist
			}
			if err != nil {
				return nil, fmt.Errorf("libraries of %s: %s: %w", file, l, err)
			}
			at = filepath.Clean(at)
			real, err := filepath.EvalSymlinks(at)
			if err != nil {
				return nil, fmt.Errorf("libraries of %s: %s: %w", file, l, err)
			}
			found[at] = real
			files = append(files, real)
		}
	}
	return found, nil
}

// needed returns the libraries that one file names, and the loader.
func needed(file string) (libraries []string, loader string, err error) {
	f, err := elf.Open(file)
	if err != nil {
		return nil, "", err
	}
	defer f.Close()
	if s := f.Section(".interp"); s != nil {
		b, err := s.Data()
		if err != nil {
			return nil, "", err
		}
		loader = strings.TrimRight(string(b), "\x00")
	}
	libraries, err = f.ImportedLibraries()
	return libraries, loader, err
}
