package report_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"gpumem/report"
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
