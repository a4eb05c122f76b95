package regular

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
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
