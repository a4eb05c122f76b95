// The process of a run: its streams, its end, and what it leaves.

package fit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// execute runs the program to its end, or until all its processes on a GPU agree that their
// memory repeats, and ends what it has started. failed is how it failed, with the last line of
// its standard error. The error is that of its start, or the cause of ctx.
func execute(ctx context.Context, cfg Config, env []string, r *ran) (failed *FailedError, err error) {
	tail := &lastLine{w: cfg.Stderr}
	run, end := context.WithCancel(ctx)
	defer end()
	c := exec.CommandContext(run, cfg.Command[0], cfg.Command[1:]...)
	c.Env, c.Stdin, c.Stdout, c.Stderr = env, os.Stdin, passed(cfg.Stdout), tail
	runtime.LockOSThread() // the program ends with the thread that started it, see group
	defer runtime.UnlockOSThread()
	mark := "GPUMEM_FIT=" + r.found
	group(c, mark)
	c.WaitDelay = time.Second // processes that it has left may hold its streams
	var watches sync.WaitGroup
	watches.Go(func() { r.watchEnds(run) })
	watches.Go(func() {
		if r.agreed(run, cfg) {
			end()
		}
	})
	err = c.Run()
	end()
	watches.Wait()
	sweep(mark)
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	var exit *exec.ExitError
	isExit := errors.As(err, &exit)
	if isExit && terminal(os.Stdin) && interrupted(exit) {
		select { // the same Ctrl-C ends ctx
		case <-ctx.Done():
		case <-cfg.Stop:
		case <-time.After(time.Second):
		}
	}
	r.stopped = r.stopped || err != nil && cfg.stopped()
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err == nil || r.stopped || exists(r.found+".stop"):
		return nil, nil
	case !isExit:
		return nil, err // not started
	case ended(err, fmt.Sprintf("%s.%d", r.found, c.Process.Pid)):
		return nil, nil
	}
	return &FailedError{Err: err, Last: tail.line()}, nil
}

// grace is how long a program may take to end when its processes on GPUs have agreed to.
const grace = time.Minute

// agreed waits until the processes have agreed to end, which start.py says by a file, or are to be
// stopped, and have had the time to. What waits for their results would wait for ever.
func (r *ran) agreed(ctx context.Context, cfg Config) bool {
	for !exists(r.found + ".stop") {
		if cfg.stopped() {
			r.stopped = r.stop() == nil
			break
		}
		if !pause(ctx) {
			return false
		}
	}
	for deadline := time.Now().Add(grace); time.Now().Before(deadline); {
		if left, err := filepath.Glob(escaped(r.found) + ".*.begun"); err == nil && len(left) == 0 {
			break
		}
		if !pause(ctx) {
			return false
		}
	}
	for range 3 { // the rest may end by itself
		if !pause(ctx) {
			return false
		}
	}
	return true
}

// stop has the processes end, as if they had agreed to.
func (r *ran) stop() error {
	part := r.file("stop")
	return errors.Join(os.WriteFile(part, []byte("interrupted"), 0o600), os.Rename(part, r.found+".stop"))
}

// pause waits a moment; false if ctx has ended.
func pause(ctx context.Context) bool { return pauseFor(ctx, 100*time.Millisecond) }

func pauseFor(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// interrupted reports whether a program was ended by an interrupt, as shells and Python
// show it.
func interrupted(exit *exec.ExitError) bool {
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && (status.Signaled() && status.Signal() == syscall.SIGINT || status.ExitStatus() == 130)
}

// passed returns a writer for the program's output: a terminal as it is, and anything else
// without its errors, since the answer does not need the output.
func passed(w io.Writer) io.Writer {
	if f, ok := w.(*os.File); w == nil || ok && terminal(f) {
		return w
	}
	return &lastLine{w: w}
}

// lastLine passes text on, as long as it can be written, and keeps its end.
type lastLine struct {
	w   io.Writer // nil: no more
	buf []byte    // at most 8 KiB
}

func (l *lastLine) Write(p []byte) (int, error) {
	l.buf = append(l.buf, p...)
	if n := len(l.buf) - 8<<10; n > 0 {
		l.buf = append(l.buf[:0], l.buf[n:]...)
	}
	if l.w != nil {
		if _, err := l.w.Write(p); err != nil {
			l.w = nil
		}
	}
	return len(p), nil
}

// exception is the line of Python's traceback that has the error. Notes may follow it.
var exception = regexp.MustCompile(`(?m)^(?:\w+\.)*\w*(?:Error|Exception)\b.*$`)

// line returns the last line that is an exception's, or else the last one.
func (l *lastLine) line() string {
	if all := exception.FindAll(l.buf, -1); len(all) > 0 {
		return string(bytes.TrimSpace(all[len(all)-1]))
	}
	lines := bytes.Split(bytes.TrimSpace(l.buf), []byte("\n"))
	return string(bytes.TrimSpace(lines[len(lines)-1]))
}

// outOfMemory are the exceptions of frameworks that are refused GPU memory.
var outOfMemory = regexp.MustCompile(`^(?:torch\.)?(?:cuda\.)?OutOfMemoryError|RESOURCE_EXHAUSTED|ResourceExhaustedError|CUDA_ERROR_OUT_OF_MEMORY|CUDA error: out of memory`)

// ofMemory reports whether the program says that it was refused GPU memory.
func (e *FailedError) ofMemory() bool { return e != nil && outOfMemory.MatchString(e.Last) }
