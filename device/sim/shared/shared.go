// Package shared is the file through which several processes share simulated
// GPUs. Physical memory is all that programs have in common on a GPU:
// addresses, mappings and streams are each program's own. So the file holds
// what each process holds of each device, in bytes, and nothing else.
//
// # The file
//
// It has one size and four parts, in the byte order of the machine:
//
//   - what never changes: a magic, the version of the layout, a description of
//     up to 16 devices, and a checksum over all of it;
//   - what others hold of each device that are no processes ([File.SetUsed]);
//   - 1024 slots, one for each process that has the file open: its pid, start
//     time, name, and what it holds of each device;
//   - things that only save time: a bitmap of slots in use, and per device the
//     sum of what the slots hold.
//
// # Who is alive
//
// A process holds a lock of the kernel on one byte that stands for its slot,
// far past the end of the file. It is a lock of the open file description
// (F_OFD_SETLK): the kernel drops it when the description goes away, however
// the process ends, and before anyone waits for it. It knows no pid, so it
// holds between containers and a pid that is used again does no harm. A slot
// that is marked as in use but whose byte nobody has locked is a dead one: what
// it holds is free.
//
// # One at a time
//
// Another such byte is the lock of the whole file. All that is read or written
// below the header is read and written under it: for writing by [File], for
// reading by [Look]. A process that is killed in there lets go of it; one that
// is stopped (Ctrl-Z, a debugger) does not, so no process waits for ever: see
// [ErrLocked].
//
// # Killed at any instruction
//
// One store of an aligned 64-bit word takes or gives: that of the slot's held
// bytes. The sum per device follows it, so between the two it is wrong, and a
// dirty word says so: it is set before the first store and cleared after the
// last. Whoever gets the lock and finds it set adds the slots up anew. Let
// process A take 2 GiB:
//
//	lock          (the kernel's)
//	dirty = 1     killed here: the next adds up again and finds what was
//	held += 2 GiB killed here: A's slot is dead, and so are the 2 GiB
//	used += 2 GiB killed here: as before
//	dirty = 0     killed here: used counts a dead slot
//	unlock        killed here: likewise
//
// Dead slots that are in the sum only make less look free. So every call that
// tells a number ([File.Free], [File.Processes]) and every take that does not
// fit first looks for them, and only then answers. A plain take or give costs
// the same whatever the number of processes.
//
// # What is not trusted
//
// The file is the user's: it may be of another version, cut short, or written
// over, even while it is in use. It is checked before it is mapped, each word
// carries a checksum, the sums must agree with the slots, and a page
// that is no longer there is an error, not a crash. See [ErrDamaged].
//
// # Limits
//
// The file belongs on a local file system, best /dev/shm, where nothing is
// written to a disk. It is made for its user alone (mode 0600); chmod opens it
// to others, who may then do as they like with it. A child that was forked and
// did not exec has its parent's description and so its slot: it must not use
// the [File], and keeps the slot alive when the parent ends. What is exec'ed
// has neither.
package shared

import (
	"errors"

	"gpumem/device"
)

// Errors, wrapped in others that name the file and the place.
var (
	// ErrDamaged: the file is not as this package left it.
	ErrDamaged = errors.New("the file is damaged; stop the programs that use it, remove the file and make it again")
	// ErrVersion: a program of another version made the file.
	ErrVersion = errors.New("another version of gpumem made the file")
	// ErrLocked: somebody has held the lock of the file too long, as a stopped
	// process does.
	ErrLocked = errors.New("the file is locked")
	// ErrFull: as many processes have the file open as fit.
	ErrFull = errors.New("too many programs use the file")
)

const (
	// MaxDevices is how many devices a file describes at most.
	MaxDevices = 16
	// MaxProcesses is how often a file can be open at a time.
	MaxProcesses = 1024
	// MaxTotal is the most that a device can have, in bytes.
	MaxTotal = 1 << 55
)

// Descriptor is a device as the file describes it. All but Used is fixed when
// the file is made.
type Descriptor struct {
	Name             string // 1 to 128 bytes, all printable
	Total            uint64 // bytes, 1 to MaxTotal
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

// State is a device at one moment. Free and Used add up to the total, and Used
// is what the display, the others and the processes listed hold.
type State struct {
	Device    Descriptor
	Free      uint64           // bytes
	Used      uint64           // bytes
	Processes []device.Process // that hold something, by pid
}
