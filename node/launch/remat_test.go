package launch

import (
	"os"
	"strings"
	"testing"
)

// The texts of node/internal/hook/testdata/limits.txt, which the hook's test reads, too.
func TestRematLimit(t *testing.T) {
	table, err := os.ReadFile("../internal/hook/testdata/limits.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		text, want, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "|")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		if got, err := RematLimit(text); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
}
