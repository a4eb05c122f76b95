package replay

// The processes that share a GPU in a joined recording: each has its own allocator and its own
// addresses, and all have the memory of one device.

import (
	"errors"

	"gpumem/alloc"
	"gpumem/alloc/build"
	"gpumem/device"
	"gpumem/record/trace"
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

// begin opens the allocator of a process, whose context takes its memory. The error is
// device.ErrOutOfMemory if there is none for it.
func (p *Pass) begin(a *part) error {
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
	if a.allocator, err = build.New(dev, p.Policy, build.Options{Log: p.log}); err != nil {
		return errors.Join(err, dev.Close())
	}
	a.device = dev
	return nil
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
// of from now on.
func (p *Pass) partOf(e *trace.Event) *part {
	for _, a := range p.parts {
		if e.Stream-a.first < a.streams {
			p.Allocator, p.Device = a.allocator, a.device
			return a
		}
	}
	return p.parts[0] // a joined recording has no such stream
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

// firstStream returns the first stream of the process that an event is of.
func (p *Pass) firstStream(e *trace.Event) uint32 {
	if p.only != nil {
		return 0
	}
	return p.partOf(e).first
}
