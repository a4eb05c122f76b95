package cudacode

import (
	"strings"
	"testing"
)

// TestTablesNameEachCodeOnce refuses a table with a line that is skipped, or with a code twice,
// of which only one would count.
func TestTablesNameEachCodeOnce(t *testing.T) {
	for prefix, list := range map[string][]Code{"CUDA_": CUDA(), "NVML_ERROR_": NVML()} {
		seen := map[int32]bool{}
		for _, c := range list {
			if seen[c.Number] || !strings.HasPrefix(c.Name, prefix) {
				t.Errorf("%+v: want a name that begins with %s, and the number once", c, prefix)
			}
			seen[c.Number] = true
		}
		if len(list) < 10 {
			t.Errorf("%s: %d codes", prefix, len(list))
		}
	}
}

func TestReadOfADamagedTableNamesTheLine(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"x CUDA_ERROR\n", `t.txt:1: "x CUDA_ERROR": want NUMBER NAME, and fatal, if there, yes`},
		{"# head\n1\n", `t.txt:2: "1": want NUMBER NAME, and fatal, if there, yes`},
		{"1 A\n\tfatal: no\n", `t.txt:1: "1 A": want NUMBER NAME, and fatal, if there, yes`},
		{"1 A\n\tother: no\n", `t.txt:2: "other: no": want a field of an entry, each at most once, of text, advice, is, fatal`},
	} {
		if _, err := read("t.txt", tc.text); err == nil || err.Error() != tc.want {
			t.Errorf("%q: %v, want %s", tc.text, err, tc.want)
		}
	}
}
