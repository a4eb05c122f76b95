// The bytes of the file as Go sees them. The structs have no holes.

package ledger

import "sync/atomic"

const (
	magic     = "gpumemL1"
	slotsAt   = 4096
	slotBytes = 128
	fileBytes = Bytes

	// lockByte is the lock of the ledger, and slotByte + n that of slot n.
	lockByte = slotByte - 1
	slotByte = 1 << 40
)

// Flags of the header.
const (
	sharedFlag = 1 << iota // several users may join
	turnsFlag              // by turns: the file has records behind its slots
)

// image is the whole file, or what is before the records of turns.
type image struct {
	magic  [8]byte
	limit  uint64
	total  uint64
	wanted atomic.Uint32
	number uint32 // of slots
	bytes  atomic.Uint64

	refusals    atomic.Uint64 // by programs, see Member.Refuse
	lastRefused atomic.Uint64
	flags       uint64

	uuid    [uuidBytes]byte
	tickets atomic.Uint64 // by turns: the last one that was given out
	_       [slotsAt - 136]byte
	slots   [Slots]slot
}

// uncertainFlag is the flag of a slot, see Member.Uncertain.
const uncertainFlag = 1

// slot is one process. pid is stored last when it joins, and first when it leaves.
type slot struct {
	pid         atomic.Uint32
	flags       atomic.Uint32
	start       atomic.Uint64
	held        atomic.Uint64
	outside     atomic.Uint64
	inUse       atomic.Uint64
	peakHeld    atomic.Uint64
	peakInUse   atomic.Uint64
	refused     atomic.Uint64
	driverCalls atomic.Uint64
	charged     atomic.Uint64
	parts       [MaxParts]atomic.Uint64
	changes     atomic.Uint64
	_           [slotBytes - 88 - 8*MaxParts]byte
}

// within reports whether a slot is of a process in a part; all are in part 0.
func (s *slot) within(part uint64) bool {
	if part == 0 {
		return true
	}
	for i := range s.parts {
		if s.parts[i].Load() == part {
			return true
		}
	}
	return false
}

// word returns the word of a kind.
func (s *slot) word(k Kind) *atomic.Uint64 {
	return [...]*atomic.Uint64{Held: &s.held, Charged: &s.charged, Outside: &s.outside}[k]
}

// figures reads a slot.
func (s *slot) figures() Figures {
	f := Figures{
		PID: int(s.pid.Load()), Start: s.start.Load(),
		Held: s.held.Load(), Charged: s.charged.Load(), Outside: s.outside.Load(), InUse: s.inUse.Load(),
		PeakHeld: s.peakHeld.Load(), PeakInUse: s.peakInUse.Load(), Refused: s.refused.Load(), DriverCalls: s.driverCalls.Load(),
		Changes: s.changes.Load(), Uncertain: s.flags.Load()&uncertainFlag != 0,
	}
	for i := range s.parts {
		f.Parts[i] = s.parts[i].Load()
	}
	return f
}

// clear frees a slot.
func (s *slot) clear() { s.store(Figures{}) }

// store writes a slot whose process is not counted meanwhile.
func (s *slot) store(f Figures) {
	s.pid.Store(0)
	flags := uint32(0)
	if f.Uncertain {
		flags = uncertainFlag
	}
	s.flags.Store(flags)
	s.changes.Store(f.Changes)
	s.start.Store(f.Start)
	s.held.Store(f.Held)
	s.charged.Store(f.Charged)
	s.outside.Store(f.Outside)
	s.inUse.Store(f.InUse)
	s.peakHeld.Store(f.PeakHeld)
	s.peakInUse.Store(f.PeakInUse)
	s.refused.Store(f.Refused)
	s.driverCalls.Store(f.DriverCalls)
	for i, part := range f.Parts {
		s.parts[i].Store(part)
	}
	s.pid.Store(uint32(f.PID))
}
