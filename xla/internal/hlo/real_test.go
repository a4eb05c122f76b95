package hlo_test

import (
	"io"
	"regexp"
	"strings"
	"testing"

	. "gpumem/xla/internal/hlo"
	"gpumem/xla/internal/test/hlotest"
)

func TestReal(t *testing.T) {
	for name, text := range hlotest.Texts(t) {
		t.Run(name, func(t *testing.T) {
			m := parsed(t, text)
			linked(t, m)
			printed := m.String()
			if err := hlotest.Equal(m, parsed(t, printed)); err != nil {
				t.Error(err)
			}
			if got, want := plain(printed), plain(text); got != want {
				same := 0
				for same < min(len(got), len(want)) && got[same] == want[same] {
					same++
				}
				t.Errorf("the text differs from byte %d on: %.80q and %.80q", same, got[same:], want[same:])
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
	for _, text := range hlotest.Texts(b) {
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
	for _, text := range hlotest.Texts(b) {
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
