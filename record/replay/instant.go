package replay

// What PyTorch's allocator counts at an event: allocated, active and reserved. Of what is
// active some blocks are freed and wait for a stream.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"gpumem/alloc"
	"gpumem/internal/report"
	"gpumem/policy"
	"gpumem/record/internal/stacks"
	"gpumem/record/internal/tape"
	"gpumem/record/trace"
	"gpumem/size"
)

// Instant is what a pool held after an event, in bytes. Allocated and Waiting are together what
// is active: in live blocks, as the pool rounds them.
type Instant struct {
	Event     uint64 `json:"event"` // counted from 1, the pool's seeds included
	Requested uint64 `json:"requested_bytes"`
	Allocated uint64 `json:"allocated_bytes"` // without blocks that are freed and wait for a stream
	Active    uint64 `json:"active_bytes"`
	Reserved  uint64 `json:"reserved_bytes"` // from the device
}

// checkAt returns an error if no answer would have Config.At: it is no event of the pools, or no
// policy has PyTorch's allocator.
func checkAt(cfg *Config, t *trace.Trace, pools []*trace.Pool) error {
	if cfg.At == 0 {
		return nil
	}
	if !slices.ContainsFunc(cfg.Policies, func(p policy.Policy) bool { return p.Kind == policy.Caching }) {
		return errors.New("--at is for PyTorch's allocator, and no policy has it: add --policy pytorch")
	}
	var most uint64
	for _, p := range pools {
		most = max(most, p.Events-p.Seeds)
	}
	if cfg.At > most {
		return fmt.Errorf("--at %d: %s has %s", cfg.At, t.Source, report.Counted(most, "event"))
	}
	return nil
}

// counts follows what is allocated and active over a pass.
type counts struct {
	pass      *Pass
	waits     []tape.Wait
	blocks    []counted // by slot
	waiting   uint64    // bytes of blocks that wait
	requested uint64
	most      uint64 // allocated, at any event
}

// counted is a live block of a slot.
type counted struct {
	size, requested uint64
	waits           bool
}

func newCounts(p *Pass) *counts {
	return &counts{pass: p, waits: p.Pool.Waits(), blocks: make([]counted, p.Pool.Slots)}
}

// event follows an event, and before it the frees that came since the last one.
func (c *counts) event(e *trace.Event, bytes uint64) {
	for len(c.waits) > 0 && c.waits[0].From < c.pass.Event {
		if w := &c.blocks[c.waits[0].Slot]; !w.waits {
			w.waits = true
			c.waiting += w.size
		}
		c.waits = c.waits[1:]
	}
	b := &c.blocks[e.Slot]
	if e.Op == trace.Free {
		c.requested -= b.requested
		if b.waits {
			c.waiting -= b.size
		}
		*b = counted{}
	} else {
		*b = counted{size: bytes}
		if bytes > 0 { // not refused
			b.requested = e.Bytes
		}
		c.requested += b.requested
		c.most = max(c.most, c.pass.Used-c.waiting)
	}
}

// drop follows the end of a request that the recorded program was refused.
func (c *counts) drop(e *trace.Event) {
	c.requested -= c.blocks[e.Slot].requested
	c.blocks[e.Slot] = counted{}
}

// now returns what is held after the last event.
func (c *counts) now() Instant {
	p := c.pass
	return Instant{p.Event, c.requested, p.Used - c.waiting, p.Used, p.Held}
}

// counted returns the hook that counts for a result, where the policy has PyTorch's words.
func (r *runner) count(p *Pass, res *Result) Hook {
	if r.policy.Kind != policy.Caching {
		return Hook{}
	}
	c := newCounts(p)
	var refused *trace.Event
	return Hook{
		Event: func(e *trace.Event, b alloc.Block) error {
			if refused != nil {
				c.drop(refused)
				refused = nil
			}
			c.event(e, b.Size)
			if e.Refused {
				one := *e
				refused = &one
			}
			if r.cfg.At != 0 && p.Event == r.cfg.At+p.Pool.Seeds {
				now := c.now()
				res.At = &now
			}
			return nil
		},
		End: func() error {
			active := p.Stats().PeakBytesInUse
			res.AllocatedPeak, res.ActivePeak = &c.most, &active
			return nil
		},
	}
}

// Waiting is what the blocks of a pool held that were freed and waited for a stream, when they
// held most, in requested bytes.
type Waiting struct {
	Pool   string        `json:"pool"`
	Event  uint64        `json:"event"` // counted from 1, the pool's seeds included
	Bytes  uint64        `json:"bytes"`
	Blocks uint64        `json:"blocks"`
	Sites  []WaitingSite `json:"sites"` // the largest first
	seeds  uint64
}

// WaitingSite is those that one stack allocated.
type WaitingSite struct {
	Stack  string `json:"stack,omitempty"`
	Bytes  uint64 `json:"bytes"`
	Blocks uint64 `json:"blocks"`
}

// waiting finds the most that waited in a pool; nil if nothing did.
func waiting(ctx context.Context, t *trace.Trace, p *trace.Pool) (*Waiting, error) {
	if len(p.Waits()) == 0 {
		return nil, nil
	}
	most := &Waiting{Pool: p.Name, seeds: p.Seeds}
	err := eachWaiting(ctx, p, func(event, bytes uint64, on map[uint32]trace.Block) bool {
		if bytes > most.Bytes {
			most.Event, most.Bytes, most.Blocks = event, bytes, uint64(len(on))
		}
		return true
	})
	if err != nil || most.Bytes == 0 {
		return nil, err
	}
	return most, eachWaiting(ctx, p, func(event, _ uint64, on map[uint32]trace.Block) bool {
		if event < most.Event {
			return true
		}
		most.Sites = sitesOf(t, on)
		return false
	})
}

// eachWaiting calls f after each event with the blocks that wait then, by slot, and their
// bytes, until it returns false.
func eachWaiting(ctx context.Context, p *trace.Pool, f func(event, bytes uint64, on map[uint32]trace.Block) bool) error {
	w, waits, on := p.Walk(), p.Waits(), map[uint32]trace.Block{}
	var bytes uint64
	for {
		e, err := w.Next(ctx)
		if e == nil || err != nil {
			return err
		}
		if b, ok := on[e.Slot]; ok && e.Op == trace.Free {
			bytes -= b.Bytes
			delete(on, e.Slot)
		}
		for ; len(waits) > 0 && waits[0].From <= w.Number; waits = waits[1:] {
			slot := waits[0].Slot
			if _, ok := on[slot]; !ok && w.Slots[slot].Live {
				on[slot] = w.Slots[slot]
				bytes += w.Slots[slot].Bytes
			}
		}
		if !f(w.Number, bytes, on) {
			return nil
		}
	}
}

// sitesOf sums blocks up by the stacks that allocated them, the largest first.
func sitesOf(t *trace.Trace, on map[uint32]trace.Block) []WaitingSite {
	sums := map[uint32]*WaitingSite{}
	for _, b := range on {
		s := sums[b.Site]
		if s == nil {
			s = &WaitingSite{Stack: t.Site(b.Site)}
			sums[b.Site] = s
		}
		s.Bytes += b.Bytes
		s.Blocks++
	}
	list := make([]WaitingSite, 0, len(sums))
	for _, s := range sums {
		list = append(list, *s)
	}
	slices.SortFunc(list, func(a, b WaitingSite) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(b.Blocks, a.Blocks), strings.Compare(a.Stack, b.Stack))
	})
	return list
}

// mostWaiting is how many sites of blocks that wait are told.
const mostWaiting = 3

// WaitingLines returns what waited for streams, a line a pool.
func (info *TraceInfo) WaitingLines() []string {
	var lines []string
	for _, w := range info.Waiting {
		var who []string
		rest := w.Bytes
		for _, s := range w.Sites[:min(len(w.Sites), mostWaiting)] {
			if line := stacks.OwnFrame(s.Stack); line != "" {
				who = append(who, fmt.Sprintf("%s %s", line, size.Format(s.Bytes)))
				rest -= min(s.Bytes, rest)
			}
		}
		if len(who) > 0 && rest > 0 {
			who = append(who, fmt.Sprintf("and %s of others", size.Format(rest)))
		}
		where, names := "", ""
		if len(info.PoolNames) > 1 {
			where = " of " + w.Pool
		}
		if len(who) > 0 {
			names = ": " + strings.Join(who, ", ")
		}
		lines = append(lines, fmt.Sprintf("freed%s and still used by another stream: at most %s in %s, at event %s%s",
			where, size.Format(w.Bytes), report.Counted(w.Blocks, "block"), report.Count(w.Event-min(w.seeds, w.Event)), names))
	}
	return lines
}
