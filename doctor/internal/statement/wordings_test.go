package statement

import (
	"bufio"
	_ "embed"
	"strings"
	"testing"
)

//go:embed testdata/wordings.txt
var wordings string

// TestWordings: whether a line says that memory was refused, in the words of many programs. Each
// line of the table has refused or fine, a tab, and the line.
func TestWordings(t *testing.T) {
	n := map[string]int{}
	for s := bufio.NewScanner(strings.NewReader(wordings)); s.Scan(); {
		want, line, ok := strings.Cut(s.Text(), "\t")
		if !ok || strings.HasPrefix(want, "#") {
			continue
		}
		n[want]++
		got := "fine"
		if _, err := Read(strings.NewReader(line+"\n"), func(st *Statement) {
			if st.Refused && !st.Advice {
				got = "refused"
			}
		}); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%s is %s, and not %s", line, got, want)
		}
	}
	if n["refused"] < 40 || n["fine"] < 20 || len(n) != 2 {
		t.Errorf("the table has %v", n)
	}
}
