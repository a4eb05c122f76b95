// Package launch starts a program so that it hardly notices: its standard
// streams, its terminal, its process group, the signals that are meant for it
// and its exit status are as if it had been started without us.
//
// # One run
//
// The program is a child in our own process group, so that a terminal's signals
// (interrupt, quit, stop) come to it from the kernel, and a shell's job control
// works on both. What is sent to us alone we pass on. Files that it is to keep
// open, such as the description that holds a lease, it inherits: they outlive us
// if we are killed.
//
// Its standard error is kept, the last of it, to say something about a failure:
// a terminal is left alone (a program that writes to one behaves otherwise than
// with a pipe), a file is read afterwards, and only a pipe goes through us.
//
// When it ends we end the same way: with its status, or by its signal.
package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// tailBytes is how much of the program's last words is kept.
const tailBytes = 64 << 10

// Config is what to start.
type Config struct {
	Command []string   // the program and its arguments; the program is looked up in PATH as a shell does
	Env     []string   // its whole environment
	Keep    []*os.File // files that it inherits and never hears of
	Stdin   *os.File   // nil means ours
	Stdout  *os.File
	Stderr  *os.File
	// Started is called with the program's process number, before it is waited
	// for. nil: nobody wants to know.
	Started func(pid int)
}

// Result is how a program ended.
type Result struct {
	Status int       // its exit status; 128 and the signal's number if a signal ended it
	Signal os.Signal // nil: it ended by itself
	PID    int
	Ran    time.Duration
	Tail   []byte // the last of its standard error, where that could be kept
}

// NotStarted is the error of a program that could not be started. Shells call
// that 127 where there is no such program, and 126 where it cannot be run.
type NotStarted struct {
	Command string
	Status  int
	Err     error
}

func (e *NotStarted) Error() string { return fmt.Sprintf("cannot start %s: %v", e.Command, e.Err) }

// Unwrap is the system's error.
func (e *NotStarted) Unwrap() error { return e.Err }

// Run starts the program and waits for its end. When ctx ends first the program
// is asked to end (SIGTERM) and waited for. The error is a *NotStarted; how the
// program ended is in the Result.
func Run(ctx context.Context, cfg Config) (Result, error) {
	if len(cfg.Command) == 0 {
		return Result{}, errors.New("no command to start")
	}
	stdin, stdout, stderr := or(cfg.Stdin, os.Stdin), or(cfg.Stdout, os.Stdout), or(cfg.Stderr, os.Stderr)
	path, err := exec.LookPath(cfg.Command[0])
	if err != nil {
		return Result{}, notStarted(cfg.Command[0], err)
	}
	words, err := listen(stderr)
	if err != nil {
		return Result{}, notStarted(cfg.Command[0], err)
	}
	defer words.close()
	files := append([]*os.File{stdin, stdout, words.child}, cfg.Keep...)
	signals := catch() // before there is a child: none is lost
	defer signals.stop()
	start := time.Now()
	p, err := os.StartProcess(path, cfg.Command, &os.ProcAttr{Env: cfg.Env, Files: files})
	if err != nil {
		return Result{}, notStarted(cfg.Command[0], err)
	}
	words.started()
	if cfg.Started != nil {
		cfg.Started(p.Pid)
	}
	ended := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		signals.pass(ctx, p, ended)
	}()
	state, err := p.Wait()
	close(ended)
	<-done
	if err != nil {
		return Result{}, fmt.Errorf("waiting for %s: %w", cfg.Command[0], err)
	}
	r := Result{Status: state.ExitCode(), PID: p.Pid, Ran: time.Since(start), Tail: words.tail()}
	if sig := endedBy(state); sig != nil {
		r.Signal, r.Status = sig, 128+number(sig)
	}
	return r, nil
}

func or(f, ours *os.File) *os.File {
	if f == nil {
		return ours
	}
	return f
}

func notStarted(command string, err error) *NotStarted {
	status := 126
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		status = 127
	}
	var e *exec.Error
	if errors.As(err, &e) { // which says the name again
		err = e.Err
	}
	var p *os.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	return &NotStarted{command, status, err}
}

// words keeps the last of what the program says on its standard error.
type words struct {
	child *os.File // what the program gets
	own   bool     // child is the end of a pipe of ours
	from  int64    // a regular file: where it stood
	file  *os.File // that file
	read  *os.File // our end of the pipe
	out   *os.File // where what comes through it goes
	ring  ring
	eof   chan struct{}
}

// listen decides by what stderr is.
func listen(stderr *os.File) (*words, error) {
	w := &words{child: stderr}
	info, err := stderr.Stat()
	if err != nil { // closed: the program gets it as it is
		return w, nil
	}
	switch mode := info.Mode(); {
	case mode.IsRegular():
		w.file, w.from = stderr, info.Size()
	case mode&os.ModeNamedPipe != 0 || mode&os.ModeSocket != 0:
		if w.read, w.child, err = os.Pipe(); err != nil {
			return nil, err
		}
		w.own, w.out, w.eof = true, stderr, make(chan struct{})
	}
	return w, nil
}

// started: the program has its end of the pipe now.
func (w *words) started() {
	if !w.own {
		return
	}
	w.child.Close()
	go func() {
		defer close(w.eof)
		_, _ = io.Copy(io.MultiWriter(&w.ring, w.out), w.read)
		w.read.Close() // nobody reads what we write: the program learns of it
	}()
}

// lateWords is how long the program's own children may go on writing to its
// standard error after its end before we stop passing that on.
const lateWords = 200 * time.Millisecond

// tail is what was kept. The program has ended.
func (w *words) tail() []byte {
	switch {
	case w.own:
		t := time.NewTimer(lateWords)
		defer t.Stop()
		select {
		case <-w.eof:
		case <-t.C:
			w.read.Close()
			<-w.eof
		}
		return w.ring.bytes()
	case w.file != nil:
		return tailOf(w.file, w.from)
	}
	return nil
}

func (w *words) close() {
	if w.own {
		w.child.Close()
		w.read.Close()
	}
}

// tailOf is the last of what was written to a file from an offset on.
func tailOf(f *os.File, from int64) []byte {
	info, err := f.Stat()
	if err != nil || info.Size() <= from {
		return nil
	}
	from = max(from, info.Size()-tailBytes)
	b := make([]byte, info.Size()-from)
	n, err := f.ReadAt(b, from)
	if err != nil && n == 0 { // open for writing alone, as a shell does
		again, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
		if err != nil {
			return nil
		}
		defer again.Close()
		n, _ = again.ReadAt(b, from)
	}
	return b[:n]
}

// ring is the last tailBytes written to it.
type ring struct{ b []byte }

func (r *ring) Write(p []byte) (int, error) {
	r.b = append(r.b, p...)
	if len(r.b) > 2*tailBytes {
		r.b = append(r.b[:0], r.b[len(r.b)-tailBytes:]...)
	}
	return len(p), nil
}

func (r *ring) bytes() []byte { return r.b[max(0, len(r.b)-tailBytes):] }
