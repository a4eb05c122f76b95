package archive

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// entries reads a tar archive: a line for each entry, and its content by name.
func entries(t *testing.T, text []byte) (lines []string, contents map[string][]byte) {
	t.Helper()
	contents = map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(text)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return lines, contents
		}
		if err != nil {
			t.Fatal(err)
		}
		if !h.ModTime.Equal(time.Unix(0, 0)) || h.Uid != 0 || h.Uname != "" {
			t.Errorf("%s has the time %v and the owner %d %q", h.Name, h.ModTime, h.Uid, h.Uname)
		}
		if contents[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%c %o %s %s", h.Typeflag, h.Mode, h.Name, h.Linkname)))
	}
}

func sample(t *testing.T) Image {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"program": "binary", "lib/libcuda.so.1": "library", "lib/sub/more": ""} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("libcuda.so.1", filepath.Join(dir, "lib", "libcuda.so")); err != nil {
		t.Fatal(err)
	}
	return Image{Tag: "example.org/agent:1", Arch: "amd64", Entrypoint: []string{"/bin/program"}, Env: []string{"PATH=/bin"},
		Files: map[string]string{"bin/program": filepath.Join(dir, "program"), "opt/lib": filepath.Join(dir, "lib")}}
}

func TestArchiveIsOneOfDockerSave(t *testing.T) {
	var out bytes.Buffer
	if err := sample(t).Write(&out); err != nil {
		t.Fatal(err)
	}
	_, parts := entries(t, out.Bytes())
	if got, want := string(parts["manifest.json"]), `[{"Config":"config.json","Layers":["layer.tar"],"RepoTags":["example.org/agent:1"]}]`; got != want {
		t.Errorf("manifest %s, want %s", got, want)
	}
	var config struct {
		Architecture, OS string
		Config           struct{ Entrypoint, Env []string }
		RootFS           struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	if err := json.Unmarshal(parts["config.json"], &config); err != nil {
		t.Fatal(err)
	}
	if config.Architecture != "amd64" || config.OS != "linux" || !reflect.DeepEqual(config.Config.Entrypoint, []string{"/bin/program"}) || !reflect.DeepEqual(config.RootFS.DiffIDs, []string{digest(parts["layer.tar"])}) {
		t.Errorf("config %+v", config)
	}
	lines, files := entries(t, parts["layer.tar"])
	want := []string{"5 755 bin/", "0 755 bin/program", "5 755 opt/", "5 755 opt/lib/", "2 777 opt/lib/libcuda.so libcuda.so.1", "0 755 opt/lib/libcuda.so.1", "5 755 opt/lib/sub/", "0 755 opt/lib/sub/more"}
	if !reflect.DeepEqual(lines, want) {
		t.Errorf("layer\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	if string(files["bin/program"]) != "binary" || string(files["opt/lib/libcuda.so.1"]) != "library" {
		t.Errorf("contents %q", files)
	}
}

func TestSameFilesGiveTheSameBytes(t *testing.T) {
	var first, second bytes.Buffer
	a, b := sample(t), sample(t)
	if err := os.Chtimes(b.Files["bin/program"], time.Now(), time.Unix(1e9, 0)); err != nil {
		t.Fatal(err)
	}
	if err := a.Write(&first); err != nil {
		t.Fatal(err)
	}
	if err := b.Write(&second); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two archives of the same files differ")
	}
}

func TestFileThatIsMissingIsAnError(t *testing.T) {
	m := sample(t)
	m.Files["bin/other"] = filepath.Join(t.TempDir(), "other")
	if err := m.Write(io.Discard); err == nil || !strings.Contains(err.Error(), "image example.org/agent:1: ") {
		t.Errorf("error %v", err)
	}
}
