// Package ofd sets locks of open file descriptions (F_OFD_SETLK, see fcntl(2)).
//
// Such a lock belongs to what a descriptor is open on. All descriptors that were duplicated
// or inherited from one share it, and the kernel drops it with the last of them, however the
// processes end. Locks need no bytes behind them. Only Linux has them: on other systems
// every call returns [errors.ErrUnsupported].
package ofd

// Kind is what a lock keeps others from.
type Kind int

// The kinds.
const (
	Read  Kind = iota // keeps others from a lock for writing
	Write             // keeps others from any lock; the file must be open for writing
)

// Lock is a place for a lock: Len bytes of a file from Start. A Len of 0 reaches to the end,
// whatever the file's size.
type Lock struct {
	FD         uintptr
	Start, Len uint64
}
