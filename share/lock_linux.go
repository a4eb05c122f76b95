// The kernel's locks, and the file of each GPU whose lock guards every decision.

package share

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

const (
	// F_OFD_GETLK and F_OFD_SETLK of Linux's fcntl.h, the same on every
	// architecture. Package syscall lacks them.
	ofdGetlk = 36
	ofdSetlk = 37

	// A turn under the lock takes some ten microseconds and a question to the
	// driver, so one that finds it taken lets others run and tries again, this
	// often, and then sleeps this long between tries.
	yields = 20
	nap    = 200 * time.Microsecond
)

// patience is how long to wait for a GPU's lock. Those who run give it up within
// milliseconds; tests are less patient.
var patience = 10 * time.Second

// crash, in the children of tests, is called after every step that another
// process could see, with its name. They stop or kill themselves in it.
var crash func(step string)

func at(step string) {
	if crash != nil {
		crash(step)
	}
}

// setLock locks the whole of an open file, without waiting. It must be open for
// writing, which only its owner may: nobody can prolong another's lease.
func setLock(f *os.File) error {
	for {
		err := syscall.FcntlFlock(f.Fd(), ofdSetlk, &syscall.Flock_t{Type: syscall.F_WRLCK})
		if err != syscall.EINTR {
			return err
		}
	}
}

// locked says whether another description than this one has a file locked for
// writing. Locks for reading do not count: everybody may set those.
func locked(f *os.File) (bool, error) {
	l := syscall.Flock_t{Type: syscall.F_RDLCK}
	for {
		err := syscall.FcntlFlock(f.Fd(), ofdGetlk, &l)
		if err != syscall.EINTR {
			return l.Type != syscall.F_UNLCK, err
		}
	}
}

// guard is a GPU's lock, held. The file says who holds it or did last, when a
// lease was last seen to have ended, and how many files of ended leases are left
// that who saw them may not remove. All users write to it, so nothing depends on
// it but how soon free memory is believed.
type guard struct {
	f     *os.File
	ended time.Time
	dead  int
}

// text of the file, of one length so that it is written over in one piece.
const guardText = "%20d %20d %20d\n"

// lock takes the lock of a GPU. The caller unlocks it.
func (r *Registry) lock(ctx context.Context, key string) (*guard, error) {
	path := filepath.Join(r.dir, key+".lock")
	begin := time.Now()
	for tries := 0; ; {
		f, err := r.openLock(path)
		if err != nil {
			return nil, r.why(path, err)
		}
		for ; ; tries++ {
			if err = setLock(f); err == nil || !taken(err) {
				break
			}
			if err = ctx.Err(); err != nil {
				break
			}
			if waited := time.Since(begin); waited > patience {
				g := guard{f: f}
				pid := g.read()
				err = fmt.Errorf("%w: waited %v for %s, which process %d has or had last; is it stopped? continue it (kill -CONT %d) or end it (kill -KILL %d)", ErrLocked, patience, path, pid, pid, pid)
				break
			}
			if tries < yields {
				runtime.Gosched()
			} else {
				time.Sleep(nap)
			}
		}
		if err != nil {
			f.Close()
			if !errors.Is(err, ErrLocked) && ctx.Err() == nil {
				err = r.why(path, err)
			}
			return nil, err
		}
		// Whoever removed the file meanwhile made this lock worthless.
		mine, errMine := f.Stat()
		there, errThere := os.Lstat(path)
		if errMine != nil || errThere != nil || !os.SameFile(mine, there) {
			f.Close()
			if time.Since(begin) > patience {
				return nil, fmt.Errorf("registry %s: %s is removed again and again", r.dir, path)
			}
			continue
		}
		at("lock: locked")
		g := &guard{f: f}
		g.read()
		g.write()
		return g, nil
	}
}

// taken: somebody else has it, or the kernel does not say so.
func taken(err error) bool { return err == syscall.EAGAIN || err == syscall.EACCES }

func (r *Registry) openLock(path string) (*os.File, error) {
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
		// Made under another name, so that nobody finds it with a mode that
		// keeps him out; linked, for that never replaces one that is there.
		f, err = os.CreateTemp(r.dir, ".lock-*")
		if err != nil {
			return nil, err
		}
		err = f.Chmod(0o666)
		if err == nil {
			err = os.Link(f.Name(), path)
		}
		os.Remove(f.Name())
		f.Close()
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		at("lock: made")
	}
	return nil, errors.New("it is removed again and again")
}

// read reads what the file says; what cannot be read is that a lease ended now.
func (g *guard) read() (pid int) {
	var b [63]byte
	n, _ := g.f.ReadAt(b[:], 0)
	var ended int64
	if _, err := fmt.Sscanf(string(b[:n]), guardText, &pid, &ended, &g.dead); err != nil {
		pid, ended, g.dead = 0, time.Now().UnixNano(), 0
		if n == 0 { // new
			ended = 0
		}
	}
	g.ended = time.Unix(0, ended)
	return pid
}

// write has no error: on a full disk the file stays empty or as it was, which
// costs time and nothing else.
func (g *guard) write() {
	_, _ = g.f.WriteAt(fmt.Appendf(nil, guardText, os.Getpid(), g.ended.UnixNano(), g.dead), 0)
}

// saw takes note of what a look found: so many files of ended leases, of which
// so many are left.
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

// recent says whether a lease ended within the last second. A clock that was
// set does not make that last longer.
func (g *guard) recent() bool { return time.Since(g.ended).Abs() < recently }

func (g *guard) unlock() {
	g.f.Close() // the last of its description, so the lock goes with it
	at("unlocked")
}
