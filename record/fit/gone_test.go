package fit

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestWatchEnds: a process that has left its file and is gone is noted, and one that runs is not.
func TestWatchEnds(t *testing.T) {
	c := exec.Command("true")
	if err := c.Run(); err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	folder := t.TempDir()
	for _, pid := range []int{c.Process.Pid, os.Getpid()} {
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprint("whole.", pid)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := &ran{folder: folder, gone: map[int]uint64{}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // it looks once
	before := time.Now().UnixNano()
	r.watchEnds(ctx)
	if at := int64(r.gone[c.Process.Pid]); len(r.gone) != 1 || at < before || at > time.Now().UnixNano() {
		t.Errorf("gone: %v, want %d", r.gone, c.Process.Pid)
	}
}

// TestGone: the first that saw a process gone is right, unless the process has said itself when it ended. One that is gone
// since all had agreed to end would have gone on.
func TestGone(t *testing.T) {
	const base = uint64(1790000000000000000)
	const first = "gpu 0 aa 1790000000000001000\n"
	for _, tc := range []struct {
		name, whole     string
		seen, stop, end uint64
	}{
		{"runs", first, 0, 0, 0},
		{"seen by another process", first + "gone 1790000000000003000\n", 0, 0, base + 3000},
		{"seen by fit", first, base + 4000, 0, base + 4000},
		{"seen by fit later", first + "gone 1790000000000003000\ngone 1790000000000003500\n", base + 4000, 0, base + 3000},
		{"seen by fit first", first + "gone 1790000000000005000\n", base + 4000, 0, base + 4000},
		{"has said it", first + "end 1790000000000002000\ngone 1790000000000003000\n", base + 4000, 0, base + 2000},
		{"before all agreed", first + "gone 1790000000000003000\n", 0, base + 3500, base + 3000},
		{"after all had agreed", first + "gone 1790000000000004000\n", base + 5000, base + 3500, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			folder := t.TempDir()
			r := &ran{folder: folder, found: filepath.Join(folder, "found"), uuids: []string{"aa", "bb"}, gone: map[int]uint64{1: tc.seen}}
			if err := os.WriteFile(r.file("whole.1"), []byte(tc.whole), 0o600); err != nil {
				t.Fatal(err)
			}
			if stop := r.found + ".stop"; tc.stop != 0 {
				if err := os.WriteFile(stop, nil, 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Chtimes(stop, time.Time{}, time.Unix(0, int64(tc.stop))); err != nil {
					t.Fatal(err)
				}
			}
			p := &process{pid: 1}
			if err := r.open(p); err != nil || p.end != tc.end {
				t.Errorf("end %d, want %d: %v", p.end, tc.end, err)
			}
		})
	}
}
