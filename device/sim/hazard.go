package sim

import "gpumem/device"

// use is one piece of work that touches memory.
type use struct{}

// touch records that work in stream s, called call, reads or writes p, after
// everything that s has seen; it refuses with a hazard where that is not
// ordered with other work that touches the same bytes and one of the two
// writes. Caller holds d.mu.
func (d *Device) touch(call string, s device.Stream, p []piece, write bool) error { return nil }

// hostTouch is the same for a copy that the host makes and waits for.
func (d *Device) hostTouch(call string, p []piece, write bool) error { return nil }

// settled refuses with a hazard where the host does not know that all work on
// m, or on the part of it, is done: it is about to be unmapped or given back
// without waiting. Caller holds d.mu.
func (d *Device) settled(call string, p piece) error { return nil }

// drain waits, in simulated time, for all work on the device; after it the host
// knows that all is done. Caller holds d.mu.
func (d *Device) drain() {}
