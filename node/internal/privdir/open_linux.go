package privdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Open opens a folder and checks that it is private, with every folder above it.
// Folders that are missing are made: the last with mode 0755, for others may read
// what lies there, those above it with 0700. The error names the folder that is at
// fault.
func Open(path string) (*Dir, error) {
	return open(path, os.Geteuid())
}

// open is Open for a user.
func open(path string, uid int) (*Dir, error) {
	path, err := physical(path)
	if err != nil {
		return nil, err
	}
	fd, err := syscall.Open("/", unix.O_PATH|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /: %w", err)
	}
	defer func() { syscall.Close(fd) }()
	at := "/"
	if err := check(fd, at, uid, true); err != nil {
		return nil, err
	}
	parts := strings.Split(strings.Trim(path, "/"), "/")
	for i, part := range parts {
		last := i == len(parts)-1
		at = filepath.Join(at, part)
		next, err := descend(fd, part, last)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		syscall.Close(fd)
		fd = next
		if err := check(fd, at, uid, !last); err != nil {
			return nil, err
		}
	}
	// The same folder, by the descriptor and not by its name.
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", at, plain(err))
	}
	dir := &Dir{root, at}
	if err := writable(dir); err != nil {
		root.Close()
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	return dir, nil
}

// physical resolves the symbolic links of what is there already. A link that
// another user puts there later makes the walk fail.
func physical(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	missing := ""
	for there := path; ; there = filepath.Dir(there) {
		real, err := filepath.EvalSymlinks(there)
		if err == nil {
			return filepath.Join(real, missing), nil
		}
		if !errors.Is(err, fs.ErrNotExist) || there == "/" {
			return "", fmt.Errorf("%s: %w", there, plain(err))
		}
		missing = filepath.Join(filepath.Base(there), missing)
	}
}

// descend opens a folder in a folder, and makes it if it is missing.
func descend(fd int, name string, last bool) (int, error) {
	const flags = unix.O_PATH | // also of a folder that may only be passed through
		syscall.O_DIRECTORY | syscall.O_NOFOLLOW | syscall.O_CLOEXEC
	next, err := syscall.Openat(fd, name, flags, 0)
	if err != syscall.ENOENT {
		return next, err
	}
	if err := syscall.Mkdirat(fd, name, 0o700); err != nil && err != syscall.EEXIST {
		return -1, err
	}
	if next, err = syscall.Openat(fd, name, flags, 0); err == nil && last {
		_ = os.Chmod(fmt.Sprintf("/proc/self/fd/%d", next), 0o755) // whatever the umask
	}
	return next, err
}

// check reports what is wrong with a folder. above is that it need not be for this
// user alone, only for what is in it to stay there.
func check(fd int, path string, uid int, above bool) error {
	var s syscall.Stat_t
	if err := syscall.Fstat(fd, &s); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	const others, sticky = 0o022, syscall.S_ISVTX
	switch {
	case int(s.Uid) != 0 && int(s.Uid) != uid:
		return fmt.Errorf("%s belongs to user %d", path, s.Uid)
	case int(s.Uid) != uid && !above:
		return fmt.Errorf("%s belongs to root", path)
	case s.Mode&others != 0 && !(above && s.Mode&sticky != 0):
		return fmt.Errorf("other users may write to %s (mode %04o; chmod go-w)", path, s.Mode&0o7777)
	}
	return nil
}

// writable reports why no file can be made in a folder, such as a read-only file
// system.
func writable(d *Dir) error {
	const probe = ".probe"
	f, err := d.OpenFile(probe, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return plain(err)
	}
	f.Close()
	_ = d.Remove(probe)
	return nil
}
