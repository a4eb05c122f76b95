package shared

import (
	"encoding/binary"
	"errors"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"gpumem/internal/ofd"
	"gpumem/internal/slotfile"
)

const (
	// lockByte, far past any data, is the lock of the whole file. Locks need no bytes
	// behind them, and a program that locks the data by accident does not meet these.
	lockByte = 1 << 40
	// slotByte + n is the lock of slot n.
	slotByte = lockByte + 1

	// An operation under the lock takes about a microsecond, so that a goroutine that
	// finds it taken yields and tries again, this often.
	yields = 20
	// Then it sleeps this long between tries. On 2 cores, 64 threads of 8
	// processes made 1.4 times as many operations so as by waiting in the kernel
	// (F_OFD_SETLKW), which also cannot be ended after patience.
	nap = 20 * time.Microsecond
)

// patience is how long to wait for the lock. A process that runs releases it within
// milliseconds; tests are less patient.
var patience = 10 * time.Second

// layout is that of all shared GPUs. Errors begin with the file as it is named on the
// command line.
var layout = &slotfile.Layout{Prefix: "sim@", Size: fileSize, FileByte: lockByte, SlotByte: slotByte, Damaged: ErrDamaged}

// lock waits for the lock of the file, for reading or writing. The caller has
// waited since then already, for others of this process; the zero time means
// not at all. So all of them lose patience at the same time, not in turn.
func (h *handle) lock(kind ofd.Kind, since time.Time) error {
	for tries := 0; ; tries++ {
		err := h.FileLock().Try(kind)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported):
			return h.Errorf("this system or this file system has no locks of open file descriptions (fcntl F_OFD_SETLK): %w; put the file on another, such as /dev/shm", err)
		case !ofd.Taken(err):
			return h.Errorf("cannot lock the file: %w", err)
		case tries < yields:
			runtime.Gosched()
			continue
		case since.IsZero():
			since = time.Now()
		case time.Since(since) > patience:
			return h.locked()
		}
		time.Sleep(nap)
	}
}

// locked returns the error of a wait that took too long. It names the process from the
// word holder, which is read without the lock and may be a moment old.
func (h *handle) locked() error {
	var b [8]byte
	_, err := h.ReadAt(b[:], int64(unsafe.Offsetof(image{}.state)+unsafe.Offsetof(state{}.holder)))
	pid := binary.NativeEndian.Uint64(b[:])
	if err != nil || pid == 0 {
		return h.Errorf("%w: waited %v, and a program that only looks at the file (such as gpumem devices) still holds the lock; is it stopped? continue it (fg) or end it", ErrLocked, patience)
	}
	return h.Errorf("%w: waited %v, and process %d holds the lock; is it stopped? continue it (kill -CONT %d) or end it (kill -KILL %d)", ErrLocked, patience, pid, pid, pid)
}

// isAlive reports whether a process holds the lock of a slot. The own slot is known and not
// asked for.
func (h *handle) isAlive(number int) (bool, error) {
	if number == h.own {
		return true, nil
	}
	return h.IsSlotAlive(number)
}
