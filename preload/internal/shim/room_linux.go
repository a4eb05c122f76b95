package shim

import (
	"fmt"

	"golang.org/x/sys/unix"

	"gpumem/internal/hostmem"
	"gpumem/size"
)

// Room returns memory of the host for what lies on a GPU: ordinary memory without a name, which ends
// with the process, however that ends. It is ErrNoHostMemory where the host, or a control group, has
// less room, see package hostmem: the kernel would end a program for it.
func Room(bytes uint64) (HostMemory, error) {
	if bytes == 0 {
		return HostMemory{}, nil
	}
	room, err := hostmem.Free()
	if err != nil {
		return HostMemory{}, fmt.Errorf("%w: how much there is cannot be found out: %w", ErrNoHostMemory, err)
	}
	if bytes > room.Bytes {
		return HostMemory{}, fmt.Errorf("%w: %s are to be copied, and %s has room for %s", ErrNoHostMemory, size.Format(bytes), room.By, size.Format(room.Bytes))
	}
	b, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return HostMemory{}, fmt.Errorf("%w: %w", ErrNoHostMemory, err)
	}
	return HostMemory{Bytes: b, Release: func() error { return unix.Munmap(b) }}, nil
}
