package load_test

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpumem/xla/internal/load"
)

const text = "HloModule m\n\nENTRY e {\n  p = f32[2] parameter(0)\n  ROOT n = f32[2] negate(p)\n}\n"

// file writes content to a file.
func file(t *testing.T, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func packed(t *testing.T, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Text and binary modules are read, packed or not.
func TestModule(t *testing.T) {
	binary, err := os.ReadFile("testdata/loop-0.12.0.1.opt.pb")
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"m": []byte(text), "jit_loop": binary} {
		for _, content := range [][]byte{content, packed(t, content)} {
			m, err := load.Module(t.Context(), file(t, content))
			if err != nil || m.Name != name {
				t.Errorf("%s: %v, %v", name, m, err)
			}
		}
	}
}

// Errors name the file, and the line and the column in its text.
func TestModuleErrors(t *testing.T) {
	for _, c := range []struct{ name, content, want string }{
		{"syntax", strings.Replace(text, "negate(p)", "negate(p", 1), ":6:1: "},
		{"not well formed", strings.Replace(text, "ROOT n = f32[2]", "ROOT n = f32[3]", 1), ":5:8: n in e: "},
		{"too large", strings.ReplaceAll(text, "f32[2]", "f32[9000000000000000000]"), ":4:3: p in e: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := file(t, []byte(c.content))
			if _, err := load.Module(t.Context(), path); err == nil || !strings.HasPrefix(err.Error(), path+c.want) {
				t.Errorf("%v, want %s%s...", err, path, c.want)
			}
		})
	}
	path := filepath.Join(t.TempDir(), "none")
	if _, err := load.Module(t.Context(), path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a file that is not there: %v", err)
	}
}
