package shim

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"gpumem/internal/hostmem"
	"gpumem/size"
)

// roomPiece is how much memory is taken between two looks at what the host has: less than the
// margin that package hostmem leaves.
const roomPiece = 64 << 20

// Room returns memory of the host for what lies on a GPU: ordinary memory without a name, which ends
// with the process, however that ends. All of it is there: memory that is only promised is missing
// when it is written to, where others were promised it, too, and the kernel ends a program for that.
// A child has none of it. The error is ErrNoHostMemory where the host, or a control group, has less
// room, see package hostmem.
func Room(bytes uint64) (HostMemory, error) { return roomOf(bytes, hostmem.Free) }

// roomOf is Room with what says how much there is.
func roomOf(bytes uint64, free func() (hostmem.Room, error)) (HostMemory, error) {
	if bytes == 0 {
		return HostMemory{}, nil
	}
	if err := hasRoom(bytes, 0, bytes, free); err != nil {
		return HostMemory{}, err
	}
	b, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return HostMemory{}, fmt.Errorf("%w: %w", ErrNoHostMemory, err)
	}
	m := HostMemory{Bytes: b, Release: func() error { return unix.Munmap(b) }}
	_ = unix.Madvise(b, unix.MADV_DONTFORK) // a child would keep it as long as it lives
	for at := uint64(0); at < bytes; at += roomPiece {
		piece := b[at:min(bytes, at+roomPiece)]
		err := hasRoom(bytes, at, uint64(len(piece)), free)
		if err == nil {
			err = populate(piece)
		}
		if err != nil {
			return HostMemory{}, errors.Join(err, m.Release())
		}
	}
	return m, nil
}

// hasRoom returns an error if there is no room for the next bytes of all, of which some are taken.
func hasRoom(all, taken, next uint64, free func() (hostmem.Room, error)) error {
	room, err := free()
	if err != nil {
		return fmt.Errorf("%w: how much there is cannot be found out: %w", ErrNoHostMemory, err)
	}
	if next > room.Bytes {
		return fmt.Errorf("%w: %s are to be copied, and %s has room for %s",
			ErrNoHostMemory, size.Format(all), room.By, size.Format(taken+room.Bytes))
	}
	return nil
}

// populate has the kernel find the memory of a piece.
func populate(piece []byte) error {
	switch err := unix.Madvise(piece, unix.MADV_POPULATE_WRITE); err {
	case nil:
		return nil
	case unix.EINVAL: // before Linux 5.14
		for at := 0; at < len(piece); at += os.Getpagesize() {
			piece[at] = 0
		}
		return nil
	default:
		return fmt.Errorf("%w: %w", ErrNoHostMemory, err)
	}
}
