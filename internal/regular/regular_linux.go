package regular

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
)

// oPath is O_PATH of Linux's fcntl.h: what has the name is found and not opened. Package
// syscall lacks it.
const oPath = 0x200000

// Open opens the file with a name, with the flags of open(2), and returns its descriptor,
// which programs do not inherit. The last element of the path is looked up in the folder
// that the others name, and is never followed. owner is the user whose file it must be, or
// [Anyone]. The error is the system's as it is, [ErrNotRegular], or one that wraps
// [ErrOwner]; then nothing has been opened.
func Open(path string, flags, owner int) (fd int, err error) {
	at := strings.LastIndexByte(path, '/') + 1
	folder, name := path[:at]+".", path[at:]
	if name == "" || name == "." || name == ".." {
		return -1, ErrNotRegular
	}
	dir, err := openAt(atCwd, folder, oPath|syscall.O_DIRECTORY)
	if err != nil {
		return -1, err
	}
	defer syscall.Close(dir)
	found, err := openAt(dir, name, oPath|syscall.O_NOFOLLOW)
	if err != nil {
		return -1, err
	}
	defer syscall.Close(found)
	var what syscall.Stat_t
	if err := syscall.Fstat(found, &what); err != nil {
		return -1, err
	}
	switch {
	case what.Mode&syscall.S_IFMT != syscall.S_IFREG:
		return -1, ErrNotRegular
	case owner != Anyone && int(what.Uid) != owner:
		return -1, fmt.Errorf("%w: it belongs to user %d, and not to %d", ErrOwner, what.Uid, owner)
	}
	const harmless = syscall.O_NONBLOCK | syscall.O_NOCTTY // whatever it is
	fd, err = openAt(atCwd, "/proc/self/fd/"+strconv.Itoa(found), flags|harmless)
	if err != syscall.ENOENT {
		return fd, err
	}
	// There is no /proc here: by its name again, if that is still the same file's.
	if fd, err = openAt(dir, name, flags|harmless|syscall.O_NOFOLLOW); err != nil {
		return -1, err
	}
	var now syscall.Stat_t
	if err := syscall.Fstat(fd, &now); err != nil || now.Dev != what.Dev || now.Ino != what.Ino {
		syscall.Close(fd)
		return -1, ErrNotRegular
	}
	return fd, nil
}

// atCwd is AT_FDCWD of Linux's fcntl.h.
const atCwd = -100

// openAt is openat(2), again after a signal.
func openAt(dir int, name string, flags int) (fd int, err error) {
	for fd, err = -1, syscall.EINTR; err == syscall.EINTR; {
		fd, err = syscall.Openat(dir, name, flags|syscall.O_CLOEXEC, 0)
	}
	return fd, err
}
