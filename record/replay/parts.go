package replay

// The processes that share a GPU in a joined recording: each has its own allocator and its own
// addresses, and all have the memory of one device.

import (
	"errors"
	"fmt"
	"slices"

	"gpumem/alloc"
	"gpumem/alloc/build"
	"gpumem/device"
	"gpumem/record/trace"
	"gpumem/size"
)

// part is one process of a pass.
type part struct {
	first, streams uint32          // its streams
	allocator      alloc.Allocator // nil before it begins, like device
	device         device.GPU
	now            uint64          // the private pool that serves; 0 if none does
	used           map[uint64]bool // private pools that have a user
	ended          bool
}

// sharer is a device that another program can use, too.
type sharer interface {
	Another() (device.GPU, error)
}

var errNoSharing = errors.New("several processes share the GPU of this recording, and the device is for one")

// begin has a process begin before event n. If the device has no room for its context, or for
// what its pool takes at once, that is refused, and all that the process requests.
func (p *Pass) begin(a *part, n uint64) error {
	err := p.open(a)
	if errors.Is(err, device.ErrOutOfMemory) || errors.Is(err, alloc.ErrNoMemory) {
		return p.refuse(min(n, p.Pool.Events), &trace.Event{Stream: a.first, Bytes: p.card.Info().Context})
	}
	return err
}

// open opens the allocator of a process, whose context takes its memory.
func (p *Pass) open(a *part) error {
	card, ok := p.card.(sharer)
	if !ok {
		return errNoSharing
	}
	dev, err := card.Another()
	if err != nil {
		return err
	}
	if _, _, err := dev.MemInfo(); err != nil { // the first call takes the context's bytes
		return errors.Join(err, dev.Close())
	}
	pool, err := build.New(dev, p.Policy, build.Options{Log: p.log})
	if err != nil {
		return errors.Join(err, dev.Close())
	}
	a.allocator, a.device = pool, dev
	return nil
}

// refuseAll refuses the request of a process that could not begin. Its frees do nothing.
func (p *Pass) refuseAll(n uint64, e *trace.Event, observed bool) error {
	if e.Op == trace.Alloc {
		if err := p.refuse(n, e); err != nil {
			return err
		}
	}
	if !observed {
		return nil
	}
	return p.observe(n, e, alloc.Block{})
}

// noRoom is the cause of a process that cannot begin.
func (p *Pass) noRoom(bytes uint64) alloc.Cause {
	return alloc.Cause{Request: bytes, Rounded: bytes, Missing: bytes, Pool: p.pooled(), Words: []string{
		fmt.Sprintf("It is the context of a process, which has no room beside the others': their pools hold %s.", size.Format(p.pooled())),
	}}
}

// finish ends a process, whose memory is free then.
func (a *part) finish() {
	if a.device == nil || a.ended {
		return
	}
	a.ended = true
	_ = a.allocator.Close()
	_ = a.device.Close()
}

// partOf returns the process that an event is of, which Pass.Allocator and Pass.Device are
// of from now on. An event of none is an error: the recording was joined wrongly.
func (p *Pass) partOf(e *trace.Event) (*part, error) {
	a := p.current
	if a == nil || e.Stream-a.first >= a.streams {
		i := slices.IndexFunc(p.parts, func(a *part) bool { return e.Stream-a.first < a.streams })
		if i < 0 {
			return nil, fmt.Errorf("stream %d is of no process of the recording", e.Stream)
		}
		a = p.parts[i]
		p.current = a
	}
	p.Allocator, p.Device = a.allocator, a.device
	return a, nil
}

// pooled returns the bytes that all processes hold from the device.
func (p *Pass) pooled() (sum uint64) {
	for _, a := range p.parts {
		if a.device != nil && !a.ended {
			sum += a.allocator.Stats().PoolBytes
		}
	}
	return sum
}
