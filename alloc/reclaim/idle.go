package reclaim

import (
	"math"
	"time"

	"gpumem/device"
)

// DefaultIdle is how long idle memory is kept. It is longer than a step of most programs,
// which would otherwise pay for mapping the memory again in each.
const DefaultIdle = 10 * time.Second

const (
	// looks is how often a pool looks at its idle memory in the idle time.
	looks = 10
	// quick is how often a pool on a device that other processes use looks whether one of
	// them waits for memory. It looks only while it holds idle memory.
	quick = 50 * time.Millisecond
)

// Idle decides how much idle memory a pool keeps: what was not used for a while goes, and
// what others need.
//
// While the pool holds memory that nothing lives in, it looks now and then. If no block was
// freed between two looks that lie the idle time apart, all of that memory is released. If
// less than the low-water mark is free on the device, as much is released as is missing
// there, whatever the pool does: others are short of it, and this program has it mapped for
// nothing. The pool's lock guards an Idle.
type Idle struct {
	// Every is the time between looks. It is positive.
	Every time.Duration

	dev     device.Device
	sharing device.Sharing // nil if no other process can ask
	after   time.Duration  // 0: never
	low     uint64         // bytes free on the device; 0: none

	frees  uint64        // since the pool was opened
	seen   uint64        // frees at the last look that found some
	still  time.Duration // since then
	ticks  int           // looks since the device was last asked what is free
	wanted uint64        // number of the last announcement that was seen
}

// KeepAll is what [Idle.Keep] returns if nothing is to be released.
const KeepAll = math.MaxUint64

// NewIdle returns an Idle for a pool on dev, which releases what was idle for the time
// after, unless it is 0, and keeps low bytes of the device free. sharing is what
// [Sharing] returned.
func NewIdle(dev device.Device, sharing device.Sharing, after time.Duration, low uint64) *Idle {
	every := after / looks
	if after == 0 {
		every = DefaultIdle / looks
	}
	i := &Idle{Every: max(every, time.Millisecond), dev: dev, sharing: sharing, after: after, low: low}
	if sharing != nil {
		i.wanted, _ = sharing.Wanted()
		i.Every = min(i.Every, quick)
	}
	return i
}

// Freed counts a free, and reports whether the pool has any reason to look from now on.
func (i *Idle) Freed() (looks bool) {
	i.frees++
	return i.after != 0 || i.low != 0 || i.sharing != nil
}

// Keep is a look at a pool that holds some bytes, Every after the last one. It returns how
// many the pool may hold, or KeepAll.
func (i *Idle) Keep(held uint64) uint64 {
	if i.frees != i.seen {
		i.seen, i.still = i.frees, 0
	} else {
		i.still += i.Every
	}
	if i.after != 0 && i.still >= i.after {
		return 0
	}
	keep := uint64(KeepAll)
	if i.sharing != nil {
		if number, bytes := i.sharing.Wanted(); number != 0 && number != i.wanted {
			i.wanted = number
			keep = held - min(held, bytes)
		}
	}
	i.ticks++
	if i.low != 0 && time.Duration(i.ticks)*i.Every >= i.after/looks {
		i.ticks = 0
		// A device that does not say what is free is found by the next request.
		if free, _, err := i.dev.MemInfo(); err == nil && free < i.low {
			keep = min(keep, held-min(held, i.low-free))
		}
	}
	return keep
}

// Done reports whether nothing is left to release until the next free, after the pool was
// allowed to keep some bytes and released some.
func (i *Idle) Done(keep, released uint64) bool {
	return i.frees == i.seen && (keep == 0 || released == 0 && i.sharing == nil)
}
