// Package share lets unchanged programs use one GPU together: each takes a
// lease on so many bytes before it starts, and a lease is given only where there
// is room. There is no daemon. Leases are files in a folder that all programs of
// a machine share, the registry, and the kernel says which of them are alive.
//
// # A lease
//
// is a lock of an open file description (F_OFD_SETLK) on a file in the registry,
// with a record beside it that others read (mode 0644); record.go has the format.
// The description goes to a program that is started with [Lease.File]; the kernel
// drops the lock when the last process that has it is gone, however it ended. A
// file without its lock is a lease that has ended, whatever it says. So nothing
// need be cleaned up for the memory to be free again, a pid that is used anew does
// no harm, and containers that share the folder share the GPU. Nobody can end
// another's lease or change it, and nothing that a program writes to the inherited
// file is ever read.
//
// The place and length of the lock are the GPU and the size of the lease. So the
// kernel's table (/proc/locks) has every lease, also one whose files somebody has
// removed: a clean-up of /dev/shm at a user's logout frees nobody's memory. A
// process that stays beside the program calls [Lease.Keep], which makes the files
// again, for lists.
//
// A program inside a lease that asks again gets a part of that lease where the
// request is [Request].Nested; [Registry.Enclosing] finds it. It never waits for
// its own ancestor. Parts are not recorded: several that live at once may exceed the
// lease, which the programs in it count themselves, see package runenv.
//
// # One at a time
//
// Each GPU has a file whose lock guards every decision: under it the leases are
// read, the GPU is asked how it stands, and new files are made. It is held for
// as long as that takes, milliseconds at most, never while waiting; processes that
// find it taken wait in the kernel. Within a process it comes before the mutex of a
// [Lease]: nothing waits for it with that mutex held, so that Close never hangs. A
// process that is killed under it leaves
// nothing half done: a file is written and locked before it gets its name, and is
// then there as a whole. A process that is stopped under it (Ctrl-Z, a debugger)
// holds the others up; they give up when 10 s have passed without a turn, see
// [ErrLocked].
//
// # What can be shared
//
// It is the GPU's total without what is held by programs that have no lease,
// without the desktop's part where a display hangs on the GPU (1 GiB, or 1.5
// times what it uses now if that is more), without the host's part where the
// memory is the host's (1 GiB, or a tenth if that is more), and without what
// [Request].Reserve leaves. What leases have is taken from that, used or not: the
// sum of all leases never exceeds it at the moment one is runenv. What a lease's
// programs use beyond the lease is counted like foreign use. Memory counts for a
// lease if it belongs to the lease's process, to a descendant of it, or to a
// process in a session or process group that it leads. All other memory is
// foreign; that of a lease in another pid namespace too, since no process there
// can be told apart from here: it counts twice then, so that too little is given,
// never too much.
//
// Memory that a program gave up may take a moment to be free. So where a lease
// ended or a program started within the last second, the GPU is asked until two
// answers 50 ms apart agree on what can be shared, for 2 s at most, and where
// memory of ended programs is all that is missing a "no" is not said before.
//
// # The queue
//
// A request that does not find room and may wait has a ticket, a locked file with
// a number. Tickets take their turn strictly by their numbers. Nobody is served
// before one who waits, even if his own request would fit; a request that may not
// wait is refused then. A ticket whose lock is gone is out of the queue. A file whose
// name is no number, or a number far beyond the others, is no ticket, locked or not.
//
// Only the first in the queue looks at the GPU. Each of the others waits in the
// kernel for the lock on the nearest ticket before its own that holds it up: when
// that one is served, or killed, one process wakes. So thousands can wait.
//
// A waiter sets the time of its ticket every 2.5 s. One that has not for 5 s
// and is seen to be stopped, or cannot be seen, is passed over, as is one that has
// not for a minute; messages name it. It keeps its number, so once it runs again it
// is before all who came later and still wait.
//
// A request for several GPUs has a ticket in the queue of each, and holds nothing
// until there is room on all. While it waits for a turn on one of them, those behind
// it on the others go before it.
//
// # What is not trusted
//
// A folder that another user than root owns, or in which others may remove files,
// is refused, see [ErrUntrusted]: who owns a folder may remove and rename all in
// it. Users who do not trust each other need one of root's (mkdir -m 1777
// /run/gpumem). A record that is damaged is named in an error of [Registry.List],
// and the size of its lease is read from the lock; a lease made by another version
// is an error, and nothing is given on its GPU while it lives; a request with Wait
// waits for its end.
//
// Leases keep honest programs out of each other's way. They do not keep a
// program from taking more than it was runenv.
package share

import (
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"gpumem/device"
)

// Errors, wrapped in others that name the file and the way out.
var (
	// ErrDamaged: a file of the registry is not as this package left it.
	ErrDamaged = errors.New("the file is damaged")
	// ErrVersion: another version of gpumem made a file of the registry.
	ErrVersion = errors.New("another version of gpumem made the file")
	// ErrLocked: one process has held a GPU's lock too long, as a stopped process
	// does.
	ErrLocked = errors.New("the GPU's lock is taken")
	// ErrUntrusted: another user could remove or rename the registry's files.
	ErrUntrusted = errors.New("another user could remove the leases in this folder")
)

// Environment variables.
const (
	EnvDir   = "GPUMEM_RUN_DIR" // the folder of the registry where [Open] is given none
	EnvLease = "GPUMEM_LEASE"   // the record of the lease that a program runs in, see [Lease.Path] and [ReadLease]
)

// A Meter says how a GPU stands without using it.
type Meter interface {
	// Status is the GPU now. Free and Used both 0 mean that it cannot be told,
	// and Notes then say why.
	Status() (device.Status, error)
}

// Request is what is asked for. Of Bytes and Share at most one is set; neither
// means all that can be shared, in equal parts with Copies.
type Request struct {
	Device  string            // the GPU's key, the same for everyone who means it: its UUID, or the file and number of a simulated one; 1 to 512 bytes of text
	Meter   Meter             // of that GPU
	Bytes   uint64            // of each lease
	Share   float64           // of each lease, as a part of what can be shared, above 0 and at most 1
	Copies  int               // leases of that size each, taken together or not at all; 0 means 1, at most 1024
	Reserve uint64            // bytes left for the desktop and others, besides what the display needs
	Command []string          // for lists; a long one is cut
	Nested  bool              // inside a lease on that GPU, take a part of it, or be refused at once
	Parts   map[string]uint64 // with Nested, by lease ID: the bytes of that lease that this program may use; without an entry all of it
	Wait    func(p Position)  // nil: do not wait for room. Else called as the place in the queue or what is missing changes
}

// Position is how a waiting request stands.
type Position struct {
	Place   int          // in the queue; 0: next
	Missing uint64       // bytes that were missing at the last look at the GPU; 0: only the turn has to come
	Why     *NoRoomError // who held what then, and who was before
}

// State is what somebody does in the registry.
type State int

// The states.
const (
	Holds State = iota // has a lease
	Waits              // has a ticket
)

// String is "holds" or "waits".
func (s State) String() string {
	if s == Waits {
		return "waits"
	}
	return "holds"
}

// Entry is a lease that lives, or a waiter for one.
type Entry struct {
	ID, Device string // empty where the record cannot be read
	State      State
	Bytes      uint64    // of the lease; of a waiter: wanted in all, 0 where that was not known when it came
	PID        int       // of the program if its launcher called Tell, else of the process that asked; 0: unknown
	Start      uint64    // of that process, in clock ticks since the machine's
	Namespace  uint64    // inode of the pid namespace that PID is of
	UID        int       // the owner of the files; -1: unknown
	Command    []string  // as [Request].Command
	Since      time.Time // when it was given, or when the wait began; zero: unknown
	Place      int       // of a waiter, in the queue of its GPU; 0: next
	Stopped    bool      // a waiter that gives no sign of life: it is stopped, and passed over meanwhile
	Elsewhere  bool      // PID is of another pid namespace than this process's
	Ended      bool      // the process PID has ended, and others hold the lease
	// HeldBy are processes that have the lease's lock, with their numbers here,
	// where PID does not tell: it is unknown, ended, or of another namespace. Only
	// processes that this user may look into are found.
	HeldBy []Holder // the youngest first
	// Over is how many bytes its processes hold beyond Bytes; set in a NoRoomError alone.
	Over uint64

	inode uint64 // of the file with the lock
}

// Holder is a process that has a lease's lock.
type Holder struct {
	PID     int
	Command []string
	start   uint64
}

// checked fills in what is not given; its error says what makes no sense.
func (q Request) checked() (Request, error) {
	bad := func(format string, args ...any) (Request, error) {
		return q, fmt.Errorf("share: "+format, args...)
	}
	if q.Copies == 0 {
		q.Copies = 1
	}
	switch {
	case q.Device == "" || len(q.Device) > maxDevice || !utf8.ValidString(q.Device):
		return bad("the device's key %.80q has %d bytes; want 1 to %d of text", q.Device, len(q.Device), maxDevice)
	case q.Meter == nil:
		return bad("no meter for %s", q.Device)
	case q.Bytes != 0 && q.Share != 0:
		return bad("both bytes and a share are asked for; want one of them")
	case !(q.Share >= 0 && q.Share <= 1): // NaN too
		return bad("share %v; want above 0 and at most 1", q.Share)
	case q.Copies < 0 || q.Copies > maxCopies:
		return bad("%d copies; want 1 to %d", q.Copies, maxCopies)
	}
	return q, nil
}

const (
	maxDevice = 512 // bytes of a key; JSON may write six for one, and a record must fit
	maxCopies = 1024
)
