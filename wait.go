package gpumem

import (
	"context"
	"time"

	"gpumem/alloc/reclaim"
	"gpumem/policy"
)

// What a refused request does until it is repeated.

const (
	// poll is how often a waiter looks whether another pool has released memory.
	poll = 20 * time.Millisecond
	// patience is how long a waiter gives other processes to release idle memory
	// if no block of its own pool could be freed. They look for waiters every
	// 50 ms, and may have to wait for their device first.
	patience = time.Second
)

// waiter is one request that waits. It is used without the pool's lock.
type waiter struct {
	p      *Pool
	bytes  uint64
	grows  bool   // memory that others release could serve it
	free   uint64 // on the device when the request was repeated last
	asked  time.Time
	timer  *time.Timer
	ticker *time.Ticker
}

// grows reports whether the pool could take more memory from the device. Caller
// holds p.mu.
func (p *Pool) grows() bool {
	s := p.a.Stats()
	return p.policy.Kind == policy.Async || s.PoolBytes < s.BytesLimit
}

// ask has the other pools on the device release what is idle in them. It reports
// whether the request is worth repeating.
func (w *waiter) ask() bool {
	var self reclaim.Member
	if w.p.idle != nil {
		self = w.p.idle
	}
	released := reclaim.Ask(w.p.dev, w.bytes, self)
	if w.p.sharing != nil && time.Since(w.asked) >= quick {
		w.asked = time.Now()
		_ = w.p.sharing.Want(w.bytes) // others release nothing then
	}
	free, _, err := w.p.dev.MemInfo()
	more := released > 0 || err == nil && free > w.free
	w.free = free
	return more
}

// patience is how long other processes may take to release memory; 0 if none can
// be asked.
func (w *waiter) patience() time.Duration {
	if !w.grows || w.p.sharing == nil {
		return 0
	}
	return patience
}

// wait returns when the request is to be repeated: a block was freed, or other
// pools released memory. last is true if that is for the last time, because the
// limit is over or ctx ended; then stopped is ctx's error.
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
			if w.grows && w.ask() {
				return false, nil
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
