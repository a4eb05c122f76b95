package replay_test

import (
	"io"
	"path/filepath"
	"testing"

	"gpumem/record/internal/test/tracetest"
	"gpumem/record/trace"
)

// TestRealRecordings replays recordings of real programs: our own, and snapshots of other
// people, which are not part of this repository.
func TestRealRecordings(t *testing.T) {
	ours := func(name string) func(*testing.T) string {
		return func(*testing.T) string { return filepath.Join("..", "trace", "testdata", name) }
	}
	others := func(name string) func(*testing.T) string {
		return func(t *testing.T) string { return tracetest.Others(t, "traces", name)[0] }
	}
	for _, c := range []struct {
		name string
		path func(*testing.T) string
	}{
		{"torch201", ours("torch201.pickle")},
		{"torch280", ours("torch280.pickle")},
		{"torch2150", ours("torch2150.pickle")},
		{"jax012", ours("jax012.log.gz")},
		{"jax092 log", ours("jax092.log.gz")},
		{"jax092 xplane", ours("jax092.xplane.pb.gz")},
		{"jax092 memdump", ours("jax092.memdump")},
		{"jax092 pprof", ours("jax092.pprof")},
		{"jax0102 pprof", ours("jax0102.pprof")},
		{"bcrafton", others("bcrafton.memory_snapshot.pickle.gz")},
		{"yiyi.4bf3cd4", others("yiyi.4bf3cd4.pickle.gz")},
		{"yiyi.fc31f1e", others("yiyi.fc31f1e.pickle.gz")},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := file(t, c.path(t))
			cfg := config(t, "sim:80GiB", "platform", "jax", "jax:preallocate=false")
			for i, r := range run(t, tr, cfg).Results {
				pool := i % len(tr.Pools)
				p := tr.Pools[pool]
				if !r.Fits || r.Pool != p.Name {
					t.Fatalf("%s: refused %d in %s on 80 GiB", r.Policy, r.Refused, r.Pool)
				}
				if served := uint64(r.Stats.NumAllocs) + empty(t, p); served != p.Allocs {
					t.Errorf("%s: served %d of %d", r.Policy, served, p.Allocs)
				}
				// Blocks are at least as large as what was requested, and what is
				// held is at least what lives in it.
				s := r.Stats
				if s.BytesInUse < p.EndLive || s.PeakBytesInUse < p.PeakLive || r.HeldPeak < s.PeakBytesInUse ||
					r.HeldMean > float64(r.HeldPeak) || r.HeldPeak < r.HeldIdle || s.LargestAllocSize < p.LargestAlloc {
					t.Errorf("%s: %+v\n%+v", r.Policy, *r, *p)
				}
				// Platform holds what is live, with each block rounded up to 2 MiB, and
				// nothing else, with a driver call for each event. A request that the
				// recorded program was refused is freed at once.
				calls := p.Events + p.Refused - empty(t, p)
				if i < len(tr.Pools) && (r.HeldIdle != s.BytesInUse || r.DriverCalls != calls || r.HeldPeak < r.LowerBound) {
					t.Errorf("%s: %d calls, want %d: %+v", r.Policy, r.DriverCalls, calls, *r)
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
	tr := file(t, tracetest.Others(t, "traces", "tf-gpu-multi-worker.xplane.pb.gz")[0])
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
