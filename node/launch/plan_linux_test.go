package launch

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"gpumem/device"
	"gpumem/node/share"
)

// TestLeasesAwayAtOnce: as many of the copies as do not fit beside the others, and at least one.
func TestLeasesAwayAtOnce(t *testing.T) {
	for _, tc := range []struct {
		copies      int
		each, total uint64
		want        int
	}{{1, 70, 100, 1}, {2, 70, 100, 1}, {3, 70, 100, 2}, {3, 50, 100, 1}, {5, 50, 100, 3}, {2, 10, 100, 1}, {4, 100, 100, 3}, {2, 101, 100, 2}} {
		if got := awayAtOnce(tc.copies, tc.each, tc.total); got != tc.want {
			t.Errorf("%d of %d on %d: %d away, want %d", tc.copies, tc.each, tc.total, got, tc.want)
		}
	}
}

func newRegistry(t *testing.T) *share.Registry {
	t.Helper()
	r, err := share.Open(filepath.Join(t.TempDir(), "registry"))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestLeasesAreInTheOrderOfTargets: whatever order the registry takes them in.
func TestLeasesAreInTheOrderOfTargets(t *testing.T) {
	room := fixedMeter{s: device.Status{Info: device.Info{Total: 1 << 30}, Free: 1 << 30}}
	for _, keys := range [][]string{{"a", "b", "c"}, {"c", "b", "a"}, {"b", "c", "a"}} {
		p := Plan{registry: newRegistry(t), Bytes: 1 << 20, Copies: 2}
		for _, key := range keys {
			p.targets = append(p.targets, target{key: key, meter: room})
		}
		leases, _, err := p.take(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, copies := range leases {
			for i, l := range copies {
				if l.Device() != keys[i] {
					t.Errorf("of %v lease %d is of %s", keys, i, l.Device())
				}
			}
		}
		closeAll(leases)
	}
}

// TestLeaseEndsWithItsCopy: another copy that runs on keeps only its own.
func TestLeaseEndsWithItsCopy(t *testing.T) {
	shell := sh(t)
	room := fixedMeter{s: device.Status{Info: device.Info{Total: 1 << 30}, Free: 1 << 30}}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after a failure, too, the copy ends
		if f, err := os.OpenFile(fifo, os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil {
			f.Close()
		}
	})
	p := Plan{
		registry: newRegistry(t), Bytes: 1 << 20, Copies: 2, targets: []target{{key: "a", meter: room}},
		Command: []string{shell, "-c", `[ "$COPY" = 0 ] || read x < ` + fifo},
	}
	leases, _, err := p.take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first, second := leases[0][0].ID(), leases[1][0].ID()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	type result struct {
		statuses []int
		err      error
	}
	done := make(chan result, 1)
	go func() {
		statuses, err := p.copies(ctx, [][]string{append(os.Environ(), "COPY=0"), append(os.Environ(), "COPY=1")}, leases)
		done <- result{statuses, err}
	}()
	var left []string
	eventually(t, "the lease of the copy that ended has ended", func() bool {
		all, err := p.registry.List()
		if err != nil && !strings.Contains(err.Error(), "damaged") { // just being written
			t.Fatal(err)
		}
		left = nil
		for _, e := range all {
			left = append(left, e.ID)
		}
		return !slices.Contains(left, first)
	})
	if !slices.Equal(left, []string{second}) {
		t.Errorf("left are %q, want the second of %q and %q", left, first, second)
	}
	f, err := os.OpenFile(fifo, os.O_WRONLY, 0) // waits for the copy
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	r := <-done
	if r.err != nil || r.statuses[0] != 0 || r.statuses[1] != 1 {
		t.Errorf("%+v, %v; want the statuses 0 and 1, of a read at the end of a file", r.statuses, r.err)
	}
	if all, err := p.registry.List(); err != nil || len(all) > 0 {
		t.Errorf("left: %+v, %v", all, err)
	}
}
