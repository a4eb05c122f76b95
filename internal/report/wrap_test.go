package report_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"gpumem/internal/report"
)

func TestWrap(t *testing.T) {
	for _, c := range []struct {
		line  string
		width int
		want  string
	}{
		{"", 10, ""},
		{"   ", 10, "   "},
		{"short", 10, "short"},
		{"exactly 10", 10, "exactly 10"},
		{"exactly 10 and more", 10, "exactly 10\n  and more"},
		{"  indented text that goes on", 16, "  indented text\n    that goes on"},
		{"one verylongwordindeed two", 8, "one\n  verylongwordindeed\n  two"},
		{"  verylongwordindeed", 8, "  verylongwordindeed"},
		{"a   table   of   words", 12, "a   table\n  of   words"}, // blanks inside a line stay
		{"trailing   ", 20, "trailing"},
		{"größe größe", 11, "größe größe"}, // characters, not bytes
		{"größe größer", 11, "größe\n  größer"},
	} {
		if got := report.Wrap(c.line, c.width); got != c.want {
			t.Errorf("Wrap(%q, %d)\n got %q\nwant %q", c.line, c.width, got, c.want)
		}
	}
}

// TestWrapKeepsWords: the words are the same, and a line is too long only if it
// is one word.
func TestWrapKeepsWords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		line := rapid.StringMatching(`[ a-zé]{0,80}`).Draw(t, "line")
		width := rapid.IntRange(1, 30).Draw(t, "width")
		got := report.Wrap(line, width)
		if a, b := strings.Fields(line), strings.Fields(got); strings.Join(a, " ") != strings.Join(b, " ") {
			t.Fatalf("words %q became %q", a, b)
		}
		for l := range strings.Lines(got) {
			l = strings.TrimSuffix(l, "\n")
			if utf8.RuneCountInString(l) > width && len(strings.Fields(l)) > 1 {
				t.Fatalf("%q is longer than %d", l, width)
			}
		}
	})
}

func TestFold(t *testing.T) {
	for _, c := range []struct {
		line  string
		width int
		want  string
	}{
		{"short", 10, "short"},
		{"one verylongwordindeed two", 12, "one verylong\n  wordindeed\n  two"},
		{"  at:/opt/include/resource.hpp:251:", 21, "  at:/opt/include/\n    resource.hpp:251:"},
		{"- cupy.cuda.set_allocator(cupy.cuda.malloc_managed)", 30, "- cupy.cuda.set_allocator(\n  cupy.cuda.malloc_managed)"},
		{"größengrößengrößen", 9, "größengrö\n  ßengröß\n  en"},
		{"abc", 1, "a\n  b\n  c"},
	} {
		if got := report.Fold(c.line, c.width); got != c.want {
			t.Errorf("Fold(%q, %d)\n got %q\nwant %q", c.line, c.width, got, c.want)
		}
	}
}

// TestFoldKeepsCharacters: nothing is lost, and no line is too long.
func TestFoldKeepsCharacters(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		line := rapid.StringMatching(`[ a-zé/(,]{0,80}`).Draw(t, "line")
		width := rapid.IntRange(len(line)-len(strings.TrimLeft(line, " "))+3, 90).Draw(t, "width")
		got := report.Fold(line, width)
		if a, b := strings.Join(strings.Fields(line), ""), strings.Join(strings.Fields(got), ""); a != b {
			t.Fatalf("%q became %q", a, b)
		}
		for l := range strings.Lines(got) {
			if l = strings.TrimSuffix(l, "\n"); utf8.RuneCountInString(l) > width && strings.TrimSpace(line) != "" {
				t.Fatalf("%q is longer than %d", l, width)
			}
		}
	})
}
