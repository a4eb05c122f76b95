package report_test

import (
	"testing"

	"gpumem/internal/report"
)

func TestShellQuote(t *testing.T) {
	for in, want := range map[string]string{".9": ".9", "": "''", "a b": "'a b'", "it's": `'it'\''s'`, "a:b,c=d/e": "a:b,c=d/e", "$(rm)": "'$(rm)'"} {
		if got := report.ShellQuote(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}

// TestTextHidesWhatATerminalObeys: escapes and characters that turn text around do not reach
// the terminal, in wrapped lines and in those that are written as they are.
func TestTextHidesWhatATerminalObeys(t *testing.T) {
	text := &report.Text{Width: 80}
	text.Line("%s", "a\x1b[31mb\u202ec")
	text.Raw("  d\x1b]0;t\x07e\u2066f\n\tg")
	if want := "a?[31mb?c\n  d?]0;t?e?f\n\tg\n"; text.String() != want {
		t.Errorf("%q, want %q", text.String(), want)
	}
}
