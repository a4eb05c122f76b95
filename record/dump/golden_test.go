package dump_test

// Dumps that the original wrote.

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"gpumem/internal/test/golden"
	"gpumem/record/dump"
)

func goldenFile(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(golden.Dir(), "bfc", "golden", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestGolden reads the recorded reports of both eras and the binary dump: all
// say the same of the pool.
func TestGolden(t *testing.T) {
	for _, tc := range []struct {
		file            string
		dumps           int
		rounded, region uint64
	}{
		{"oom_small.prealloc.log", 2, 500224, 1},
		{"oom_small.growth.log", 2, 500224, 1},
		{"oom_small.prealloc.2025.log", 2, 500224, 1},
		{"oom_small.growth.2025.log", 2, 500224, 1},
		{"oom_small.prealloc.memdump.pb", 1, 0, 1},
	} {
		t.Run(tc.file, func(t *testing.T) {
			d, err := dump.Read(bytes.NewReader(goldenFile(t, tc.file)))
			if err != nil {
				t.Fatal(err)
			}
			if d.Allocator != "GPU_0_bfc" || d.Request.Rounded != tc.rounded || d.Dumps != tc.dumps || !d.Complete {
				t.Errorf("%q, refused %d, %d dumps, complete %v, notes %q", d.Allocator, d.Request.Rounded, d.Dumps, d.Complete, d.Notes)
			}
			if d.Pool != 1<<20 || d.InUse != 264192 || d.LargestFree != 416256 || d.Free() != 1<<20-264192 {
				t.Errorf("pool %d, in use %d, largest %d", d.Pool, d.InUse, d.LargestFree)
			}
			limit := uint64(1 << 20) // of the log line of a refusal
			if tc.rounded == 0 {
				limit = 0
			}
			if d.Limit != limit {
				t.Errorf("limit %d, want %d", d.Limit, limit)
			}
			if len(d.Regions) != 1 || len(d.Regions[0].Chunks) != 9 || d.Regions[0].Addr != 0x7f0000000000 {
				t.Errorf("regions %+v", d.Regions)
			}
			if d.LargestFree != 416256 {
				t.Error("Fits")
			}
			if d.Stats.NumAllocs != 8 || len(d.Bins) != 6 || len(d.Rows) != 4 {
				t.Errorf("stats %+v, bins %v, rows %v", d.Stats, d.Bins, d.Rows)
			}
			for _, l := range d.Summary(80, 40) {
				t.Log(l)
			}
		})
	}
}
