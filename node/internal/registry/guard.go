// The lock of each GPU, which guards every decision.

package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"gpumem/internal/crashpoint"
	"gpumem/internal/ofd"
	"gpumem/internal/regular"
)

// Patience is how long one process may have the GPU's lock before the others give
// up; a decision takes milliseconds. Tests are less patient.
var Patience = 10 * time.Second

// Guard is a GPU's lock while it is held. Its file has the process that holds it or
// held it last, the time at which a lease was last seen to have ended, the number of
// files of ended leases that could not be removed, and how often the lock was taken.
// All users write to it, so only Patience and the time until free memory is believed
// depend on it.
type Guard struct {
	f     *os.File
	path  string
	pid   int
	ended time.Time
	dead  int
	taken uint64
}

// guardText is the text of the file, of one length so that it is written over in one piece.
const guardText = "%20d %20d %20d %20d\n"

// wholeOf is the lock on all of a file. It must be open for writing to be locked, which only
// its owner can do: no user prolongs another's lease.
func wholeOf(f *os.File) ofd.Lock { return ofd.Lock{FD: f.Fd()} }

// Lock takes the lock of the GPU, which the caller releases. Processes that find it
// taken wait in the kernel, in order, for as long as others take it; beat is called
// meanwhile, at least once a second. The error is ErrLocked if one process has
// held the lock for longer than [Patience].
func (r GPU) Lock(ctx context.Context, beat func()) (*Guard, error) {
	return r.lockWith(func(f *os.File, path string) error { return await(ctx, f, path, beat) })
}

// errBusy is the error of a lock that another has, for those that do not wait.
var errBusy = errors.New("locked")

// TryLock is Lock for a caller that has other locks and must not wait: the guard is nil
// if another has this one.
func (r GPU) TryLock() (*Guard, error) {
	g, err := r.lockWith(func(f *os.File, _ string) error {
		f.Close()
		return errBusy
	})
	if err == errBusy {
		return nil, nil
	}
	return g, err
}

// isGivenUp reports whether an error of a wait is that it was given up. The file is closed
// then, or will be.
func isGivenUp(err error) bool {
	isOver := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	return isOver || err == errBusy || errors.Is(err, ErrLocked)
}

// lockWith takes the lock. wait is called where another has it, as await is.
func (r GPU) lockWith(wait func(f *os.File, path string) error) (*Guard, error) {
	for range 1000 {
		f, path, err := r.openLock()
		if err != nil {
			return nil, r.explain(path, err)
		}
		if err = wholeOf(f).Try(ofd.Write); ofd.Taken(err) {
			if err = wait(f, path); isGivenUp(err) {
				return nil, err
			}
		}
		if err != nil {
			f.Close()
			return nil, r.explain(path, err)
		}
		g := &Guard{f: f, path: path}
		if !g.IsStanding() { // a lock on a file that was removed is worth nothing
			f.Close()
			continue
		}
		crashpoint.At("lock: locked")
		g.read()
		g.pid, g.taken = os.Getpid(), g.taken+1
		g.write()
		return g, nil
	}
	return nil, fmt.Errorf("registry %s: its lock files are removed by another process while being acquired; check for cleanup jobs", r.dir)
}

// await waits in the kernel for the lock of f. Unless it returns nil or an error
// of the kernel, f is closed when the wait in the kernel has ended.
func await(ctx context.Context, f *os.File, path string, beat func()) error {
	got, left := make(chan error), make(chan struct{})
	go func() {
		err := wholeOf(f).Wait(ofd.Write)
		select {
		case got <- err:
		case <-left:
			_ = wholeOf(f).Unlock()
			f.Close()
		}
	}()
	last := Guard{f: f}
	last.read()
	since := time.Now()
	tick := time.NewTicker(min(time.Second, Patience/4))
	defer tick.Stop()
	for {
		select {
		case err := <-got:
			return err
		case <-ctx.Done():
			close(left)
			return ctx.Err()
		case <-tick.C:
		}
		if beat != nil {
			beat()
		}
		now := Guard{f: f}
		if now.read(); now.taken != last.taken {
			last, since = now, time.Now()
		}
		if waited := time.Since(since); waited > Patience {
			err := stuck(f, path, last.pid, waited)
			close(left)
			return err
		}
	}
}

// stuck names the process that does not release a GPU's lock. Another user's process
// is known only from the lock's file, which may be out of date.
func stuck(f *os.File, path string, pid int, waited time.Duration) error {
	waited = waited.Round(time.Millisecond)
	if info, err := f.Stat(); err == nil {
		inode := IDOf(info).Inode
		if by, _ := holdersOf(map[uint64]bool{inode: true}); len(by[inode]) > 0 {
			const text = "%w: process %d has held %s for %v; continue it (kill -CONT %[2]d) or end it (kill -KILL %[2]d)"
			return fmt.Errorf(text, ErrLocked, by[inode][0], path, waited)
		}
	}
	const text = "%w: a process, probably %d, has held %s for %v; if it is stopped, continue it (kill -CONT %[2]d)"
	return fmt.Errorf(text, ErrLocked, pid, path, waited)
}

// lockNames is how many lock files are passed over before the user is asked to remove them.
const lockNames = 100

// lockPath returns the name of the GPU's lock file: the first of KEY.lock, KEY.lock.1, ... that is
// missing or open to all. Whoever comes first makes it, and could close it to all others, or
// make something else of that name. What is closed is seen without opening it, so that all
// pass over the same names, root too.
func (r GPU) lockPath() (string, error) {
	first := filepath.Join(r.dir, r.Key+".lock")
	path := first
	for n := range lockNames {
		if n > 0 {
			path = fmt.Sprintf("%s.%d", first, n)
		}
		if !isClosed(path) {
			return path, nil
		}
	}
	return first, fmt.Errorf("it and %d further lock files are not open to all users; as root remove %s*", lockNames-1, first)
}

// isClosed reports whether a name is that of something that not all users can lock.
func isClosed(path string) bool {
	const all = 0o666
	info, err := os.Lstat(path)
	if err != nil {
		return false
	}
	return !info.Mode().IsRegular() || info.Mode().Perm()&all != all
}

// openLock opens a GPU's lock file, whose path it returns in any case, and makes it where it is
// missing: with its mode from the start, open to all users.
func (r GPU) openLock() (f *os.File, path string, err error) {
	for range 100 {
		if path, err = r.lockPath(); err != nil {
			return nil, path, err
		}
		f, err = openFile(path, os.O_RDWR, regular.Anyone)
		if isClosed(path) { // meanwhile
			if err == nil {
				f.Close()
			}
			continue
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return f, path, err
		}
		f, err = r.publish(path, 0o666, func(*os.File) error { return nil })
		switch {
		case err == nil:
			f.Close()
			crashpoint.At("lock: made")
		case errors.Is(err, fs.ErrNotExist): // the folder is gone
			if err := r.makeFolder(); err != nil {
				return nil, path, err
			}
		case !errors.Is(err, fs.ErrExist):
			return nil, path, err
		}
	}
	return nil, path, errors.New("removed again and again; check for cleanup jobs")
}

// read reads the file. If it is damaged a lease counts as ended just now.
func (g *Guard) read() {
	var b [84]byte
	n, _ := g.f.ReadAt(b[:], 0)
	var ended int64
	if _, err := fmt.Sscanf(string(b[:n]), guardText, &g.pid, &ended, &g.dead, &g.taken); err != nil {
		g.pid, ended, g.dead, g.taken = 0, time.Now().UnixNano(), 0, 0
		if n == 0 { // new
			ended = 0
		}
	}
	g.ended = time.Unix(0, ended)
}

// write has no error: on a full disk the file stays empty or as it was, which costs
// only time.
func (g *Guard) write() {
	_, _ = g.f.WriteAt(fmt.Appendf(nil, guardText, g.pid, g.ended.UnixNano(), g.dead, g.taken), 0)
}

// noteDead records the number of files of ended leases that were found, and that are left.
func (g *Guard) noteDead(dead, left int) {
	if dead == g.dead && left == g.dead {
		return
	}
	if dead > g.dead {
		g.ended = time.Now()
	}
	g.dead = left
	g.write()
}

// End returns the time at which a lease was last seen to have ended.
func (g *Guard) End() time.Time { return g.ended }

// noteEnd records that a lease has just ended.
func (g *Guard) noteEnd() {
	g.ended = time.Now()
	g.write()
}

// IsStanding reports whether the lock's file still has its name. Without it others
// lock another file.
func (g *Guard) IsStanding() bool { return isFileAt(g.f, g.path) && !isClosed(g.path) }

// isFileAt reports whether an open file still has its name.
func isFileAt(f *os.File, path string) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(path)
	return err == nil && os.SameFile(mine, there)
}

// Unlock releases the lock.
func (g *Guard) Unlock() {
	_ = wholeOf(g.f).Unlock()
	g.f.Close()
	crashpoint.At("unlocked")
}
