package hlo

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// realModules are the texts of the modules that people and their programs made, by name.
// They lie beside the repository; a checkout alone has none.
func realModules(tb testing.TB) map[string]string {
	files, _ := filepath.Glob("../../shared/data/hlo/*.hlo.gz")
	if len(files) == 0 {
		tb.Skip("no real modules in ../../shared/data/hlo: nothing tested")
	}
	all := map[string]string{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			tb.Fatal(err)
		}
		z, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			tb.Fatal(err)
		}
		text, err := io.ReadAll(z)
		if err != nil {
			tb.Fatal(err)
		}
		all[strings.TrimSuffix(filepath.Base(file), ".hlo.gz")] = string(text)
	}
	return all
}

func TestReal(t *testing.T) {
	for name, text := range realModules(t) {
		t.Run(name, func(t *testing.T) {
			m := parsed(t, text)
			linked(t, m)
			printed := m.String()
			if err := Equal(m, parsed(t, printed)); err != nil {
				t.Error(err)
			}
			if got, want := plain(printed), plain(text); got != want {
				err := differ("the text", got, want)
				t.Error(err)
			}
		})
	}
}

// comments are those that people and profilers put into a text, and the count of operands that the
// short form leaves out.
var comments = regexp.MustCompile(`(?m) ?//.*$|/\*index=\d+\*/`)

// plain is a text without comments and blank lines.
func plain(text string) string {
	var kept []string
	for line := range strings.Lines(text) {
		if !strings.Contains(line, "//") && !strings.Contains(line, "/*") {
			// no comment
		} else if !strings.Contains(line, `"`) {
			line = comments.ReplaceAllString(line, "")
		} else {
			line = comments.ReplaceAllStringFunc(line, func(c string) string {
				if strings.HasPrefix(c, "/*") {
					return ""
				}
				return c // may be in a string
			})
		}
		if line = strings.TrimRight(line, " \n"); line != "" {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "\n")
}

func BenchmarkParse(b *testing.B) {
	var texts []string
	size := 0
	for _, text := range realModules(b) {
		texts = append(texts, text)
		size += len(text)
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		for _, text := range texts {
			if _, err := ParseString(text); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func BenchmarkWrite(b *testing.B) {
	var modules []*Module
	size := 0
	for _, text := range realModules(b) {
		modules = append(modules, parsed(b, text))
		size += len(text)
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		for _, m := range modules {
			m.Write(io.Discard)
		}
	}
}
