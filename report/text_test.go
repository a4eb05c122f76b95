package report_test

import (
	"testing"

	"gpumem/report"
)

func TestShellQuote(t *testing.T) {
	for in, want := range map[string]string{".9": ".9", "": "''", "a b": "'a b'", "it's": `'it'\''s'`, "a:b,c=d/e": "a:b,c=d/e", "$(rm)": "'$(rm)'"} {
		if got := report.ShellQuote(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}
