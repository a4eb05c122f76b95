package launch

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stderrs lets a test give this process other standard errors.
type stderrs struct {
	t    *testing.T
	kept int
}

func newStderrs(t *testing.T) *stderrs {
	kept, err := unix.FcntlInt(2, unix.F_DUPFD_CLOEXEC, 10)
	if err != nil {
		t.Fatal(err)
	}
	s := &stderrs{t, kept}
	t.Cleanup(func() { s.restore(); unix.Close(kept) })
	return s
}

func (s *stderrs) set(fd int) {
	s.t.Helper()
	if err := unix.Dup3(fd, 2, 0); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stderrs) restore() { s.set(s.kept) }

// lastWords calls a test with the ways to take a standard error: as the kernel gives it, and
// where it gives none. The function makes the last word of this process.
func lastWords(t *testing.T, test func(t *testing.T, shared bool, newWord func() *lastWord)) {
	for _, shared := range []bool{true, false} {
		t.Run(fmt.Sprintf("shared=%t", shared), func(t *testing.T) {
			pidfd := none
			if shared {
				f, err := pidfdOf(os.Getpid())
				if err != nil {
					t.Skip("skipped: this kernel has no pidfds, before Linux 5.3, or a filter forbids them: ", err)
				}
				defer f.Close()
				if fd, err := unix.PidfdGetfd(int(f.Fd()), 2, 0); err != nil {
					t.Skip("skipped: this kernel shares no descriptors, before Linux 5.6, or a filter forbids it: ", err)
				} else {
					unix.Close(fd)
				}
				pidfd = int(f.Fd())
			}
			test(t, shared, func() *lastWord { return newLastWord(os.Getpid(), pidfd) })
		})
	}
}

// TestLastWordGoesToTheFileOfTheStart refuses a keeper that writes into whatever has descriptor 2
// by then, and one that opens with the file cut. A line that was written past the place of those
// who have the file open would be overwritten by the next of theirs.
func TestLastWordGoesToTheFileOfTheStart(t *testing.T) {
	lastWords(t, func(t *testing.T, shared bool, newWord func() *lastWord) {
		s := newStderrs(t)
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
		s.set(int(file.Fd()))
		w := newWord()
		_, _ = file.WriteString("of the program\n")
		w.keep()
		w.check()
		s.set(int(other.Fd())) // later than the finding: it is no matter
		w.check()
		w.say("a line")
		want := "of the program\ngpumem: a line\n"
		if shared {
			_, _ = file.WriteString("of the shell\n")
			want += "of the shell\n"
		}
		s.set(int(file.Fd()))
		late := newWord()
		s.set(int(other.Fd()))
		late.keep()
		late.say("another")
		s.set(int(file.Fd()))
		nothing := newWord()
		nothing.keep()
		nothing.say("")
		s.restore()
		if got := text(file); got != want {
			t.Errorf("standard error has %q, want %q", got, want)
		}
		if got := text(other); got != "" {
			t.Errorf("a file that took its number has %q", got)
		}
	})
}

// TestReaderOfAPipeHasTheLastWordBeforeItsEnd: the line was lost by chance, to a reader that saw
// the end of the pipe with the end of the program and went. It refuses a keeper that holds the
// pipe once the line is said.
func TestReaderOfAPipeHasTheLastWordBeforeItsEnd(t *testing.T) {
	lastWords(t, func(t *testing.T, _ bool, newWord func() *lastWord) {
		s := newStderrs(t)
		r, pipe, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		s.set(int(pipe.Fd()))
		w := newWord()
		w.keep()
		w.keep() // each time that something is found
		s.restore()
		pipe.Close()
		w.check() // at a moment at which the program ends
		read := make(chan []byte)
		go func() {
			data, _ := io.ReadAll(r)
			read <- data
		}()
		w.say("to the pipe")
		if data := <-read; string(data) != "gpumem: to the pipe\n" {
			t.Errorf("the pipe has %q", data)
		}
	})
}

// TestReaderDoesNotWaitForKeeperOfProgramThatClosedItsStderr: a program that goes to the
// background closes it for those that wait for that.
func TestReaderDoesNotWaitForKeeperOfProgramThatClosedItsStderr(t *testing.T) {
	lastWords(t, func(t *testing.T, _ bool, newWord func() *lastWord) {
		s := newStderrs(t)
		r, pipe, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		s.set(int(pipe.Fd()))
		w := newWord()
		w.keep()
		s.restore()
		w.check()
		s.set(int(pipe.Fd())) // it has it again: a look counts only with the next
		w.check()
		s.restore()
		pipe.Close()
		w.check()
		reader := int(r.Fd())
		if err := unix.SetNonblock(reader, true); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Read(reader, make([]byte, 1)); err != unix.EAGAIN {
			t.Errorf("it is given up after looks that were not one after the other: %v", err)
		}
		w.check()
		if n, err := unix.Read(reader, make([]byte, 1)); n != 0 || err != nil {
			t.Errorf("the reader has %d, %v, want the end", n, err)
		}
		w.say("nobody has it")
	})
}

// TestNothingIsHeldAfterTheLastWord: the number of a program that has ended may be another's.
func TestNothingIsHeldAfterTheLastWord(t *testing.T) {
	lastWords(t, func(t *testing.T, _ bool, newWord func() *lastWord) {
		w := newWord()
		w.keep()
		if w.held == none {
			t.Skip("skipped: standard error is of a kind that cannot be opened again, such as a socket, so that nothing is held")
		}
		w.say("")
		w.keep()
		if w.held != none {
			t.Error("it is held again")
		}
	})
}

// TestLastWordWaitsForRoom: what the program wrote at its end fills the pipe or the socket. Nobody
// waits forever for a reader that does not read.
func TestLastWordWaitsForRoom(t *testing.T) {
	wait := awaitRoom
	defer func() { awaitRoom = wait }()
	defer func(old time.Duration) { patienceToSay = old }(patienceToSay)
	lastWords(t, func(t *testing.T, shared bool, newWord func() *lastWord) {
		s := newStderrs(t)
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		var pipe [2]int
		if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		for _, ends := range [][2]int{pipe, pair} {
			r, w := ends[0], ends[1]
			s.set(w)
			w1, w2 := newWord(), newWord()
			w1.keep()
			w2.keep()
			s.restore()
			for _, fd := range ends {
				if err := unix.SetNonblock(fd, true); err != nil {
					t.Fatal(err)
				}
			}
			for {
				if _, err := unix.Write(w, make([]byte, 4096)); err != nil {
					break
				}
			}
			if err := unix.SetNonblock(w, false); err != nil { // the program's writes wait
				t.Fatal(err)
			}
			patienceToSay, awaitRoom = time.Millisecond, wait
			w1.say("nobody reads it")
			waits := 0
			patienceToSay, awaitRoom = time.Minute, func(int, time.Duration) {
				waits++
				for text := make([]byte, 4096); ; {
					if _, err := unix.Read(r, text); err != nil {
						return
					}
				}
			}
			w2.say("at last")
			text := make([]byte, 4096)
			n, _ := unix.Read(r, text)
			unix.Close(r)
			unix.Close(w)
			if !shared && ends == pair { // it cannot be written to
				continue
			}
			if got := string(text[:max(n, 0)]); got != "gpumem: at last\n" || waits != 1 {
				t.Errorf("the reader has %q after %d waits", got, waits)
			}
		}
	})
}

// TestLastWordGoesToASocket: a service of systemd has one for its standard error, of the journal.
// It cannot be opened again.
func TestLastWordGoesToASocket(t *testing.T) {
	lastWords(t, func(t *testing.T, shared bool, newWord func() *lastWord) {
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET} {
			s := newStderrs(t)
			pair, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			s.set(pair[1])
			unix.Close(pair[1])
			w := newWord()
			w.keep()
			s.restore()
			w.say("to the journal")
			var got bytes.Buffer
			for text := make([]byte, 100); ; {
				n, err := unix.Read(pair[0], text)
				if err != nil {
					t.Fatal(err)
				}
				if n == 0 {
					break
				}
				got.Write(text[:n])
			}
			unix.Close(pair[0])
			want := ""
			if shared {
				want = "gpumem: to the journal\n"
			}
			if got.String() != want {
				t.Errorf("the socket has %q, want %q", &got, want)
			}
		}
	})
}

// TestLastWordWithoutReader: a pipe or a socket whose reader has gone is no signal that ends the
// keeper, and a program that has ended has none.
func TestLastWordWithoutReader(t *testing.T) {
	lastWords(t, func(t *testing.T, _ bool, newWord func() *lastWord) {
		s := newStderrs(t)
		for _, before := range []bool{false, true} {
			r, pipe, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			gone := func() { r.Close(); unix.Close(pair[0]) }
			if before {
				gone()
			}
			var words []*lastWord
			for _, fd := range []int{int(pipe.Fd()), pair[1]} {
				s.set(fd)
				w := newWord()
				w.keep()
				words = append(words, w)
			}
			s.restore()
			if !before {
				gone()
			}
			for _, w := range words {
				w.say("nobody has it")
			}
			pipe.Close()
			unix.Close(pair[1])
		}
		(&lastWord{pid: 1 << 30, pidfd: none, held: none}).keep()
	})
}
