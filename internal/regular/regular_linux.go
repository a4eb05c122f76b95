package regular

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Open opens the file with a name, with the flags of open(2), and returns its descriptor,
// which programs do not inherit. The last element of the path is looked up in the folder
// that the others name, and is never followed. owner is the user whose file it must be, or
// [Anyone]. The error is the system's as it is, [ErrNotRegular], or one that wraps
// [ErrOwner]; then nothing has been opened.
func Open(path string, flags, owner int) (fd int, err error) {
	at := strings.LastIndexByte(path, '/') + 1
	folder, name := path[:at]+".", path[at:]
	if slices.Contains([]string{"", ".", ".."}, name) {
		return -1, ErrNotRegular
	}
	dir, err := openAt(unix.AT_FDCWD, folder, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	found, err := openAt(dir, name, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return -1, err
	}
	defer unix.Close(found)
	var what unix.Stat_t
	if err := unix.Fstat(found, &what); err != nil {
		return -1, err
	}
	switch {
	case what.Mode&unix.S_IFMT != unix.S_IFREG:
		return -1, ErrNotRegular
	case owner != Anyone && int(what.Uid) != owner:
		return -1, fmt.Errorf("%w: it belongs to user %d, and not to %d", ErrOwner, what.Uid, owner)
	}
	const harmless = unix.O_NONBLOCK | unix.O_NOCTTY // whatever it is
	fd, err = openAt(unix.AT_FDCWD, descriptors+strconv.Itoa(found), flags|harmless)
	if err != unix.ENOENT {
		return fd, err
	}
	// There is no /proc here: by its name again, if that is still the same file's.
	if fd, err = openAt(dir, name, flags|harmless|unix.O_NOFOLLOW); err != nil {
		return -1, err
	}
	var now unix.Stat_t
	if err := unix.Fstat(fd, &now); err != nil || !isSame(&now, &what) {
		unix.Close(fd)
		return -1, ErrNotRegular
	}
	return fd, nil
}

// descriptors is the folder of this process's descriptors. Tests have none.
var descriptors = "/proc/self/fd/"

// isSame reports whether two states are of one file.
func isSame(a, b *unix.Stat_t) bool { return a.Dev == b.Dev && a.Ino == b.Ino }

// openAt is openat(2), again after a signal.
func openAt(dir int, name string, flags int) (fd int, err error) {
	for fd, err = -1, unix.EINTR; err == unix.EINTR; {
		fd, err = unix.Openat(dir, name, flags|unix.O_CLOEXEC, 0)
	}
	return fd, err
}
