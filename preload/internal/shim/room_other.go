//go:build !linux

package shim

import "errors"

// Room returns ErrNoHostMemory: the driver library is for Linux.
func Room(uint64) (HostMemory, error) {
	return HostMemory{}, errors.Join(ErrNoHostMemory, errors.ErrUnsupported)
}
