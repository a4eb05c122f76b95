// Package slotfile is a file that several processes map at once, in which each has a slot.
//
// What the slots and the rest of the file contain is up to its user. Common to all is how
// processes know of each other. A process holds a lock of the kernel on one byte that stands
// for its slot, far past the end of the file. It is a lock of the open file description, so
// the kernel drops it when the process ends, however it ends: a slot that is in use and
// whose byte is not locked is a dead one. Another byte is the lock of the file itself, under
// which slots are taken. Neither knows a pid, so both work between containers, and a pid
// that is used again does no harm.
//
// The file may be cut short, replaced or overwritten while it is mapped. [File.Check] and
// [File.Guard] turn that into errors. Only Linux has such files: on other systems
// [Layout.Open] returns [errors.ErrUnsupported].
package slotfile

import (
	"errors"
	"fmt"
	"runtime/debug"
	"unsafe"

	"gpumem/internal/ofd"
	"gpumem/internal/regular"
)

// Layout is what all files of a kind have in common.
type Layout struct {
	Prefix   string // of every error, before the path
	Size     int    // of the file, in bytes
	FileByte uint64 // the byte whose lock is that of the file
	SlotByte uint64 // the byte whose lock is that of slot 0; that of slot n is n bytes behind
	Damaged  error  // wrapped in the errors of a file that is not as it was made

	// Guest says that the file is used inside programs that know nothing of it: its
	// descriptor has a high number, away from the program's own, and a forked child has no
	// mapping, which would keep the lock of the slot as a descriptor does.
	Guest bool
}

// Errorf returns an error that begins with the file at path.
func (l *Layout) Errorf(path, format string, args ...any) error {
	return fmt.Errorf("%s%s: "+format, append([]any{l.Prefix, path}, args...)...)
}

// File is an open file. Its fields do not change but for the descriptor, see [File.Reattach].
// It does nothing to order the calls of several goroutines.
type File struct {
	*Layout
	Path   string
	Length int64  // bytes of the file when it was opened
	Mode   uint32 // its permissions then, as of chmod

	write    bool // it is open for both
	fd       int
	dev, ino uint64
	data     []byte // the mapping, nil if there is none
}

// Errors of files.
var (
	// ErrNotRegular is the error of a name that stands for something else than a file.
	ErrNotRegular = regular.ErrNotRegular
	// ErrLost is the error of a descriptor that is not the file's any more: the program
	// has closed all of its own, and perhaps opened another file with this number.
	ErrLost = errors.New("the program has closed the file's descriptor")
)

// Errorf returns an error that begins with the file.
func (f *File) Errorf(format string, args ...any) error {
	return f.Layout.Errorf(f.Path, format, args...)
}

// Descriptor returns the number of the descriptor.
func (f *File) Descriptor() int { return f.fd }

// Same reports whether two open files are one.
func (f *File) Same(g *File) bool { return f.dev == g.dev && f.ino == g.ino }

// Check returns an error if the descriptor is not the file's any more, which wraps
// [ErrLost], or if the file has not the size of its layout.
func (f *File) Check() error {
	now := File{Layout: f.Layout, fd: f.fd}
	if err := now.stat(); err != nil || !now.Same(f) {
		return f.Errorf("%w", ErrLost)
	}
	if now.Length != int64(f.Size) {
		return f.Errorf("%d bytes and not %d: %w", now.Length, f.Size, f.Damaged)
	}
	return nil
}

// Reopen opens the file again for both, for another description with locks of its own. It needs no
// name as long as the descriptor is the file's.
func (f *File) Reopen() (*File, error) {
	names := []string{f.Path}
	if !errors.Is(f.Check(), ErrLost) {
		names = []string{fmt.Sprintf("/proc/self/fd/%d", f.fd), f.Path}
	}
	var last error
	for i, name := range names {
		again := &File{Layout: f.Layout, Path: f.Path, write: true}
		if last = again.open(name, i < len(names)-1, regular.Anyone); last != nil {
			last = f.Errorf("%w", last)
			continue
		}
		if again.Same(f) {
			return again, nil
		}
		last = errors.Join(f.Errorf("another file has its name: %w", f.Damaged), again.Close())
	}
	return nil, last
}

// Reattach is Check, and finds the file again by its name if the descriptor is lost. The
// mapping still keeps the description with the lock of the slot then, and another
// description does for the lock of the file.
func (f *File) Reattach() error {
	err := f.Check()
	if !errors.Is(err, ErrLost) {
		return err
	}
	again, err := f.Reopen()
	if err != nil {
		return err
	}
	f.fd = again.fd
	return f.Check()
}

// Map maps the file into memory, as a T, whose size is that of the layout. Of a file that
// is open for reading it is a fault to write to it.
func Map[T any](f *File) (*T, error) {
	if err := f.mapIn(); err != nil {
		return nil, err
	}
	return (*T)(unsafe.Pointer(&f.data[0])), nil
}

// Bytes returns the memory of v, which it aliases.
func Bytes[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// Guard calls op, and turns a fault in the mapping into an error: a file that is cut short
// gives SIGBUS, which the Go runtime turns into a panic of this goroutine. Calls that op has
// deferred, such as those that unlock, run before.
func (f *File) Guard(op func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer f.catch(&err)
	return op()
}

// catch, deferred, turns a fault in the mapping into an error. Any other panic goes on: it
// is a bug, which must not be hidden.
func (f *File) catch(err *error) {
	r := recover()
	if r == nil {
		return
	}
	start := uintptr(unsafe.Pointer(unsafe.SliceData(f.data)))
	if e, ok := r.(interface{ Addr() uintptr }); ok && e.Addr()-start < uintptr(len(f.data)) {
		*err = f.Errorf("byte %d is not there any more (the file was cut short, or its disk is full): %w", e.Addr()-start, f.Damaged)
		return
	}
	panic(r)
}

// Close ends the use of the file. A descriptor that is not the file's any more is left
// alone.
func (f *File) Close() error {
	own := !errors.Is(f.Check(), ErrLost)
	if err := f.end(own); err != nil {
		return f.Errorf("cannot close the file: %w", err)
	}
	return nil
}

// FileLock is the lock of the file.
func (f *File) FileLock() ofd.Lock { return ofd.Lock{FD: uintptr(f.fd), Start: f.FileByte, Len: 1} }

// SlotLock is the lock of a slot.
func (f *File) SlotLock(n int) ofd.Lock {
	return ofd.Lock{FD: uintptr(f.fd), Start: f.SlotByte + uint64(n), Len: 1}
}

// UnlockAll releases the locks of the file and of all slots, also those that a forked child
// has by the same description.
func (f *File) UnlockAll() error { return ofd.Lock{FD: uintptr(f.fd)}.Unlock() }

// IsSlotAlive reports whether another description has the lock of a slot: the kernel does
// not report that of the own one.
func (f *File) IsSlotAlive(n int) (bool, error) {
	_, alive, err := f.SlotLock(n).Other(ofd.Write)
	if err != nil {
		err = f.Errorf("cannot ask for the lock of slot %d: %w", n, err)
	}
	return alive, err
}
