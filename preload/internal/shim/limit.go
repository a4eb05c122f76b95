// An account for one process, for programs without a lease.

package shim

import (
	"fmt"
	"sync/atomic"

	"gpumem/device"
)

// Limit is an [Account] of this process alone.
type Limit struct {
	limit uint64
	held  atomic.Uint64
	pool  atomic.Uint64 // of it by the pool
}

// NewLimit makes an account of at most bytes; 2^64-1 means no limit.
func NewLimit(bytes uint64) *Limit { return &Limit{limit: bytes} }

// Take counts bytes more.
func (l *Limit) Take(k Part, bytes uint64) error {
	for {
		held := l.held.Load()
		if held > l.limit || bytes > l.limit-held {
			return fmt.Errorf("%w: %d bytes of %d are held", device.ErrOutOfMemory, held, l.limit)
		}
		if l.held.CompareAndSwap(held, held+bytes) {
			l.note(k, bytes)
			return nil
		}
	}
}

// Count counts bytes more, also beyond the limit.
func (l *Limit) Count(k Part, bytes uint64) { l.held.Add(bytes); l.note(k, bytes) }

// Give counts bytes less.
func (l *Limit) Give(k Part, bytes uint64) { l.held.Add(-bytes); l.note(k, -bytes) }

func (l *Limit) note(k Part, bytes uint64) {
	if k == Held {
		l.pool.Add(bytes)
	}
}

// Beside returns what is not the pool's.
func (l *Limit) Beside() uint64 { return l.held.Load() - l.pool.Load() }

// Reachable returns the limit: there are no others.
func (l *Limit) Reachable() uint64 { return l.limit }

// Limit returns the limit and what is left of it.
func (l *Limit) Limit() (limit, left uint64) {
	return l.limit, l.limit - min(l.limit, l.held.Load())
}

// Uncertain does nothing: nobody learns from this process.
func (l *Limit) Uncertain() {}

// Publish does nothing: no other process reads it.
func (l *Limit) Publish(Figures) {}

// Want answers that no other process can be asked.
func (l *Limit) Want(uint64) error { return device.ErrNotSupported }

// Wanted reports that no other process waits for memory.
func (l *Limit) Wanted() (number, bytes uint64) { return 0, 0 }

// Refused does nothing, either.
func (l *Limit) Refused(uint64) {}
