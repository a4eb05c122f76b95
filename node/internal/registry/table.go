// The kernel's table of locks, and the processes that hold one.

package registry

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// tableFile lists every lock that is held on the machine; see proc_locks(5). Those
// of open file descriptions are shown in every pid namespace. Tests have another.
var tableFile = "/proc/locks"

// tableLock is one lock for writing of an open file description.
type tableLock struct {
	inode         uint64
	start, length uint64 // a length of 0 reaches to the end
}

// parseLock reads a line of /proc/locks, or of an fdinfo file after "lock:":
//
//	1: OFDLCK ADVISORY  WRITE -1 00:1b:57 4611686018427387904 4611686024869838847
//
// The last field is EOF where the lock has no end. ok is false for all other kinds
// of locks, and for those that are waited for ("1: -> OFDLCK ...").
func parseLock(line string) (l tableLock, ok bool) {
	f := strings.Fields(line)
	if len(f) != 8 || f[1] != "OFDLCK" || f[3] != "WRITE" {
		return l, false
	}
	at := strings.LastIndexByte(f[5], ':')
	inode, err1 := strconv.ParseUint(f[5][at+1:], 10, 64)
	start, err2 := strconv.ParseUint(f[6], 10, 63)
	if err1 != nil || err2 != nil {
		return l, false
	}
	l = tableLock{inode: inode, start: start}
	if f[7] == "EOF" {
		return l, true
	}
	last, err := strconv.ParseUint(f[7], 10, 63)
	if err != nil || last < start {
		return l, false
	}
	l.length = last - start + 1
	return l, true
}

// parseMark reads the mark in a line of /proc/locks, see parseLock.
func parseMark(line string) (inode uint64, ok bool) {
	before, after, _ := strings.Cut(line, " READ ")
	l, ok := parseLock(before + " WRITE " + after)
	return l.inode, ok && l.start == 0 && l.length == 1
}

// locksAt returns the locks for writing that begin at an offset. The kernel writes
// the table in pieces, so a lock that goes meanwhile can hide the next one: the
// table is read until two answers agree. An error means that there is no table.
func locksAt(start uint64) ([]tableLock, error) {
	want := fmt.Sprintf(" %d ", start)
	var last []tableLock
	for try := range 4 {
		data, err := os.ReadFile(tableFile)
		if err != nil {
			return nil, err
		}
		var all []tableLock
		for line := range bytes.Lines(data) {
			if !bytes.Contains(line, []byte(want)) {
				continue
			}
			if l, ok := parseLock(string(line)); ok && l.start == start {
				all = append(all, l)
			}
		}
		if try > 0 && len(all) <= len(last) {
			return last, nil
		}
		if last = all; len(data) < 4096 { // one piece
			return all, nil
		}
	}
	return last, nil
}

// lockOfInode returns the lock for writing on a file that cannot be opened.
func lockOfInode(inode uint64) (l tableLock, ok bool, err error) {
	data, err := os.ReadFile(tableFile)
	if err != nil {
		return tableLock{}, false, err
	}
	for line := range strings.Lines(string(data)) {
		if l, ok := parseLock(line); ok && l.inode == inode {
			return l, true, nil
		}
	}
	return tableLock{}, false, nil
}

// holdersOf returns, by inode, the processes that have the description with a lock
// for writing on that file. Only processes that this user may look into are found.
func holdersOf(inodes map[uint64]bool) (map[uint64][]int, error) {
	by := map[uint64][]int{}
	d, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		for inode := range locksIn(name) {
			if inodes[inode] {
				by[inode] = append(by[inode], pid)
			}
		}
	}
	return by, nil
}

// locksIn returns the inodes on which descriptions of a process hold locks for writing,
// without those that it attends, see Attend. A file made without a name is still shown as
// "FOLDER/#INODE (deleted)".
func locksIn(pid string) map[uint64]bool {
	dir := filepath.Join("/proc", pid, "fd")
	d, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	fds, err := d.Readdirnames(-1)
	if err != nil {
		return nil
	}
	var all map[uint64]bool
	var attends []uint64
	for _, fd := range fds {
		target, err := os.Readlink(filepath.Join(dir, fd))
		if err != nil || !strings.HasSuffix(target, " (deleted)") && !strings.HasSuffix(target, "."+LockKind) && !strings.HasSuffix(target, ".lock") {
			continue
		}
		data, err := os.ReadFile(filepath.Join("/proc", pid, "fdinfo", fd))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			if rest, ok := strings.CutPrefix(line, "lock:"); ok {
				if l, ok := parseLock(rest); ok {
					if all == nil {
						all = map[uint64]bool{}
					}
					all[l.inode] = true
				} else if inode, ok := parseMark(rest); ok {
					attends = append(attends, inode)
				}
			}
		}
	}
	for _, inode := range attends {
		delete(all, inode)
	}
	return all
}
