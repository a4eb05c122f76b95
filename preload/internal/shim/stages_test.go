package shim_test

import (
	"errors"
	"strings"
	"testing"

	"gpumem/device"
)

// filled is a program with blocks of bytes, written.
func filled(t *testing.T, spec string, bytes uint64) *lender {
	t.Helper()
	l := newLender(t, spec, 1)
	l.fill(bytes)
	return l
}

func (l *lender) fill(bytes uint64) {
	l.t.Helper()
	addr, err := l.pool.Alloc(bytes)
	if err != nil {
		l.t.Fatal(err)
	}
	l.live[addr] = bytes
	l.write(addr)
}

// outAndIn leaves and returns.
func (l *lender) outAndIn() {
	l.t.Helper()
	l.leave()
	l.occupy()
	if _, err := l.pool.Return(); err != nil {
		l.t.Fatal(err)
	}
	l.check()
}

// TestStagesAreKeptAndOverlap: a way out and back copies a block in pieces larger than a page, of
// which two are under way at once; the stages are made once, as large as it needs, and end with
// the pool.
func TestStagesAreKeptAndOverlap(t *testing.T) {
	l := filled(t, "elastic", 18*mib)
	calls := l.d.count(nil)
	for range 3 {
		calls["copy"] = 0
		l.d.most = 0
		l.leave()
		if l.d.most != 2 || calls["copy"] != 2 {
			t.Errorf("%d copies out, %d at once; want 2 of 10 MiB and 8 MiB at once", calls["copy"], l.d.most)
		}
		l.occupy()
		l.d.most = 0
		if _, err := l.pool.Return(); err != nil {
			t.Fatal(err)
		}
		if l.d.most != 2 || calls["copy"] != 4 {
			t.Errorf("%d copies, %d in at once", calls["copy"], l.d.most)
		}
		l.check()
	}
	pinned := 0
	for _, b := range l.d.pinned {
		pinned += len(b)
	}
	if calls["cuMemHostAlloc"] != 2 || pinned != 20*mib {
		t.Errorf("%d stages, of %d bytes together; want 2 of 10 MiB", calls["cuMemHostAlloc"], pinned)
	}
	if err := l.pool.Close(); err != nil || len(l.d.pinned) > 0 {
		t.Errorf("%d stages are left; %v", len(l.d.pinned), err)
	}
}

// TestStagesGrow: stages of a pool that has grown are made anew, and the small ones end.
func TestStagesGrow(t *testing.T) {
	l := filled(t, "platform", 2*mib)
	l.outAndIn()
	l.fill(14 * mib)
	l.outAndIn()
	if len(l.d.pinned) != 2 || len(l.d.pinned[0]) != 8*mib {
		t.Errorf("%d stages, the first of %d bytes; want 2 of 8 MiB", len(l.d.pinned), len(l.d.pinned[0]))
	}
}

// TestNothingCanBePinned: where no memory of the host can be pinned the driver copies, and where
// little can there are stages; that is said once, and not tried again.
func TestNothingCanBePinned(t *testing.T) {
	for _, tc := range []struct {
		spec   string
		most   uint64 // that can be pinned at once
		asked  int
		pinned int
		says   []string
	}{
		{"elastic", 0, 1, 0, []string{"copied without pinned memory"}},
		{"elastic pinned", 0, 2, 0, []string{"cannot be kept", "copied without pinned memory"}},
		{"elastic pinned", 4 * mib, 3, 2, []string{"cannot be kept"}},
	} {
		l := filled(t, tc.spec, 8*mib)
		asked := 0
		l.d.OnCall(func(_ uint64, call string, bytes uint64) error {
			if call != "cuMemHostAlloc" {
				return nil
			}
			if asked++; bytes > tc.most {
				return device.ErrOutOfMemory
			}
			return nil
		})
		for range 3 {
			l.outAndIn()
		}
		if asked != tc.asked || len(l.d.pinned) != tc.pinned || len(l.said) != len(tc.says) {
			t.Fatalf("%s: asked %d times, %d pinned; %q", tc.spec, asked, len(l.d.pinned), l.said)
		}
		for i, want := range tc.says {
			if !strings.Contains(l.said[i], want) {
				t.Errorf("%q, want %q", l.said[i], want)
			}
		}
	}
}

// TestPinnedMemoryIsKept: with Config.Pinned memory leaves to pinned memory that is there from the
// second time on, and is made anew where more is to leave than it has, if the host has room for it.
func TestPinnedMemoryIsKept(t *testing.T) {
	l := filled(t, "platform pinned", 8*mib)
	calls := l.d.count(nil)
	for range 2 {
		l.outAndIn()
	}
	if calls["cuMemHostAlloc"] != 1 || len(l.d.pinned) != 1 || len(l.d.pinned[0]) != 8*mib {
		t.Errorf("pinned %d times", calls["cuMemHostAlloc"])
	}
	l.fill(4 * mib)
	l.outAndIn()
	if calls["cuMemHostAlloc"] != 2 || len(l.d.pinned) != 1 || len(l.d.pinned[0]) != 12*mib {
		t.Errorf("pinned %d times", calls["cuMemHostAlloc"])
	}
	l.fill(4 * mib)
	l.hostMax = 12 * mib
	if _, err := l.pool.Leave(); !errors.Is(err, errHost) {
		t.Errorf("%v; want %v", err, errHost)
	}
	l.check()
	l.hostMax = unlimited
	l.outAndIn()
	if err := l.pool.Close(); err != nil || len(l.d.pinned) > 0 {
		t.Errorf("%d are left; %v", len(l.d.pinned), err)
	}
}
