//go:build !linux

package ledger

import (
	"errors"
	"fmt"
)

// errHere is the error of a system without locks of open file descriptions.
var errHere = fmt.Errorf("ledgers need Linux: %w", errors.ErrUnsupported)

// Ledger is an open ledger. Here there is none.
type Ledger struct{}

// Create fails on this system.
func Create(string, Header) error { return errHere }

// Open fails on this system.
func Open(string) (*Ledger, error) { return nil, errHere }

// Header returns nothing on this system.
func (l *Ledger) Header() Header { return Header{} }

// Join fails on this system.
func (l *Ledger) Join(...Part) (*Member, error) { return nil, errHere }

// Members returns none on this system.
func (l *Ledger) Members() []Figures { return nil }

// Held returns 0 on this system.
func (l *Ledger) Held() uint64 { return 0 }

// Refusals returns 0 on this system.
func (l *Ledger) Refusals() (n, last uint64) { return 0, 0 }

// Close does nothing on this system.
func (l *Ledger) Close() error { return nil }

// Member is a process's slot in a ledger. Here there is none.
type Member struct{}

// Take fails on this system.
func (m *Member) Take(Kind, uint64) error { return errHere }

// Give fails on this system.
func (m *Member) Give(Kind, uint64) error { return errHere }

// Left returns 0 on this system.
func (m *Member) Left() uint64 { return 0 }

// Publish does nothing on this system.
func (m *Member) Publish(Figures) {}

// Limit returns 0 on this system.
func (m *Member) Limit() uint64 { return 0 }

// Own returns nothing on this system.
func (m *Member) Own() Figures { return Figures{} }

// Header returns nothing on this system.
func (m *Member) Header() Header { return Header{} }

// Alone reports whether no other process has a slot.
func (m *Member) Alone() bool { return true }

// Want fails on this system.
func (m *Member) Want(uint64) error { return errHere }

// Wanted returns no announcement on this system.
func (m *Member) Wanted() (number, n uint64) { return 0, 0 }

// Leave does nothing on this system.
func (m *Member) Leave() error { return nil }

// Forget does nothing on this system.
func (m *Member) Forget() error { return nil }

// Descriptor returns -1 on this system.
func (m *Member) Descriptor() int { return -1 }

// Refuse does nothing on this system.
func (m *Member) Refuse(uint64) {}
