// Package ledger counts the bytes that all processes of a lease, or of leases that share by
// turns, hold on one GPU, in one file. It is what makes a lease a limit in bytes: each process
// asks it before it takes memory from the driver, and is refused where the sum would exceed it.
//
// # The file
//
// It has one size, 135,168 bytes, or 266,240 by turns, and is little endian, so that a reader
// in C needs no more than this table. It is read and written by system calls: a file that
// somebody cuts short is an error then, where a load from a mapping would be a SIGBUS.
//
//	offset bytes
//	     0     8  magic, "gpumemL1"
//	     8     8  limit in bytes; by turns it changes, see [Ledger.SetLimit]
//	    16     8  total of the GPU in bytes
//	    24     4  the number of announcements, see [Member.Want]
//	    28     4  number of slots, 1024
//	    32     8  bytes of the last announcement
//	    40     8  number of requests that programs were refused, ever, see [Member.Refuse]
//	    48     8  bytes of the last of those
//	    56     8  flags: bit 0 means that several users may join, bit 1 that it is by turns
//	    64    64  UUID of the GPU as text, padded with NUL; empty means any
//	   128     8  by turns: the last ticket that was given out
//	  4096   128  slot 0, then slot 1 and so on:
//	         0  4  pid; 0 means that the slot is free
//	         4  4  flags: bit 0 means that what the process takes beside its pool is not
//	               known to the byte, see [Member.Uncertain]
//	         8  8  start time of the process in clock ticks since the machine's start
//	        16  8  held: by its pool
//	        24  8  outside: by its context and its libraries
//	        32  8  in use: by its program, of what the pool holds
//	        40  8  peak of held
//	        48  8  peak of in use
//	        56  8  number of requests that its program was refused
//	        64  8  number of driver calls
//	        72  8  charged: taken by its program from the driver itself
//	        80 32  identities of up to 4 parts of the lease that it is in, 0 for none
//	       112  8  number of changes of held, outside and charged
//	135168   128  by turns: the record of slot 0, then that of slot 1 and so on:
//	         0  4  CRC-32C of bytes 4 to 119
//	         4  1  state, see [State]
//	         5  1  reason why the process is not asked to leave, see [Reason]
//	         8  8  ticket; 0 means that it has no place in the queue
//	        16  8  bytes that it waits for
//	        24  8  bytes of its blocks that are on the host
//	        32  8  bytes that would be free if it left
//	        40  8  time of the last work seen, in ns as all times, see [Moment]; 0 means none
//	        48  8  time at which its state began
//	        56  8  time of its last sign of life
//	        64  8  ns without work after which it lends its memory; 0 means never
//	        72  8  ns of its turn; 0 means no turns, -1 that the cost decides
//	        80  8  ns that its last way out and in took together
//	        88  8  number of times that it has left
//	        96  8  start time of the process, as in its slot
//	       104  4  pid, as in its slot; a record of another process is nobody's
//	       120  8  what somebody asks it by hand, see [Ask], and above the lowest byte the
//	               number of that request; the process itself never writes this word
//
// All other bytes are reserved and 0. The sum that the limit is for is held, outside and
// charged of all slots.
//
// A part is a limit within the limit, for a program that is started inside the lease, and
// for its own children. Of leases that share by turns each is a part. The processes in it
// name it when they join: what all slots with its identity hold together stays within its
// limit, which the file does not have.
//
// # Who is alive
//
// A process holds a lock of its open file description (F_OFD_SETLK) on one byte that
// stands for its slot, 1<<40 + slot, far beyond the end of the file. The kernel drops it
// when the process ends, however it ends. So a slot that is in use and whose byte is not
// locked is a dead one: what it holds is free.
//
// # One at a time
//
// Byte 1<<40 - 1 is the lock of the ledger itself. It is held while a process joins, and
// while a request sums the slots and adds to its own. Slots are locked under it alone.
// Releasing takes no lock: each process subtracts from its own slot, so others see
// too much for a moment, never too little.
//
// # Killed at any instruction
//
// One write of a slot takes or gives. A process that is killed before it has
// taken nothing; one that is killed after it leaves a dead slot. Let a process take
// 2 GiB:
//
//	lock           (the kernel's)
//	sum            killed here: nothing has changed
//	held += 2 GiB  killed here: the slot is dead, and so are the 2 GiB
//	unlock
//
// A request that does not fit clears dead slots before it is refused.
//
// # By turns
//
// Processes whose memory together exceeds the limit may share it by turns: the blocks of one
// that leaves are on the host, and it holds less meanwhile. Who waits for memory takes a
// ticket. [PlanTurns] says who is served and who is to leave for whom, to all processes alike,
// from this file alone. One write changes a record. A process that is killed
// leaves a record that is nobody's, and its ticket holds nobody up.
//
// The driver frees the memory of a killed process when it has closed its descriptors,
// which may be a moment before or after its lock is gone.
//
// # What is not trusted
//
// The file is its user's alone (mode 0600), unless its header has the flag for several
// users, such as those of the containers of a pod: then all who find it may write to it
// (mode 0666), and its folder keeps others away. One that is short, damaged or not a ledger
// is refused, and one that is cut short while it is in use is an error, not a fault.
package ledger

import (
	"errors"
	"fmt"
	"slices"
)

// Bytes is the size of the file, and BytesByTurns that of one by turns.
const (
	Bytes        = 4096 + Slots*128
	BytesByTurns = Bytes + Slots*turnBytes
)

// MaxParts is how many parts a process can be in, one inside the other.
const MaxParts = 4

// Part is a limit for some of the processes of a lease.
type Part struct {
	ID    uint64 // not 0, and no other part's
	Limit uint64 // in bytes
}

// Errors, wrapped in others that name the file.
var (
	// ErrFull is the error of a request that would exceed the limit, see [FullError].
	ErrFull = errors.New("the lease is full")
	// ErrDamaged is the error of a file that is not as this package left it.
	ErrDamaged = errors.New("the ledger is damaged; end the programs of its lease and start them again")
	// ErrSlots is the error of a process that finds no free slot.
	ErrSlots = errors.New("too many processes")
	// ErrClosed is the error of a member that has left, or of a closed ledger.
	ErrClosed = errors.New("the ledger is closed")
	// ErrGive is the error of a process that releases more than it has.
	ErrGive = errors.New("more is released than was taken")
)

// Slots is how many processes can have a ledger open at once as members.
const Slots = 1024

// most is the largest number of bytes that a word can have: no GPU has as much. Sums of
// three words of all slots do not overflow.
const most = 1 << 50

// uuidBytes is the room for a UUID and the NUL behind it.
const uuidBytes = 64

// Header describes the lease. It does not change, but for the limit of a ledger by turns, see
// [Ledger.SetLimit].
type Header struct {
	UUID  string // of the GPU, such as "GPU-..."; at most 63 bytes; empty means any
	Limit uint64 // bytes for all processes together, 1 to Total
	Total uint64 // bytes of the GPU, at most 1 PiB

	// Shared lets processes of several users join. Who can open the file is then up to
	// the folder that it is in, or to the container that it is mounted into.
	Shared bool

	// Turns makes it a ledger by turns.
	Turns bool
}

// check reports what makes no sense.
func (h Header) check() error {
	switch {
	case h.Limit == 0 || h.Limit > h.Total:
		return fmt.Errorf("limit of %d bytes on a GPU of %d; want from 1 to all of it", h.Limit, h.Total)
	case h.Total > most:
		return fmt.Errorf("a GPU of %d bytes; want at most %d", h.Total, uint64(most))
	case len(h.UUID) > uuidBytes-1:
		return fmt.Errorf("UUID of %d bytes; want at most %d", len(h.UUID), uuidBytes-1)
	}
	for _, c := range []byte(h.UUID) {
		if c <= ' ' || c > '~' {
			return fmt.Errorf("UUID %q; want printable ASCII", h.UUID)
		}
	}
	return nil
}

// Kind says what a process takes memory for.
type Kind int

// The kinds. All of them count against the limit.
const (
	Held    Kind = iota // by the pool
	Charged             // by the program, from the driver itself
	Outside             // by the context and the libraries
	kinds
)

// String returns the kind in one word.
func (k Kind) String() string {
	if k < 0 || k >= kinds {
		return fmt.Sprintf("Kind(%d)", int(k))
	}
	return [...]string{"held", "charged", "outside"}[k]
}

// Figures are those of one process, in bytes unless noted.
type Figures struct {
	PID         int    // as the process itself sees it, which may be of another pid namespace
	Start       uint64 // time of its start in clock ticks since the machine's; 0 if unknown
	Held        uint64 // by its pool
	Charged     uint64 // taken by its program from the driver itself
	Outside     uint64 // by its context and its libraries
	InUse       uint64 // by its program, of Held
	PeakHeld    uint64 // most that Held was
	PeakInUse   uint64 // most that InUse was
	Refused     uint64 // number of requests that its program was refused
	DriverCalls uint64 // number
	Changes     uint64 // number of times that Held, Charged or Outside changed
	Uncertain   bool   // see [Member.Uncertain]

	Parts [MaxParts]uint64 // identities of the parts of the lease that it is in; 0 for none
}

// In reports whether the process is in a part; all are in part 0.
func (f *Figures) In(part uint64) bool { return part == 0 || slices.Contains(f.Parts[:], part) }

// Sum returns what counts against the limit.
func (f Figures) Sum() uint64 { return f.Held + f.Charged + f.Outside }

// FullError is the error of a request that would exceed the limit. errors.Is(err,
// [ErrFull]) reports true for it.
type FullError struct {
	Limit  uint64 // of the lease, or of its part, in bytes
	Held   uint64 // by all processes in it, this one too
	Wanted uint64 // by the request
}

func (e *FullError) Error() string {
	return fmt.Sprintf("%v: limit %d bytes, held %d, requested %d", ErrFull, e.Limit, e.Held, e.Wanted)
}

// Unwrap returns ErrFull.
func (e *FullError) Unwrap() error { return ErrFull }
