package ledger

import "encoding/binary"

// poke stores a word in the file, for tests that damage it.
func (f *file) poke(at uintptr, v uint64) error {
	return f.WriteAt(binary.LittleEndian.AppendUint64(nil, v), int64(at))
}

// pokeSlot stores a word in this process's slot.
func (m *Member) pokeSlot(at uintptr, v uint64) error {
	return m.f.poke(slotsAt+uintptr(m.slot)*slotBytes+at, v)
}

// Forget ends the use of the ledger as the kernel does where a process ends, or as a child
// does that was forked: the slot is left to whoever else has the description.
func (m *Member) Forget() error { return m.end(func() {}) }
