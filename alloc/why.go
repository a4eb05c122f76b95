package alloc

import (
	"fmt"
	"strings"

	"gpumem/size"
)

// Cause is our own account of a failed allocation, in numbers: the state of the pool
// and what would have helped. All sizes are in bytes.
type Cause struct {
	Request     uint64 // as requested
	Rounded     uint64 // as the pool rounds it
	Limit       uint64 // most that the pool may take from the device
	Pool        uint64 // taken from the device now
	Live        uint64 // live in it, whole blocks
	DeviceFree  uint64 // free on the device beside the pool
	DeviceKnown bool   // DeviceFree is known

	Missing uint64 // what the pool would have to take from the device to serve the request

	Hole     uint64 // largest free block, as far as it can serve the request
	HoleAddr uint64

	// Pin is the smallest live block, smaller than the request, that keeps it
	// from fitting: freed, it would be joined with the free blocks beside it into one
	// that is large enough. Size 0 means that there is none.
	Pin      Chunk
	PinHole  uint64 // size of the free block that freeing it would make
	Stranded uint64 // free in the pool outside the largest free block

	Waste      uint64 // what live blocks have beyond their requests
	SplitHole  uint64 // largest free block if every block had been cut to its request
	Pages      uint64 // whole free 2 MiB pages in the pool, in bytes: what a paged pool could reuse
	LiveBlocks int

	// PassThrough means that each block is a grant of the device. So the pool has no free
	// blocks, and what counts is what rounding each grant up wastes.
	PassThrough bool

	// Words is the allocator's own account, where free blocks are not the cause
	// (whyer): a sentence a line. The numbers of free blocks and pages above
	// are then 0.
	Words []string
}

// whyer is an Allocator that fails for other causes than fragmentation: its memory
// is pages, or the driver places it. deviceFree is as for [Explain]. No words mean that
// the free blocks are the cause of this one.
type whyer interface {
	Why(r Request, deviceFree int64) []string
}

// rounder is an Allocator that does not round requests up to 256 bytes. Round returns the
// least size of a block for a request of at most 2^63 bytes.
type rounder interface{ Round(bytes uint64) uint64 }

// partial is an Allocator some of whose free chunks serve only some requests. Serves
// returns how many bytes of a free chunk can serve a request.
type partial interface {
	Serves(r Request, c Chunk) uint64
}

// extender is an Allocator that can serve a request by less memory of the device than the
// request has. Missing returns how much, as for [Cause].
type extender interface{ Missing(Request) uint64 }

// PassThrough is an Allocator that keeps no memory: each block is a grant of
// the device, and each free waits for all work on it.
type PassThrough interface{ PassThrough() }

// page is what paged memory maps by, on every NVIDIA GPU seen so far.
const page = 2 << 20

// unit is the rounding of the original.
const unit = 256

// Explain works out why a request was refused, from every chunk of the
// pool. deviceFree is the bytes free on the device; negative means unknown.
func Explain(a Allocator, r Request, deviceFree int64) Cause {
	s := a.Stats()
	c := Cause{
		Request: r.Bytes, Rounded: r.Bytes, Limit: s.BytesLimit, Pool: s.PoolBytes, Live: s.BytesInUse,
	}
	_, c.PassThrough = a.(PassThrough)
	if r.Bytes <= 1<<63 {
		c.Rounded = (r.Bytes + unit - 1) &^ (unit - 1)
		if x, ok := a.(rounder); ok {
			c.Rounded = x.Round(r.Bytes)
		}
	}
	c.Missing = c.Rounded
	if x, ok := a.(extender); ok {
		c.Missing = x.Missing(r)
	}
	if deviceFree >= 0 {
		c.DeviceFree, c.DeviceKnown = uint64(deviceFree), true
	}
	if w, ok := a.(whyer); ok {
		c.Words = w.Why(r, deviceFree)
	}
	if len(c.Words) > 0 {
		a.Walk(func(k Chunk) bool {
			if k.Live {
				c.LiveBlocks++
				c.Waste += k.Size - min(k.Requested, k.Size)
			}
			return true
		})
		return c
	}
	// One pass over the pieces. A hole grows by what the block below it wastes
	// if blocks had been cut exactly; a block between two holes pins both.
	var below, prev Chunk // the piece before prev, and prev, in this region
	region := -1
	var slack, free uint64
	pin := func(hole uint64, b Chunk) {
		if b.Live && b.Size < c.Rounded && hole >= c.Rounded && (c.Pin.Size == 0 || b.Size < c.Pin.Size) {
			c.Pin, c.PinHole = b, hole
		}
	}
	ends, isPartial := a.(partial)
	freeSize := func(k Chunk) uint64 { // as far as it serves the request
		switch {
		case k.Live:
			return 0
		case isPartial && k.Size > 0:
			return ends.Serves(r, k)
		}
		return k.Size
	}
	a.Walk(func(k Chunk) bool {
		if k.Region != region {
			if region >= 0 && prev.Live {
				pin(freeSize(below)+prev.Size, prev)
			}
			region, below, prev, slack = k.Region, Chunk{}, Chunk{}, 0
		}
		if prev.Live {
			pin(freeSize(below)+prev.Size+freeSize(k), prev)
		}
		if k.Live {
			c.LiveBlocks++
			exact := (k.Requested + unit - 1) &^ (unit - 1)
			slack = k.Size - min(exact, k.Size)
			c.Waste += k.Size - min(k.Requested, k.Size)
			c.SplitHole = max(c.SplitHole, slack)
		} else {
			free += k.Size
			serves := freeSize(k)
			if serves > 0 {
				c.SplitHole = max(c.SplitHole, slack+serves)
			}
			slack = 0
			if serves > c.Hole {
				c.Hole, c.HoleAddr = serves, k.Addr
			}
			lo, hi := (k.Addr+page-1)&^(page-1), (k.Addr+k.Size)&^(page-1)
			if hi > lo {
				c.Pages += hi - lo
			}
		}
		below, prev = prev, k
		return true
	})
	if prev.Live {
		pin(freeSize(below)+prev.Size, prev)
	}
	c.Stranded = free - c.Hole
	return c
}

// Growth reports whether taking more memory from the device would have served the
// request, had the limit allowed it.
func (c Cause) Growth() bool { return c.DeviceKnown && c.DeviceFree >= c.Missing }

// Splitting reports whether the request would have fitted if blocks had been cut
// to their requests. Where each block is a separate grant: if they had shared
// grants, as a pool does it.
func (c Cause) Splitting() bool {
	if c.PassThrough {
		return c.DeviceKnown && c.Rounded <= c.Limit && c.DeviceFree+c.Waste >= c.Rounded
	}
	return c.SplitHole >= c.Rounded
}

// Paged reports whether whole free pages, in the pool and on the device, would
// have held the request.
func (c Cause) Paged() bool {
	need := (c.Rounded + page - 1) &^ (page - 1)
	return need >= c.Rounded && c.Pages+c.DeviceFree&^(page-1) >= need
}

// Text returns the account in words, some lines. site returns the stack of an allocation
// site; nil leaves it out. doctor reads this text in logs, so that its wording is a format.
func (c Cause) Text(site func(Site) string) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	if c.PassThrough {
		c.passThroughText(line)
		return b.String()
	}
	if len(c.Words) > 0 {
		line("Why: %s was asked for.", size.Format(c.Request))
		for _, w := range c.Words {
			line("  %s", w)
		}
		return b.String()
	}
	line("Why: %s was asked for (%s as the pool rounds it).", size.Format(c.Request), size.Format(c.Rounded))
	switch {
	case c.Rounded > c.Limit:
		line("  It is more than the limit of %s; no free would help.", size.Format(c.Limit))
	case c.Hole == 0 && c.Pool > 0 && c.Live >= c.Pool:
		line("  Every byte of the pool's %s is live (blocks: %d).", size.Format(c.Pool), c.LiveBlocks)
	case c.Pool == 0:
		line("  The pool holds nothing: the device gave it no memory.")
	default:
		line("  The largest hole is %s at %#x; it would have to be %s larger.", size.Format(c.Hole), c.HoleAddr, size.Format(c.Rounded-min(c.Hole, c.Rounded)))
		line("  The pool has %s, of which %s is live (blocks: %d) and %s is free outside that hole.",
			size.Format(c.Pool), size.Format(c.Live), c.LiveBlocks, size.Format(c.Stranded))
	}
	if c.Pin.Size > 0 {
		who := ""
		if site != nil {
			if s := site(c.Pin.Site); s != "" {
				first, _, _ := strings.Cut(s, "\n")
				who = ", asked for by " + first
			}
		}
		line("  One live block pins the memory: %s at %#x%s. Freed, it leaves a hole of %s.",
			size.Format(c.Pin.Size), c.Pin.Addr, who, size.Format(c.PinHole))
	}
	line("  Would it have been served by")
	switch {
	case c.Growth() && c.Limit-min(c.Pool, c.Limit) >= c.Missing:
		line("    growth        no: the device has %s free, but gave less when asked", size.Format(c.DeviceFree))
	case c.Growth():
		line("    growth        yes: the device has %s free, the limit of %s forbids it", size.Format(c.DeviceFree), size.Format(c.Limit))
	case c.DeviceKnown:
		line("    growth        no: the device has %s free", size.Format(c.DeviceFree))
	default:
		line("    growth        unknown: what the device has free is not known")
	}
	if c.Splitting() {
		line("    splitting     yes: blocks waste %s; cut exactly, the largest hole is %s", size.Format(c.Waste), size.Format(c.SplitHole))
	} else {
		line("    splitting     no: blocks waste %s; cut exactly, the largest hole is %s", size.Format(c.Waste), size.Format(c.SplitHole))
	}
	answer := "no"
	if c.Paged() {
		answer = "yes"
	}
	line("    paged memory  %s: %s of whole free pages in the pool, %s on the device", answer, size.Format(c.Pages), size.Format(c.DeviceFree))
	return b.String()
}

// passThroughText is Text where each block is a separate grant.
func (c Cause) passThroughText(line func(format string, args ...any)) {
	line("Why: %s was asked for. Each block is a grant of the device's own, which it rounds up.", size.Format(c.Request))
	if c.Rounded > c.Limit {
		line("  It is more than the limit of %s; no free would help.", size.Format(c.Limit))
	}
	free := "an unknown amount"
	if c.DeviceKnown {
		free = size.Format(c.DeviceFree)
	}
	line("  The device has %s free. Live are %s (blocks: %d), of which rounding wastes %s.",
		free, size.Format(c.Live), c.LiveBlocks, size.Format(c.Waste))
	answer := "no"
	if c.Splitting() {
		answer = "yes"
	}
	line("  Would a pool, in which blocks share grants, have served it: %s.", answer)
}
