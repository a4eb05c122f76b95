package reclaim

import (
	"fmt"
	"math"
	"os"
	"time"

	"gpumem/device"
)

// EnvLease names the record of the lease that a program runs in: share.EnvLease.
const EnvLease = "GPUMEM_LEASE"

// Sharing returns what passes word between the processes that use dev's memory:
// the device itself, or the lease of `gpumem run` that they run in. It is nil if
// there is neither, and where the lease cannot be written to, as in a container of
// Kubernetes: there only the pool library passes word.
func Sharing(dev device.Device) device.Sharing {
	if s, ok := dev.(device.Sharing); ok && s.Want(0) == nil {
		return s
	}
	if path := os.Getenv(EnvLease); path != "" {
		l := lease(path)
		if f, err := os.OpenFile(path, os.O_WRONLY, 0); err == nil {
			_ = f.Close()
			if _, err := l.stat(); err == nil {
				return l
			}
		}
	}
	return nil
}

// lease is the record of a lease, by path. Its time of modification says when a
// process of the lease last waited for memory; nothing else uses that time. Only
// the lease's user can set it.
type lease string

func (l lease) stat() (os.FileInfo, error) {
	info, err := os.Lstat(string(l))
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("lease %s: not a regular file", string(l))
	}
	return info, err
}

// Want announces that this process waits for memory.
func (l lease) Want(bytes uint64) error {
	if _, err := l.stat(); err != nil || bytes == 0 {
		return err
	}
	now := time.Now()
	return os.Chtimes(string(l), now, now)
}

// Wanted returns the time of the last announcement. How much memory it was for is
// unknown: all that is idle is wanted.
func (l lease) Wanted() (number, bytes uint64) {
	info, err := l.stat()
	if err != nil {
		return 0, 0
	}
	return uint64(info.ModTime().UnixNano()), math.MaxUint64
}
