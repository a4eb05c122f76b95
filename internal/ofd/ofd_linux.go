package ofd

import "syscall"

// Of Linux's fcntl.h, the same on every architecture. Package syscall lacks them.
const (
	getLock  = 36 // F_OFD_GETLK
	setLock  = 37 // F_OFD_SETLK
	waitLock = 38 // F_OFD_SETLKW
)

var kinds = [...]int16{Read: syscall.F_RDLCK, Write: syscall.F_WRLCK}

// fcntl calls again after a signal.
func (l Lock) fcntl(command int, f *syscall.Flock_t) error {
	f.Start, f.Len = int64(l.Start), int64(l.Len)
	for {
		if err := syscall.FcntlFlock(l.FD, command, f); err != syscall.EINTR {
			return err
		}
	}
}

// Try takes a lock without waiting. [Taken] reports whether its error is that another
// description has one there.
func (l Lock) Try(k Kind) error { return l.fcntl(setLock, &syscall.Flock_t{Type: kinds[k]}) }

// Taken reports whether an error of [Lock.Try] means that another description has a lock
// there. The kernel may return either, see fcntl(2).
func Taken(err error) bool { return err == syscall.EAGAIN || err == syscall.EACCES }

// Wait takes a lock, and waits in the kernel while another description has one there.
func (l Lock) Wait(k Kind) error { return l.fcntl(waitLock, &syscall.Flock_t{Type: kinds[k]}) }

// Unlock releases the locks that the description has there.
func (l Lock) Unlock() error { return l.fcntl(setLock, &syscall.Flock_t{Type: syscall.F_UNLCK}) }

// Other returns the lock of another description that keeps this one from a lock; ok is false
// if there is none.
func (l Lock) Other(k Kind) (by Lock, ok bool, err error) {
	f := syscall.Flock_t{Type: kinds[k]}
	if err := l.fcntl(getLock, &f); err != nil || f.Type == syscall.F_UNLCK {
		return Lock{}, false, err
	}
	return Lock{l.FD, uint64(f.Start), uint64(f.Len)}, true, nil
}
