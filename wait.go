package gpumem

import (
	"context"
	"errors"
	"time"

	"gpumem/alloc/reclaim"
	"gpumem/device"
	"gpumem/policy"
)

// The wait of a failed allocation until it is repeated.

const (
	// poll is how often a waiter looks whether another pool has released memory.
	poll = 20 * time.Millisecond
	// patience is how long a waiter gives other processes to release idle memory
	// if no block of the pool could be freed. They look for waiters every
	// 50 ms, and may have to wait for their device first.
	patience = time.Second
)

// waiter is one request that waits. It is used without the pool's lock.
type waiter struct {
	p      *Pool
	bytes  uint64
	grows  bool // memory that others release could serve it
	timer  *time.Timer
	ticker *time.Ticker
}

// grows reports whether the pool could take more memory from the device. Caller
// holds p.mu.
func (p *Pool) grows() bool {
	s := p.a.Stats()
	return p.policy.Kind == policy.Async || s.PoolBytes < s.BytesLimit
}

// ask has the other pools on the device release what is idle in them, and asks
// the device what is free. It reports whether there is more than the last time;
// lost is the error of a device that is lost. It waits for no work.
func (w *waiter) ask() (more bool, lost error) {
	p := w.p
	released := uint64(0)
	if w.grows {
		var self reclaim.Member
		if p.idle != nil {
			self = p.idle
		}
		released = reclaim.Ask(p.dev, w.bytes, self)
		if p.sharing != nil {
			_ = p.sharing.Want(w.bytes) // others release nothing then
		}
	}
	free, _, err := p.dev.MemInfo()
	if errors.Is(err, device.ErrLost) {
		return false, err
	}
	return released > 0 || err == nil && free > p.freeBytes.Swap(free), nil
}

// patience is how long other processes may take to release memory; 0 if none can
// be asked. It asks them.
func (w *waiter) patience() time.Duration {
	if !w.grows || w.p.sharing == nil || w.p.sharing.Want(w.bytes) != nil {
		return 0
	}
	return patience
}

// wait returns when the request is to be repeated: a block was freed, or other
// pools released memory. last is true if that is for the last time, because the
// limit is over or ctx ended; then stopped is ctx's error, or that of a lost
// device.
func (w *waiter) wait(ctx context.Context, freed <-chan struct{}, limit time.Duration) (last bool, stopped error) {
	if w.timer == nil {
		w.timer = time.NewTimer(limit)
		w.ticker = time.NewTicker(poll)
	} else {
		w.timer.Reset(limit)
	}
	for {
		select {
		case <-freed:
			return false, nil
		case <-w.ticker.C:
			// One of the pool's waiters asks for all of them.
			now, before := time.Now().UnixNano(), w.p.polled.Load()
			if now-before < int64(poll)/2 || !w.p.polled.CompareAndSwap(before, now) {
				continue
			}
			more, lost := w.ask()
			if lost != nil {
				return true, lost
			}
			if more {
				w.p.mu.Lock()
				w.p.wake()
				w.p.mu.Unlock()
			}
		case <-w.timer.C:
			return true, nil
		case <-ctx.Done():
			return true, ctx.Err()
		}
	}
}

func (w *waiter) stop() {
	if w.timer != nil {
		w.timer.Stop()
		w.ticker.Stop()
	}
}
