// The files of leases and tickets, made, written over and removed. Crash points are between
// the steps that other processes see.

package registry

import (
	"errors"
	"io/fs"
	"os"
	"time"

	"gpumem/internal/crashpoint"
	"gpumem/internal/ofd"
	"gpumem/internal/proc"
)

// NewRecord returns the record of a new file of this process.
func (r *Registry) NewRecord(kind, id, device string, bytes uint64, command []string) Record {
	self, _ := proc.ReadStat(os.Getpid())
	return Record{Kind: kind, ID: id, Device: device, Bytes: bytes, PID: os.Getpid(), Start: self.Start, Namespace: r.namespace,
		Since: time.Now().UnixNano(), Command: command}
}

// MakeLock makes the lock file of a lease, locked.
func (r GPU) MakeLock(rec Record) (*os.File, error) {
	path := r.Path(rec.ID, LockKind)
	base := r.base()
	f, err := r.publish(path, 0o644, func(f *os.File) error {
		return ofd.Lock{FD: f.Fd(), Start: base, Len: rec.Bytes}.Try(ofd.Write)
	})
	if err != nil {
		return nil, r.explain(path, err)
	}
	return f, nil
}

// HasLock reports whether a file has the name of a lease's lock file.
func (r GPU) HasLock(f *os.File, id string) bool { return isFileAt(f, r.Path(id, LockKind)) }

// WriteLease writes a lease's record, over the one that is there.
func (r GPU) WriteLease(rec Record) error {
	path := r.Path(rec.ID, LeaseKind)
	f, err := openFile(path, os.O_WRONLY, os.Geteuid())
	switch {
	case err == nil:
		_, err = f.WriteAt(rec.Encode(), 0)
	case errors.Is(err, fs.ErrNotExist):
		f, err = r.publish(path, 0o644, func(f *os.File) error {
			_, err := f.WriteAt(rec.Encode(), 0)
			return err
		})
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return r.explain(path, err)
	}
	return nil
}

// MakeLease makes the files of a new lease and returns its lock file. Caller holds the
// lock of the GPU.
func (r GPU) MakeLease(rec Record) (*os.File, error) {
	f, err := r.MakeLock(rec)
	if err != nil {
		return nil, err
	}
	if err := r.WriteLease(rec); err != nil {
		_ = r.RemoveLease(rec.ID)
		f.Close()
		return nil, err
	}
	return f, nil
}

// RemoveLease removes the files of a lease, and returns the first error.
func (r GPU) RemoveLease(id string) error {
	var first error
	for _, kind := range []string{LedgerKind, LeaseKind, LockKind} {
		if err := os.Remove(r.Path(id, kind)); err != nil && !errors.Is(err, fs.ErrNotExist) && first == nil {
			first = err
		}
		crashpoint.At("removed: " + kind)
	}
	return first
}

// RemoveEnded removes the files of a lease if it has ended, and notes that on the lock of
// its GPU, which the caller holds.
func (r GPU) RemoveEnded(g *Guard, id string) {
	if _, _, err := r.readLease(id); IsDead(err) && r.RemoveLease(id) == nil {
		g.noteEnd()
	}
}

// removeLedger removes a ledger whose lease has neither of its files: they were removed
// first, by a clean-up or by another process that was killed meanwhile. If a program of
// the lease lives, its lock on the ledger keeps it.
func (r GPU) removeLedger(id string) {
	for _, kind := range []string{LockKind, LeaseKind} {
		if _, err := os.Lstat(r.Path(id, kind)); err == nil {
			return
		}
	}
	path := r.Path(id, LedgerKind)
	f, _, _, err := openLocked(path)
	if err == nil {
		f.Close()
	}
	if IsDead(err) {
		_ = os.Remove(path)
	}
}

// MakeTicket makes a ticket, locked. The error is fs.ErrExist if its number is taken.
func (r GPU) MakeTicket(rec Record) (*os.File, error) {
	path := r.Path(rec.ID, TicketKind)
	f, err := r.publish(path, 0o644, func(f *os.File) error {
		if _, err := f.WriteAt(rec.Encode(), 0); err != nil {
			return err
		}
		return wholeOf(f).Try(ofd.Write)
	})
	if err != nil && !errors.Is(err, fs.ErrExist) {
		err = r.explain(path, err)
	}
	return f, err
}

// WriteTicket writes a ticket's record over the one that is there.
func (r GPU) WriteTicket(f *os.File, rec Record) error {
	_, err := f.WriteAt(rec.Encode(), 0)
	crashpoint.At("queue: noted")
	if err != nil {
		return r.explain(r.Path(rec.ID, TicketKind), err)
	}
	return nil
}

// HasTicket reports whether a file has the name of a ticket.
func (r GPU) HasTicket(f *os.File, id string) bool { return isFileAt(f, r.Path(id, TicketKind)) }

// RemoveTicket removes the file of a ticket.
func (r GPU) RemoveTicket(id string) {
	_ = os.Remove(r.Path(id, TicketKind))
	crashpoint.At("ticket removed")
}

// CloseTicket ends a ticket, which wakes the waiter behind it.
func CloseTicket(f *os.File) {
	_ = wholeOf(f).Unlock()
	f.Close()
}

// WaitTicket waits in the kernel until the owner of a ticket leaves the queue.
func WaitTicket(f *os.File) {
	// A lock for reading: the ticket is another user's. It is dropped with the file.
	_ = wholeOf(f).Wait(ofd.Read)
}
