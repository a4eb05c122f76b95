package slotfile

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"gpumem/internal/regular"
)

// firstHigh is where descriptors of guests are moved up to.
const firstHigh = 1000

// Supported returns an error on a system without such files.
func Supported() error { return nil }

// Open opens a file by its name, which may be a symbolic link, for reading or for both. The
// error is the system's as it is, or [ErrNotRegular].
func (l *Layout) Open(path string, write bool) (*File, error) {
	f := &File{Layout: l, Path: path, write: write}
	return f, f.open(path, true, regular.Anyone)
}

// OpenOf opens a file by its name for reading. It is looked at before it is opened: it must
// be no link, and the user's, or [regular.Anyone]'s. The error is the system's as it is,
// [ErrNotRegular], or wraps [regular.ErrOwner].
func (l *Layout) OpenOf(path string, owner int) (*File, error) {
	f := &File{Layout: l, Path: path}
	return f, f.open(path, false, owner)
}

// open opens the file under a name that may be another than the one in errors.
func (f *File) open(name string, follow bool, owner int) (err error) {
	flags := unix.O_RDONLY
	if f.write {
		flags = unix.O_RDWR
	}
	if follow {
		flags |= unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY // a FIFO does not wait for its other end
		for f.fd, err = -1, unix.EINTR; err == unix.EINTR; {
			f.fd, err = unix.Open(name, flags, 0)
		}
	} else {
		f.fd, err = regular.Open(name, flags, owner)
	}
	if err != nil {
		return err
	}
	if err = f.stat(); err != nil {
		unix.Close(f.fd)
		return err
	}
	if f.Guest {
		f.moveUp()
	}
	return nil
}

// moveUp gives the descriptor a high number, where that is allowed.
func (f *File) moveUp() {
	for from := firstHigh; from > f.fd; from /= 2 {
		fd, err := unix.FcntlInt(uintptr(f.fd), unix.F_DUPFD_CLOEXEC, from)
		if err == nil {
			unix.Close(f.fd)
			f.fd = fd
			return
		}
	}
}

// stat reads what the descriptor is open on.
func (f *File) stat() error {
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return fmt.Errorf("cannot stat the file: %w", err)
	}
	f.dev, f.ino, f.Length, f.Mode = uint64(st.Dev), st.Ino, st.Size, st.Mode&0o7777
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return ErrNotRegular
	}
	return nil
}

func (f *File) mapIn() (err error) {
	protection := unix.PROT_READ
	if f.write {
		protection |= unix.PROT_WRITE
	}
	f.data, err = unix.Mmap(f.fd, 0, f.Size, protection, unix.MAP_SHARED)
	if err != nil {
		return f.Errorf("cannot map the file: %w", err)
	}
	if f.Guest {
		if err := unix.Madvise(f.data, unix.MADV_DONTFORK); err != nil {
			return f.Errorf("cannot keep the mapping from children: %w", err)
		}
	}
	return nil
}

// end unmaps the file and closes the descriptor if it is the file's own.
func (f *File) end(own bool) (err error) {
	if f.data != nil {
		err = unix.Munmap(f.data)
		f.data = nil
	}
	if own {
		err = errors.Join(err, unix.Close(f.fd))
	}
	return err
}

// ReadAt reads until b is full or the file ends, and returns how many bytes it read. A page
// that is missing is an error here, and not a fault as in the mapping.
func (f *File) ReadAt(b []byte, from int64) (n int, err error) {
	for n < len(b) {
		got, err := unix.Pread(f.fd, b[n:], from+int64(n))
		if err == unix.EINTR {
			continue
		}
		if err != nil || got == 0 {
			return n, err
		}
		n += got
	}
	return n, nil
}

// isTooLarge reports whether this program may not write to a file of that size.
func (f *File) isTooLarge() bool {
	var most unix.Rlimit
	return unix.Getrlimit(unix.RLIMIT_FSIZE, &most) == nil && most.Cur < uint64(f.Size)
}

// WriteAt writes b. The caller has checked just before that the descriptor is still the
// file's, see [File.Check] and [File.Reattach]. A page that is missing is an error here or
// is made again, and not a fault as in the mapping. Where the program may not write to so
// large a file, which would be a signal that ends it, the mapping is written.
func (f *File) WriteAt(b []byte, to int64) error {
	if f.data != nil && f.isTooLarge() {
		return f.Guard(func() error {
			copy(f.data[to:], b)
			return nil
		})
	}
	for n := 0; n < len(b); {
		got, err := unix.Pwrite(f.fd, b[n:], to+int64(n))
		if err != nil && err != unix.EINTR {
			return f.Errorf("cannot write the file: %w", err)
		}
		n += max(got, 0)
	}
	return nil
}
