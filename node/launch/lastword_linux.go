// The line of a run after its program's end, on the program's standard error.
//
// Until there is something to say the keeper has nothing of the program's open. From then on it
// holds standard error, else the reader of a pipe could see the end of it, and go, before the
// line is there. It holds it until the line is written, right after the program's end, or until
// the program has given its standard error up, so a reader waits for the keeper for moments.
//
// The line cannot be written to a socket where the keeper may not take descriptors of the
// program, see pidfd_getfd(2): before Linux 5.6, or where a security module such as Yama
// (ptrace_scope) forbids it. A file is then opened again, which does not move the place where
// others write that have it open from before. And it is lost if nobody reads for patienceToSay.

package launch

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// patienceToSay is how long a line waits for one who reads what is before it. Tests are less
// patient.
var patienceToSay = 10 * time.Second

// lastWord writes one line to a program's standard error, if that still is what the program
// was started with.
type lastWord struct {
	pid   int
	pidfd int // of the program; not one where this kernel has none
	first identity
	known bool // first is

	mu     sync.Mutex
	held   int  // a descriptor, none before keep; guarded by mu
	missed bool // the program did not have it at the last check; guarded by mu
	over   bool // say was called; guarded by mu
}

// none is no descriptor.
const none = -1

// identity is what a file is, whatever its names.
type identity struct{ device, inode uint64 }

func identityOf(st *unix.Stat_t) identity { return identity{uint64(st.Dev), st.Ino} }

func newLastWord(pid, pidfd int) *lastWord {
	w := &lastWord{pid: pid, pidfd: pidfd, held: none}
	w.first, w.known = w.now()
	return w
}

func (w *lastWord) path() string { return fmt.Sprintf("/proc/%d/fd/2", w.pid) }

// now returns what the program has for its standard error; ok is false if it has none, or has
// ended.
func (w *lastWord) now() (what identity, ok bool) {
	var st unix.Stat_t
	err := unix.Stat(w.path(), &st)
	return identityOf(&st), err == nil
}

// keep holds the standard error from now on. The program must live.
func (w *lastWord) keep() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held != none || !w.known || w.over {
		return
	}
	fd, shared, err := w.take()
	if err != nil {
		return
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || identityOf(&st) != w.first { // something else has its number now
		unix.Close(fd)
		return
	}
	kind := st.Mode & unix.S_IFMT
	if shared && (kind == unix.S_IFREG || kind == unix.S_IFSOCK) {
		w.held = fd
		return
	}
	// Another description, which does not wait where the pipe or the terminal is full. There is
	// none of such as a pipe without a reader.
	const flags = unix.O_WRONLY | unix.O_APPEND | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC
	if again, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), flags, 0); err == nil {
		w.held = again
	}
	unix.Close(fd)
}

// take returns what the program has for its standard error: shared with the program if that
// is allowed, else found and not open.
func (w *lastWord) take() (fd int, shared bool, err error) {
	if fd, err := unix.PidfdGetfd(w.pidfd, 2, 0); err == nil {
		return fd, true, nil
	}
	fd, err = unix.Open(w.path(), unix.O_PATH|unix.O_CLOEXEC, 0)
	return fd, false, err
}

// check gives the standard error up if the program has, as one does that goes to the background:
// a reader waits for its end. A program that is about to end has none for a moment, so one look
// is not enough.
func (w *lastWord) check() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, ok := w.now()
	missing := !ok || now != w.first
	if missing && w.missed {
		w.drop()
	}
	w.missed = missing
}

// drop gives up what is held. w.mu must be locked.
func (w *lastWord) drop() {
	if w.held != none {
		unix.Close(w.held)
		w.held = none
	}
}

// say writes a line, if there is one and standard error is held, and gives that up.
func (w *lastWord) say(line string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.drop()
	w.over = true
	if w.held == none || line == "" {
		return
	}
	late := time.Now().Add(patienceToSay)
	for text := []byte("gpumem: " + line + "\n"); len(text) > 0; {
		n, err := writeAtOnce(w.held, text)
		left := time.Until(late)
		switch {
		case err == nil:
			text = text[n:]
		case err == unix.EINTR:
		case err == unix.EAGAIN && left > 0:
			awaitRoom(w.held, left)
		default:
			return
		}
	}
}

// awaitRoom waits until something can be written, at most for a while. Tests have another.
var awaitRoom = func(fd int, while time.Duration) {
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(while.Milliseconds())+1)
}

// writeAtOnce is write(2), but to a socket it never waits.
func writeAtOnce(fd int, text []byte) (int, error) {
	n, err := unix.SendmsgN(fd, text, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	if err == unix.ENOTSOCK {
		return unix.Write(fd, text)
	}
	return n, err
}
