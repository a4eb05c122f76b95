package registry

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpumem/node/internal/account"
)

// TestWaiterForReplacedLockFileTakesTheNewOne: the lock of a file that was removed
// while it was waited for excludes nobody, so two processes would decide at once.
func TestWaiterForReplacedLockFileTakesTheNewOne(t *testing.T) {
	r := newGPU(t)
	old, err := r.Lock(t.Context(), nil)
	must(t, err)
	got := make(chan *Guard, 1)
	waits := make(chan bool, 100)
	go func() {
		// The first beat comes after a quarter of the Patience.
		g, err := r.Lock(t.Context(), func() {
			old.taken++
			old.write() // as if others went on taking turns
			select {
			case waits <- true:
			default:
			}
		})
		if err != nil {
			t.Error(err)
		}
		got <- g
	}()
	<-waits
	must(t, os.Remove(r.lockPath()))
	other, err := r.Lock(t.Context(), nil)
	must(t, err)
	old.Unlock()
	other.Unlock()
	g := <-got
	if g == nil {
		return
	}
	if !g.IsStanding() {
		t.Error("it has the lock of the removed file")
	}
	g.Unlock()
}

// TestAbandonedWaitForTheLockReleasesIt: the kernel gives the lock to a process that
// no longer wants it.
func TestAbandonedWaitForTheLockReleasesIt(t *testing.T) {
	r := newGPU(t)
	g, err := r.Lock(t.Context(), nil)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	_, err = r.Lock(ctx, cancel)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that the context is done", err)
	}
	g.Unlock()
	for range 3 { // the abandoned wait ends between two of them
		g, err = r.Lock(t.Context(), nil)
		must(t, err)
		g.Unlock()
	}
}

// TestLockFileOfAnotherKindIsRefused: a link would lock another file, and a pipe
// none.
func TestLockFileOfAnotherKindIsRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		make func(path string) error
		want string
	}{
		"pipe": {func(path string) error { return syscall.Mkfifo(path, 0o666) }, "not a regular file"},
		"link": {func(path string) error { return os.Symlink(os.DevNull, path) }, "not a regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newGPU(t)
			must(t, tc.make(r.lockPath()))
			if _, err := r.Lock(t.Context(), nil); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

// TestEndedLeasesAreSeenOnce: a lease that ended makes memory move for a second, but
// not again because a file of it cannot be removed.
func TestEndedLeasesAreSeenOnce(t *testing.T) {
	r := newGPU(t)
	g, err := r.Lock(t.Context(), nil)
	must(t, err)
	defer g.Unlock()
	if account.IsRecent(g.End()) {
		t.Error("a new file: a lease has ended")
	}
	for _, tc := range []struct {
		dead, left int
		want       bool
	}{
		{0, 0, false},
		{1, 1, true}, // another user's
		{1, 1, false},
		{2, 1, true},
		{1, 0, false}, // its owner removed it
		{1, 0, true},
	} {
		g.ended = time.Now().Add(-2 * account.Recently)
		g.write()
		g.noteDead(tc.dead, tc.left)
		again := Guard{f: g.f}
		if again.read(); account.IsRecent(again.End()) != tc.want || again.dead != tc.left {
			t.Errorf("%+v: recent %t, and %d are left", tc, account.IsRecent(again.End()), again.dead)
		}
	}
	g.ended = time.Now().Add(2 * account.Recently) // the clock was set back
	if account.IsRecent(g.End()) {
		t.Error("a lease ended in the future")
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
		g := Guard{f: f}
		if g.read(); account.IsRecent(g.End()) != recent {
			t.Errorf("%q: a lease ended just now: %v", content, account.IsRecent(g.End()))
		}
	}
}
