// Turns: the records behind the slots of a ledger by turns. See plan.go for who is to leave.

package ledger

import (
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"time"
	"unsafe"

	"gpumem/internal/slotfile"
)

// Errors of turns.
var (
	// ErrNoTurns is the error of a ledger that is not by turns.
	ErrNoTurns = errors.New("the ledger is not by turns")
	// ErrTurn is the error of a request that would take what another process waits for longer.
	ErrTurn = fmt.Errorf("%w: another process is before this one in the queue", ErrFull)
	// ErrGone is the error of a question to a process that has ended.
	ErrGone = errors.New("the process has ended")
)

// State says where the blocks of a process are.
type State uint8

// The states. A process that waits for more memory while its blocks are on the GPU is In, and
// has a ticket.
const (
	In        State = iota // on the GPU
	Leaving                // on their way to the host
	Away                   // on the host, and the program has no work
	Waiting                // on the host, and the program waits for memory
	Returning              // on their way back, which is counted already
	states
)

// String returns the state in one word.
func (s State) String() string {
	if s >= states {
		return fmt.Sprintf("State(%d)", int(s))
	}
	return [...]string{"in", "leaving", "away", "waiting", "returning"}[s]
}

// Reason says why a process is not asked to leave.
type Reason uint8

// The reasons that processes have. NoReason is that of one that may be asked.
const (
	NoReason Reason = iota
	Capturing
	Communicating
	SharingMemory
	PeerAccess
	ManagedMemory
	OtherPolicy
	NoHostMemory
	NotDrained
	NoGate
	OwnMappings
	RegisteredMemory
	NotReleased
	IntegratedGPU
	ConfidentialGPU
	SeveralGPUs
	reasons
)

// The reasons that are found by looking, and stand in no record.
const (
	Unreadable   Reason = 128 + iota // the record is damaged
	Silent                           // no sign of life for [Silence]
	Unmovable                        // what it holds stays where it is, such as its context
	LendsNothing                     // it has neither turns nor a time after which it lends
	AtWork                           // it has worked within the time after which it lends
	InTurn                           // its turn is not over
	Before                           // it waits, too, and is before in the queue
)

var reasonTexts = map[Reason]string{
	NoReason:         "",
	Capturing:        "a stream capture is under way",
	Communicating:    "it has an NCCL communicator of several ranks",
	SharingMemory:    "it exports or imports memory",
	PeerAccess:       "it has peer access to another GPU",
	ManagedMemory:    "it uses managed memory",
	OtherPolicy:      "its pool's policy cannot leave",
	NoHostMemory:     "the host has not enough free memory",
	NotDrained:       "its work did not end in time",
	NoGate:           "some of its calls do not pass the gate",
	OwnMappings:      "it maps memory by itself",
	RegisteredMemory: "its memory is registered with another device",
	NotReleased:      "its memory was not free after it had left",
	IntegratedGPU:    "the GPU's memory is the host's",
	ConfidentialGPU:  "the GPU is in confidential mode",
	SeveralGPUs:      "it uses several GPUs",
	Unreadable:       "its record in the ledger is damaged",
	Silent:           "it gives no sign of life",
	Unmovable:        "memory outside of its pool stays on the GPU",
	LendsNothing:     "it lends nothing",
	AtWork:           "it is at work",
	InTurn:           "its turn is not over",
	Before:           "it is before in the queue",
}

// String returns the reason as half a sentence, "" for NoReason.
func (r Reason) String() string {
	if text, ok := reasonTexts[r]; ok {
		return text
	}
	return fmt.Sprintf("reason %d", int(r))
}

// Ask is what somebody asks a process by hand.
type Ask uint8

// The requests. Pause holds until Resume.
const (
	NotAsked Ask = iota
	Pause        // to leave, and to stay away
	Resume       // to come back
	asks
)

// AutoQuantum is the Quantum of a process whose turn is ten times what its way out and in
// costs, within 2 s to 60 s.
const AutoQuantum time.Duration = -1

// Silence is how long a process may give no sign of life before it is passed over: one that is
// stopped neither leaves nor takes what it waits for.
const Silence = 5 * time.Second

// Turn is what a process says about its turn.
type Turn struct {
	State     State
	Reason    Reason        // why it is not asked to leave
	Ticket    uint64        // its place in the queue, see [Member.Queue]; 0 if it has none
	Wants     uint64        // bytes that it waits for: all that it has yet to take to go on
	OnHost    uint64        // bytes of its blocks that are on the host
	Movable   uint64        // bytes of what it holds that would be free if it left
	Worked    Moment        // when it was last seen at work
	Since     Moment        // when its state began
	Seen      Moment        // its last sign of life: every change is one
	LendAfter time.Duration // without work after which it lends its memory; 0 means never
	Quantum   time.Duration // of its turn; 0 means that it has no turns
	Cost      time.Duration // that its last way out and in took together
	Swaps     uint64        // number of times that it has left

	Asked Ask    // by hand, which only [Ledger.Ask] changes
	Asks  uint64 // the number of that request, which differs from that of the one before
}

// Waits reports whether a process is in the queue. One that has taken what it waits for keeps its
// ticket until it can go on: if that fails it waits again, in the same place.
func (t *Turn) Waits() bool { return t.Ticket != 0 && t.Wants != 0 && t.State != Returning }

// check reports what no process says.
func (t *Turn) check() error {
	switch {
	case t.State >= states:
		return fmt.Errorf("turn with %v", t.State)
	case t.Reason >= reasons:
		return fmt.Errorf("turn with %v, which no process has", t.Reason)
	case max(t.Wants, t.OnHost, t.Movable) > most:
		return fmt.Errorf("turn that wants %d bytes, with %d on the host and %d to be moved: no GPU has as much",
			t.Wants, t.OnHost, t.Movable)
	case min(t.LendAfter, t.Cost, t.Quantum-AutoQuantum) < 0:
		return fmt.Errorf("turn with negative times: lends after %v, quantum %v, cost %v", t.LendAfter, t.Quantum, t.Cost)
	}
	return nil
}

// Entry is a process in a ledger by turns.
type Entry struct {
	Slot int
	Figures
	Turn
}

const (
	turnsAt   = fileBytes
	turnBytes = 128
	// turnOwnBytes are those that the process itself writes.
	turnOwnBytes = int(unsafe.Offsetof(record{}.asked))
)

// record is a Turn in the file.
type record struct {
	check  uint32
	state  State
	reason Reason
	_      uint16

	ticket, wants, onHost, movable uint64
	worked, since, seen            Moment
	lendAfter, quantum, cost       time.Duration
	swaps                          uint64

	start uint64
	pid   uint32
	_     [12]byte
	asked uint64
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sum returns the check of a record. A reader may see half of a write.
func (r *record) sum() uint32 { return crc32.Checksum(slotfile.Bytes(r)[4:turnOwnBytes], castagnoli) }

// recordOf returns the record of a process's turn, without what it is asked.
func recordOf(t *Turn, of *Figures) *record {
	r := &record{
		state: t.State, reason: t.Reason, ticket: t.Ticket, wants: t.Wants, onHost: t.OnHost, movable: t.Movable,
		worked: t.Worked, since: t.Since, seen: t.Seen, lendAfter: t.LendAfter, quantum: t.Quantum, cost: t.Cost,
		swaps: t.Swaps, start: of.Start, pid: uint32(of.PID),
	}
	r.check = r.sum()
	return r
}

// turn returns what the record says of a process. That of another, such as one that had the slot
// before, says nothing. ok is false if it is damaged, or was read while it was written.
func (r *record) turn(of *Figures) (t Turn, ok bool) {
	if r.pid == 0 || r.check == r.sum() && (r.pid != uint32(of.PID) || r.start != of.Start) {
		return t, true
	}
	t = Turn{
		State: r.state, Reason: r.reason, Ticket: r.ticket, Wants: r.wants, OnHost: r.onHost, Movable: r.movable,
		Worked: r.worked, Since: r.since, Seen: r.seen, LendAfter: r.lendAfter, Quantum: r.quantum, Cost: r.cost,
		Swaps: r.swaps,
	}
	if r.check != r.sum() || t.check() != nil {
		return Turn{Reason: Unreadable}, false
	}
	t.Asked, t.Asks = askedOf(r.asked)
	return t, true
}

// askedOf reads the word of what a process is asked.
func askedOf(word uint64) (Ask, uint64) {
	if a := Ask(word); a < asks {
		return a, word >> 8
	}
	return NotAsked, word >> 8
}

// recordAt returns where the record of a slot is.
func recordAt(slot int) int64 { return turnsAt + int64(slot)*turnBytes }

// clearTurn makes the record of a slot nobody's.
func (f *file) clearTurn(slot int) error {
	if !f.header.Turns {
		return nil
	}
	return f.store(make([]byte, turnBytes), recordAt(slot))
}

// setLimit notes the limit that was read in the file.
func (f *file) setLimit(limit uint64) error {
	h := f.header
	h.Limit = limit
	if err := h.check(); err != nil {
		return f.Errorf("%v: %w", err, ErrDamaged)
	}
	f.header = h
	return nil
}

const limitAt = int64(unsafe.Offsetof(image{}.limit))

// readLimit reads the limit of a ledger by turns.
func (f *file) readLimit() error {
	if !f.header.Turns {
		return nil
	}
	var limit uint64
	if err := f.readAll(slotfile.Bytes(&limit), limitAt); err != nil {
		return err
	}
	return f.setLimit(limit)
}

// nextTicket gives out a ticket. Caller holds the lock of the ledger.
func (f *file) nextTicket() (ticket uint64, err error) {
	const at = int64(unsafe.Offsetof(image{}.tickets))
	if err := f.readAll(slotfile.Bytes(&ticket), at); err != nil {
		return 0, err
	}
	ticket = max(ticket+1, 1) // 0 means none
	return ticket, f.store(slotfile.Bytes(&ticket), at)
}

// tries is how often a record is read that seems damaged, as it may be written just then.
const tries = 20

// entries returns the processes that live, in the order of their slots. The records are read
// before the slots: of a process that leaves meanwhile too much is free, and nobody else is
// asked for it. Who decides by them holds the lock of the ledger, so that nobody takes meanwhile.
func (f *file) entries(own int) (list []Entry, err error) {
	if !f.header.Turns {
		return nil, f.Errorf("%w", ErrNoTurns)
	}
	records := make([]record, f.slotsInUse(own))
	all := unsafe.Slice((*byte)(unsafe.Pointer(&records[0])), len(records)*turnBytes)
	if err := f.readAll(all, turnsAt); err != nil {
		return nil, err
	}
	err = f.viewOf(len(records), func(slots []slot) error {
		for i := range slots {
			g, ok := f.member(&slots[i], i, own)
			if !ok {
				continue
			}
			t, err := f.turnOf(&records[i], i, &g)
			if err != nil {
				return err
			}
			list = append(list, Entry{Slot: i, Figures: g, Turn: t})
		}
		return nil
	})
	return list, err
}

// turnOf returns what the record of a slot says of its process. It is read again where it seems
// to be damaged.
func (f *file) turnOf(r *record, slot int, of *Figures) (Turn, error) {
	t, ok := r.turn(of)
	for n := 0; n < tries && !ok; n++ {
		if err := f.readAll(slotfile.Bytes(r), recordAt(slot)); err != nil {
			return t, err
		}
		t, ok = r.turn(of)
	}
	return t, nil
}

// Turns returns the processes that live in a ledger by turns, in the order of their slots. It
// never waits. It is empty after Close, if the ledger is not by turns, and if it was cut short.
func (l *Ledger) Turns() (list []Entry) {
	l.read(func(f *file) { list, _ = f.entries(-1) })
	return list
}

// LimitOf returns the limit of a user's ledger as it is now; 0 if it cannot be read.
func LimitOf(path string, owner int) uint64 {
	l, err := OpenOf(path, owner)
	if err != nil {
		return 0
	}
	defer l.Close()
	return l.Limit()
}

// Limit returns the limit as it is now; 0 after Close, and if the file was cut short.
func (l *Ledger) Limit() (limit uint64) {
	l.read(func(f *file) {
		if f.readLimit() == nil {
			limit = f.header.Limit
		}
	})
	return limit
}

// change calls op with the file open for writing, and its lock held.
func (l *Ledger) change(op func(f *file) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return ErrClosed
	}
	if !l.h.Turns {
		return l.f.Errorf("%w", ErrNoTurns)
	}
	again, err := l.f.Reopen()
	if err != nil {
		return err
	}
	f, err := mapped(again)
	if err != nil {
		return err
	}
	return errors.Join(f.locked(func() error { return op(f) }), f.Close())
}

// SetLimit sets the limit of a ledger by turns, from 1 to all of the GPU. What is held may exceed a
// smaller one: then nothing is taken until it does not.
func (l *Ledger) SetLimit(limit uint64) error {
	return l.change(func(f *file) error {
		if err := f.readLimit(); err != nil || limit == f.header.Limit {
			return err
		}
		h := f.header
		h.Limit = limit
		if err := h.check(); err != nil {
			return f.Errorf("%w", err)
		}
		return f.store(slotfile.Bytes(&limit), limitAt)
	})
}

// Ask asks a process by hand, which reads it with [Member.Turn]. The error is ErrGone if it has
// ended.
func (l *Ledger) Ask(e Entry, what Ask) error {
	return l.change(func(f *file) error {
		if what >= asks || e.Slot < 0 || e.Slot >= Slots {
			return f.Errorf("ask slot %d for %d: want one of the requests", e.Slot, what)
		}
		var s slot
		if err := f.readAll(slotfile.Bytes(&s), slotsAt+int64(e.Slot)*slotBytes); err != nil {
			return err
		}
		if g, ok := f.member(&s, e.Slot, -1); !ok || g.PID != e.PID || g.Start != e.Start {
			return f.Errorf("process %d: %w", e.PID, ErrGone)
		}
		var word uint64
		at := recordAt(e.Slot) + int64(turnOwnBytes)
		if err := f.readAll(slotfile.Bytes(&word), at); err != nil {
			return err
		}
		_, number := askedOf(word)
		word = (number+1)<<8 | uint64(what)
		return f.store(slotfile.Bytes(&word), at)
	})
}

// beginTurn writes the record of a process that joins. Caller holds the lock of the ledger.
func (m *Member) beginTurn() error {
	if !m.f.header.Turns {
		return nil
	}
	now := Now()
	m.turn = Turn{Since: now, Seen: now}
	return m.f.store(slotfile.Bytes(recordOf(&m.turn, &m.own)), recordAt(m.slot))
}

// storeTurn writes this process's record as op changes it. If that fails, nothing has changed.
// Caller holds mu.
func (m *Member) storeTurn(op func(t *Turn)) error {
	t := m.turn
	op(&t)
	t.Seen = Now()
	if err := t.check(); err != nil {
		return m.f.Errorf("%w", err)
	}
	b := slotfile.Bytes(recordOf(&t, &m.own))[:turnOwnBytes]
	if err := m.f.store(b, recordAt(m.slot)); err != nil {
		return err
	}
	m.turn = t
	return nil
}

// onTurn calls op, which may change the record, with the slot known to be this process's. Caller
// holds mu.
func (m *Member) onTurn(op func() error) error {
	if !m.f.header.Turns {
		return m.f.Errorf("%w", ErrNoTurns)
	}
	return m.onSlot(func(*slot) error { return op() })
}

// doTurn is onTurn for callers that do not hold mu.
func (m *Member) doTurn(op func() error) error {
	return m.use(func() error { return m.onTurn(op) })
}

// ByTurns reports whether the ledger is by turns.
func (m *Member) ByTurns() bool { return m.f.header.Turns }

// Slot returns the number of this process's slot.
func (m *Member) Slot() int { return m.slot }

// Turn returns what this process says, and what it is asked.
func (m *Member) Turn() (t Turn, err error) {
	err = m.doTurn(func() error {
		var word uint64
		if err := m.f.readAll(slotfile.Bytes(&word), recordAt(m.slot)+int64(turnOwnBytes)); err != nil {
			return err
		}
		t = m.turn
		t.Asked, t.Asks = askedOf(word)
		return nil
	})
	return t, err
}

// SetTurn changes what this process says, in one write. What change makes of Ticket, Wants, Seen,
// Asked and Asks does not count. It is a sign of life, which is to be given once a second.
func (m *Member) SetTurn(change func(t *Turn)) error {
	return m.doTurn(func() error {
		return m.storeTurn(func(t *Turn) {
			ticket, wants := t.Ticket, t.Wants
			change(t)
			t.Ticket, t.Wants = ticket, wants
		})
	})
}

// Queue makes this process wait for bytes, and returns its ticket. One that has a ticket keeps its
// place, and needs no lock. Who is refused by the limit of a part does not wait here: nobody leaves
// for that.
func (m *Member) Queue(bytes uint64) (ticket uint64, err error) {
	set := func() error {
		if m.turn.Ticket == ticket && m.turn.Wants == bytes {
			return nil
		}
		return m.storeTurn(func(t *Turn) { t.Ticket, t.Wants = ticket, bytes })
	}
	err = m.use(func() error {
		if ticket = m.turn.Ticket; ticket != 0 {
			return m.onTurn(set)
		}
		return m.f.locked(func() error {
			return m.onTurn(func() (err error) {
				if ticket, err = m.f.nextTicket(); err != nil {
					return err
				}
				return set()
			})
		})
	})
	return ticket, err
}

// Unqueue ends the wait of this process, if it waits.
func (m *Member) Unqueue() error {
	return m.doTurn(func() error {
		if m.turn.Ticket == 0 {
			return nil
		}
		return m.storeTurn(func(t *Turn) { t.Ticket, t.Wants = 0, 0 })
	})
}

// isTurn returns ErrTurn if this process has a ticket and it is not its turn to take n bytes.
// Caller holds the lock of the ledger.
func (m *Member) isTurn(n uint64) error {
	if m.turn.Ticket == 0 || n == 0 {
		return nil
	}
	all, err := m.f.entries(m.slot)
	if err != nil {
		return err
	}
	now := Now()
	for i := range all {
		if e := &all[i]; e.Slot == m.slot {
			e.Wants, e.Seen = n, now
			if e.State == Returning { // another thread takes, while the memory returns
				e.State = In
			}
		}
	}
	if plan := PlanTurns(now, m.f.header.Limit, all); !slices.Contains(plan.Serve, m.slot) {
		return ErrTurn
	}
	return nil
}

// noteTaken notes that this process, which has a ticket, has taken n bytes of a kind. Where its pool
// was on the host, that is the pool's way back: what it takes meanwhile is not held before. What cannot
// be written is written with the next change.
func (m *Member) noteTaken(kind Kind, n uint64) {
	isBack := kind == Held && m.turn.State == Waiting
	if m.turn.Wants == 0 && !isBack {
		return
	}
	_ = m.storeTurn(func(t *Turn) {
		t.Wants = less(t.Wants, n)
		if isBack {
			t.State, t.Since, t.Movable = Returning, Now(), n
		}
	})
}

// Turns returns the limit, and the processes that live, in the order of their slots, as they are
// at one moment: for [PlanTurns]. It waits as Take does.
func (m *Member) Turns() (limit uint64, list []Entry, err error) {
	err = m.use(func() error {
		return m.f.locked(func() error { return m.entries(&limit, &list) })
	})
	return limit, list, err
}

// LookAtTurns is Turns without the lock: others may take, leave and return while it reads. It waits
// for nobody, also where one was stopped that has the lock.
func (m *Member) LookAtTurns() (limit uint64, list []Entry, err error) {
	err = m.use(func() error { return m.entries(&limit, &list) })
	return limit, list, err
}

// Reachable returns the most that this process may ever hold beside the others as they are: when all
// have left, what stays of them, such as their contexts, is held still. It is known as far as they have
// said it by now. It waits for nobody.
func (m *Member) Reachable() (bytes uint64, err error) {
	err = m.use(func() error {
		var limit uint64
		var list []Entry
		if err := m.entries(&limit, &list); err != nil {
			return err
		}
		m.limits[0].Limit, bytes = limit, limit
		for _, part := range m.limits {
			stays := uint64(0)
			for i := range list {
				if e := &list[i]; e.Slot != m.slot && e.In(part.ID) {
					stays += e.Sum() - movable(e)
				}
			}
			bytes = min(bytes, less(part.Limit, stays))
		}
		return nil
	})
	return bytes, err
}

// entries reads the limit and the processes that live. Caller holds mu.
func (m *Member) entries(limit *uint64, list *[]Entry) (err error) {
	*list, err = m.f.entries(m.slot)
	*limit = m.f.header.Limit
	return err
}
