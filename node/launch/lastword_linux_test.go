package launch

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLastWord: the line goes to the file or the pipe that was standard error at the start. It
// refuses a keeper that holds a pipe open, one that writes into whatever has descriptor 2 by
// then, and one that opens with the file cut.
func TestLastWord(t *testing.T) {
	kept, err := unix.FcntlInt(2, unix.F_DUPFD_CLOEXEC, 10)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(kept)
	asStderr := func(fd uintptr) {
		if err := unix.Dup3(int(fd), 2, 0); err != nil {
			t.Fatal(err)
		}
	}
	restore := func() { asStderr(uintptr(kept)) }
	defer restore()
	open := func(name string) *os.File {
		f, err := os.Create(filepath.Join(t.TempDir(), name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	text := func(f *os.File) string {
		data, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}

	file, other := open("log"), open("data")
	asStderr(file.Fd())
	w := newLastWord(os.Getpid())
	_, _ = file.WriteString("of the program\n")
	w.keep()
	asStderr(other.Fd()) // later than the finding: it is no matter
	w.say("a line")
	asStderr(file.Fd())
	late := newLastWord(os.Getpid())
	asStderr(other.Fd())
	late.keep()
	late.say("another")
	asStderr(file.Fd())
	none := newLastWord(os.Getpid())
	none.keep()
	none.say("")
	restore()
	if got := text(file); got != "of the program\ngpumem: a line\n" {
		t.Errorf("standard error has %q", got)
	}
	if got := text(other); got != "" {
		t.Errorf("a file that took its number has %q", got)
	}

	r, pipe, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	asStderr(pipe.Fd())
	w = newLastWord(os.Getpid())
	w.keep()
	unread := newLastWord(os.Getpid())
	unread.keep()
	restore()
	pipe.Close()
	if data, err := io.ReadAll(r); err != nil || len(data) > 0 { // it ends, though the line is still to come
		t.Errorf("%q, %v", data, err)
	}
	w.say("to the pipe")
	if data, err := io.ReadAll(r); err != nil || !strings.Contains(string(data), "gpumem: to the pipe\n") {
		t.Errorf("the pipe has %q, %v", data, err)
	}
	r.Close()
	unread.say("nobody reads it")
	(&lastWord{pid: 1 << 30}).keep()
}
