// Package lease has a granted lease, until the last description of its lock is closed.
package lease

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"gpumem/internal/crashpoint"
	"gpumem/internal/proc"
	"gpumem/node/internal/registry"
)

// patienceOfClose is how long Close waits for the GPU's lock to tidy up; without
// it, the next one does.
const patienceOfClose = 100 * time.Millisecond

// KeepEvery is how often Keep looks whether the files are there. Tests shorten it.
var KeepEvery = time.Second

// Taken are the leases that this process took and has not closed, by id. It keeps them
// from the garbage collector, which would close the file of a lease that the program has
// dropped, and so end the lease.
var Taken sync.Map

// Lease is a lease that this process has taken. It may be used by several goroutines.
type Lease struct {
	gpu registry.GPU
	f   *os.File // has the lock; nil for a part of an enclosing lease

	display, host uint64 // see Left
	within        uint64 // see Within
	part          uint64 // see Part

	// mu guards what follows, but of rec only the process, Lost and what SetUse sets. It comes
	// after the GPU's lock, which is never waited for with mu held.
	mu     sync.Mutex
	rec    registry.Record
	again  *os.File // has the lock of a lock file that replaces a removed one; nil: none
	closed bool
}

// Make makes a lease with the record. display and host are those of [Lease.Left]. Caller
// holds the GPU's lock, and calls Undo, or adds the lease to Taken.
func Make(gpu registry.GPU, rec registry.Record, display, host uint64) (*Lease, error) {
	f, err := gpu.MakeLease(rec)
	if err != nil {
		return nil, err
	}
	return &Lease{gpu: gpu, f: f, rec: rec, part: rec.Part(), display: display, host: host}, nil
}

// Undo ends a lease that was just made.
func (l *Lease) Undo() {
	_ = l.gpu.RemoveLease(l.rec.ID)
	l.f.Close()
}

// PartOf returns a part of an enclosing lease. Nothing is taken.
func PartOf(gpu registry.GPU, e registry.Entry, bytes uint64) *Lease {
	rec := registry.Record{Kind: registry.LeaseKind, ID: e.ID, Device: e.Device, Bytes: bytes, Ledger: e.Ledger}
	return &Lease{gpu: gpu, within: e.Bytes, part: e.Part, rec: rec}
}

// Attend returns the lease with the record at path, see [Lease.Path], for the process
// that stays beside the program. It holds nothing: lock is the lease's lock file, open
// for writing by another description than the one with the lock, see
// [registry.Attend].
// record is the open record, which may have been removed. Keep makes files again that are
// removed, and Close closes lock and removes what is left of the lease if it has ended.
func Attend(path string, record, lock *os.File) (*Lease, error) {
	rec, err := registry.ReadRecord(record)
	if err != nil {
		return nil, fmt.Errorf("lease %s: %w", path, err)
	}
	return &Lease{gpu: registry.At(path).GPU(rec.Device), f: lock, rec: rec}, nil
}

// Bytes returns the size of the lease.
func (l *Lease) Bytes() uint64 { return l.rec.Bytes }

// Within returns the size in bytes of the enclosing lease that this is a part of, and
// 0 for a lease that is no part.
func (l *Lease) Within() uint64 { return l.within }

// Device returns the GPU's key, as in the request.
func (l *Lease) Device() string { return l.rec.Device }

// ID returns the lease's name in lists; that of a part is the enclosing lease's.
func (l *Lease) ID() string { return l.rec.ID }

// Path returns the name of the lease's record, which others can read, see
// share.ReadLease. It is the value for share.EnvLease.
func (l *Lease) Path() string { return l.gpu.Path(l.rec.ID, registry.LeaseKind) }

// Ledger returns the name for the file in which the lease's programs count what they
// hold, see package ledger. It is not made here, and is removed with the lease, unless
// [Lease.SetUse] has set it. That of a lease by turns is there already, and others'. A part of an
// enclosing lease has that lease's.
func (l *Lease) Ledger() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rec.Ledger != "" {
		return l.rec.Ledger
	}
	return l.gpu.Path(l.rec.ID, registry.LedgerKind)
}

// Part returns the identity of the lease in its ledger, where other leases that share by turns count,
// too; 0 where the ledger is its own. That of a part of an enclosing lease is that lease's.
func (l *Lease) Part() uint64 { return l.part }

// File returns the open file whose description holds the lease. A program that
// inherits it keeps the lease alive until it ends, whatever becomes of this
// process; what it writes there is never read. Only Close closes it. It is nil for
// a part of an enclosing lease, see share.Request.Nested.
func (l *Lease) File() *os.File { return l.f }

// Tell sets the process that the lease is for: lists show it, and memory of it and
// its descendants counts for the lease. Until then it is this process. It is an error
// if there is no such process, and after Close.
func (l *Lease) Tell(pid int) error {
	s, ok := proc.ReadStat(pid)
	if !ok {
		return fmt.Errorf("lease %s: there is no process %d", l.rec.ID, pid)
	}
	return l.rewrite(func(rec registry.Record) (registry.Record, error) {
		rec.PID, rec.Start, rec.Namespace = pid, s.Start, l.gpu.PIDNamespace()
		return rec, nil
	})
}

// SetOutside sets what each process of the lease is taken to hold outside of its pool, for
// those who look. It is an error after Close. It changes nothing in a part of an enclosing
// lease.
func (l *Lease) SetOutside(bytes uint64) error {
	return l.rewrite(func(rec registry.Record) (registry.Record, error) {
		rec.Outside = bytes
		return rec, nil
	})
}

// SetUse sets the containers that the lease is for, and the file in which their programs
// count what they hold, in the place of those set before. Memory of processes in these
// containers counts for the lease. The ledger is an absolute path in the namespace of the
// caller, "" for the lease's own, see [Lease.Ledger]. The record keeps as many containers
// as it has room for, see [registry.Entry].MoreContainers; the others' memory counts as foreign.
// It is an error if an ID has not 64 hex digits in lower case, and after Close. It
// changes nothing in a part of an enclosing lease.
func (l *Lease) SetUse(containers []registry.Container, ledger string) error {
	return l.rewrite(func(rec registry.Record) (registry.Record, error) { return rec.Use(containers, ledger) })
}

// rewrite changes the record, of which change leaves alone all that mu does not guard.
func (l *Lease) rewrite(change func(registry.Record) (registry.Record, error)) error {
	ctx, cancel := context.WithTimeout(context.Background(), registry.Patience)
	defer cancel()
	err := l.update(ctx, func() error {
		rec, err := change(l.rec)
		if err != nil {
			return err
		}
		if err := l.gpu.WriteLease(rec); err != nil {
			return err
		}
		crashpoint.At("rewrite: written")
		l.rec.PID, l.rec.Start, l.rec.Namespace = rec.PID, rec.Start, rec.Namespace
		l.rec.Containers, l.rec.More, l.rec.Ledger, l.rec.Outside = rec.Containers, rec.More, rec.Ledger, rec.Outside
		return nil
	})
	if err == os.ErrClosed {
		return fmt.Errorf("lease %s: %w", l.rec.ID, err)
	}
	return err
}

// update calls f with the GPU's lock and mu held; a part of an enclosing lease has
// nothing to update. The error is os.ErrClosed after Close.
func (l *Lease) update(ctx context.Context, f func() error) error {
	if l.f != nil {
		g, err := l.gpu.Lock(ctx, nil)
		if err != nil {
			return err
		}
		defer g.Unlock()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return os.ErrClosed
	case l.f == nil:
		return nil
	}
	return f()
}

// Keep watches the files of the lease until ctx is done or the lease is closed, and
// makes them again within a second if somebody removes them, as a clean-up of
// /dev/shm does at a user's logout. Without it the memory stays taken all the same,
// since the kernel knows the lock, but lists cannot name the program. It is for the
// process that stays beside the program. If a file cannot be made, Keep tries again.
func (l *Lease) Keep(ctx context.Context) {
	t := time.NewTicker(KeepEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if err := l.Restore(ctx); errors.Is(err, os.ErrClosed) {
			return
		}
	}
}

// Restore makes the files that are missing.
func (l *Lease) Restore(ctx context.Context) error {
	if done, err := l.complete(); done || err != nil {
		return err
	}
	return l.update(ctx, func() error {
		if !l.hasLockFile() {
			f, err := l.gpu.MakeLock(l.rec)
			if err != nil {
				return err
			}
			if l.again != nil {
				l.again.Close()
			}
			info, err := l.f.Stat()
			if err != nil {
				f.Close()
				return err
			}
			l.again, l.rec.Lost = f, registry.IDOf(info).Inode
			_ = registry.Attend(f) // without it a request right after the end may be refused
		}
		crashpoint.At("restore: locked")
		return l.gpu.WriteLease(l.rec)
	})
}

// complete reports whether the lease has its files; a part of an enclosing lease
// needs none. The error is os.ErrClosed.
func (l *Lease) complete() (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false, os.ErrClosed
	}
	if l.f == nil {
		return true, nil
	}
	_, err := os.Lstat(l.Path())
	return err == nil && l.hasLockFile(), nil
}

// hasLockFile reports whether the lock file's name is that of a file locked by this
// lease. Caller holds mu.
func (l *Lease) hasLockFile() bool {
	f := l.f
	if l.again != nil {
		f = l.again
	}
	return l.gpu.HasLock(f, l.rec.ID)
}

// Close ends the lease, unless another process has its file. It waits at most a
// moment for others. Closing again does nothing.
func (l *Lease) Close() error {
	l.mu.Lock()
	first := !l.closed
	l.closed = true // from here on f and again are this call's alone
	l.mu.Unlock()
	if !first || l.f == nil {
		return nil
	}
	defer Taken.Delete(l.rec.ID)
	// Under the lock, so that the next request knows that memory is about to become
	// free. Without it the others remove the files.
	ctx, cancel := context.WithTimeout(context.Background(), patienceOfClose)
	defer cancel()
	g, err := l.gpu.Lock(ctx, nil)
	// The lock is not released but by closing: it is the program's, too.
	closeErr := l.f.Close()
	if l.again != nil {
		closeErr = errors.Join(closeErr, l.again.Close())
	}
	crashpoint.At("close: closed")
	if err != nil {
		return closeErr
	}
	defer g.Unlock()
	l.gpu.RemoveEnded(g, l.rec.ID)
	return closeErr
}

// Left returns the bytes of the GPU that were left when the lease was granted: for the
// desktop on its display, with what that used, and for the host if the GPU uses the
// host's memory. Mostly both are 0.
func (l *Lease) Left() (display, host uint64) { return l.display, l.host }
