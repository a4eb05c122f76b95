package doctor

import (
	"os"
	"path/filepath"
	"testing"
)

// TestCorpus reads logs of third parties, where there are some beside the
// checkout: each says at least one thing that is recognised.
func TestCorpus(t *testing.T) {
	logs, err := filepath.Glob("../../shared/data/oomlogs/*.log")
	if err != nil {
		t.Fatal(err)
	}
	if len(logs) == 0 {
		t.Skip("skipped: no logs in ../shared/data/oomlogs beside the checkout")
	}
	for _, path := range logs {
		t.Run(filepath.Base(path), func(t *testing.T) {
			in, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			n := 0
			err = Read(in, func(f Fact) {
				n++
				t.Logf("%d %s %+v", f.Line, f.Kind, f)
			})
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				t.Error("no fact")
			}
		})
	}
}
