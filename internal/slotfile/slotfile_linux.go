package slotfile

import (
	"errors"
	"fmt"
	"syscall"

	"gpumem/internal/regular"
)

const (
	// Of Linux's headers, the same on every architecture. Package syscall lacks them.
	dupAbove = 1030 // F_DUPFD_CLOEXEC
	dontFork = 10   // MADV_DONTFORK

	firstHigh = 1000 // descriptors of guests are moved up to here
)

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
	flags := syscall.O_RDONLY
	if f.write {
		flags = syscall.O_RDWR
	}
	if follow {
		flags |= syscall.O_CLOEXEC | syscall.O_NONBLOCK | syscall.O_NOCTTY // a FIFO does not wait for its other end
		for f.fd, err = -1, syscall.EINTR; err == syscall.EINTR; {
			f.fd, err = syscall.Open(name, flags, 0)
		}
	} else {
		f.fd, err = regular.Open(name, flags, owner)
	}
	if err != nil {
		return err
	}
	if err = f.stat(); err != nil {
		syscall.Close(f.fd)
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
		fd, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(f.fd), dupAbove, uintptr(from))
		if errno == 0 {
			syscall.Close(f.fd)
			f.fd = int(fd)
			return
		}
	}
}

// stat reads what the descriptor is open on.
func (f *File) stat() error {
	var st syscall.Stat_t
	if err := syscall.Fstat(f.fd, &st); err != nil {
		return fmt.Errorf("cannot stat the file: %w", err)
	}
	f.dev, f.ino, f.Length, f.Mode = uint64(st.Dev), st.Ino, st.Size, st.Mode&0o7777
	if st.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return ErrNotRegular
	}
	return nil
}

func (f *File) mapIn() (err error) {
	protection := syscall.PROT_READ
	if f.write {
		protection |= syscall.PROT_WRITE
	}
	f.data, err = syscall.Mmap(f.fd, 0, f.Size, protection, syscall.MAP_SHARED)
	if err != nil {
		return f.Errorf("cannot map the file: %w", err)
	}
	if f.Guest {
		if err := syscall.Madvise(f.data, dontFork); err != nil {
			return f.Errorf("cannot keep the mapping from children: %w", err)
		}
	}
	return nil
}

// end unmaps the file and closes the descriptor if it is the file's own.
func (f *File) end(own bool) (err error) {
	if f.data != nil {
		err = syscall.Munmap(f.data)
		f.data = nil
	}
	if own {
		err = errors.Join(err, syscall.Close(f.fd))
	}
	return err
}

// ReadAt reads until b is full or the file ends, and returns how many bytes it read. A page
// that is missing is an error here, and not a fault as in the mapping.
func (f *File) ReadAt(b []byte, from int64) (n int, err error) {
	for n < len(b) {
		got, err := syscall.Pread(f.fd, b[n:], from+int64(n))
		if err == syscall.EINTR {
			continue
		}
		if err != nil || got == 0 {
			return n, err
		}
		n += got
	}
	return n, nil
}

// WriteAt writes b. The caller has checked just before that the descriptor is still the
// file's, see [File.Check] and [File.Reattach]. A page that is missing is an error here or
// is made again, and not a fault as in the mapping. Where the program may not write to so
// large a file, which would be a signal that ends it, the mapping is written.
func (f *File) WriteAt(b []byte, to int64) error {
	var most syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_FSIZE, &most) == nil && most.Cur < uint64(f.Size) && f.data != nil {
		return f.Guard(func() error {
			copy(f.data[to:], b)
			return nil
		})
	}
	for n := 0; n < len(b); {
		got, err := syscall.Pwrite(f.fd, b[n:], to+int64(n))
		if err != nil && err != syscall.EINTR {
			return f.Errorf("cannot write the file: %w", err)
		}
		n += max(got, 0)
	}
	return nil
}
