// The files of a lease: the only description of their format, version 2.
//
// A lease with the id ID on the GPU with the key KEY (see folder.go) has
//
//	KEY.ID.held     the lock; empty, and never read
//	KEY.ID.lease    the record, which others read
//	KEY.ID.ledger   what its programs hold, if they count it: see package ledger
//
// Leases of one user that share the GPU by turns have one ledger, KEY.UID.turns: the record
// of each has its path as "ledger" and its inode as "turns", and its programs count there as
// the part whose identity is the lease's ID as a number.
//
// The description of KEY.ID.held that has the lock goes to the programs of the
// lease. They may write to it, close it or empty it: nothing depends on what the
// file has in it. Its lock for writing begins at an offset that the registry and
// the GPU determine, at least 1<<62, and is as long as the lease is large. So the
// kernel knows which leases live, on which GPU and how large they are, also when
// their files have been removed or damaged.
//
// The record has 4096 bytes:
//
//	gpumem-share 2 1c291ca3
//	{"kind":"lease","id":"9f3b62d1c0a4e857","device":"GPU-...","bytes":6442450944,...}
//
// and then line feeds. The first line is the version of the format and the CRC-32C
// of all that follows it. A record is one page long, always, so that it is written
// over in one piece, and a full disk has room for it once it is there. Its name is
// what GPUMEM_LEASE gives to programs.
//
// The record of a lease for containers also has "containers", a list of those with id,
// namespace, pod and name, and "ledger", the path of their ledger where that is not
// KEY.ID.ledger. Where a page has no room for all, names are left out, of the last ones
// first, then the last containers, which "more_containers" counts. Versions of gpumem
// that do not know these names pass over them.
//
// A ticket of the queue is one file, KEY.NUMBER.ticket: a record that is locked
// itself. NUMBER has 16 hex digits, so the names alone are in the queue's order.
//
// Version 1 had the lock on KEY.ID.lease. Such a file that is locked is an error
// that says so; version 1 in turn refuses a record of version 2 by its first line.

package registry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	fileSize      = 4096 // bytes
	magic         = "gpumem-share "
	formatVersion = 2
	headerSize    = len(magic) + len("1 ") + 8 + 1

	// MaxDevice is the most bytes of a GPU's key. JSON may write six for one, and a record
	// must fit.
	MaxDevice = 512
	maxLedger = 1024 // bytes of a path; the record must have room for it
	// mostContainers is more than a record can have.
	mostContainers = fileSize / idDigits
)

// The kinds of files, which are also how their names end.
const (
	LeaseKind  = "lease"
	LedgerKind = "ledger"
	TurnsKind  = "turns" // the ledger of a user's leases that share by turns
	TicketKind = "ticket"
	LockKind   = "held"
	newKind    = "new" // being made, where files cannot be made without a name
)

// Record is the content of a file.
type Record struct {
	Kind      string   `json:"kind"`
	ID        string   `json:"id"` // 16 hex digits, as in the file's name
	Device    string   `json:"device"`
	Bytes     uint64   `json:"bytes"`     // see Entry
	PID       int      `json:"pid"`       // of the program, or of the requesting process
	Start     uint64   `json:"start"`     // of that process, in clock ticks since the machine's
	Namespace uint64   `json:"namespace"` // inode of the pid namespace that PID is of
	Since     int64    `json:"since"`     // ns since 1970
	Command   []string `json:"command,omitempty"`
	Number    uint64   `json:"number,omitempty"`    // ticket: its place in the order, from 1
	Waiting   bool     `json:"waiting,omitempty"`   // ticket: it was next, and short of memory
	WaitsFor  []string `json:"waits_for,omitempty"` // ticket: KEY.NUMBER of the tickets that the request waits for on other GPUs; while one of them waits, requests that do not want that GPU may go before
	Lost      uint64   `json:"lost,omitempty"`      // lease: inode of a removed KEY.ID.held whose lock means this lease, too

	TurnsInode uint64 `json:"turns,omitempty"`   // lease: inode of Ledger, if that is the one of a user's leases by turns
	Outside    uint64 `json:"outside,omitempty"` // lease: bytes that each of its processes is taken to hold outside of the pool

	// Of a lease for containers, see Record.Use.
	Containers []Container `json:"containers,omitempty"`
	More       int         `json:"more_containers,omitempty"` // that had no room here
	Ledger     string      `json:"ledger,omitempty"`          // absolute path
}

// ReadRecord reads a lease's record from the beginning of a file.
func ReadRecord(f *os.File) (Record, error) {
	file, err := io.ReadAll(io.NewSectionReader(f, 0, fileSize+1))
	if err != nil {
		return Record{}, err
	}
	r, err := Decode(file)
	if err == nil && r.Kind != LeaseKind {
		err = fmt.Errorf("%w: it is a %s", ErrDamaged, r.Kind)
	}
	return r, err
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Encode returns the file. What has no room in it is left out, see drop.
func (r Record) Encode() []byte {
	body := r.trimmed()
	file := make([]byte, fileSize)
	n := copy(file[headerSize:], body)
	for i := headerSize + n; i < fileSize; i++ {
		file[i] = '\n'
	}
	copy(file, fmt.Sprintf("%s%d %08x\n", magic, formatVersion, crc32.Checksum(file[headerSize:], castagnoli)))
	return file
}

// trimmed returns the record as JSON, small enough for the file if that can be.
func (r Record) trimmed() []byte {
	r.Command = shorten(r.Command, 1024)
	for {
		body, _ := json.Marshal(r) // text and numbers never fail
		if excess := len(body) - (fileSize - headerSize); excess <= 0 || !r.drop(excess) {
			return body
		}
	}
}

// Use returns the record with these containers and this ledger in the place of its own. It
// has room for all of them or counts the rest, see drop.
func (r Record) Use(containers []Container, ledger string) (Record, error) {
	for _, c := range containers {
		if !isContainerID(c.ID) {
			return r, fmt.Errorf("lease %s: container %.80q (%s/%s): its id has not %d hex digits", r.ID, c.ID, c.Namespace, c.Pod, idDigits)
		}
	}
	if ledger != "" && (!filepath.IsAbs(ledger) || len(ledger) > maxLedger) {
		return r, fmt.Errorf("lease %s: ledger %.80q has %d bytes; want an absolute path of at most %d", r.ID, ledger, len(ledger), maxLedger)
	}
	least := r
	least.Command, least.Containers, least.More, least.Ledger = nil, nil, 1<<31, ledger
	r.Containers, r.More, r.Ledger = slices.Clone(containers), 0, ledger
	if len(least.trimmed()) > fileSize-headerSize {
		return r, fmt.Errorf("lease %s: its record has no room for the ledger's path %.80q; want a shorter one", r.ID, ledger)
	}
	return r, nil
}

// drop leaves out of a record that is some bytes too large what is missed least: the names
// of the last containers, then half of the command, then the last containers, which are
// counted. What it leaves may still be too large. It reports false when nothing is left to
// drop.
func (r *Record) drop(excess int) bool {
	if extra := len(r.Containers) - mostContainers; extra > 0 {
		r.Containers, r.More = r.Containers[:mostContainers], r.More+extra
		return true
	}
	named := slices.Clone(r.Containers)
	saved := 0
	for i, c := range slices.Backward(named) {
		if c != c.bare() && saved < excess {
			saved += c.length() - c.bare().length()
			named[i] = c.bare()
		}
	}
	switch n := len(r.Containers); {
	case saved > 0:
		r.Containers = named
	case len(r.Command) > 0: // bytes that JSON writes as six
		r.Command = r.Command[:len(r.Command)/2]
	case n > 0:
		cut := min(n, max(1, excess/(r.Containers[n-1].length()+1)))
		r.Containers, r.More = r.Containers[:n-cut], r.More+cut
	default:
		return false
	}
	return true
}

// shorten keeps at most the first bytes of a command.
func shorten(command []string, most int) []string {
	var out []string
	for _, arg := range command {
		if len(arg) > most {
			for most > 0 && !utf8.RuneStart(arg[most]) {
				most--
			}
			return append(out, arg[:most]+"...")
		}
		most -= len(arg)
		out = append(out, arg)
	}
	return out
}

// Decode reads a file. Its error is ErrVersion or ErrDamaged with what is wrong.
func Decode(file []byte) (Record, error) {
	damaged := func(format string, args ...any) (Record, error) {
		return Record{}, fmt.Errorf("%w: %s", ErrDamaged, fmt.Sprintf(format, args...))
	}
	head, _, ok := bytes.Cut(file[:min(len(file), 64)], []byte("\n"))
	rest, ours := strings.CutPrefix(string(head), magic)
	if !ok || !ours {
		return damaged("it does not begin as one of gpumem does")
	}
	text, sum, _ := strings.Cut(rest, " ")
	v, err := strconv.ParseUint(text, 10, 32)
	switch {
	case err != nil || v == 0:
		return damaged("its first line has no version")
	case v > formatVersion:
		return Record{}, fmt.Errorf("%w: its format is version %d, this program's is %d; upgrade this one", ErrVersion, v, formatVersion)
	case v < formatVersion:
		return Record{}, fmt.Errorf("%w: its format is version %d, this program's is %d; wait until the program with it has ended", ErrVersion, v, formatVersion)
	case len(file) != fileSize:
		return damaged("it has %d bytes and not %d", len(file), fileSize)
	}
	body := file[len(head)+1:]
	if want := fmt.Sprintf("%08x", crc32.Checksum(body, castagnoli)); sum != want {
		return damaged("its checksum is wrong")
	}
	var r Record
	if err := json.Unmarshal(body, &r); err != nil {
		return damaged("%v", err)
	}
	id, err := strconv.ParseUint(r.ID, 16, 64)
	switch {
	case err != nil || fmt.Sprintf("%016x", id) != r.ID:
		return damaged("its id is %.20q", r.ID)
	case r.Kind != LeaseKind && r.Kind != TicketKind:
		return damaged("it is a %.20q", r.Kind)
	case r.Device == "" || len(r.Device) > MaxDevice:
		return damaged("its device has %d bytes", len(r.Device))
	case r.PID <= 0:
		return damaged("its process is %d", r.PID)
	case (r.Kind == TicketKind) != (r.Number > 0):
		return damaged("a %s with the number %d", r.Kind, r.Number)
	case r.More < 0:
		return damaged("it leaves out %d containers", r.More)
	}
	for _, c := range r.Containers {
		if !isContainerID(c.ID) { // a shorter one could be part of another's
			return damaged("its container is %.80q", c.ID)
		}
	}
	return r, nil
}

// Entry returns the record for lists. The owner of its file is uid; -1: unknown.
func (r Record) Entry(uid int) Entry {
	e := Entry{ID: r.ID, Device: r.Device, Bytes: r.Bytes, PID: r.PID, UID: uid, Command: r.Command, Start: r.Start, Namespace: r.Namespace,
		Containers: r.Containers, MoreContainers: r.More, Ledger: r.Ledger, Outside: r.Outside}
	if r.Since != 0 {
		e.Since = time.Unix(0, r.Since)
	}
	if r.Kind == TicketKind {
		e.State = Waits
	}
	return e
}
