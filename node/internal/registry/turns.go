// The ledgers in which leases of one user count that share a GPU by turns.

package registry

import (
	"os"
	"strconv"
)

// TurnsPath returns the name of the ledger by turns of a user.
func (r GPU) TurnsPath(uid int) string { return r.Path(strconv.Itoa(uid), TurnsKind) }

// Part returns the identity of a lease in the ledger that it shares by turns; 0 if it shares none.
func (r Record) Part() uint64 {
	if r.Turns == 0 {
		return 0
	}
	n, _ := strconv.ParseUint(r.ID, 16, 64) // which Decode has checked
	return n
}

// turnsOf returns the ledger that a lease shares by turns, and its part of it; "" and 0 if the one
// that is there now is not the lease's: somebody has removed that.
func (r GPU) turnsOf(c Claim) (path string, part uint64) {
	path = r.TurnsPath(c.UID)
	if inode, owner := fileAt(path); owner != c.UID || inode != c.Turns {
		return "", 0
	}
	return path, c.Part()
}

// fileAt returns the inode of a file and its owner; 0 and -1 if there is none.
func fileAt(path string) (inode uint64, owner int) {
	info, err := os.Lstat(path)
	if err != nil {
		return 0, -1
	}
	return IDOf(info).Inode, ownerOf(info)
}
