package sim

import (
	"sync"
	"time"

	"gpumem/device"
	"gpumem/device/internal/shared"
)

// A ledger counts the bytes that are held on a device, by this program and by
// others. Physical memory is all that programs share of a GPU: addresses,
// mappings, streams and contents are each program's own. So what one simulated
// device has of its own is the state machine in this package, and what a shared
// one has in common with others is a ledger in a file.
//
// A Device calls its ledger with mu held.
type ledger interface {
	// take holds n more bytes for this program, all or nothing:
	// device.ErrOutOfMemory if they are not free.
	take(n uint64) error
	// exceed is a take that may hold Config.Beyond bytes more than there are.
	exceed(n uint64) error
	// give ends holding n bytes, of those taken.
	give(n uint64) error
	// free returns the bytes that no program holds.
	free() (uint64, error)
	// setUsed says what others hold that are no programs of this ledger; more
	// than what is free is cut to that.
	setUsed(n uint64) error
	// occupy gives an engine work, see Device.Occupy.
	occupy(e Engine, now, ready, takes time.Duration) (end time.Duration)
	// busy is the time of all work that an engine was given so far.
	busy(e Engine) time.Duration
	// close releases all that this program holds.
	close() error
}

// private is the ledger of a device that one program has for itself, or several of this
// process ([Device.Another]), which have the card in common.
type private struct {
	*holdings
	own uint64 // of held, by this one
}

// holdings is what they have in common.
type holdings struct {
	mu    sync.Mutex
	total uint64 // without what the display holds
	more  uint64 // Config.Beyond
	used  uint64 // by the others that Config.Used imagines
	held  uint64
	times [shared.Engines]struct{ end, busy time.Duration }
}

func (h *holdings) free() uint64 { return h.total - min(h.total, h.used+h.held) }

func (l *private) free() (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holdings.free(), nil
}

func (l *private) take(n uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hold(n, l.holdings.free())
}

func (l *private) exceed(n uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hold(n, l.total+l.more-l.used-l.held)
}

// hold holds n bytes if that many are free. Caller holds l.mu.
func (l *private) hold(n, free uint64) error {
	if n > free {
		return device.ErrOutOfMemory
	}
	l.held += n
	l.own += n
	return nil
}

func (l *private) give(n uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held -= n
	l.own -= n
	return nil
}

func (l *private) setUsed(n uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used = min(n, l.total-min(l.held, l.total))
	return nil
}

func (l *private) occupy(e Engine, _, ready, takes time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &l.times[e]
	t.end = max(t.end, ready) + takes
	t.busy += takes
	return t.end
}

func (l *private) busy(e Engine) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.times[e].busy
}

func (l *private) close() error { return l.give(l.own) }
