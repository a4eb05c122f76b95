package formats

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpumem/record/internal/test/tracetest"
	"gpumem/record/trace"
)

// TestJAX092: one run of JAX 0.9.2 as its pool dump, its log, its profile and its device
// memory profile have it. testdata/README.md says what it did.
func TestJAX092(t *testing.T) {
	for _, tt := range []struct {
		file, format, pools string // a pool: its name, events, seeds, most and last bytes live
		notes               []string
	}{
		{"jax092.memdump", "memdump", "GPU_0_bfc 14 0 18300000 18300000", []string{"when a request was refused", "1 free chunk"}},
		{"jax092.log.gz", "memdebug", "GPU_0_bfc 41 0 20400000 0; xla_gpu_host_bfc 40 0 3900000 0", []string{"refused 1 request: 2.00 MiB (line 2323)"}},
		{"jax092.xplane.pb.gz", "xplane", "GPU_0_bfc 10 3 4000096 3600096; xla_gpu_host_bfc 10 0 900000 0", []string{"97.75 KiB is live", "2 blocks older than the recording (683.59 KiB)"}},
		{"jax092.pprof", "pprof", "cuda:0 6 0 3600000 3600000", []string{"one instant"}},
	} {
		t.Run(tt.file, func(t *testing.T) {
			tr, err := Open(context.Background(), filepath.Join("..", "trace", "testdata", tt.file), trace.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer tr.Close()
			if err := tracetest.CheckTrace(tr); err != nil {
				t.Error(err)
			}
			var pools []string
			for _, p := range tr.Pools {
				pools = append(pools, fmt.Sprintf("%s %d %d %d %d", p.Name, p.Events, p.Seeds, p.PeakLive, p.EndLive))
			}
			if got := strings.Join(pools, "; "); tr.Format != tt.format || got != tt.pools {
				t.Errorf("%s: %s\nwant %s: %s", tr.Format, got, tt.format, tt.pools)
			}
			notes := strings.Join(tr.Notes, "\n")
			for _, n := range tt.notes {
				if !strings.Contains(notes, n) {
					t.Errorf("no note %q in %s", n, notes)
				}
			}
		})
	}
}

// TestJAX0102: JAX 0.10.2 on the CPU has in its device memory profile what
// testdata/make_profile.py made: four weights and a batch on one device, 1000 bytes on
// the other, and the lines of the script.
func TestJAX0102(t *testing.T) {
	tr, err := Open(context.Background(), filepath.Join("..", "trace", "testdata", "jax0102.pprof"), trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	if err := tracetest.CheckTrace(tr); err != nil {
		t.Error(err)
	}
	want := map[string][]uint64{"cpu:0": {32_768, 262_144, 262_144, 262_144, 262_144}, "cpu:1": {1000}}
	for _, p := range tr.Pools {
		if p.Name == "executable" {
			continue
		}
		var sizes []uint64
		for _, e := range tracetest.Events(t, p, 100) {
			sizes = append(sizes, e.Bytes)
			if stack := tr.Site(e.Site); !strings.Contains(stack, "make_profile.py:") {
				t.Errorf("%s: %d bytes at %q", p.Name, e.Bytes, stack)
			}
		}
		slices.Sort(sizes)
		if !slices.Equal(sizes, want[p.Name]) {
			t.Errorf("%s has blocks of %d bytes, want %d", p.Name, sizes, want[p.Name])
		}
		delete(want, p.Name)
	}
	if tr.Format != "pprof" || len(want) > 0 {
		t.Errorf("%s: no pools %v", tr.Format, want)
	}
}
