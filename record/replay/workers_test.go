package replay_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"

	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/record/replay"
)

// TestWorkersSameReport: the JSON is the same, but for the own time, however many policies
// run at once.
func TestWorkersSameReport(t *testing.T) {
	for _, tc := range []struct {
		name, recording, device string
		smallest                bool
		policies                []string
	}{
		{"a pool", "bfc/tiny.txt", "sim:64MiB", true, []string{"jax", "platform", "async", "vmm", "elastic"}},
		{"refused", "peers/minimalloc_D.txt", "sim:512MiB", false, []string{"async", "jax", "async:async_prealloc=1048576", "elastic"}},
		{"a policy twice", "peers/minimalloc_A.txt", "sim:4GiB", false, []string{"async", "async", "platform", "async"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr := file(t, "..", "..", "testdata", tc.recording)
			var want []byte
			for _, workers := range []int{0, 1, 2, 16} {
				cfg := config(t, tc.device, tc.policies...)
				cfg.Workers, cfg.Smallest = workers, tc.smallest
				rep := run(t, tr, cfg)
				for _, r := range rep.Results {
					r.Seconds = 0
				}
				got, err := json.Marshal(rep)
				if err != nil {
					t.Fatal(err)
				}
				if want == nil {
					want = got
				}
				if string(got) != string(want) {
					t.Errorf("%d workers: %s\nwant %s", workers, got, want)
				}
			}
		})
	}
}

// TestWorkersSameError: several policies fail, and the error is that of the first in the
// order.
func TestWorkersSameError(t *testing.T) {
	tr := file(t, "..", "..", "testdata", "bfc", "tiny.txt")
	for _, workers := range []int{1, 2, 3} {
		cfg := config(t, "sim:1GiB", "jax", "platform", "async")
		cfg.Workers = workers
		cfg.Device = func(total uint64) (device.GPU, error) {
			d, err := sim.New(sim.Config{Total: total})
			if err == nil {
				d.SetFaults(sim.Faults{LoseAt: 100})
			}
			return d, err
		}
		rep, err := replay.Run(t.Context(), tr, cfg)
		if rep != nil || !errors.Is(err, device.ErrLost) || !strings.Contains(err.Error(), "policy platform: event ") {
			t.Errorf("%d workers: %v", workers, err)
		}
	}
}

// TestWorkersStop: the end of the context ends all of them, and every device is closed.
func TestWorkersStop(t *testing.T) {
	tr := file(t, "..", "..", "testdata", "bfc", "steady_1000.txt.gz")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	var made []*sim.Device
	cfg := config(t, "sim:16GiB", "async", "platform", "jax")
	cfg.Workers = 3
	cfg.Progress = func(p replay.Progress) { cancel() }
	cfg.Device = func(total uint64) (device.GPU, error) {
		d, err := sim.New(sim.Config{Total: total})
		mu.Lock()
		defer mu.Unlock()
		made = append(made, d)
		return d, err
	}
	if rep, err := replay.Run(ctx, tr, cfg); rep != nil || !errors.Is(err, context.Canceled) {
		t.Fatalf("%v, %v; want context.Canceled", rep, err)
	}
	for i, d := range made {
		if now, _ := d.Held(); now != 0 {
			t.Errorf("%d bytes are left on device %d", now, i)
		}
	}
}

// TestProgressOfReplay: events never go back, and are at most those of all passes.
func TestProgressOfReplay(t *testing.T) {
	tr := file(t, "..", "..", "testdata", "bfc", "tiny.txt")
	cfg := config(t, "sim:64MiB", "jax", "async", "elastic")
	cfg.Workers = 2
	var all []replay.Progress
	cfg.Progress = func(p replay.Progress) { all = append(all, p) }
	run(t, tr, cfg)
	var last uint64
	for _, p := range all {
		if p.Total != 6*tr.Events || p.Done < last || p.Done > p.Total || p.Doing == "" {
			t.Errorf("%+v after %d of %d events", p, last, 6*tr.Events)
		}
		last = p.Done
	}
	if len(all) < 6 {
		t.Errorf("called %d times", len(all))
	}
}
