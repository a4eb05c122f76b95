// Ledgers and their members.

package ledger

import (
	"bytes"
	"errors"
	"os"
	"sync"

	"gpumem/internal/ofd"
	"gpumem/internal/procstat"
	"gpumem/internal/regular"
	"gpumem/internal/slotfile"
)

// Ledger is an open ledger of a process that holds nothing in it. It may be used by
// several goroutines.
type Ledger struct {
	mu sync.Mutex // guards f, which is nil after Close
	f  *file
	h  Header
}

// Open opens the ledger at path, which [Create] made, for reading. It takes no slot. The
// error is ErrDamaged or one of the file system, or says that the file is not a ledger.
func Open(path string) (*Ledger, error) { return OpenOf(path, regular.Anyone) }

// OpenOf is Open for a ledger that must be a user's own. What has the path is looked at
// before it is opened, so that the path may be one that the user has chosen.
func OpenOf(path string, owner int) (*Ledger, error) {
	f, err := open(path, owner)
	if err != nil {
		return nil, err
	}
	return &Ledger{f: f, h: f.header}, nil
}

// Header returns what the ledger was made with, and the limit as it was when it was opened.
func (l *Ledger) Header() Header { return l.h }

// Close ends the use of the ledger. Members that joined by it stay. Closing again does
// nothing.
func (l *Ledger) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return nil
	}
	f := l.f
	l.f = nil
	return f.Close()
}

// read calls op with the file if it is open and whole.
func (l *Ledger) read(op func(f *file)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f != nil && l.f.Check() == nil {
		op(l.f)
	}
}

// Members returns the figures of the processes that live, in no order. It never waits. It
// is empty after Close, and if the file was cut short.
func (l *Ledger) Members() (list []Figures) {
	l.read(func(f *file) {
		_ = f.view(-1, func(slots []slot) error {
			list = f.members(slots, -1, 0)
			return nil
		})
	})
	return list
}

// Held returns the bytes that count against the limit, of the processes that live.
func (l *Ledger) Held() (sum uint64) {
	for _, g := range l.Members() {
		sum += g.Sum()
	}
	return sum
}

// Refusals returns how many requests programs of the lease were ever refused, see
// [Member.Refuse], and the bytes of the last of them. Both are 0 after Close.
func (l *Ledger) Refusals() (n, last uint64) {
	l.read(func(f *file) {
		a, _ := f.announcement()
		n, last = a.refusals, a.lastRefused
	})
	return n, last
}

// Join takes a slot for this process, which is in at most MaxParts parts. The error is
// ErrSlots, ErrClosed or ErrDamaged.
func (l *Ledger) Join(parts ...Part) (*Member, error) {
	m, err := l.newMember(parts)
	if err != nil {
		return nil, err
	}
	if err := m.f.locked(m.claim); err != nil {
		return nil, errors.Join(err, m.f.Close())
	}
	return m, nil
}

// newMember returns a member without a slot, whose file is open for itself.
func (l *Ledger) newMember(parts []Part) (*Member, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return nil, ErrClosed
	}
	if len(parts) > MaxParts {
		return nil, l.f.Errorf("%d parts, one inside the other: want at most %d", len(parts), MaxParts)
	}
	again, err := l.f.Reopen()
	if err != nil {
		return nil, err
	}
	f, err := mapped(again)
	if err != nil {
		return nil, err
	}
	m := &Member{f: f, limits: append([]Part{{Limit: f.header.Limit}}, parts...)}
	m.own.PID, m.own.Start = os.Getpid(), procstat.Self().Start
	for i, part := range parts {
		m.own.Parts[i] = part.ID
	}
	return m, nil
}

// Member is a process's slot in a ledger. It may be used by several goroutines. Lock
// order: gate, mu, then the lock of the ledger.
type Member struct {
	gate sync.RWMutex // held for writing when f is closed
	gone bool         // guarded by gate

	mu     sync.Mutex // guards what follows
	f      *file
	limits []Part // the whole lease, part 0, comes first
	slot   int
	own    Figures // what the slot has
	turn   Turn    // what its record has, in a ledger by turns
}

// claim takes a slot. Caller holds the lock of the ledger.
func (m *Member) claim() error {
	for i := range Slots {
		if m.f.SlotLock(i).Try(ofd.Write) != nil {
			continue
		}
		m.slot = i
		var s slot
		s.store(m.own)
		s.pid.Store(0)
		if err := errors.Join(m.f.write(i, &s), m.beginTurn()); err != nil {
			return err
		}
		s.pid.Store(uint32(m.own.PID))
		return m.f.write(i, &s)
	}
	return m.f.Errorf("%w: all %d slots are in use", ErrSlots, Slots)
}

// attached makes sure that the descriptor is the ledger's: a program may close all of its
// own, and open others with their numbers. Caller holds mu.
func (m *Member) attached() error {
	if pid := os.Getpid(); pid != m.own.PID {
		return m.f.Errorf("process %d was forked from process %d, which has the slot; it must join by itself", pid, m.own.PID)
	}
	return m.f.Reattach()
}

// do calls op with a copy of this process's slot, and stores what op changes in it. It takes
// no lock.
func (m *Member) do(op func(s *slot) error) error {
	return m.use(func() error { return m.onSlot(op) })
}

// onSlot is do for callers that hold mu.
func (m *Member) onSlot(op func(s *slot) error) error {
	var s slot
	if err := m.f.readAll(slotfile.Bytes(&s), slotsAt+int64(m.slot)*slotBytes); err != nil {
		return err
	}
	return m.change(&s, op)
}

// use calls op, which may use the file.
func (m *Member) use(op func() error) error {
	m.gate.RLock()
	defer m.gate.RUnlock()
	if m.gone {
		return ErrClosed
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.attached(); err != nil {
		return err
	}
	return op()
}

// change calls op with a copy of this process's slot that was just read, and stores what op
// changes in it. If that fails, nothing has changed.
func (m *Member) change(s *slot, op func(s *slot) error) error {
	b := slotfile.Bytes(s)
	if !m.isOwn(s) {
		return m.f.Errorf("slot %d was this process's, and is another's: %w", m.slot, ErrDamaged)
	}
	old, own := [slotBytes]byte(b), m.own
	err := op(s)
	if err == nil && !bytes.Equal(b, old[:]) {
		err = m.f.write(m.slot, s)
	}
	if err != nil {
		m.own = own
	}
	return err
}

// isOwn reports whether a copy of this process's slot is of this process.
func (m *Member) isOwn(s *slot) bool {
	return s.pid.Load() == uint32(m.own.PID) && s.start.Load() == m.own.Start
}

// word returns this process's figure of a kind.
func (g *Figures) word(k Kind) *uint64 {
	return [...]*uint64{Held: &g.Held, Charged: &g.Charged, Outside: &g.Outside}[k]
}

// Take holds n more bytes for this process, all or nothing. It waits for the other
// processes that take or join, which is microseconds unless one of them is stopped. The
// error is a *[FullError] where the limit would be exceeded; then nothing has changed.
//
// By turns, a process with a ticket takes only when that takes nothing from those before it.
// The error is [ErrTurn] otherwise. It waits for so much less then, and one whose pool was Waiting is
// Returning. Its ticket it keeps until Unqueue, as what it has taken may be of no use: the driver
// may refuse. Others take freely.
func (m *Member) Take(kind Kind, n uint64) error {
	if kind < 0 || kind >= kinds {
		return m.f.Errorf("take of %v: want one of the kinds", kind)
	}
	return m.use(func() error {
		return m.f.locked(func() error {
			return m.f.view(m.slot, func(slots []slot) error {
				if err := m.fits(slots, n); err != nil {
					return err
				}
				if err := m.f.Check(); err != nil { // the wait for the lock may have been long
					return err
				}
				if err := m.isTurn(n); err != nil {
					return err
				}
				err := m.change(&slots[m.slot], func(s *slot) error {
					m.add(s, kind, n)
					return nil
				})
				if err == nil {
					m.noteTaken(kind, n)
				}
				return err
			})
		})
	})
}

// fits returns a [*FullError] if n more bytes exceed a limit even without what the dead
// held, whose slots it frees. Caller holds the lock of the ledger.
func (m *Member) fits(slots []slot, n uint64) error {
	m.limits[0].Limit = m.f.header.Limit
	for _, limit := range m.limits {
		sum, err := m.f.sum(slots, limit.ID)
		if err != nil || n > less(limit.Limit, sum) {
			if err := m.f.clearDead(slots, m.slot); err != nil {
				return err
			}
			sum, err = m.f.sum(slots, limit.ID)
		}
		if err != nil {
			return err
		}
		if n > less(limit.Limit, sum) {
			return &FullError{limit.Limit, sum, n}
		}
	}
	return nil
}

// Count holds n more bytes for this process, also where the limit is exceeded: the driver has
// granted them, and does not say before a call how many that will be.
func (m *Member) Count(kind Kind, n uint64) error {
	if kind < 0 || kind >= kinds {
		return m.f.Errorf("count of %v: want one of the kinds", kind)
	}
	return m.do(func(s *slot) error {
		if own := *m.own.word(kind); n > most-own {
			return m.f.Errorf("count of %d bytes beside %d: no GPU has as much", n, own)
		}
		m.add(s, kind, n)
		return nil
	})
}

// Uncertain notes that what this process takes beside its pool is not known to the byte, or
// that it has several contexts. It stays so.
func (m *Member) Uncertain() {
	_ = m.do(func(s *slot) error {
		m.own.Uncertain = true
		s.flags.Store(uncertainFlag)
		return nil
	})
}

// add changes what this process holds of a kind; a negative n is its two's complement.
// Caller holds mu.
func (m *Member) add(s *slot, kind Kind, n uint64) {
	s.word(kind).Add(n)
	*m.own.word(kind) += n
	m.own.Changes++
	s.changes.Store(m.own.Changes)
	if m.own.Held > m.own.PeakHeld {
		m.own.PeakHeld = m.own.Held
		s.peakHeld.Store(m.own.PeakHeld)
	}
}

// Give ends holding n bytes. The error is ErrGive if this process has less of the kind;
// then nothing has changed.
func (m *Member) Give(kind Kind, n uint64) error {
	if kind < 0 || kind >= kinds {
		return m.f.Errorf("give of %v: want one of the kinds", kind)
	}
	return m.do(func(s *slot) error {
		if own := *m.own.word(kind); n > own {
			return m.f.Errorf("%w: %d bytes of %d %v", ErrGive, n, own, kind)
		}
		m.add(s, kind, -n)
		return nil
	})
}

// Own returns what this process has taken and published.
func (m *Member) Own() Figures {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.own
}

// Left returns the bytes that the limit leaves, for this process. It is 0 after Leave,
// and if the file is damaged or was cut short: then Take fails, too.
func (m *Member) Left() (left uint64) {
	_ = m.use(func() error {
		return m.f.view(m.slot, func(slots []slot) error {
			if !m.isOwn(&slots[m.slot]) {
				return ErrDamaged
			}
			for _, limit := range m.limits { // the dead ones, too
				if _, err := m.f.sum(slots, limit.ID); err != nil {
					return err
				}
			}
			left = m.f.header.Limit
			m.limits[0].Limit = left
			for _, limit := range m.limits {
				var sum uint64
				for _, g := range m.f.members(slots, m.slot, limit.ID) {
					sum += g.Sum()
				}
				left = min(left, less(limit.Limit, sum))
			}
			return nil
		})
	})
	return left
}

// Refuse notes that the program was refused a request for n bytes, for [Ledger.Refusals].
// Take does not: who is refused there may release something and take again.
func (m *Member) Refuse(n uint64) {
	_ = m.announce(func(a *announcement) {
		a.lastRefused = n
		a.refusals++
	})
}

// announce changes what this process tells all others of the lease.
func (m *Member) announce(change func(a *announcement)) error {
	return m.use(func() error {
		return m.f.locked(func() error { return m.f.announce(change) })
	})
}

// Publish makes InUse, PeakInUse, Refused and DriverCalls of f known to others. The
// other figures of f are not used: Take and Give write those.
func (m *Member) Publish(f Figures) {
	_ = m.do(func(s *slot) error { // what cannot be published is published the next time
		o := &m.own
		o.InUse, o.PeakInUse, o.Refused, o.DriverCalls = f.InUse, f.PeakInUse, f.Refused, f.DriverCalls
		s.inUse.Store(f.InUse)
		s.peakInUse.Store(f.PeakInUse)
		s.refused.Store(f.Refused)
		s.driverCalls.Store(f.DriverCalls)
		return nil
	})
}

// Limit returns the smallest limit that holds for this process, in bytes.
func (m *Member) Limit() uint64 {
	_ = m.use(func() error { // the last one that was read holds where it cannot be read
		err := m.f.readLimit()
		m.limits[0].Limit = m.f.header.Limit
		return err
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	least := m.limits[0].Limit
	for _, l := range m.limits {
		least = min(least, l.Limit)
	}
	return least
}

// Alone reports whether no other process has a slot. One that was killed may still have its
// slot.
func (m *Member) Alone() bool {
	others := 0
	_ = m.use(func() error {
		return m.f.view(m.slot, func(slots []slot) error {
			for i := range slots {
				if i != m.slot && slots[i].pid.Load() != 0 {
					others++
				}
			}
			return nil
		})
	})
	return others == 0
}

// Want announces to all processes of the lease that this one waits for n bytes. The error is ErrClosed or ErrDamaged.
func (m *Member) Want(n uint64) error {
	return m.announce(func(a *announcement) {
		a.bytes = n
		a.wanted = max(a.wanted+1, 1) // 0 means that there was none
	})
}

// Wanted returns the last announcement, of any process: a number that differs from one
// to the next, and the bytes. Number 0 means that there was none, or that the file was cut
// short.
func (m *Member) Wanted() (number, n uint64) {
	_ = m.use(func() error {
		a, err := m.f.announcement()
		number, n = uint64(a.wanted), a.bytes
		return err
	})
	return number, n
}

// Leave releases all that this process holds, and its slot. Later calls fail with
// ErrClosed; leaving again does nothing. It waits for calls under way.
func (m *Member) Leave() error {
	return m.end(func() {
		if m.f.Check() != nil {
			return
		}
		_ = m.f.view(m.slot, func(slots []slot) error {
			return m.change(&slots[m.slot], func(s *slot) error {
				s.clear()
				return m.f.clearTurn(m.slot)
			})
		})
		_ = m.f.SlotLock(m.slot).Unlock() // a child that was forked may have the description, too
	})
}

// end ends the use of the ledger, after last.
func (m *Member) end(last func()) error {
	m.gate.Lock()
	defer m.gate.Unlock()
	if m.gone {
		return nil
	}
	m.gone = true
	last()
	return m.f.Close()
}

// Descriptor returns the number of the descriptor that keeps the slot. A child that was
// forked closes it, and leaves the slot to the parent: until then the slot stays taken after
// the parent's end.
func (m *Member) Descriptor() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.f.File.Descriptor()
}

// less is a difference, at least 0.
func less(a, b uint64) uint64 { return a - min(a, b) }
