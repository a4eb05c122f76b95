// Package share lets unchanged programs use one GPU together: each takes a lease on a
// number of bytes before it starts, and a lease is granted only while enough memory is
// free. There is no daemon. Leases are files in a folder that all programs of a machine
// share, the registry. The kernel knows which of them are alive.
//
// # A lease
//
// is a lock of an open file description (F_OFD_SETLK) on a file in the registry,
// with a record beside it that others read (mode 0644); record.go has the format.
// The description goes to a program that is started with [Lease.File]; the kernel
// drops the lock when the last process that has it is gone, however it ended. A
// file without its lock is a lease that has ended, whatever it says. So nothing
// need be cleaned up for the memory to be free again, a pid that is used anew does
// no harm, and containers that share the folder share the GPU. No user can end
// another's lease or change it, and nothing that a program writes to the inherited
// file is ever read.
//
// The place and length of the lock are the GPU and the size of the lease. So the
// kernel's table (/proc/locks) has every lease, also one whose files somebody has
// removed: a clean-up of /dev/shm at a user's logout frees no memory. A
// process that stays beside the program calls [Lease.Keep], which makes the files
// again, for lists.
//
// A program inside a lease that asks again gets a part of that lease where the
// request is [Request].Nested. It never waits for
// its own ancestor. Parts are not recorded: several that live at once may exceed the
// lease, which the programs in it count themselves, see package runenv.
//
// # One at a time
//
// Each GPU has a file whose lock guards every decision: under it the leases and the
// GPU's status are read, and new files are made. It is held for milliseconds, and
// never during a wait for memory or for the lock of another GPU. Processes that find it taken wait in the kernel.
// A process that is killed while it holds the lock leaves nothing half done: a file is
// written and locked before it gets its name, and then appears as a whole. A process
// that is stopped while it holds the lock (Ctrl-Z, a debugger) holds the others up.
// They give up when no other process has had the lock for 10 s, see [ErrLocked].
//
// # Lock order
//
//	KEY.lock     of each GPU of a request: a wait for one holds no other
//	Lease.mu     the record and the files of one lease
//	KEY.ID.held  the lease itself: taken without waiting, by its maker alone
//
// Nothing waits for a KEY.lock with Lease.mu held, so Close never hangs. The lock on a
// ticket (KEY.NUMBER.ticket) is waited for with no other lock held.
//
// # What can be shared
//
// It is the GPU's total memory less
//
//   - what programs without a lease hold;
//   - the desktop's part, if a display is attached: 1 GiB, or 1.5 times what the
//     desktop uses now if that is more;
//   - the host's part, if the GPU uses the host's memory: 1 GiB, or a tenth of the
//     total if that is more;
//   - [Request].Reserve.
//
// Leases are subtracted from it in full, used or not: the sum of all leases never
// exceeds it when one is granted. Of leases that share by turns what they can hold
// together is subtracted once, see turns.go. What a lease's programs use beyond the lease counts
// as foreign. Memory belongs to a lease if its process is in one of the lease's
// containers ([Lease.SetUse]), as /proc/PID/cgroup has it; else if it is the lease's
// process, a descendant of it, or in a session or process group that it leads. What
// containers use is counted for each lease, what processes use for all leases of a
// process together. All other memory
// is foreign. So is that of a lease in another pid namespace, whose processes cannot
// be identified from here: it counts twice then, so that too little is granted, never
// too much.
//
// Memory that a program released may take a moment to be free. So if a lease ended or
// a program started within the last second, the GPU's status is read until two
// readings 50 ms apart agree on what can be shared, for at most 2 s. A request that
// lacks only the memory of ended programs is not refused before. With [Request].Settled
// the first reading counts: the caller knows that nothing moves, or asks again.
//
// # By turns
//
// Leases of one user on a GPU that are asked for with [Request].Turns share it by turns: together they
// may come to more than the GPU. Their programs count in one ledger, KEY.UID.turns, each as a part
// of it that is no larger than its lease, and the ledger has a limit for all of them. So the group
// counts as the smaller of that limit and the sum of its leases that live: a member that
// ends changes nothing else. A lease joins if the other leases leave room for it alone. The limit is
// set then, to what those leave, or to the sum of the group if that is less.
//
// The inode of the ledger is in the record of each of its leases, and is checked whenever it is read.
// Where somebody has removed the file, and where another user's cannot be read, the leases count in full.
//
// # The queue
//
// A request that does not fit and may wait has a ticket, a locked file with a number.
// Tickets are served in the order of their numbers: no request is served before one
// that waits, even if it would fit, but for requests for several GPUs, see below. One
// that may not wait is refused then. A
// ticket whose lock is gone has left the queue. A file whose name is not a number, or a
// number far beyond the others, is not a ticket, locked or not.
//
// A newcomer reads the GPU's status once, then only the first in the queue does. Each of
// the others waits in the kernel for the lock on the nearest ticket before its own that holds it up: when
// that one is served, or killed, one process wakes. So thousands can wait.
//
// A waiter sets the time of its ticket every 2.5 s. A waiter that has not done so for
// 5 s is passed over if its process is stopped or cannot be seen, and in any case after
// a minute. Messages name it. It keeps its number, so once it runs again it precedes
// all that came later and still wait.
//
// A request for several GPUs has a ticket in the queue of each, and holds nothing
// until all of them have enough memory. While it is not next on one of them, those
// behind it on the others that do not want that one go before it.
//
// # What is not trusted
//
// A folder that another user than root owns, or in which others may remove files,
// is refused, see [ErrUntrusted]: the owner of a folder may remove and rename every
// file in it. Users who do not trust each other need one of root's (mkdir -m 1777
// /run/gpumem). An error of [Registry.List] names a damaged record, and the size of
// its lease is read from the lock. A lease made by another version is an error, and
// nothing is granted on its GPU while it lives; a request with Wait waits for its end.
//
// Leases keep honest programs out of each other's way. They do not keep a program from
// allocating more than its lease.
package share

import (
	"gpumem/node/internal/lease"
	"gpumem/node/internal/registry"
)

// Errors, wrapped in others that name the file and the way out.
var (
	// ErrDamaged: a file of the registry is not as this package left it.
	ErrDamaged = registry.ErrDamaged
	// ErrVersion: another version of gpumem made a file of the registry.
	ErrVersion = registry.ErrVersion
	// ErrLocked: one process has held a GPU's lock too long, as a stopped process
	// does.
	ErrLocked = registry.ErrLocked
	// ErrUntrusted: another user could remove or rename the registry's files.
	ErrUntrusted = registry.ErrUntrusted
)

// Environment variables.
const (
	// EnvDir has the folder of the registry where [Open] is given none.
	EnvDir = registry.EnvDir
	// EnvLease has the record of the lease that a program runs in, see [Lease.Path] and
	// [ReadLease]; in a container of Kubernetes its lease file, see [ContainerLease].
	EnvLease = "GPUMEM_LEASE"
)

// What is behind the door.
type (
	// Lease is a lease that this process has taken. It may be used by several goroutines.
	Lease = lease.Lease
	// Entry is a lease that lives, or a waiter for one.
	Entry = registry.Entry
	// Container is one container that a lease is for, see [Lease.SetUse].
	Container = registry.Container
)

// The states of entries.
const (
	Holds = registry.Holds // has a lease
	Waits = registry.Waits // has a ticket
)
