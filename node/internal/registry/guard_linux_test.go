package registry

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
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
	must(t, os.Remove(old.path))
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

// TestClosedLockFileIsPassedOver: what not all users can lock is not the lock, whoever made it:
// else one user could shut all others out. All take the same file, so only one has the lock.
func TestClosedLockFileIsPassedOver(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"for its owner alone": func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"to read":             func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o644), os.Chmod(path, 0o644)) },
		"pipe":                func(path string) error { return syscall.Mkfifo(path, 0o666) },
		"link":                func(path string) error { return os.Symlink(os.DevNull, path) },
		"folder":              func(path string) error { return os.Mkdir(path, 0o777) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newGPU(t)
			path, err := r.lockPath()
			must(t, err)
			must(t, make(path))
			must(t, make(path+".1"))
			g, err := r.Lock(t.Context(), nil)
			must(t, err)
			defer g.Unlock()
			if want := path + ".2"; g.path != want {
				t.Errorf("the lock is %s, want %s", g.path, want)
			}
			if other, err := r.TryLock(); other != nil || err != nil {
				t.Errorf("another has the lock, too (%v)", err)
			}
			if info, err := os.Stat(g.path); err != nil || info.Mode().Perm() != 0o666 {
				t.Errorf("%v, %v: want a file that is open to all", info.Mode(), err)
			}
		})
	}
}

// TestLockFileThatIsClosedWhileOneWaits: who waits for it takes the next.
func TestLockFileThatIsClosedWhileOneWaits(t *testing.T) {
	r := newGPU(t)
	old, err := r.Lock(t.Context(), nil)
	must(t, err)
	got := make(chan *Guard)
	waits := make(chan bool, 1)
	go func() {
		g, err := r.Lock(t.Context(), func() {
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
	must(t, os.Chmod(old.path, 0o600))
	old.Unlock()
	g := <-got
	if g == nil {
		return
	}
	defer g.Unlock()
	if g.path == old.path {
		t.Error("it has the lock that others cannot open")
	}
}

// TestTooManyClosedLockFiles: the error says what to remove.
func TestTooManyClosedLockFiles(t *testing.T) {
	r := newGPU(t)
	for {
		path, err := r.lockPath()
		if err != nil {
			break
		}
		must(t, os.WriteFile(path, nil, 0o600))
	}
	if _, err := r.Lock(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "as root remove "+filepath.Join(r.dir, r.Key)+".lock*") {
		t.Errorf("%v", err)
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

// TestLockFileSaysWhoHasItAndHowOften: those that wait know by it whether others take turns, and
// that a lease has ended.
func TestLockFileSaysWhoHasItAndHowOften(t *testing.T) {
	r := newGPU(t)
	for turn := range uint64(3) {
		g, err := r.Lock(t.Context(), nil)
		must(t, err)
		if turn == 1 {
			g.noteEnd()
		}
		there := Guard{f: g.f}
		there.read()
		if there.pid != os.Getpid() || there.taken != turn+1 || account.IsRecent(there.End()) != (turn > 0) {
			t.Errorf("turn %d: %+v", turn, there)
		}
		g.Unlock()
	}
}

// TestStuckLockNamesTheProcessThatHasIt: the one of the kernel, whatever the file says.
func TestStuckLockNamesTheProcessThatHasIt(t *testing.T) {
	defer func(old time.Duration) { Patience = old }(Patience)
	Patience = 20 * time.Millisecond
	r := newGPU(t)
	g, err := r.Lock(t.Context(), nil)
	must(t, err)
	defer g.Unlock()
	g.pid = 1
	g.write()
	_, err = r.Lock(t.Context(), nil)
	if want := fmt.Sprintf(": process %d has held ", os.Getpid()); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

// TestIsGivenUp: the file is closed in these cases, and must not be closed a second time.
func TestIsGivenUp(t *testing.T) {
	for err, want := range map[error]bool{
		errBusy: true, fmt.Errorf("x: %w", ErrLocked): true, context.Canceled: true, context.DeadlineExceeded: true,
		syscall.ENOLCK: false, nil: false,
	} {
		if got := isGivenUp(err); got != want {
			t.Errorf("%v: %t", err, got)
		}
	}
}

// TestGuardOfAnotherFileDoesNotStand: others lock the file that has its name.
func TestGuardOfAnotherFileDoesNotStand(t *testing.T) {
	r := newGPU(t)
	g, err := r.Lock(t.Context(), nil)
	must(t, err)
	defer g.Unlock()
	first := g.path
	if !g.IsStanding() || first != filepath.Join(r.dir, r.Key+".lock") {
		t.Errorf("%s stands: %t", first, g.IsStanding())
	}
	must(t, os.Remove(first))
	if g.IsStanding() {
		t.Error("it has no name")
	}
	must(t, os.WriteFile(first, nil, 0o600))
	must(t, os.Chmod(first, 0o666))
	if g.IsStanding() {
		t.Error("another file has its name")
	}
	must(t, os.Chmod(first, 0o600))
	if path, err := r.lockPath(); path != first+".1" || err != nil {
		t.Errorf("the next is %s, %v", path, err)
	}
}

// TestLockInAFolderThatIsGone: it is made again, by several processes at once as well.
func TestLockInAFolderThatIsGone(t *testing.T) {
	for range 20 {
		r := newGPU(t)
		must(t, os.RemoveAll(r.dir))
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				g, err := r.Lock(t.Context(), nil)
				if err != nil {
					t.Error(err)
					return
				}
				g.Unlock()
			})
		}
		all.Wait()
	}
}
