// Data races on the device, which a real GPU does not report: two pieces of work that
// touch the same bytes, one of them writing, with nothing that orders them. On
// hardware such a program works until a kernel gets slower.
//
// A use comes before another in every run if both are in one stream, or if an
// event recorded after the one was waited for before the other, or if the host
// learnt that the one was done (by a synchronise, or a query that said so)
// before it queued the other; and so on through chains of these. Each stream's
// clock holds how much of every stream's work comes before its next
// (clock.go). Each piece of memory keeps notes of its uses, but for those that
// the host knows to be over, which come before anything new. A new use is
// compared with the notes that it overlaps.
//
// One bug, found: stream 1 writes a block as its 7th work, which leaves the
// note "lane 1, number 7, writes, bytes 0 to 512" in the memory. The program
// copies from the block in stream 2, whose clock has 6 for lane 1, because the
// event that stream 2 waits for was recorded before the write. 7 is more than
// 6, so the copy is refused with a Hazard. With the event recorded after the
// write, stream 2 learns 7 and the copy passes.
//
// Allocating from a pool and freeing to it are writes of the whole block, in
// the stream that they are queued in. This finds blocks that are used before
// they are there, or freed while another stream works on them.
//
// Notes do not accumulate: from old ones the bytes are cut that a new one stands
// for, because whatever would conflict with the old one there also conflicts with the new
// one. That is so if the new use is at the same addresses, comes after the
// old one, and is a write, or a read like the old one.

package sim

import (
	"fmt"
	"slices"

	"gpumem/device"
	"gpumem/size"
)

// Reason is what is wrong between two uses of memory.
type Reason string

// The reasons, as they are worded in the text of a [Hazard].
const (
	StillReading    Reason = "may still be reading"                            // the earlier call, when the later one writes
	StillWriting    Reason = "may still be writing"                            // the earlier call
	NotYetAllocated Reason = "may not yet have allocated"                      // the earlier call, for all that the later one knows
	Freed           Reason = "has freed"                                       // the earlier call, before the later one was queued
	NothingThere    Reason = "that is not memory of one allocation (any more)" // and it is not known to be just freed
)

// Hazard is a use of memory that goes wrong in some run of the program, if not
// in this one. It is found when the call is made, and the call is refused with it, in a
// [device.CallError]; a refused call does nothing. To errors.Is it is
// device.ErrIllegalAddress, which a GPU would report if it noticed. With Config.Report the
// call goes on.
type Hazard struct {
	Call          string        // the refused call, as the driver names it
	Stream        device.Stream // that it was for, unless Host
	Host          bool          // it was not for a stream: the host makes it and waits
	Addr          uint64        // the first byte that both touch; 0 where the call is about memory without an address
	Bytes         uint64        // how many both touch
	Earlier       string        // the call that it collides with; "" with NothingThere, and with Freed where that is long ago
	EarlierStream device.Stream // which was for this stream, if there is one
	Reason        Reason
}

// Error returns one line: what is wrong and how to fix it.
func (h *Hazard) Error() string {
	who := fmt.Sprintf("%s in stream %d", h.Call, h.Stream)
	if h.Host {
		who = h.Call + " by the host"
	}
	what := size.Format(h.Bytes)
	if h.Addr != 0 {
		what += fmt.Sprintf(" at %#x", h.Addr)
	}
	switch {
	case h.Reason == NothingThere:
		return fmt.Sprintf("%s: %s: %s; free and unmap memory after its last use", who, what, h.Reason)
	case h.Reason == Freed && h.Earlier == "":
		return fmt.Sprintf("%s: these %s of a pool are not allocated (any more); free memory after its last use", who, what)
	}
	text := fmt.Sprintf("%s: %s in stream %d %s these %s; ", who, h.Earlier, h.EarlierStream, h.Reason, what)
	switch {
	case h.Reason == Freed:
		return text + "use it before it is freed, and let the free wait for that"
	case h.Host:
		return text + fmt.Sprintf("synchronise stream %d, or an event recorded in it after that, first", h.EarlierStream)
	}
	return text + fmt.Sprintf("record an event after it and make stream %d wait for that", h.Stream)
}

// Is makes errors.Is(err, device.ErrIllegalAddress) work.
func (h *Hazard) Is(target error) bool { return target == device.ErrIllegalAddress }

// maxHazards is how many Hazards keeps. One bug in a loop makes many that are alike.
const maxHazards = 100

// Hazards returns those found so far, in order, up to the 100th. A test should check it at
// the end, since a program may have ignored a call's error.
func (d *Device) Hazards() []*Hazard {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.work.hazards)
}

// hazard keeps h and returns it, or nil if hazards are reported and refuse nothing.
func (d *Device) hazard(h *Hazard) error {
	kept := len(d.work.hazards) < maxHazards
	if kept {
		d.work.hazards = append(d.work.hazards, h)
	}
	if d.cfg.Report == nil {
		return h
	}
	if kept {
		d.cfg.Report(h)
	}
	return nil
}

// use is a note of work that touches a part of some memory.
type use struct {
	off, bytes uint64
	base       uint64 // the address at which the memory's byte 0 is for it; memory may be mapped twice
	lane       int
	n          uint64 // its number in the lane
	write      bool
	call       string
}

// overlap is the bytes that both touch.
func (u *use) overlap(p piece) (off, bytes uint64) {
	off = max(u.off, p.off)
	end := min(u.off+u.bytes, p.off+p.bytes)
	if end <= off {
		return off, 0
	}
	return off, end - off
}

// access is what one call does to the memory behind one range.
type access struct {
	pieces []piece
	write  bool
}

// behind finds the memory that work in q is about. Where it is not there the call
// is refused; where hazards are only reported, there is nothing behind. Caller holds d.mu.
func (d *Device) behind(call string, q *queue, r device.Range, write bool) (access, error) {
	if p, ok := d.pieces(r.Addr, r.Bytes); ok {
		return access{p, write}, nil
	}
	h := &Hazard{Call: call, Stream: q.stream, Addr: r.Addr, Bytes: r.Bytes, Reason: NothingThere}
	// Copies and fills look at their addresses when they are queued; a kernel
	// runs into it.
	if !d.freedIn(r, h) && call != callKernel {
		return access{}, d.refuse(call, r.Bytes, device.ErrInvalidValue)
	}
	return access{}, d.refuse(call, 0, d.hazard(h))
}

// check refuses with a hazard where work in q that does all of this would not
// be ordered with earlier work. A nil q is the host, which makes the call and
// waits for it. Caller holds d.mu.
func (d *Device) check(call string, q *queue, all ...access) error {
	seen := d.work.host
	if q != nil {
		seen = q.seen
	}
	for _, a := range all {
		for _, p := range a.pieces {
			if h := d.conflict(seen, p, a.write); h != nil {
				h.Call, h.Host = call, q == nil
				if q != nil {
					h.Stream = q.stream
				}
				return d.hazard(h)
			}
		}
	}
	return nil
}

// settled refuses with a hazard where the host does not know that all work on p
// is done: it is about to be unmapped or released without waiting. Where p
// has an address, work that uses the memory by other addresses does not count.
// Caller holds d.mu.
func (d *Device) settled(call string, p piece) error {
	d.forget(p.mem)
	for i := range p.mem.uses {
		u := &p.mem.uses[i]
		if _, n := u.overlap(p); n > 0 && (p.addr == 0 || u.base == p.addr-p.off) {
			h := d.collision(u, p)
			h.Call, h.Host = call, true
			return d.hazard(h)
		}
	}
	return nil
}

// conflict is a use of p by others that seen does not know to come before, nil
// where there is none.
func (d *Device) conflict(seen clock, p piece, write bool) *Hazard {
	d.forget(p.mem)
	for i := range p.mem.uses {
		u := &p.mem.uses[i]
		if _, n := u.overlap(p); n > 0 && (write || u.write) && !seen.knows(u.lane, u.n) {
			return d.collision(u, p)
		}
	}
	return nil
}

// collision makes the Hazard of a use of p that conflicts with u.
func (d *Device) collision(u *use, p piece) *Hazard {
	off, n := u.overlap(p)
	// The lane is still that of the stream which made the note: it changes hands
	// when the host knows all its work, and then there is no note.
	h := &Hazard{Bytes: n, Earlier: u.call, EarlierStream: d.work.queues[u.lane].stream, Reason: StillReading}
	if p.addr != 0 {
		h.Addr = p.addr + (off - p.off)
	}
	switch {
	case u.call == callPoolAlloc:
		h.Reason = NotYetAllocated
	case u.write:
		h.Reason = StillWriting
	}
	return h
}

// forget drops the notes of what the host knows to be over.
func (d *Device) forget(m *memory) {
	m.uses = slices.DeleteFunc(m.uses, func(u use) bool { return d.work.host.knows(u.lane, u.n) })
}

// note leaves a note of q's newest work in all that it touches.
func (d *Device) note(call string, q *queue, all []access) {
	for _, a := range all {
		for _, p := range a.pieces {
			p.mem.uses = cover(p.mem.uses, use{p.off, p.bytes, p.addr - p.off, q.lane, q.last, a.write, call}, q.seen)
		}
	}
}

// cover adds a note u, which comes after what seen knows, and cuts from the
// others what it stands for.
func cover(uses []use, u use, seen clock) []use {
	end := u.off + u.bytes
	kept := uses[:0]
	var behind []use // what is left of old ones behind u
	for _, old := range uses {
		oldEnd := old.off + old.bytes
		if oldEnd <= u.off || end <= old.off || old.base != u.base || !u.write && old.write || !seen.knows(old.lane, old.n) {
			kept = append(kept, old)
			continue
		}
		if oldEnd > end {
			part := old
			part.off, part.bytes = end, oldEnd-end
			behind = append(behind, part)
		}
		if old.off < u.off {
			old.bytes = u.off - old.off
			kept = append(kept, old)
		}
	}
	return append(append(kept, behind...), u)
}
