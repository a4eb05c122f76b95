package replay_test

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"gpumem/trace"
)

// TestRealSnapshots replays snapshots of real programs. They are other people's
// files and not part of this repository, so the test is skipped where they are
// not beside it.
func TestRealSnapshots(t *testing.T) {
	for _, name := range []string{
		"bcrafton.memory_snapshot.pickle.gz", "yiyi.4bf3cd4.pickle.gz", "yiyi.fc31f1e.pickle.gz",
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("..", "..", "shared", "data", "traces", name)
			if _, err := os.Stat(path); err != nil {
				t.Skipf("the recording of a real program is not here: %v", err)
			}
			tr := file(t, path)
			cfg := config(t, "sim:80GiB", "platform", "jax", "jax:preallocate=false")
			for i, r := range run(t, tr, cfg).Results {
				p := tr.Pools[0]
				if !r.Fits || r.Pool != p.Name || len(tr.Pools) != 1 {
					t.Fatalf("%s: refused %d on 80 GiB", r.Policy, r.Refused)
				}
				if served := uint64(r.Stats.NumAllocs) + empty(t, p); served != p.Allocs {
					t.Errorf("%s: served %d of %d", r.Policy, served, p.Allocs)
				}
				// Blocks are at least as large as what was asked for, and what is
				// held is at least what lives in it.
				s := r.Stats
				if s.BytesInUse < p.EndLive || s.PeakBytesInUse < p.PeakLive || r.HeldPeak < s.PeakBytesInUse ||
					r.HeldMean > float64(r.HeldPeak) || r.HeldPeak < r.HeldIdle || s.LargestAllocSize < p.LargestAlloc {
					t.Errorf("%s: %+v\n%+v", r.Policy, *r, *p)
				}
				// Platform holds what is live, with each block rounded up to
				// 2 MiB, and nothing else; a driver call each.
				if i == 0 && (r.HeldIdle != s.BytesInUse || r.DriverCalls != p.Events-empty(t, p) || r.HeldPeak < r.LowerBound) {
					t.Errorf("%s: %+v", r.Policy, *r)
				}
			}
		})
	}
}

// empty counts the requests for 0 bytes.
func empty(t *testing.T, p *trace.Pool) (n uint64) {
	t.Helper()
	cur := p.Cursor()
	buf := make([]trace.Event, 1000)
	for {
		k, err := cur.Next(buf)
		for _, e := range buf[:k] {
			if e.Op == trace.Alloc && e.Bytes == 0 {
				n++
			}
		}
		if err == io.EOF {
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestRealProfile: what is counted is what was recorded, whatever was put in
// front, and a pool by its name is replayed alone.
func TestRealProfile(t *testing.T) {
	path := filepath.Join("..", "..", "shared", "data", "traces", "tf-gpu-multi-worker.xplane.pb.gz")
	if _, err := os.Stat(path); err != nil {
		t.Skipf("the recording of a real program is not here: %v", err)
	}
	tr := file(t, path)
	cfg := config(t, "sim:16GiB", "platform", "bfc:limit=15477102400")
	rep := run(t, tr, cfg)
	if rep.Trace.Events != 2493 || rep.Trace.Seeds != 15 || len(rep.Results) != 8 {
		t.Errorf("%d events, %d seeds, %d results", rep.Trace.Events, rep.Trace.Seeds, len(rep.Results))
	}
	for _, r := range rep.Results {
		if !r.Fits {
			t.Errorf("%s refuses %d in %s, on the GPU that it ran on", r.Policy, r.Refused, r.Pool)
		}
	}
	cfg.Pool = "GPU_6_bfc"
	rep = run(t, tr, cfg)
	if rep.Trace.Events != 2493 || len(rep.Results) != 2 || rep.Results[0].Pool != cfg.Pool || rep.Results[1].Stats.NumAllocs != 762 {
		t.Errorf("%+v", rep)
	}
}
