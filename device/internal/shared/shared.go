// Package shared is the file through which several processes share simulated
// GPUs. Physical memory is all that programs have in common on a GPU:
// addresses, mappings and streams belong to one program. So the file records
// how many bytes of each device each process holds, and, where work takes time,
// until when the device's engines are busy.
//
// # The file
//
// It has one size, 193,744 bytes, and four parts, in the byte order of the machine:
//
//   - what never changes: a magic, the version of the layout, a description of
//     up to 16 devices, and a checksum over all of it;
//   - what is held of each device by others than processes ([File.SetUsed]);
//   - 1024 slots, one for each process that has the file open: its pid, start
//     time, name, and what it holds of each device;
//   - what only saves time: a bitmap of slots in use, and per device the
//     sum of what the slots hold.
//
// And two things that need no lock: the last announcement of a process that waits for
// memory ([File.Want]), and until when each engine of a device has work ([File.Occupy]).
//
// # Who is alive
//
// A process holds a lock of the kernel on one byte that stands for its slot,
// far past the end of the file. It is a lock of the open file description
// (F_OFD_SETLK): the kernel drops it when the description goes away, however
// the process ends, and before anyone waits for it. It knows no pid, so it works
// between containers and a pid that is used again does no harm. A slot
// that is marked as in use but whose byte is not locked is a dead one: what
// it holds is free.
//
// # Lock order
//
//	File.mu        the File's fields and its mapping, between goroutines of a process
//	lock of file   the byte lockByte: all of the file below the header, between processes
//	slot's byte    slotByte + n: taken in Open under the lock of the file, held until Close
//
// The lock of the file is taken for writing by [File], for reading by [Look]. A process
// that is killed while it holds the lock releases it; one that is stopped (Ctrl-Z, a
// debugger) does not, so no process waits for ever: see [ErrLocked]. Close and the end
// of a process release a slot's byte without the lock of the file, so that a slot may
// become dead at any time; it becomes unmarked only under that lock.
//
// # Killed at any instruction
//
// One store of an aligned 64-bit word takes or gives: that of the slot's held
// bytes. The sum per device follows it, so between the two it is wrong, and a
// dirty word says so: it is set before the first store and cleared after the
// last. Whoever gets the lock and finds it set adds the slots up again. Process A takes
// 2 GiB, which it may be killed at any step of:
//
//	lock          (the kernel's)
//	dirty = 1     killed here: the next adds up again and finds what was
//	held += 2 GiB killed here: A's slot is dead, and so are the 2 GiB
//	used += 2 GiB killed here: as before
//	dirty = 0     killed here: used counts a dead slot
//	unlock        killed here: likewise
//
// Dead slots that are in the sum only make less look free. So every call that
// returns a number ([File.Free], [Look]) and every take that does not
// fit first looks for them, and only then answers. A plain take or give costs
// the same whatever the number of processes.
//
// With numbers: a device has 24 GiB, A holds 10 and is killed, B holds 6, so used is 16.
// B takes 8: 16 + 8 fit into 24, no slot is examined, used is 24. B takes 4 more: that
// does not fit. B goes through the slots, finds that A's byte is not locked, unmarks its
// slot and sets used to 14; 14 + 4 fit.
//
// # What is not trusted
//
// The file is the user's: it may be of another version, cut short, or overwritten,
// even while it is in use. It is checked before it is mapped, each word
// has a checksum, the sums must agree with the slots, and a page
// that is no longer there is an error, not a crash. See [ErrDamaged]. A file that is
// removed and made again is another file: processes that had it open go on with the
// old one.
//
// # Limits
//
// The file belongs on a local file system, best /dev/shm, where nothing is
// written to a disk. It is made for its user alone (mode 0600); chmod opens it
// to others, who may then change anything in it. A child that was forked and
// did not exec has its parent's description and so its slot: it must not use
// the [File], and keeps the slot alive when the parent ends. A program that was
// exec'ed has neither.
package shared

import (
	"errors"
	"time"

	"gpumem/device"
)

// Errors, wrapped in others that name the file and the place.
var (
	// ErrDamaged: the file is not as this package left it. Nothing is repaired, since
	// what is damaged is unknown.
	ErrDamaged = errors.New("the file is damaged; stop the programs that use it, remove the file and make it again")
	// ErrVersion: a program of another version made the file.
	ErrVersion = errors.New("another version of gpumem made the file")
	// ErrLocked: another process has held the lock of the file for 10 seconds, as a
	// stopped process does.
	ErrLocked = errors.New("the file is locked")
	// ErrFull: the file is open MaxProcesses times.
	ErrFull = errors.New("too many programs use the file")
)

const (
	// MaxDevices is how many devices a file describes at most.
	MaxDevices = 16
	// Engines is how many engines a device has; what each does is for the user of this package.
	Engines = 3
	// MaxProcesses is how often a file can be open at a time.
	MaxProcesses = 1024
	// MaxTotal is the most that a device can have, in bytes: what fits into a word with
	// its checksum, and half of that for sums that are about to be checked.
	MaxTotal = 1 << 55
)

// Descriptor is a device as the file describes it. All but Used is fixed when
// the file is made.
type Descriptor struct {
	Name             string // 1 to 128 bytes, all printable
	Total            uint64 // bytes, 1 to MaxTotal
	Beyond           uint64 // bytes that a [File.Exceed] may take although they are not there, with Total at most MaxTotal
	Granularity      uint64 // bytes, 1 to 1 TiB
	Used             uint64 // bytes held by others that are no processes of this file, see SetUsed
	Display          uint64 // bytes that the desktop holds; with Used at most Total
	Context          uint64 // bytes that a program holds before it asks for any, at most Total; for the user of this package, which takes them
	Host             uint64 // bytes of the host's memory, for managed grants; for the user of this package, as Context
	CCMajor, CCMinor int    // compute capability, 0 to 99 and 0 to 9
	NoPages, NoPools bool   // the device lacks these groups of calls
	NoManaged        bool   // and this one
	Unified          bool   // its memory is the host's
	MIG              string // the slice's name, up to 64 bytes, all printable; "" for a whole GPU
}

// State is a device at one moment. Free and Used add up to the total, and Used is the
// sum of what the display, the others and the processes hold.
type State struct {
	Device    Descriptor
	Free      uint64                 // bytes
	Used      uint64                 // bytes
	Processes []device.Process       // that hold something, by pid
	Busy      [Engines]time.Duration // see [File.Busy]
}
