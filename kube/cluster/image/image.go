// Package image writes container images without a registry: an archive of files that
// containerd and docker import.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// Image is what an image has.
type Image struct {
	Tag        string            // name and version, such as example.org/probe:1
	Files      map[string]string // path in the image to the file on this machine
	Entrypoint []string
	Env        []string // NAME=value
}

// Write writes the image as a docker archive with one layer. Two archives of the same
// files are equal to the byte.
func (m Image) Write(w io.Writer) error {
	layer, err := m.layer()
	if err != nil {
		return fmt.Errorf("image %s: %w", m.Tag, err)
	}
	sum := sha256.Sum256(layer)
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": m.Entrypoint, "Env": m.Env},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	if err != nil {
		return fmt.Errorf("image %s: %w", m.Tag, err)
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{m.Tag}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return fmt.Errorf("image %s: %w", m.Tag, err)
	}
	t := tar.NewWriter(w)
	for _, f := range []struct {
		name string
		data []byte
	}{{"config.json", config}, {"layer.tar", layer}, {"manifest.json", manifest}} {
		if err := add(t, f.name, 0o644, f.data); err != nil {
			return fmt.Errorf("image %s: %w", m.Tag, err)
		}
	}
	return t.Close()
}

// WriteFile writes the image to a file, whole or not at all.
func (m Image) WriteFile(name string) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".image-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if err := errors.Join(m.Write(f), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

// layer returns the archive of the files, with the folders that lead to them.
func (m Image) layer() ([]byte, error) {
	var buf bytes.Buffer
	t := tar.NewWriter(&buf)
	made := map[string]bool{}
	folder := func(name string) error {
		var missing []string
		for d := path.Dir(name); d != "." && !made[d]; d = path.Dir(d) {
			missing, made[d] = append(missing, d), true
		}
		for _, d := range slices.Backward(missing) {
			if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: d + "/", Mode: 0o755}); err != nil {
				return err
			}
		}
		return nil
	}
	names := make([]string, 0, len(m.Files))
	for name := range m.Files {
		names = append(names, name)
	}
	slices.Sort(names)
	// Programs expect /tmp; a runtime makes the other folders.
	if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}); err != nil {
		return nil, err
	}
	made["tmp"] = true
	for _, name := range names {
		data, err := os.ReadFile(m.Files[name])
		if err != nil {
			return nil, err
		}
		inside := strings.TrimPrefix(path.Clean("/"+name), "/")
		if err := folder(inside); err != nil {
			return nil, err
		}
		if err := add(t, inside, 0o755, data); err != nil {
			return nil, err
		}
	}
	err := t.Close()
	return buf.Bytes(), err
}

func add(t *tar.Writer, name string, mode int64, data []byte) error {
	if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(data))}); err != nil {
		return err
	}
	_, err := t.Write(data)
	return err
}

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
