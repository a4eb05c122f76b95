// Package registry has the leases of a machine and those who wait for one: files in a folder,
// and the locks by which the kernel knows which of them are alive. It says what is there.
// Package account adds that up, package queue orders those who wait, and package share
// decides.
//
// The folder has a lock file for each GPU and files for each lease and ticket. Their names
// are
//
//	KEY.lock   KEY.ID.held   KEY.ID.lease   KEY.ID.ledger   KEY.UID.turns   KEY.NUMBER.ticket
//	KEY.ID.new
//
// with KEY of 16 hex digits from the GPU's key, ID of 16 by chance, UID the number of a user,
// and NUMBER of 16 that count up. The last is a file that is being made, where the file system
// cannot make one without a name. See record.go for what they hold.
package registry

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Errors, wrapped in others that name the file and the way out.
var (
	// ErrDamaged: a file of the registry is not as this package left it.
	ErrDamaged = errors.New("the file is damaged")
	// ErrVersion: another version of gpumem made a file of the registry.
	ErrVersion = errors.New("another version of gpumem made the file")
	// ErrLocked: one process has held a GPU's lock too long, as a stopped process
	// does.
	ErrLocked = errors.New("the GPU's lock is taken")
	// ErrUntrusted: another user could remove or rename the registry's files.
	ErrUntrusted = errors.New("another user could remove the leases in this folder")
)

// EnvDir is the environment variable with the folder of the registry.
const EnvDir = "GPUMEM_RUN_DIR"

// The folders where the machine's registry is, unless the environment says
// otherwise. Tests have others.
var (
	RunDir = "/run/gpumem"
	ShmDir = "/dev/shm/gpumem"
)

// Registry is a folder with leases. It may be used by several goroutines.
type Registry struct {
	dir       string // absolute
	namespace uint64 // the inode of this process's pid namespace
}

// At returns the registry of the lease whose record is at path.
func At(path string) *Registry { return &Registry{dir: filepath.Dir(path), namespace: PIDNamespace()} }

// PIDNamespace returns the inode of this process's pid namespace, or 0 if it is unknown.
func (r *Registry) PIDNamespace() uint64 { return r.namespace }

// Dir returns the folder, an absolute path.
func (r *Registry) Dir() string { return r.dir }

// PIDNamespace returns the inode of this process's pid namespace, or 0 if it is unknown.
func PIDNamespace() uint64 {
	text, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return 0
	}
	var n uint64
	if _, err := fmt.Sscanf(text, "pid:[%d]", &n); err != nil {
		return 0
	}
	return n
}

// Open opens the registry in a folder, which is made if it is missing, with mode
// 1777: all may add files, and remove only their own. "" means the folder that
// GPUMEM_RUN_DIR names, an absolute path, else /run/gpumem if all may write there,
// else /dev/shm/gpumem. (/run/gpumem is not made: only root could, and where others
// already use the second there would be two registries.)
//
// A folder that another user than root owns, or that others may write to without
// the sticky bit, is refused with [ErrUntrusted]: there another user could remove
// or rename the files of a lease. An error names the folder and the way out.
func Open(dir string) (*Registry, error) {
	r, err := find(dir)
	if err != nil {
		return nil, err
	}
	return r, r.makeFolder()
}

// Look is Open for a caller that only lists: it makes nothing, and need not be allowed to
// write. A folder that is missing has no leases.
func Look(dir string) (*Registry, error) {
	r, err := find(dir)
	if err != nil {
		return nil, err
	}
	if err := r.check(); !errors.Is(err, fs.ErrNotExist) {
		return r, err
	}
	return r, nil
}

// find returns the registry in a folder, which is not looked at.
func find(dir string) (*Registry, error) {
	if err := supported(); err != nil {
		return nil, err
	}
	if dir == "" {
		if dir = os.Getenv(EnvDir); dir != "" && !filepath.IsAbs(dir) {
			return nil, fmt.Errorf("registry %s: %s is a relative path, which is another folder in each working directory; give an absolute one", dir, EnvDir)
		}
	}
	if dir == "" {
		dir = ShmDir
		if info, err := os.Lstat(RunDir); err == nil && info.IsDir() && info.Mode().Perm()&0o003 == 0o003 {
			dir = RunDir
		}
		if info, err := os.Lstat(dir); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			return nil, fmt.Errorf("registry %s: it is a symbolic link; remove it, or set %s to another folder", dir, EnvDir)
		}
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("registry %s: %w", dir, err)
	}
	return &Registry{dir: abs, namespace: PIDNamespace()}, nil
}

// makeFolder makes the folder if it is missing, and checks that it can be used.
func (r *Registry) makeFolder() error {
	if err := os.Mkdir(r.dir, 0o700); err == nil {
		// Not by Mkdir, which leaves the sticky bit out and heeds the umask.
		if err := os.Chmod(r.dir, fs.ModeSticky|0o777); err != nil {
			return r.explain(r.dir, err)
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return r.explain(r.dir, err)
	}
	if err := r.check(); err != nil {
		return err
	}
	if err := checkAccess(r.dir); err != nil {
		return r.explain(r.dir, err)
	}
	return nil
}

// check returns an error if the folder is none, or is not to be trusted.
func (r *Registry) check() error {
	info, err := os.Stat(r.dir)
	if err == nil && !info.IsDir() {
		err = syscall.ENOTDIR
	}
	if err == nil {
		err = trusted(info)
	}
	if err != nil {
		return r.explain(r.dir, err)
	}
	return nil
}

// trusted returns an error that names the other users who could remove or rename files
// in a folder.
//
// In a container without root, root of the machine and all other users have one number, that of
// users who have none there. Who owns a folder with the sticky bit is not known then, and it is
// trusted: who mounted it in the container chose it.
func trusted(info fs.FileInfo) error {
	const others = 0o022
	owner := ownerOf(info)
	switch {
	case isUnmapped(owner) && info.Mode()&fs.ModeSticky != 0:
	case owner != 0 && owner != os.Geteuid():
		return fmt.Errorf("%w: it belongs to user %d", ErrUntrusted, owner)
	case info.Mode().Perm()&others != 0 && info.Mode()&fs.ModeSticky == 0:
		return fmt.Errorf("%w: its mode is %04o without the sticky bit", ErrUntrusted, info.Mode().Perm())
	}
	return nil
}

// explain returns an error of the file system with a remedy.
func (r *Registry) explain(path string, err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	way := fmt.Sprintf("set %s to another folder, the same for all who share the GPU", EnvDir)
	switch {
	case errors.Is(err, ErrUntrusted):
		way = fmt.Sprintf("as root make a folder for all users (mkdir -m 1777 %s), or set %s to a folder of root's or of this user", RunDir, EnvDir)
	case errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS):
		way = fmt.Sprintf("let all users write there (as root: chmod 1777 %s), or %s", r.dir, way)
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG):
		way = "make room on its disk, or " + way
	case errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported):
		err = fmt.Errorf("this system or this file system has no locks of open file descriptions (fcntl F_OFD_SETLK): %w", err)
	}
	if path != r.dir {
		return fmt.Errorf("registry %s: %s: %w; %s", r.dir, filepath.Base(path), err, way)
	}
	return fmt.Errorf("registry %s: %w; %s", r.dir, err, way)
}

// GPU is one GPU's part of a registry.
type GPU struct {
	*Registry
	Key string // the beginning of the names of its files
}

// GPU returns the part of a GPU by its device's key.
func (r *Registry) GPU(device string) GPU { return GPU{r, KeyOf(device)} }

// KeyOf returns the beginning of the names of a GPU's files.
func KeyOf(device string) string {
	sum := sha256.Sum256([]byte(device))
	return fmt.Sprintf("%x", sum[:8])
}
