//go:build !linux

package share

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// errHere is the error of a system without locks of open file descriptions.
var errHere = fmt.Errorf("sharing a GPU between programs needs Linux: %w", errors.ErrUnsupported)

// Registry is a folder with leases. Here there is none.
type Registry struct{}

// Open fails on this system.
func Open(string) (*Registry, error) { return nil, errHere }

// Acquire fails on this system.
func (r *Registry) Acquire(context.Context, Request) ([]*Lease, error) { return nil, errHere }

// AcquireAll fails on this system.
func (r *Registry) AcquireAll(context.Context, ...Request) ([][]*Lease, error) { return nil, errHere }

// List fails on this system.
func (r *Registry) List(...string) ([]Entry, error) { return nil, errHere }

// Enclosing fails on this system.
func (r *Registry) Enclosing(string) (Entry, bool, error) { return Entry{}, false, errHere }

// Owners finds the leases that processes belong to. Here there are none.
type Owners struct{}

// NewOwners returns one that finds none.
func NewOwners([]Entry) *Owners { return &Owners{} }

// Of finds none on this system.
func (*Owners) Of(int) (Entry, bool) { return Entry{}, false }

// Lease is a lease that this process has taken. Here there is none.
type Lease struct{}

// Left returns 0 on this system.
func (l *Lease) Left() (display, host uint64) { return 0, 0 }

// Bytes returns 0 on this system.
func (l *Lease) Bytes() uint64 { return 0 }

// Within returns 0 on this system.
func (l *Lease) Within() uint64 { return 0 }

// Device returns "" on this system.
func (l *Lease) Device() string { return "" }

// ID returns "" on this system.
func (l *Lease) ID() string { return "" }

// Path is "" on this system.
func (l *Lease) Path() string { return "" }

// Ledger is "" on this system.
func (l *Lease) Ledger() string { return "" }

// Keep does nothing on this system.
func (l *Lease) Keep(context.Context) {}

// File is nil on this system.
func (l *Lease) File() *os.File { return nil }

// Tell fails on this system.
func (l *Lease) Tell(int) error { return errHere }

// SetUse fails on this system.
func (l *Lease) SetUse([]Container, string) error { return errHere }

// Close does nothing on this system.
func (l *Lease) Close() error { return nil }

// Attend fails on this system.
func Attend(string, *os.File, *os.File) (*Lease, error) { return nil, errHere }

// Attending fails on this system.
func Attending(*os.File) error { return errHere }
