package regular

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOpenOpensRegularFilesAlone refuses an Open that looks at what it has opened: a FIFO
// would have had a reader, as one that waits at its other end would see.
func TestOpenOpensRegularFilesAlone(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(at("file"), []byte("text"), 0o600))
	must(os.Symlink(at("file"), at("link")))
	must(syscall.Mkfifo(at("fifo"), 0o600))
	must(os.Mkdir(at("folder"), 0o700))
	for _, tc := range []struct {
		path  string
		owner int
		want  error
	}{
		{at("file"), Anyone, nil},
		{at("file"), os.Getuid(), nil},
		{at("file"), os.Getuid() + 1, ErrOwner},
		{at("link"), Anyone, ErrNotRegular},
		{at("fifo"), Anyone, ErrNotRegular},
		{at("folder"), Anyone, ErrNotRegular},
		{"/dev/null", Anyone, ErrNotRegular},
		{at("folder/.."), Anyone, ErrNotRegular},
		{at(""), Anyone, ErrNotRegular},
		{at("none"), Anyone, fs.ErrNotExist},
		{at("none/file"), Anyone, fs.ErrNotExist},
	} {
		fd, err := Open(tc.path, syscall.O_RDONLY, tc.owner)
		if !errors.Is(err, tc.want) {
			t.Errorf("%s of %d: %v, want %v", tc.path, tc.owner, err, tc.want)
		}
		if err == nil {
			if _, err := syscall.Write(fd, []byte("x")); err != syscall.EBADF {
				t.Errorf("%s: open for writing: %v", tc.path, err)
			}
			syscall.Close(fd)
		}
	}
}

// TestOpenNeverOpensAFIFO: a writer that does not wait finds nobody, however often it looks.
func TestOpenNeverOpensAFIFO(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	watch, err := syscall.InotifyInit1(syscall.IN_NONBLOCK | syscall.IN_CLOEXEC)
	if err != nil {
		t.Skip("skipped: ", err)
	}
	defer syscall.Close(watch)
	if _, err := syscall.InotifyAddWatch(watch, fifo, syscall.IN_OPEN); err != nil {
		t.Skip("skipped: ", err)
	}
	if _, err := Open(fifo, syscall.O_RDWR, Anyone); err != ErrNotRegular {
		t.Error(err)
	}
	if n, err := syscall.Read(watch, make([]byte, 4096)); n > 0 || err != syscall.EAGAIN {
		t.Errorf("it was opened: %d, %v", n, err)
	}
}

// TestOpenLeavesNothingOpen: what it has looked at is closed, and what it returns is not for
// programs that this one starts, and does not wait.
func TestOpenLeavesNothingOpen(t *testing.T) {
	defer func(old string) { descriptors = old }(descriptors)
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Symlink(file, link)); err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{descriptors, filepath.Join(dir, "none") + "/"} { // or there is no /proc
		descriptors = folder
		var open []int
		for _, name := range []string{file, link, dir + "/none", dir + "/", "/dev/null"} {
			fd, err := Open(name, syscall.O_RDONLY, Anyone)
			if (err == nil) != (name == file) || name == dir+"/" && err != ErrNotRegular {
				t.Errorf("%s: %v", name, err)
			}
			if err == nil {
				open = append(open, fd)
			}
		}
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("skipped: without /proc nobody can say which descriptors are open: ", err)
		}
		for _, e := range entries {
			to, _ := os.Readlink("/proc/self/fd/" + e.Name())
			if fd, _ := strconv.Atoi(e.Name()); strings.HasPrefix(to, dir) && !slices.Contains(open, fd) {
				t.Errorf("%s is left open", to)
			}
		}
		for _, fd := range open {
			flags, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
			own, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
			if flags&unix.O_NONBLOCK == 0 || own&unix.FD_CLOEXEC == 0 {
				t.Errorf("flags %#x, %#x", flags, own)
			}
			syscall.Close(fd)
		}
	}
}

// TestIsSame: a number is a file's own in one file system only.
func TestIsSame(t *testing.T) {
	a := unix.Stat_t{Dev: 1, Ino: 2}
	for _, tc := range []struct {
		b    unix.Stat_t
		want bool
	}{{unix.Stat_t{Dev: 1, Ino: 2}, true}, {unix.Stat_t{Dev: 1, Ino: 3}, false}, {unix.Stat_t{Dev: 3, Ino: 2}, false}} {
		if isSame(&a, &tc.b) != tc.want {
			t.Errorf("%+v: %t", tc.b, !tc.want)
		}
	}
}
