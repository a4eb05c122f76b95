package vocabulary

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestLines finds what testdata/lines.txt says of each of its lines: the line, and under it,
// indented, what Find returns. Lines without any are those where nothing is to be found.
func TestLines(t *testing.T) {
	data, err := os.ReadFile("testdata/lines.txt")
	if err != nil {
		t.Fatal(err)
	}
	var line string
	var want []string
	check := func() {
		if line != "" && !slices.Equal(spell(line, Find(line)), want) {
			t.Errorf("%s\n got %s\nwant %s", line, strings.Join(spell(line, Find(line)), "\n     "), strings.Join(want, "\n     "))
		}
		line, want = "", nil
	}
	for text := range strings.Lines(string(data)) {
		text = strings.TrimRight(text, "\n")
		switch {
		case strings.HasPrefix(text, "#"), text == "":
		case strings.HasPrefix(text, "    "):
			want = append(want, strings.TrimSpace(text))
		default:
			check()
			line = text
		}
	}
	check()
}
