package registry

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"gpumem/internal/regular"
)

// supported returns an error on a system without locks of open file descriptions.
func supported() error { return nil }

// openFile opens a file that another may have made, see [regular.Open].
func openFile(path string, flags, owner int) (*os.File, error) {
	fd, err := regular.Open(path, flags, owner)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// FileID is what no two files have in common while one of them is open.
type FileID struct{ Device, Inode uint64 }

// IDOf returns a file's identity.
func IDOf(info fs.FileInfo) FileID {
	st := info.Sys().(*syscall.Stat_t)
	return FileID{uint64(st.Dev), st.Ino}
}

// ownerOf returns a file's user.
func ownerOf(info fs.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Uid) }

// isUnmapped reports whether a user's number stands for all that have none in this process's
// user namespace, of which not all users are: user_namespaces(7).
func isUnmapped(uid int) bool {
	overflow, err := os.ReadFile("/proc/sys/kernel/overflowuid")
	if err != nil || strings.TrimSpace(string(overflow)) != strconv.Itoa(uid) {
		return false
	}
	users, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(users)), " ") != "0 0 4294967295"
}

// checkAccess returns an error if files cannot be made in a folder.
func checkAccess(dir string) error {
	return unix.Access(dir, unix.W_OK|unix.X_OK)
}

// openUnnamed makes a file that has no name yet. Some file systems have none, see isNamedOnly.
func openUnnamed(dir string) (*os.File, error) {
	return os.OpenFile(dir, unix.O_TMPFILE|os.O_RDWR, 0o600)
}

// isNamedOnly reports whether a file system has only files with names.
func isNamedOnly(err error) bool {
	return errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.EISDIR) || errors.Is(err, syscall.EINVAL)
}

// nameFile gives a name to a file that has none.
func nameFile(f *os.File, path string) error {
	err := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
	if err != nil {
		return &fs.PathError{Op: "linkat", Path: path, Err: err}
	}
	return nil
}
