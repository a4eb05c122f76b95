package share

import (
	"fmt"
	"os"
	"sync"
	"time"
)

// Lease is memory of a GPU that this process was given. It may be used by
// several goroutines.
type Lease struct {
	r    *Registry
	key  string
	path string
	f    *os.File

	display, host uint64 // see Left

	mu     sync.Mutex // guards what follows, but of rec only the process
	rec    record
	closed bool
}

// Bytes is how much it is.
func (l *Lease) Bytes() uint64 { return l.rec.Bytes }

// Device is the GPU's key, as in the request.
func (l *Lease) Device() string { return l.rec.Device }

// ID names the lease in lists.
func (l *Lease) ID() string { return l.rec.ID }

// File is the lease's open file, whose description holds the lease. A program
// that is started with it among exec.Cmd.ExtraFiles keeps the lease alive until
// it ends, whatever becomes of this process. Nobody else is to close it.
func (l *Lease) File() *os.File { return l.f }

// Tell says which process the lease is for, for lists, and so that memory of
// that process and its descendants counts for the lease. Before, it is this
// process. It is an error if there is no such process, and after Close.
func (l *Lease) Tell(pid int) error {
	s, ok := readStat(pid)
	if !ok {
		return fmt.Errorf("lease %s: there is no process %d", l.rec.ID, pid)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return fmt.Errorf("lease %s: %w", l.rec.ID, os.ErrClosed)
	}
	ctx, cancel := within(patience)
	defer cancel()
	g, err := l.r.lock(ctx, l.key)
	if err != nil {
		return err
	}
	defer g.unlock()
	rec := l.rec
	rec.PID, rec.Start, rec.Namespace = pid, s.start, l.r.namespace
	if _, err := l.f.WriteAt(rec.encode(), 0); err != nil {
		return l.r.why(l.path, err)
	}
	at("tell: written")
	l.rec.PID, l.rec.Start, l.rec.Namespace = rec.PID, rec.Start, rec.Namespace
	return nil
}

// Close lets go: the lease ends, unless another process has its file. Closing
// again does nothing.
func (l *Lease) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	// Under the lock, so that whoever looks next knows that memory is about to
	// become free. Who does not get it leaves the tidying up to the others.
	ctx, cancel := within(patienceOfClose)
	defer cancel()
	g, err := l.r.lock(ctx, l.key)
	closeErr := l.f.Close()
	at("close: closed")
	if err != nil {
		return closeErr
	}
	defer g.unlock()
	if f, err := os.Open(l.path); err == nil {
		alive, err := locked(f)
		f.Close()
		if err == nil && !alive && os.Remove(l.path) == nil {
			at("close: removed")
			g.ended = time.Now()
			g.write()
		}
	}
	return closeErr
}

// Left is what was left of the GPU, in bytes, when the lease was given: for a
// desktop that it draws, with what that used, and for the host where its memory
// is the host's. Mostly both are 0.
func (l *Lease) Left() (display, host uint64) { return l.display, l.host }
