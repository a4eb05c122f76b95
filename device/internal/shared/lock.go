//go:build linux

package shared

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"time"
	"unsafe"
)

const (
	// F_OFD_GETLK and F_OFD_SETLK of Linux's fcntl.h, the same on every
	// architecture. Package syscall lacks them.
	ofdGetlk = 36
	ofdSetlk = 37

	// lockByte, far past any data, is the lock of the whole file. Locks need no bytes
	// behind them, and a program that locks the data by accident does not meet these.
	lockByte = 1 << 40
	// slotByte + n is the lock of slot n.
	slotByte = lockByte + 1

	// An operation under the lock takes about a microsecond, so that a goroutine that
	// finds it taken yields and tries again, this often.
	yields = 20
	// Then it sleeps this long between tries. On 2 cores, 64 threads of 8
	// processes made 1.4 times as many operations so as by waiting in the kernel
	// (F_OFD_SETLKW), which also cannot be ended after patience.
	nap = 20 * time.Microsecond
)

// patience is how long to wait for the lock. A process that runs releases it within
// milliseconds; tests are less patient.
var patience = 10 * time.Second

// crash, in the children of tests, is called after every step that another
// process could see, with its name. They stop or kill themselves in it.
var crash func(step string)

// at marks a step for crash.
func at(step string) {
	if crash != nil {
		crash(step)
	}
}

// setLock locks (F_WRLCK, F_RDLCK) or unlocks (F_UNLCK) n bytes from start
// without waiting; n = 0 means to the end, whatever is locked there. A signal is no
// error.
func setLock(fd int, kind int16, start, n int64) error {
	for {
		err := syscall.FcntlFlock(uintptr(fd), ofdSetlk, &syscall.Flock_t{Type: kind, Start: start, Len: n})
		if err != syscall.EINTR {
			return err
		}
	}
}

// taken reports whether err means that another process has locked the byte. The kernel
// may return either (fcntl(2)).
func taken(err error) bool { return err == syscall.EAGAIN || err == syscall.EACCES }

// lock waits for the lock of the file, for reading or writing. The caller has
// waited since then already, for others of this process; the zero time means
// not at all. So all of them lose patience at the same time, not in turn.
func (h *handle) lock(kind int16, since time.Time) error {
	for tries := 0; ; tries++ {
		err := setLock(h.fd, kind, lockByte, 1)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported):
			return h.errorf("this system or this file system has no locks of open file descriptions (fcntl F_OFD_SETLK): %w; put the file on another, such as /dev/shm", err)
		case !taken(err):
			return h.errorf("cannot lock the file: %w", err)
		case tries < yields:
			runtime.Gosched()
			continue
		case since.IsZero():
			since = time.Now()
		case time.Since(since) > patience:
			return h.locked()
		}
		time.Sleep(nap)
	}
}

// locked returns the error of a wait that took too long. It names the process from the
// word holder, which is read without the lock and may be a moment old.
func (h *handle) locked() error {
	var b [8]byte
	_, err := syscall.Pread(h.fd, b[:], int64(unsafe.Offsetof(image{}.state)+unsafe.Offsetof(state{}.holder)))
	pid := binary.NativeEndian.Uint64(b[:])
	if err != nil || pid == 0 {
		return h.errorf("%w: waited %v, and a program that only looks at the file (such as gpumem devices) still holds the lock; is it stopped? continue it (fg) or end it", ErrLocked, patience)
	}
	return h.errorf("%w: waited %v, and process %d holds the lock; is it stopped? continue it (kill -CONT %d) or end it (kill -KILL %d)", ErrLocked, patience, pid, pid, pid)
}

// alive reports whether a process holds the lock of a slot. The kernel does not report
// locks of the same description, so that the own slot is known and not asked for.
func (h *handle) alive(number int) (bool, error) {
	if number == h.own {
		return true, nil
	}
	l := syscall.Flock_t{Type: syscall.F_WRLCK, Start: slotByte + int64(number), Len: 1}
	for {
		err := syscall.FcntlFlock(uintptr(h.fd), ofdGetlk, &l)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return false, h.errorf("cannot ask for the lock of slot %d: %w", number, err)
		}
		return l.Type != syscall.F_UNLCK, nil
	}
}

// errorf begins every error with the file, as it is named on the command line.
func (h *handle) errorf(format string, args ...any) error {
	return fmt.Errorf("sim@%s: "+format, append([]any{h.path}, args...)...)
}
