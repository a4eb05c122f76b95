// Package archive writes container images without a registry: archives of files, in the form
// of docker save, that containerd and docker import.
package archive

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Image describes an image of one layer.
type Image struct {
	Tag        string // name and version, such as example.org/probe:1
	Arch       string // as Go names it, such as amd64
	Entrypoint []string
	Env        []string          // NAME=value
	Files      map[string]string // folders and files of this machine by their path in the image, relative to its root
	Temporary  bool              // the image has a folder /tmp that everyone may write to
}

// Write writes the image. The same files give the same bytes: names are sorted, and owners,
// times and modes are not the files' own.
func (m Image) Write(w io.Writer) error {
	layer, err := m.layer()
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": m.Arch,
		"os":           "linux",
		"config":       map[string]any{"Entrypoint": m.Entrypoint, "Env": m.Env},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{digest(layer)}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{m.Tag}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	t := tar.NewWriter(w)
	for _, f := range []struct {
		name string
		text []byte
	}{{"config.json", config}, {"layer.tar", layer}, {"manifest.json", manifest}} {
		if err := add(t, &tar.Header{Name: f.name, Mode: 0o644}, f.text); err != nil {
			return err
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
	if err := errors.Join(m.Write(f), f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

func digest(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }

func add(t *tar.Writer, h *tar.Header, text []byte) error {
	h.Size = int64(len(text))
	h.Format = tar.FormatUSTAR
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	_, err := t.Write(text)
	return err
}

// layer returns the files as a tar archive, each folder before what is in it.
func (m Image) layer() ([]byte, error) {
	headers := map[string]*tar.Header{}
	contents := map[string][]byte{}
	if m.Temporary {
		headers["tmp"] = &tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}
	}
	for to, from := range m.Files {
		err := filepath.WalkDir(from, func(file string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			rest, err := filepath.Rel(from, file)
			if err != nil {
				return err
			}
			name := strings.TrimPrefix(path.Join("/", to, filepath.ToSlash(rest)), "/")
			for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
				headers[dir] = &tar.Header{Name: dir + "/", Typeflag: tar.TypeDir, Mode: 0o755}
			}
			switch {
			case e.IsDir():
				headers[name] = &tar.Header{Name: name + "/", Typeflag: tar.TypeDir, Mode: 0o755}
			case e.Type()&fs.ModeSymlink != 0:
				target, err := os.Readlink(file)
				headers[name] = &tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target, Mode: 0o777}
				return err
			case e.Type().IsRegular():
				contents[name], err = os.ReadFile(file)
				headers[name] = &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755}
				return err
			default:
				return fmt.Errorf("%s is neither a file nor a folder", file)
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", m.Tag, err)
		}
	}
	var names []string
	for name := range headers {
		names = append(names, name)
	}
	slices.Sort(names)
	var layer bytes.Buffer
	t := tar.NewWriter(&layer)
	for _, name := range names {
		if err := add(t, headers[name], contents[name]); err != nil {
			return nil, fmt.Errorf("image %s: %s: %w", m.Tag, name, err)
		}
	}
	if err := t.Close(); err != nil {
		return nil, err
	}
	return layer.Bytes(), nil
}
