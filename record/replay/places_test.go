package replay_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"gpumem"
	"gpumem/device/sim"
	"gpumem/policy/frameworks"
	"gpumem/record/formats"
	"gpumem/record/internal/test/tracetest"
	"gpumem/record/replay"
	"gpumem/record/timeline"
	"gpumem/record/trace"
)

// TestPlacementsOfJAX012AreAsRecorded: JAX 0.12's growing pool, in three threads. A log
// that was read in the order of its lines had most blocks elsewhere.
func TestPlacementsOfJAX012AreAsRecorded(t *testing.T) {
	tr := file(t, "..", "trace", "testdata", "jax012.log.gz")
	for i, r := range run(t, tr, config(t, "sim:1000000000", "jax@0.12.0:preallocate=false")).Results {
		p := tr.Pools[i]
		if r.Refused != 0 || r.Placed == nil || *r.Placed != p.Allocs || *r.AsRecorded != p.Allocs || p.Allocs < 178 {
			t.Errorf("%s: refused %d; %s of %d", r.Pool, r.Refused, agreement(r), p.Allocs)
		}
	}
}

// agreement is how many blocks are as recorded, "2 of 3".
func agreement(r *replay.Result) string {
	if r.Placed == nil {
		return "nothing to compare"
	}
	return fmt.Sprintf("%d of %d", *r.AsRecorded, *r.Placed)
}

// TestPlacementsElsewhereDoNotCount: a block that lies elsewhere, in the second region or
// in a region whose place another has.
func TestPlacementsElsewhereDoNotCount(t *testing.T) {
	const line = "[mem-debug] AllocateRaw,p,1048576,"
	for _, c := range []struct{ name, addrs, want string }{
		{"as here", "0x100000 0x200000 0x900000", "3 of 3"},
		{"two changed places", "0x200000 0x100000 0x900000", "2 of 3"},
		{"the second region lies in the first", "0x100000 0x200000 0x280000", "2 of 3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log strings.Builder
			for _, addr := range strings.Fields(c.addrs) {
				log.WriteString(line + addr + ",*\n")
			}
			tr, err := formats.Read(t.Context(), strings.NewReader(log.String()), "log", trace.Options{Format: "memdebug"})
			if err != nil {
				t.Fatal(err)
			}
			defer tr.Close()
			// Regions of 2 and 4 MiB, so the third block is in the second.
			rep := run(t, tr, config(t, "sim:1GiB", "bfc:preallocate=false", "platform"))
			if got := agreement(rep.Results[0]); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			if rep.Results[1].Placed != nil {
				t.Error("platform has no regions, and compares")
			}
		})
	}
}

// TestRecordedPoolIsReplayedAsItRan: what WithRecord wrote of a pool, refusals too,
// replayed under the same policy on the same device.
func TestRecordedPoolIsReplayedAsItRan(t *testing.T) {
	for _, spec := range []string{"jax", "jax:preallocate=false", "bfc:preallocate=false,gc=true", "elastic"} {
		for seed := range uint64(20) {
			var out bytes.Buffer
			w, err := trace.NewWriter(&out)
			if err != nil {
				t.Fatal(err)
			}
			dev, err := sim.New(sim.Config{Total: 64 * mib})
			if err != nil {
				t.Fatal(err)
			}
			p, err := frameworks.Parse(spec)
			if err != nil {
				t.Fatal(err)
			}
			pool, err := gpumem.Open(dev, p, gpumem.WithRecord(w), gpumem.WithRetry(0))
			if err != nil {
				t.Fatal(err)
			}
			refused := randomly(t, pool, seed)
			if err := errors.Join(pool.Close(), dev.Close()); err != nil {
				t.Fatal(err)
			}
			tr, err := formats.Read(t.Context(), &out, "run", trace.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer tr.Close()
			r := run(t, tr, config(t, "sim:64MiB", spec)).Results[0]
			if tr.Refused != refused || r.Refused != refused || *r.Placed != tr.Allocs-refused || *r.AsRecorded != *r.Placed {
				t.Errorf("%s, seed %d: %d refused, %d recorded, %d in the replay; %s", spec, seed, refused, tr.Refused, r.Refused, agreement(r))
			}
		}
	}
}

// randomly allocates and frees, and returns how often it was refused.
func randomly(t *testing.T, pool *gpumem.Pool, seed uint64) (refused uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	var live []gpumem.Block
	for range 200 {
		if len(live) > 0 && rng.IntN(5) < 2 {
			k := rng.IntN(len(live))
			if err := pool.Free(live[k]); err != nil {
				t.Fatal(err)
			}
			live = append(live[:k], live[k+1:]...)
			continue
		}
		b, err := pool.Alloc(t.Context(), 1+rng.Uint64N(1<<(10+rng.IntN(14))))
		switch {
		case errors.Is(err, gpumem.ErrOutOfMemory):
			refused++
		case err != nil:
			t.Fatal(err)
		default:
			live = append(live, b)
		}
	}
	return refused
}

// TestRefusedRequestIsTriedAtItsMomentAlone: it fits where there is room for it beside
// what lives then, and takes none from what comes later.
func TestRefusedRequestIsTriedAtItsMomentAlone(t *testing.T) {
	log := "Thread,Time,Action,Pointer,Size,Stream\n" +
		"1,12:00:00,allocate,0x100,8388608,0\n" +
		"1,12:00:01,allocate failure,(nil),33554432,0\n" +
		"1,12:00:02,allocate,0x10000000,16777216,0\n"
	tr, err := formats.Read(t.Context(), strings.NewReader(log), "log", trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	for _, c := range []struct {
		device string
		fits   bool
	}{{"sim:40MiB", true}, {"sim:39MiB", false}} {
		for _, r := range run(t, tr, config(t, c.device, "platform", "elastic", "bfc:limit=40MiB")).Results {
			if r.Policy == "bfc:limit=40MiB" && !c.fits {
				continue // its limit is larger than the device
			}
			if r.Fits != c.fits || r.LowerBound != 40*mib || r.Fits != (r.Failure == nil) {
				t.Errorf("%s on %s: fits %v, bound %d MiB", r.Policy, c.device, r.Fits, r.LowerBound/mib)
			}
			if f := r.Failure; f != nil && (f.Event != 2 || !f.Recorded || r.Refused != 1) {
				t.Errorf("%s on %s: refused %d, first %+v", r.Policy, c.device, r.Refused, f)
			}
		}
	}
	cfg := config(t, "sim:64MiB", "platform")
	cfg.Smallest = true
	rep, page, err := timeline.Run(t.Context(), tr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if got := *rep.Results[0].Smallest; got != 40*mib {
		t.Errorf("the smallest device has %d MiB, want 40", got/mib)
	}
	if b := page.Pools[0].Allocations; page.Pools[0].Peak != 40*mib || page.Pools[0].PeakAt != 2 || b.For[0] != 0 || b.For[1] != 1 || b.For[2] != 0 {
		t.Errorf("the page has a peak of %d at %d, and blocks that live for %d", page.Pools[0].Peak, page.Pools[0].PeakAt, b.For)
	}
}

// TestPyTorchIsPlacedAsRecorded: recordings of PyTorch itself, on a stand-in for the
// driver, from their first allocation to one that was refused.
func TestPyTorchIsPlacedAsRecorded(t *testing.T) {
	for _, c := range []struct{ file, policy string }{
		{"torch201.pickle", "pytorch@2.0.1"}, {"torch280.pickle", "pytorch@2.8.0"}, {"torch2150.pickle", "pytorch"},
	} {
		t.Run(c.file, func(t *testing.T) {
			tr := file(t, "..", "trace", "testdata", c.file)
			r := run(t, tr, config(t, "sim:1GiB", c.policy)).Results[0]
			if got := agreement(r); got != "24 of 24" || r.Refused != 1 {
				t.Errorf("%s, refused %d; want 24 of 24, refused 1", got, r.Refused)
			}
			if r.ReservedPeak == nil || *r.ReservedPeak != r.HeldPeak || *r.Segments == 0 {
				t.Errorf("reserved %v, held %d, segments %v", r.ReservedPeak, r.HeldPeak, r.Segments)
			}
		})
	}
}

// TestPyTorchBeginsAsRecorded: a recording from the midst of a run on a real GPU. It
// begins with the segments that the snapshot has, so that all lies where it lay, and
// without them where the device is too small or the policy has settings.
func TestPyTorchBeginsAsRecorded(t *testing.T) {
	tr := file(t, tracetest.Others(t, "traces", "bcrafton.memory_snapshot.pickle.gz")[0])
	for _, c := range []struct {
		device, policy string
		all            bool
	}{
		{"sim:80GiB", "pytorch", true}, {"sim:80GiB", "pytorch@2.9", true},
		{"sim:3900MiB", "pytorch", false}, {"sim:80GiB", "pytorch:max_split_size_mb=64", false}, {"sim:80GiB", "jax", false},
	} {
		t.Run(c.device+" "+c.policy, func(t *testing.T) {
			r := run(t, tr, config(t, c.device, c.policy)).Results[0]
			if *r.Placed != 2162 || (*r.AsRecorded == 2162) != c.all {
				t.Errorf("%s; want all: %v", agreement(r), c.all)
			}
		})
	}
}
