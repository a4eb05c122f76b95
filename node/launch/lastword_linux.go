// The line of a run after its program's end, on the program's standard error.

package launch

import (
	"fmt"
	"os"
	"sync"
	"syscall"
)

// oPath is O_PATH of Linux's fcntl.h: a descriptor of a file that is not open. So who reads a
// pipe to its end does not wait for this process.
const oPath = 0x200000

// lastWord writes one line to a program's standard error, if that still is what the program
// was started with. It is for what is found while the program runs: nothing is held before.
type lastWord struct {
	pid   int
	first os.FileInfo // nil if it cannot be seen

	mu   sync.Mutex
	file *os.File // by oPath; guarded by mu
}

func newLastWord(pid int) *lastWord {
	w := &lastWord{pid: pid}
	w.first, _ = os.Stat(w.path())
	return w
}

func (w *lastWord) path() string { return fmt.Sprintf("/proc/%d/fd/2", w.pid) }

// keep finds the standard error while the program lives.
func (w *lastWord) keep() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file != nil || w.first == nil {
		return
	}
	f, err := os.OpenFile(w.path(), oPath, 0)
	if err != nil {
		return
	}
	if info, err := f.Stat(); err != nil || !os.SameFile(info, w.first) { // something else has its number now
		f.Close()
		return
	}
	w.file = f
}

// say writes a line, if there is one and standard error takes it at once.
func (w *lastWord) say(line string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == nil || line == "" {
		return
	}
	defer w.file.Close()
	fd, err := syscall.Open(fmt.Sprintf("/proc/self/fd/%d", w.file.Fd()), syscall.O_WRONLY|syscall.O_APPEND|syscall.O_NONBLOCK|syscall.O_NOCTTY|syscall.O_CLOEXEC, 0)
	if err != nil { // such as a pipe without a reader, or a socket
		return
	}
	defer syscall.Close(fd)
	_, _ = syscall.Write(fd, []byte("gpumem: "+line+"\n"))
}
