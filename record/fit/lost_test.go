package fit

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestProcessWithoutItsGPUsIsLost: of several processes one whose GPUs are not known would be left out in silence. A program of
// one process needs them not.
func TestProcessWithoutItsGPUsIsLost(t *testing.T) {
	recording, err := os.ReadFile("../trace/testdata/torch2023.pickle")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		processes int
		known     int // of them, from the first on
		lost      bool
	}{{1, 0, false}, {2, 2, false}, {2, 1, true}, {2, 0, true}} {
		folder := t.TempDir()
		r := &ran{folder: folder, found: filepath.Join(folder, "found"), uuids: []string{"aa", "bb"}}
		for i := range tc.processes {
			write := func(name, text string) {
				t.Helper()
				if err := os.WriteFile(filepath.Join(folder, fmt.Sprintf(name, 11+i)), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write("record.%d", "")
			write("found.%d.torch", string(recording))
			if i < tc.known {
				write("whole.%d", "gpu 0 aa 1790000000000000000\n")
			}
		}
		if err := r.find(); err != nil {
			t.Fatal(err)
		}
		if err := r.read(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r.lost != tc.lost {
			t.Errorf("%d processes, the GPUs of %d known: lost %v", tc.processes, tc.known, r.lost)
		}
		r.close()
	}
}
