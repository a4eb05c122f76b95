//go:build !linux

package shared

import (
	"errors"
	"fmt"
	"slices"
)

// errHere is the error of everything here: the locks by which a living process is known
// are Linux's.
var errHere = fmt.Errorf("shared simulated GPUs need Linux; use a private one, such as sim:80GiB: %w", errors.ErrUnsupported)

// File is a process's use of a shared file. Here there are none.
type File struct{ devs []Descriptor }

// Create fails on this system.
func Create(string, []Descriptor) error { return errHere }

// Open fails on this system.
func Open(string) (*File, error) { return nil, errHere }

// Look fails on this system.
func Look(string) ([]State, error) { return nil, errHere }

// Devices describes the devices.
func (f *File) Devices() []Descriptor { return slices.Clone(f.devs) }

// Take fails on this system.
func (f *File) Take(int, uint64) error { return errHere }

// Give fails on this system.
func (f *File) Give(int, uint64) error { return errHere }

// Free fails on this system.
func (f *File) Free(int) (uint64, error) { return 0, errHere }

// SetUsed fails on this system.
func (f *File) SetUsed(int, uint64) error { return errHere }

// Want does nothing on this system.
func (f *File) Want(int, uint64) {}

// Wanted returns no announcement on this system.
func (f *File) Wanted(int) (uint64, uint64) { return 0, 0 }

// Close does nothing on this system.
func (f *File) Close() error { return nil }
