// The ledgers in which leases of one user count that share a GPU by turns.
//
// The file has the name of its user. A lease is in it by the inode in its record: so one that is put
// in its place, by a user who has removed it or by gpumem where nobody is in it any more, is not
// taken for the ledger of those that count in the old one. While a process has that open no other file
// has its inode. Once none has, those that the lease still starts count in the new one.

package registry

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"gpumem/internal/crashpoint"
)

// TurnsPath returns the name of the ledger by turns of a user.
func (r GPU) TurnsPath(uid int) string { return r.Path(strconv.Itoa(uid), TurnsKind) }

// Part returns the identity of a lease in the ledger that it shares by turns; 0 if it shares none.
func (r Record) Part() uint64 {
	if r.TurnsInode == 0 {
		return 0
	}
	n, _ := strconv.ParseUint(r.ID, 16, 64) // which Decode has checked
	return n
}

// TurnsOf returns the ledger that a lease shares by turns; "" if it shares none, or if the one that is
// there now is not the lease's.
func (r *Registry) TurnsOf(c Claim) (path string) {
	if c.TurnsInode == 0 {
		return ""
	}
	path = r.GPU(c.Device).TurnsPath(c.UID)
	if inode, owner := fileAt(path); owner != c.UID || inode != c.TurnsInode {
		return ""
	}
	return path
}

// TurnsFile returns the inode of this user's ledger by turns; 0 if there is none. One of another user
// is an error.
func (r GPU) TurnsFile() (inode uint64, err error) {
	path := r.TurnsPath(os.Geteuid())
	inode, owner := fileAt(path)
	if inode != 0 && owner != os.Geteuid() {
		const text = "registry: %s: it belongs to user %d, and has the name of the ledger by turns of this one; " +
			"have that user or root remove it, or set %s to another folder"
		return 0, fmt.Errorf(text, path, owner, EnvDir)
	}
	return inode, nil
}

// ReplaceTurns has make make a ledger by turns, puts it in the place of this user's, and returns its
// inode. Caller holds the lock of the GPU.
func (r GPU) ReplaceTurns(make func(path string) error) (inode uint64, err error) {
	path, temp := r.TurnsPath(os.Geteuid()), r.Path(NewID(), newKind)
	if err := make(temp); err != nil {
		return 0, err
	}
	crashpoint.At("turns: made")
	inode, _ = fileAt(temp)
	if err := os.Rename(temp, path); err != nil {
		return 0, errors.Join(r.explain(path, err), os.Remove(temp))
	}
	crashpoint.At("turns: named")
	return inode, nil
}

// removeTurns removes a ledger by turns that none of the leases is in, and no process: a program may
// outlive its lease, and one whose lease has lost its record counts in full.
func (r GPU) removeTurns(uid string, leases []Claim) {
	path := r.Path(uid, TurnsKind)
	for _, l := range leases {
		if r.TurnsOf(l) == path {
			return
		}
	}
	f, _, _, err := openLocked(path)
	if err == nil {
		f.Close()
	}
	if IsDead(err) {
		_ = os.Remove(path)
		crashpoint.At("removed: " + TurnsKind)
	}
}

// fileAt returns the inode of a file and its owner; 0 and -1 if there is none.
func fileAt(path string) (inode uint64, owner int) {
	info, err := os.Lstat(path)
	if err != nil {
		return 0, -1
	}
	return IDOf(info).Inode, ownerOf(info)
}
