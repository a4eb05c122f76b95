// Leases and tickets that live, as read from their files.

package registry

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"gpumem/internal/crashpoint"
	"gpumem/internal/ofd"
	"gpumem/internal/proc"
	"gpumem/internal/regular"
)

// Silence is how long a waiter may give no sign of life before it is passed over. Tests
// shorten it. One that is seen to run, on a machine with too much to do, has frozen times as
// long.
var Silence = 5 * time.Second

const frozen = 12

// Claim is a lease or a ticket that lives, as read from its files.
type Claim struct {
	Record
	Path     string    // of the record
	UID      int       // the owner of its files; -1: unknown
	Inode    uint64    // of the file with the lock
	Beat     time.Time // of a ticket: the last sign of life
	Attended bool      // of a lease: a process beside the program holds it too, see Attend
}

// Entry returns a claim for lists. A path in the record of another user, who is not root,
// is only text: it has no ledger.
func (r *Registry) Entry(c Claim) Entry {
	e := c.Record.Entry(c.UID)
	if c.UID != 0 && c.UID != os.Geteuid() {
		e.Ledger = ""
	}
	if c.TurnsInode != 0 { // whose path needs nobody's word
		if e.Ledger = r.TurnsOf(c); e.Ledger != "" {
			e.Part = c.Part()
		}
	}
	e.Stopped = c.Kind == TicketKind && !r.IsRunning(c)
	e.Elsewhere = c.PID > 0 && c.Namespace != r.namespace
	e.inode = c.Inode
	e.Ended = r.IsEnded(c)
	return e
}

// IsRunning reports whether a waiter runs: whether it has given a sign of life within
// the last five seconds, or within a minute where its process is seen and is not
// stopped. After the clock was set, waiters seem stopped until their next sign.
func (r *Registry) IsRunning(c Claim) bool {
	silent := time.Since(c.Beat).Abs()
	if silent < Silence {
		return true
	}
	s, ok := proc.ReadStat(c.PID)
	isSeen := ok && c.Namespace == r.namespace && s.Start == c.Start
	return isSeen && !s.Stopped() && silent < frozen*Silence
}

// IsEnded reports whether the process of a lease is known to have ended.
func (r *Registry) IsEnded(c Claim) bool {
	if c.PID <= 0 || c.Namespace != r.namespace {
		return false
	}
	s, ok := proc.ReadStat(c.PID)
	return !ok || s.Start != c.Start || s.Ended()
}

// errDead: the lock of a file is gone, so what it stood for has ended.
var errDead = errors.New("it has ended")

// openLocked opens a file that is locked, and returns the lock. The error is errDead if the
// file is not locked, whatever it is, and fs.ErrNotExist if it is gone.
func openLocked(path string) (f *os.File, by ofd.Lock, info fs.FileInfo, err error) {
	f, err = openFile(path, os.O_RDONLY, regular.Anyone)
	if errors.Is(err, regular.ErrNotRegular) {
		return nil, by, nil, errDead
	}
	if err != nil {
		return nil, by, nil, err
	}
	if info, err = f.Stat(); err == nil {
		var locked bool
		if by, locked, err = wholeOf(f).Other(ofd.Read); err == nil && !locked {
			// Locks for reading do not count: everybody may set those.
			err = errDead
		}
	}
	if err != nil {
		f.Close()
		return nil, by, nil, err
	}
	return f, by, info, nil
}

// blocks is the error of a file that blocks its GPU.
func blocks(path string, err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	return fmt.Errorf("registry: %s: %w; nothing is granted on its GPU while it is there", path, err)
}

// readLock reads the lock of a lease: whether it lives, and how large it is.
func (r GPU) readLock(id string) (c Claim, bytes uint64, err error) {
	path := r.Path(id, LockKind)
	f, by, info, err := openLocked(path)
	if errors.Is(err, fs.ErrPermission) {
		// Its owner lets no other user open it; the kernel's table has it all the same.
		if info, err = os.Lstat(path); err == nil {
			l, ok, tableErr := lockOfInode(IDOf(info).Inode)
			if by.Len, err = l.length, tableErr; err == nil && !ok {
				err = errDead
			}
		}
	}
	if errors.Is(err, errDead) || errors.Is(err, fs.ErrNotExist) {
		return c, 0, err
	}
	if err != nil {
		return c, 0, blocks(path, err)
	}
	c = Claim{Path: r.Path(id, LeaseKind), UID: ownerOf(info), Inode: IDOf(info).Inode}
	if f != nil {
		c.Attended = isAttended(f)
		f.Close()
	}
	return c, by.Len, nil
}

// readLease reads a lease. Its lock reports whether it lives and how large it is. A
// record that is damaged or missing is a note; then only that is known. The error
// is errDead, fs.ErrNotExist, or one that names the file.
func (r GPU) readLease(id string) (c Claim, note, err error) {
	c, bytes, err := r.readLock(id)
	if err != nil {
		return c, nil, err
	}
	// A record may just be written over.
	for range 3 {
		if c.Record, err = r.readRecord(c.Path, id, c.UID); !errors.Is(err, ErrDamaged) {
			break
		}
		crashpoint.At("readLease: damaged")
	}
	switch {
	case errors.Is(err, ErrVersion):
		return c, nil, blocks(c.Path, err)
	case err != nil && bytes == 0: // not fs.ErrNotExist: the lease is there
		return c, nil, blocks(c.Path, fmt.Errorf("%w: neither it nor the lock says how large the lease is (%v)", ErrDamaged, err))
	case err != nil:
		note = fmt.Errorf("registry: %s: %w; the lease counts, and its size is read from its lock", c.Path, err)
		c.Record = Record{Kind: LeaseKind, ID: id}
	}
	if bytes > 0 {
		c.Bytes = bytes
	}
	return c, note, nil
}

// readRecord reads the record of a lease, which its user has made.
func (r GPU) readRecord(path, id string, owner int) (Record, error) {
	f, err := openFile(path, os.O_RDONLY, owner)
	if errors.Is(err, regular.ErrNotRegular) || errors.Is(err, regular.ErrOwner) {
		return Record{}, fmt.Errorf("%w: %w", ErrDamaged, errors.Unwrap(err))
	}
	if err != nil {
		return Record{}, err
	}
	defer f.Close()
	return r.readFrom(f, id, LeaseKind)
}

// readFrom reads the record in a file, which must have the name of this one.
func (r GPU) readFrom(f *os.File, id, kind string) (Record, error) {
	b := make([]byte, fileSize+1)
	n, err := f.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return Record{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	rec, err := Decode(b[:n])
	if err == nil && (rec.ID != id || rec.Kind != kind || KeyOf(rec.Device) != r.Key) {
		err = fmt.Errorf("%w: it is a copy of another, or has another's name", ErrDamaged)
	}
	return rec, err
}

// readSingle reports, as an error, a record without a lock file whose lease lives: it is
// of version 1, which locked the record. nil is one of a lease that has ended.
func (r GPU) readSingle(id string) error {
	path := r.Path(id, LeaseKind)
	f, _, _, err := openLocked(path)
	if err != nil { // a dead one, or one that cannot be opened, has no memory
		return nil
	}
	defer f.Close()
	b := make([]byte, fileSize+1)
	n, _ := f.ReadAt(b, 0)
	if _, err := Decode(b[:n]); err != nil {
		return blocks(path, err)
	}
	return blocks(path, fmt.Errorf("%w: it is locked itself", ErrDamaged))
}

// ReadTicket reads a ticket. What cannot be read of one that lives is unknown. [IsDead]
// reports whether the error is that its lock is gone; else it is fs.ErrNotExist.
func (r GPU) ReadTicket(id string) (Claim, error) {
	path := r.Path(id, TicketKind)
	f, _, info, err := openLocked(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Claim{}, err
	}
	if err != nil {
		return Claim{}, errDead // no memory hangs on it
	}
	defer f.Close()
	rec, err := r.readFrom(f, id, TicketKind)
	if err != nil { // or of another version
		rec = Record{Kind: TicketKind, ID: id, Waiting: true}
	}
	return Claim{Record: rec, Path: path, UID: ownerOf(info), Inode: IDOf(info).Inode, Beat: info.ModTime()}, nil
}

// IsDead reports whether an error is that what a file stood for has ended.
func IsDead(err error) bool { return errors.Is(err, errDead) }

// OpenTicket opens the file of a ticket.
func OpenTicket(path string) (*os.File, error) { return openFile(path, os.O_RDONLY, regular.Anyone) }

// ReadOpenTicket reads a ticket again in its open file. Where its record cannot be read it is
// that of a waiter that waits for no other GPU.
func ReadOpenTicket(f *os.File, last Claim) (Claim, error) {
	info, err := f.Stat()
	if err != nil {
		return last, err
	}
	last.Beat = info.ModTime()
	file := make([]byte, fileSize)
	n, _ := f.ReadAt(file, 0)
	rec, err := Decode(file[:n])
	if err != nil {
		last.WaitsFor = nil
		return last, nil
	}
	last.WaitsFor = rec.WaitsFor
	return last, nil
}
