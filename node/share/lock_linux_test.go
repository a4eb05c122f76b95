package share

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestWaiterForReplacedLockFileTakesTheNewOne: the lock of a file that was removed
// while it was waited for excludes nobody, so two processes would decide at once.
func TestWaiterForReplacedLockFileTakesTheNewOne(t *testing.T) {
	r, gpu := newGPU(t)
	key := keyOf(gpu)
	old, err := r.lock(t.Context(), key, patience, nil)
	must(t, err)
	got := make(chan *guard, 1)
	waits := make(chan bool, 100)
	go func() {
		// The first beat comes after a quarter of the patience.
		g, err := r.lock(t.Context(), key, 40*time.Millisecond, func() {
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
	must(t, os.Remove(filepath.Join(r.dir, key+".lock")))
	other, err := r.lock(t.Context(), key, patience, nil)
	must(t, err)
	old.unlock()
	other.unlock()
	g := <-got
	if g == nil {
		return
	}
	if !g.stands() {
		t.Error("it has the lock of the removed file")
	}
	g.unlock()
}

// TestAbandonedWaitForTheLockReleasesIt: the kernel gives the lock to a process that
// no longer wants it.
func TestAbandonedWaitForTheLockReleasesIt(t *testing.T) {
	r, gpu := newGPU(t)
	key := keyOf(gpu)
	g, err := r.lock(t.Context(), key, patience, nil)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	_, err = r.lock(ctx, key, 40*time.Millisecond, cancel)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that the context is done", err)
	}
	g.unlock()
	for range 3 { // the abandoned wait ends between two of them
		g, err = r.lock(t.Context(), key, patience, nil)
		must(t, err)
		g.unlock()
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
		"link": {func(path string) error { return os.Symlink(os.DevNull, path) }, syscall.ELOOP.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			r, gpu := newGPU(t)
			must(t, tc.make(filepath.Join(r.dir, keyOf(gpu)+".lock")))
			if _, err := take(r, gpu, 4, 1); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

// TestEndedLeasesAreSeenOnce: a lease that ended makes memory move for a second, but
// not again because a file of it cannot be removed.
func TestEndedLeasesAreSeenOnce(t *testing.T) {
	r, gpu := newGPU(t)
	g, err := r.lock(t.Context(), keyOf(gpu), patience, nil)
	must(t, err)
	defer g.unlock()
	if g.recent() {
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
		g.ended = time.Now().Add(-2 * recently)
		g.write()
		g.saw(tc.dead, tc.left)
		again := guard{f: g.f}
		if again.read(); again.recent() != tc.want || again.dead != tc.left {
			t.Errorf("%+v: recent %t, and %d are left", tc, again.recent(), again.dead)
		}
	}
	g.ended = time.Now().Add(2 * recently) // the clock was set back
	if g.recent() {
		t.Error("a lease ended in the future")
	}
}
