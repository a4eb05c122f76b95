// The account of a lease: package node/ledger's, as this package asks for it.

package shim

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"gpumem/device"
	"gpumem/node/ledger"
)

// ErrAccount is the error of a ledger that cannot be read or written. It is said once; there is
// no memory without the lease.
var ErrAccount = errors.New("the ledger of the lease cannot be used")

// Lease is the [Account] of a process in a lease.
//
// An error of the ledger is said once. What could not be written is owed: it is written before
// anything else is taken, which fails until then, so that nothing is taken beside what is not
// counted.
type Lease struct {
	*ledger.Member
	Say func(error) // of the first error of the ledger; nil for nobody

	said      sync.Once
	unusable  atomic.Bool
	uncertain sync.Once

	mu   sync.Mutex   // guards what follows; the ledger's are taken with it held
	owed [parts]int64 // bytes by part: to be counted, or to be given back where less than 0
}

// Join joins the ledger of the GPU with a UUID, among files with ':' between. A UUID is
// compared by its digits. A ledger without a UUID is of one GPU: the first that asks and has
// none by its UUID. taken are the files that other GPUs of this process have joined so; nil for
// none, and Join adds to it. parts are those of each ledger that this process is in, see
// [ledger.ParseParts]; "" means none.
func Join(files, parts, uuid string, taken map[string]bool) (*Lease, error) {
	limits, err := ledger.ParseParts(parts)
	if err != nil {
		return nil, err
	}
	names := strings.Split(files, ":")
	nameless := -1
	for i, file := range names {
		l, err := ledger.Open(file)
		if err != nil {
			return nil, err
		}
		id := l.Header().UUID
		if id != "" && digits(id) == digits(uuid) {
			return join(l, limits, i)
		}
		if id == "" && nameless < 0 && !taken[file] {
			nameless = i
		}
		if err := l.Close(); err != nil {
			return nil, err
		}
	}
	if nameless < 0 {
		return nil, fmt.Errorf("the lease is of another GPU than the one with UUID %s", uuid)
	}
	l, err := ledger.Open(names[nameless])
	if err != nil {
		return nil, err
	}
	lease, err := join(l, limits, nameless)
	if err == nil && taken != nil {
		taken[names[nameless]] = true
	}
	return lease, err
}

// join joins ledger i, which it closes: a member has the file for itself.
func join(l *ledger.Ledger, limits [][]ledger.Part, i int) (*Lease, error) {
	var in []ledger.Part
	if i < len(limits) {
		in = limits[i]
	}
	m, err := l.Join(in...)
	if err := errors.Join(err, l.Close()); err != nil {
		return nil, err
	}
	return &Lease{Member: m}, nil
}

// digits returns what is the same in all ways to write a UUID.
func digits(uuid string) string {
	uuid = strings.TrimPrefix(strings.TrimPrefix(uuid, "GPU-"), "MIG-")
	return strings.ToLower(strings.ReplaceAll(uuid, "-", ""))
}

var kinds = [parts]ledger.Kind{Held: ledger.Held, Charged: ledger.Charged, Outside: ledger.Outside}

// Unusable reports whether the last Take failed because the ledger cannot be used.
func (l *Lease) Unusable() bool { return l.unusable.Load() }

// Take counts bytes more.
func (l *Lease) Take(k Part, bytes uint64) (err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.unusable.Store(errors.Is(err, ErrAccount)) }()
	for k := range parts {
		if err := l.pay(k); err != nil {
			return fmt.Errorf("%w: %w", ErrAccount, err)
		}
	}
	err = l.Member.Take(kinds[k], bytes)
	switch l.say(err); {
	case err == nil:
		return nil
	case errors.Is(err, ledger.ErrFull):
		return fmt.Errorf("%w: %w", device.ErrOutOfMemory, err)
	}
	return fmt.Errorf("%w: %w", ErrAccount, err)
}

// Count counts bytes more, also beyond the limit: the driver has granted them.
func (l *Lease) Count(k Part, bytes uint64) { l.owe(k, int64(bytes)) }

// Give counts bytes less.
func (l *Lease) Give(k Part, bytes uint64) { l.owe(k, -int64(bytes)) }

func (l *Lease) owe(k Part, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.owed[k] += bytes
	_ = l.pay(k) // which is said, and tried again
}

// pay writes what is owed of a part. What was given back and never taken cannot be: that is a
// fault of this package, and the ledger rather has too much. Caller holds mu.
func (l *Lease) pay(k Part) (err error) {
	switch n := l.owed[k]; {
	case n > 0:
		err = l.Member.Count(kinds[k], uint64(n))
	case n < 0:
		err = l.Member.Give(kinds[k], uint64(-n))
	}
	l.say(err)
	if err == nil || errors.Is(err, ledger.ErrGive) {
		l.owed[k] = 0
		return nil
	}
	return err
}

// say says the first error of the ledger. That it is full, or was left, is none.
func (l *Lease) say(err error) {
	expected := err == nil || errors.Is(err, ledger.ErrFull) || errors.Is(err, ledger.ErrClosed)
	if !expected && l.Say != nil {
		l.said.Do(func() { l.Say(err) })
	}
}

// Uncertain tells it the ledger once: it stays so.
func (l *Lease) Uncertain() { l.uncertain.Do(l.Member.Uncertain) }

// Want announces that this process waits for bytes. The error is device.ErrNotSupported if
// it is the only one of the lease.
func (l *Lease) Want(bytes uint64) error {
	if bytes > 0 && l.Alone() {
		return device.ErrNotSupported
	}
	return l.Member.Want(bytes)
}

// Limit returns the limit of the lease, or of the smallest part that this process is in,
// and what is left: nothing while something is owed.
func (l *Lease) Limit() (limit, left uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k := range parts {
		if l.pay(k) != nil {
			return l.Member.Limit(), 0
		}
	}
	return l.Member.Limit(), l.Left()
}

// Beside returns what this process holds beside its pool.
func (l *Lease) Beside() uint64 {
	own := l.Own()
	return own.Charged + own.Outside
}

// byOthers returns what programs share by turns, and what the others hold of it, where that is why a request is
// refused: the lease itself has room for it. Else shared is 0.
func (l *Lease) byOthers(request uint64) (shared, others uint64) {
	limit, all, err := l.Member.Turns()
	if err != nil {
		return 0, 0
	}
	for i := range all {
		if all[i].Slot != l.Slot() {
			others += all[i].Sum()
		}
	}
	if own := l.Own(); own.Sum()+request > l.Member.Limit() || others == 0 {
		return 0, 0
	}
	return limit, others
}

// Reachable returns the most that this process may ever hold beside the others.
func (l *Lease) Reachable() uint64 {
	bytes, err := l.Member.Reachable()
	if err != nil { // the ledger is not by turns, or nothing can be taken from it
		return l.Member.Limit()
	}
	return bytes
}

// Publish shows what the pool does to gpumem ps.
func (l *Lease) Publish(f Figures) {
	l.Member.Publish(ledger.Figures{InUse: f.InUse, PeakInUse: f.PeakInUse, Refused: f.Refused, DriverCalls: f.DriverCalls})
}

// Refused counts a refused request in the ledger.
func (l *Lease) Refused(bytes uint64) { l.Refuse(bytes) }
