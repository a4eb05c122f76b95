// Locks of open file descriptions, and the lock of each GPU that guards every
// decision.

package share

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	// F_OFD_GETLK, F_OFD_SETLK and F_OFD_SETLKW of Linux's fcntl.h, the same on
	// every architecture. Package syscall lacks them.
	ofdGetlk  = 36
	ofdSetlk  = 37
	ofdSetlkw = 38
)

// patience is how long one process may have the GPU's lock before the others give
// up; a decision takes milliseconds. Tests are less patient.
var patience = 10 * time.Second

// crash, in the children of tests, is called after every step that another
// process could see, with its name. They stop or kill themselves in it.
var crash func(step string)

func at(step string) {
	if crash != nil {
		crash(step)
	}
}

func fcntl(f *os.File, command int, l *syscall.Flock_t) error {
	for {
		if err := syscall.FcntlFlock(f.Fd(), command, l); err != syscall.EINTR {
			return err
		}
	}
}

// setLock locks the whole of an open file, without waiting. The file must be open
// for writing, which only its owner can do: no user prolongs another's lease.
func setLock(f *os.File) error {
	return fcntl(f, ofdSetlk, &syscall.Flock_t{Type: syscall.F_WRLCK})
}

// unsetLock releases the lock, also where a child that is just being started
// still shares the description.
func unsetLock(f *os.File) {
	_ = fcntl(f, ofdSetlk, &syscall.Flock_t{Type: syscall.F_UNLCK})
}

// extent is a lock for writing on a file. A length of 0 reaches to the end.
type extent struct{ start, length uint64 }

// lockOf returns the lock for writing that another description has on a file; ok
// is false if there is none. Locks for reading do not count: everybody may set
// those.
func lockOf(f *os.File) (h extent, ok bool, err error) {
	l := syscall.Flock_t{Type: syscall.F_RDLCK}
	if err := fcntl(f, ofdGetlk, &l); err != nil || l.Type == syscall.F_UNLCK {
		return extent{}, false, err
	}
	return extent{uint64(l.Start), uint64(l.Len)}, true, nil
}

// guard is a GPU's lock while it is held. Its file has the process that holds it or
// held it last, the time at which a lease was last seen to have ended, the number of
// files of ended leases that could not be removed, and how often the lock was taken.
// All users write to it, so only patience and the time until free memory is believed
// depend on it.
type guard struct {
	f     *os.File
	path  string
	pid   int
	ended time.Time
	dead  int
	taken uint64
}

// text of the file, of one length so that it is written over in one piece.
const guardText = "%20d %20d %20d %20d\n"

// lock takes the lock of a GPU, which the caller releases. Processes that find it
// taken wait in the kernel, in order, for as long as others take it; beat is called
// meanwhile, at least once a second. The error is ErrLocked if one process has
// held the lock for longer than patience.
func (r *Registry) lock(ctx context.Context, key string, patience time.Duration, beat func()) (*guard, error) {
	return r.lockWith(key, func(f *os.File, path string) error {
		return await(ctx, f, path, patience, beat)
	})
}

// errBusy is the error of a lock that another has, for those that do not wait.
var errBusy = errors.New("locked")

// tryLock is lock for a caller that has other locks and must not wait: the guard is nil
// if another has this one.
func (r *Registry) tryLock(key string) (*guard, error) {
	g, err := r.lockWith(key, func(f *os.File, _ string) error {
		f.Close()
		return errBusy
	})
	if err == errBusy {
		return nil, nil
	}
	return g, err
}

// lockWith takes a lock. wait is called where another has it, as await is.
func (r *Registry) lockWith(key string, wait func(f *os.File, path string) error) (*guard, error) {
	path := filepath.Join(r.dir, key+".lock")
	for range 1000 {
		f, err := r.openLock(key)
		if err != nil {
			return nil, r.why(path, err)
		}
		if err = setLock(f); err == syscall.EAGAIN || err == syscall.EACCES {
			err = wait(f, path)
			if err == errBusy || errors.Is(err, ErrLocked) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
				return nil, err
			}
		}
		if err != nil {
			f.Close()
			return nil, r.why(path, err)
		}
		g := &guard{f: f, path: path}
		if !g.stands() { // a lock on a file that was removed is worth nothing
			f.Close()
			continue
		}
		at("lock: locked")
		g.read()
		g.pid, g.taken = os.Getpid(), g.taken+1
		g.write()
		return g, nil
	}
	return nil, fmt.Errorf("registry %s: %s: removed by another process while being acquired; check for cleanup jobs", r.dir, path)
}

// await waits in the kernel for the lock of f. Unless it returns nil or an error
// of the kernel, f is closed when the wait in the kernel has ended.
func await(ctx context.Context, f *os.File, path string, patience time.Duration, beat func()) error {
	got, left := make(chan error), make(chan struct{})
	go func() {
		err := fcntl(f, ofdSetlkw, &syscall.Flock_t{Type: syscall.F_WRLCK})
		select {
		case got <- err:
		case <-left:
			unsetLock(f)
			f.Close()
		}
	}()
	last := guard{f: f}
	last.read()
	since := time.Now()
	tick := time.NewTicker(min(time.Second, patience/4))
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
		now := guard{f: f}
		if now.read(); now.taken != last.taken {
			last, since = now, time.Now()
		}
		if waited := time.Since(since); waited > patience {
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
		if by := heldBy(inodeOf(info)); len(by) > 0 {
			return fmt.Errorf("%w: process %d has held %s for %v; continue it (kill -CONT %[2]d) or end it (kill -KILL %[2]d)", ErrLocked, by[0], path, waited)
		}
	}
	return fmt.Errorf("%w: a process, probably %d, has held %s for %v; if it is stopped, continue it (kill -CONT %[2]d)", ErrLocked, pid, path, waited)
}

// openLock opens a GPU's lock file, and makes it where it is missing: with its
// mode before its name, so that no process finds one that cannot be opened.
func (r *Registry) openLock(key string) (*os.File, error) {
	path := filepath.Join(r.dir, key+".lock")
	for range 100 {
		f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
		if err == nil {
			info, err := f.Stat()
			if err == nil && !info.Mode().IsRegular() {
				err = errors.New("not a regular file; remove it")
			}
			if err != nil {
				f.Close()
				return nil, err
			}
			return f, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		f, err = r.publish(path, 0o666, func(*os.File) error { return nil })
		switch {
		case err == nil:
			f.Close()
			at("lock: made")
		case errors.Is(err, fs.ErrNotExist): // the folder is gone
			if err := r.make(); err != nil {
				return nil, err
			}
		case !errors.Is(err, fs.ErrExist):
			return nil, err
		}
	}
	return nil, errors.New("removed again and again; check for cleanup jobs")
}

// read reads the file. If it is damaged a lease counts as ended just now.
func (g *guard) read() {
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
func (g *guard) write() {
	_, _ = g.f.WriteAt(fmt.Appendf(nil, guardText, g.pid, g.ended.UnixNano(), g.dead, g.taken), 0)
}

// saw records the number of files of ended leases that were found, and that are left.
func (g *guard) saw(dead, left int) {
	if dead == g.dead && left == g.dead {
		return
	}
	if dead > g.dead {
		g.ended = time.Now()
	}
	g.dead = left
	g.write()
}

// recent reports whether a lease ended within the last second. A clock that was
// set does not make that last longer.
func (g *guard) recent() bool { return time.Since(g.ended).Abs() < recently }

// stands reports whether the lock's file still has its name. Without it others
// lock another file.
func (g *guard) stands() bool {
	mine, err := g.f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(g.path)
	return err == nil && os.SameFile(mine, there)
}

func (g *guard) unlock() {
	unsetLock(g.f)
	g.f.Close()
	at("unlocked")
}
