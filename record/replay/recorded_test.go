package replay_test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"gpumem/record/replay"
)

// ofPyTorch are recordings that record/internal/torch/testdata/make_recordings.py makes of
// PyTorch 2.11: the GPU, and what the program set beside its environment. Most begin in the
// midst of the program.
var ofPyTorch = []struct{ name, device, also string }{
	{"middle", "sim:24GiB", ""},
	{"split", "sim:24GiB", ""},
	{"collect", "sim:4GiB", ",fraction=.9"},
	{"rounded", "sim:24GiB", ""},
	{"pages", "sim:2GiB", ""},
	{"streams", "sim:24GiB", ""},
	{"graphs", "sim:24GiB", ""},
	{"pool", "sim:24GiB", ""},
	{"retries", "sim:2GiB", ""},
	{"destroyed", "sim:24GiB", ""},
}

// TestPyTorchsProgramsAreReplayedAsTheyRan: under the recorded settings each block lies where
// it lay, each request is refused that was, and at 100 moments as much is allocated, active
// and reserved as PyTorch counted.
func TestPyTorchsProgramsAreReplayedAsTheyRan(t *testing.T) {
	for _, c := range ofPyTorch {
		t.Run(c.name, func(t *testing.T) {
			folder := filepath.Join("..", "internal", "torch", "testdata")
			tr := file(t, folder, c.name+".pickle.gz")
			p, ok := replay.AsRecorded(tr, "2.11")
			if !ok {
				t.Fatalf("settings %q", tr.Settings)
			}
			cfg := config(t, c.device, p.Spec+c.also)
			counted := counters(t, filepath.Join(folder, c.name+".txt"))
			r := run(t, tr, cfg).Results[0]
			if r.Placed == nil || *r.AsRecorded != *r.Placed || r.Refused != tr.Refused {
				t.Errorf("%s, refused %d of %d", agreement(r), r.Refused, tr.Refused)
			}
			if len(counted) < 90 {
				t.Errorf("%d moments", len(counted))
			}
			var most counter
			delete(counted, 0)
			cfg.Untimed = true
			for at, want := range counted {
				cfg.At = at
				now := run(t, tr, cfg).Results[0].At
				if now == nil {
					t.Fatalf("nothing after event %d", at)
				}
				if got := (counter{now.Allocated, now.Active, now.Reserved}); got != want {
					t.Errorf("after event %d: %+v, want %+v", at, got, want)
				}
				most = counter{max(most.allocated, want.allocated), max(most.active, want.active), max(most.reserved, want.reserved)}
			}
			if *r.AllocatedPeak < most.allocated || *r.ActivePeak < most.active || *r.ReservedPeak < most.reserved || *r.AllocatedPeak > *r.ActivePeak {
				t.Errorf("peaks of %d allocated, %d active, %d reserved; at some moment %+v", *r.AllocatedPeak, *r.ActivePeak, *r.ReservedPeak, most)
			}
		})
	}
}

// counter is what PyTorch counted at a moment, in bytes.
type counter struct{ allocated, active, reserved uint64 }

// counters reads those of a recording, by how many events came before.
func counters(t *testing.T, path string) map[uint64]counter {
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	list := map[uint64]counter{}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		var event uint64
		var c counter
		if _, err := fmt.Sscan(lines.Text(), &event, &c.allocated, &c.active, &c.reserved); err != nil {
			t.Fatal(err)
		}
		list[event] = c
	}
	return list
}
