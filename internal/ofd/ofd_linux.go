package ofd

import "golang.org/x/sys/unix"

var kinds = [...]int16{Read: unix.F_RDLCK, Write: unix.F_WRLCK}

// fcntl calls again after a signal.
func (l Lock) fcntl(command int, f *unix.Flock_t) error {
	f.Start, f.Len = int64(l.Start), int64(l.Len)
	for {
		if err := unix.FcntlFlock(l.FD, command, f); err != unix.EINTR {
			return err
		}
	}
}

// Try takes a lock without waiting. [Taken] reports whether its error is that another
// description has one there.
func (l Lock) Try(k Kind) error { return l.fcntl(unix.F_OFD_SETLK, &unix.Flock_t{Type: kinds[k]}) }

// Taken reports whether an error of [Lock.Try] means that another description has a lock
// there. The kernel may return either, see fcntl(2).
func Taken(err error) bool { return err == unix.EAGAIN || err == unix.EACCES }

// Wait takes a lock, and waits in the kernel while another description has one there.
func (l Lock) Wait(k Kind) error { return l.fcntl(unix.F_OFD_SETLKW, &unix.Flock_t{Type: kinds[k]}) }

// Unlock releases the locks that the description has there.
func (l Lock) Unlock() error { return l.fcntl(unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK}) }

// Other returns the lock of another description that keeps this one from a lock; ok is false
// if there is none.
func (l Lock) Other(k Kind) (by Lock, ok bool, err error) {
	f := unix.Flock_t{Type: kinds[k]}
	if err := l.fcntl(unix.F_OFD_GETLK, &f); err != nil || f.Type == unix.F_UNLCK {
		return Lock{}, false, err
	}
	return Lock{l.FD, uint64(f.Start), uint64(f.Len)}, true, nil
}
