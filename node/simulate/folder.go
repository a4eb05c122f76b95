// The folder of a run, which lasts as long as its last process.
//
// It has a lock file, on which this process has a lock of its description (internal/ofd). COMMAND and its children
// inherit the description, so the lock is there until the last of them has ended, however it ends. Some
// programs close what they inherit: those have the folder's name in their environment. A folder that was left behind is
// removed by the next run.

package simulate

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"gpumem/internal/ofd"
)

const (
	folderNames = "gpumem-sim-*"
	lockName    = "lock"
)

// folder is one that this process made.
type folder struct {
	path string // absolute: the program may change its own folder
	lock *os.File
}

func (f *folder) file(name string) string { return filepath.Join(f.path, name) }

// newFolder makes one, and removes those that nobody has any more.
func newFolder() (f *folder, err error) {
	temp, err := filepath.Abs(os.TempDir())
	if err != nil {
		return nil, err
	}
	sweep(temp)
	f = &folder{}
	if f.path, err = os.MkdirTemp(temp, folderNames); err != nil {
		return nil, err
	}
	// The lock is taken under another name, so that none is ever seen free.
	f.lock, err = os.OpenFile(f.file("new"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		err = wholeOf(f.lock).Try(ofd.Read)
	}
	if err == nil {
		err = os.Rename(f.file("new"), f.file(lockName))
	}
	if err != nil {
		_ = os.RemoveAll(f.path)
		return nil, err
	}
	return f, nil
}

// close removes the folder, unless a process has it.
func (f *folder) close() error {
	if err := f.lock.Close(); err != nil {
		return err
	}
	if err := removeUnused(f.path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil // the program has removed it
}

// wholeOf is the lock of a whole file.
func wholeOf(f *os.File) ofd.Lock { return ofd.Lock{FD: f.Fd()} }

// sweep removes the folders of earlier runs that no process has any more.
func sweep(temp string) {
	list, _ := filepath.Glob(filepath.Join(temp, folderNames)) // of another's nothing can be opened
	for _, path := range list {
		if info, err := os.Lstat(path); err == nil && info.IsDir() {
			_ = removeUnused(path)
		}
	}
}

// removeUnused removes a folder if its lock is free and it is in no process's environment.
func removeUnused(path string) error {
	lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := wholeOf(lock).Try(ofd.Write); err != nil || isNamed(path) {
		return nil
	}
	return os.RemoveAll(path)
}

// isNamed reports whether a process of this user has the folder's file of peaks in its environment.
func isNamed(path string) bool {
	line := []byte("\x00" + EnvPeaks + "=" + filepath.Join(path, "peaks") + "\x00")
	list, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range list {
		env, err := os.ReadFile(file)
		if err == nil && bytes.Contains(append([]byte{0}, env...), line) {
			return true
		}
	}
	return false
}
