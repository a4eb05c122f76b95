package gpumem

import (
	"math"
	"time"

	"gpumem/alloc/streams"
)

// Idle memory of the policy elastic, which the pool releases by itself: what was not
// used for a while, and what others need.
//
// While a pool holds memory that nothing lives in, a timer looks at it now and
// then. If no block was freed between two looks that lie the idle time apart,
// all of that memory is released. If less than the low-water mark is free on the
// device, as much is released as is missing there, whatever the pool does: others
// are short of it, and this program has it mapped for nothing. When nothing more
// can go back the timer stops, until the next free.

// DefaultIdleTrim is how long the elastic policy keeps idle memory. It is longer than a
// step of most programs, which would otherwise pay for mapping the memory again in each.
const DefaultIdleTrim = 10 * time.Second

// looks is how often the timer looks in the idle time.
const looks = 10

type idleConfig struct {
	after time.Duration // 0: never
	low   uint64        // bytes free on the device; 0: none
}

// defaultIdle leaves others a 64th of the device, 1.25 GiB of 80: what a small
// program and its context need to begin.
func defaultIdle(total uint64) idleConfig { return idleConfig{DefaultIdleTrim, total / 64} }

// WithIdleTrim sets the time without a free after which the elastic policy releases idle
// memory; 0 means never. The default is [DefaultIdleTrim].
func WithIdleTrim(after time.Duration) Option { return func(c *config) { c.idle.after = after } }

// WithLowWater sets how many bytes the elastic policy keeps free on the device
// for others, by releasing idle memory. 0 means none. The default is a 64th of the
// device.
func WithLowWater(bytes uint64) Option { return func(c *config) { c.idle.low = bytes } }

// quick is how often a pool on a device that other processes use looks whether
// one of them waits for memory. It looks only while it holds idle memory.
const quick = 50 * time.Millisecond

// idle is a pool's timer. Its pool's lock guards all of it.
type idle struct {
	pool      *Pool
	cfg       idleConfig
	every     time.Duration // between looks
	timer     *time.Timer   // nil: it does not run
	frees     uint64        // since the pool was opened
	seen      uint64        // frees at the last look that found some
	still     time.Duration // since then
	releasing bool          // a goroutine waits for the device to release more
	ticks     int           // looks since the device was last asked what is free
	wanted    uint64        // number of the last announcement that was seen
}

func newIdle(p *Pool, cfg idleConfig) *idle {
	every := cfg.after / looks
	if cfg.after == 0 {
		every = DefaultIdleTrim / looks
	}
	i := &idle{pool: p, cfg: cfg, every: max(every, time.Millisecond)}
	if p.sharing != nil {
		i.wanted, _ = p.sharing.Wanted()
		i.every = min(i.every, quick)
	}
	return i
}

// used counts a free.
func (i *idle) used() {
	i.frees++
	if i.timer == nil && (i.cfg.after != 0 || i.cfg.low != 0 || i.pool.sharing != nil) {
		i.timer = time.AfterFunc(i.every, i.look)
	}
}

// stop ends it. One look may still be under way; it finds the pool closed.
func (i *idle) stop() {
	if i.timer != nil {
		i.timer.Stop()
	}
}

// look is what the timer does.
func (i *idle) look() {
	p := i.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	if a, ok := p.a.(interface{ Idle() uint64 }); ok && a.Idle() == 0 {
		i.timer = nil // until the next free
		return
	}
	if i.frees != i.seen {
		i.seen, i.still = i.frees, 0
	} else {
		i.still += i.every
	}
	if keep := i.keep(); keep != math.MaxUint64 {
		released, err := p.trim(keep)
		if p.closed {
			return
		}
		if err == nil && i.frees == i.seen && (keep == 0 || released == 0 && p.sharing == nil) {
			i.timer = nil // nothing is left to release, until the next free
			return
		}
		// What could not be released now is tried again at the next look.
	}
	i.timer = time.AfterFunc(i.every, i.look)
}

// keep is how many bytes the pool may hold now; 2^64-1 means that nothing is to
// be released.
func (i *idle) keep() uint64 {
	keep := uint64(math.MaxUint64)
	if i.cfg.after != 0 && i.still >= i.cfg.after {
		return 0
	}
	held := i.pool.a.Stats().PoolBytes
	if i.pool.sharing != nil {
		if number, bytes := i.pool.sharing.Wanted(); number != 0 && number != i.wanted {
			i.wanted = number
			keep = held - min(held, bytes)
		}
	}
	i.ticks++
	if i.cfg.low != 0 && time.Duration(i.ticks)*i.every >= i.cfg.after/looks {
		i.ticks = 0
		// A device that does not say what is free is found by the next request.
		if free, _, err := i.pool.dev.MemInfo(); err == nil && free < i.cfg.low {
			keep = min(keep, held-min(held, i.cfg.low-free))
		}
	}
	return keep
}

// Release releases bytes of idle memory, or all there is, and returns how many.
// It does not wait for the device.
func (i *idle) Release(bytes uint64) uint64 {
	p := i.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	held := p.a.Stats().PoolBytes
	keep := held - min(held, bytes)
	released, err := p.a.Trim(keep)
	if pending, ok := err.(*streams.Pending); ok {
		// The rest is released when the device has finished with it. The caller
		// does not wait for that here.
		pending.Settle(err)
		if !i.releasing {
			i.releasing = true
			go i.releaseLater(keep)
		}
	}
	return released
}

func (i *idle) releaseLater(keep uint64) {
	p := i.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = p.trim(keep) // what the device does not take stays with the pool
	i.releasing = false
}
