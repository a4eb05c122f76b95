package share

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"gpumem/device"
)

// TestDesktopKeepsItsFloorOfWhatCouldEverBeShared: a desktop that uses much now may use
// less later, so only its floor counts against what could ever be shared.
func TestDesktopKeepsItsFloorOfWhatCouldEverBeShared(t *testing.T) {
	st := device.Status{Info: device.Info{Total: 24 * gib, Display: true}, Free: 22 * gib, Used: 2 * gib}
	f, err := count(st, nil, 0, func(int) (identity, bool) { return identity{}, false })
	if err != nil || f.most != 23*gib || f.shareable != 21*gib {
		t.Errorf("at most %d could be shared, %d now (%v)", f.most, f.shareable, err)
	}
}

// TestRecordOfAnotherGPUIsDamaged: a whole record, copied to the name of another GPU.
func TestRecordOfAnotherGPUIsDamaged(t *testing.T) {
	rec := record{Kind: leaseKind, ID: newID(), Device: "A", Bytes: 1, PID: 1}
	path := filepath.Join(t.TempDir(), "record")
	if err := os.WriteFile(path, rec.encode(), 0o600); err != nil {
		t.Fatal(err)
	}
	for key, damaged := range map[string]bool{keyOf("A"): false, keyOf("B"): true} {
		if _, err := readRecord(path, key, rec.ID); errors.Is(err, ErrDamaged) != damaged {
			t.Errorf("under key %s: %v; damaged: %v", key, err, damaged)
		}
	}
}

// TestDamagedLockFileCountsAsALeaseThatEnded: memory may be about to become free then. A
// new file says nothing.
func TestDamagedLockFileCountsAsALeaseThatEnded(t *testing.T) {
	for content, recent := range map[string]bool{"": false, "no numbers": true} {
		path := filepath.Join(t.TempDir(), "lock")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		g := guard{f: f}
		if g.read(); g.recent() != recent {
			t.Errorf("%q: a lease ended just now: %v", content, g.recent())
		}
	}
}
