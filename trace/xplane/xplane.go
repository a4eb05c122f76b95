// Package xplane reads profiles of XLA's profiler: xplane.go goes from the planes of an
// XSpace to a sorted list of memory events, event.go reads one event, play.go makes the
// recording of them.
//
// An allocator that is profiled writes an instant event for each allocation and
// each free (XLA's tsl/framework/bfc_allocator.cc, AddTraceMe; the TPU runtime
// does the same), in the plane of the host and there on the line of the thread
// that called it. So the events of one pool lie on many lines. Field numbers are
// those of tsl/profiler/protobuf/xplane.proto:
//
//	XSpace          planes 1
//	XPlane          name 2, lines 3, event_metadata 4, stat_metadata 5
//	XLine           timestamp_ns 3, events 4
//	XEvent          metadata_id 1, offset_ps 2, stats 4
//	XStat           metadata_id 1, double 2, uint64 3, int64 4, str 5, ref 7
//	map entry       key 1, value 2
//	XEventMetadata  name 2
//	XStatMetadata   name 2
//
// The names of events and of their stats come behind the lines, so what an event
// is becomes known only when its plane has been read. Events that may be one of
// memory are set aside as they are and read again at the end of the plane. All memory
// events are in memory until the end, where they are put in the order of time.
//
// # One case
//
// A plane "/host:CPU" has two lines, which are threads. The first has the event 7 at
// 10 µs with the stats 1: "GPU_0_bfc", 2: 1000, 3: 1024, 4: 0x100; the second has the
// event 8 at 15 µs with 1: "GPU_0_bfc", 2: 1000, 3: 0, 4: 0x100. Behind them stand the
// names: event 7 is "MemoryAllocation", 8 "MemoryDeallocation"; stat 1 is
// "allocator_name", 2 "requested_bytes", 3 "bytes_allocated", 4 "addr". So the pool
// GPU_0_bfc has an allocation of 1000 bytes at 0x100 and its free 5 µs later. The pool
// held 1024 bytes after the first, all of them this block's, so it was empty before.
package xplane

import (
	"bytes"
	"cmp"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"gpumem/internal/input"
	"gpumem/internal/wire"
	"gpumem/trace"
)

// Format is a profile of XLA's profiler.
var Format = trace.Format{Name: "xplane", What: "a profile of JAX, XLA or TensorFlow, *.xplane.pb", Looks: looksXPlane, Read: readXPlane}

// looksXPlane: an XSpace begins with a plane, and a plane with its number, which is left
// out if it is 0, and its name.
func looksXPlane(head []byte) bool {
	const plane, number, name = 1<<3 | 2, 1 << 3, 2<<3 | 2
	if head[0] != plane {
		return false
	}
	rest := head[1:]
	varint := func() { // how long the plane is, and its number
		_, n := protowire.ConsumeVarint(rest)
		rest = rest[max(n, 0):]
	}
	varint()
	if len(rest) > 0 && rest[0] == number {
		rest = rest[1:]
		varint()
	}
	if m := wire.NewMessage(rest); len(rest) > 0 && rest[0] == name && m.Next() && len(m.Data) > 0 && input.IsPrintable(m.Data) {
		return true
	}
	// A file that was taken for text on its way still has the names.
	start := head[:min(len(head), 256)]
	return bytes.Contains(start, []byte("/host:")) || bytes.Contains(start, []byte("/device:"))
}

// minStats is how many stats a memory event has at least: its pool, its address
// and the state of the pool. The least that was met is 7, of a free on a TPU.
const minStats = 4

// maxPools bounds what a damaged profile can ask for: a pool has buffers.
const maxPools = 256

// maxText is how much is kept of the texts that events refer to, in bytes.
const maxText = 200

// reader reads one profile.
type reader struct {
	*wire.Stream
	in     *input.Reader
	b      *trace.Builder
	events []memEvent
	play   *player
	text   []byte // for the text of a site
}

// plane is the plane that is being read.
type plane struct {
	lined bool                // a line was read
	lines []int64             // timestamp_ns of each line that has candidates
	ops   map[uint64]trace.Op // what an event is, by metadata_id
	stats map[uint64]stat     // what a stat is, by metadata_id
	refs  map[uint64]string   // texts that stats refer to
	want  map[uint64]struct{} // those that the candidates refer to
	aside []candidate
}

// candidate is an event that may be one of memory.
type candidate struct {
	line  int32  // in plane.lines
	event []byte // as it is in the file
}

// candidateBytes is what a candidate needs in memory beside its bytes, with what the
// allocator and growing lists add.
const candidateBytes = 64

// readXPlane reads a whole profile into b.
func readXPlane(in *input.Reader, b *trace.Builder) error {
	x := &reader{
		Stream: wire.NewStream(in, looksXPlane),
		in:     in,
		b:      b,
		play:   &player{in: in, b: b},
	}
	err := x.Fields(func(field protowire.Number) error {
		if field != 1 {
			return nil
		}
		return x.plane()
	})
	if err != nil {
		return err
	}
	if len(x.events) == 0 {
		return x.Refuse("the profile has no MemoryAllocation or MemoryDeallocation events; " +
			"record one of a GPU or TPU, with a host_tracer_level of 2 or more, of a part of the run that allocates")
	}
	// Those of the same time stay in the order of the file.
	slices.SortFunc(x.events, func(a, b memEvent) int {
		return cmp.Or(cmp.Compare(a.ns, b.ns), cmp.Compare(a.ps, b.ps), cmp.Compare(a.number, b.number))
	})
	return x.play.run(x.events)
}

// plane reads a plane and takes its memory events.
func (x *reader) plane() error {
	p := &plane{
		ops:   make(map[uint64]trace.Op),
		stats: make(map[uint64]stat),
		refs:  make(map[uint64]string),
		want:  make(map[uint64]struct{}),
	}
	err := x.Within(func(field protowire.Number) error {
		switch field {
		case 2:
			name, err := x.Small()
			if bytes.HasPrefix(name, []byte("/device:")) {
				// What ran on a device: most of a profile, and no allocations.
				return wire.ErrSkip
			}
			return err
		case 3:
			p.lined = true
			return x.line(p)
		case 4:
			return x.metadata(func(id uint64, name []byte) {
				switch string(name) {
				case "MemoryAllocation":
					p.ops[id] = trace.Alloc
				case "MemoryDeallocation":
					p.ops[id] = trace.Free
				}
			})
		case 5:
			return x.metadata(func(id uint64, name []byte) {
				x.Hold(150)
				if s, ok := statNames[string(name)]; ok {
					p.stats[id] = s
				}
				// Only those that are needed are kept; their number has no bound.
				// If a plane has them before its lines, all may be.
				if _, ok := p.want[id]; ok || !p.lined {
					p.refs[id] = input.Cut(string(name), maxText)
					x.Hold(min(len(name), maxText))
				}
			})
		}
		return nil
	})
	if err != nil {
		return err
	}
	return x.keep(p)
}

// line reads a line and sets its candidates aside.
func (x *reader) line(p *plane) error {
	number := -1 // in p.lines
	var timestamp uint64
	err := x.Within(func(field protowire.Number) (err error) {
		switch field {
		case 3:
			timestamp, err = x.Number()
		case 4:
			at := x.At()
			event, err := x.Small()
			if err != nil {
				return err
			}
			ok, err := x.candidate(p, event, at)
			if err != nil || !ok {
				return err
			}
			if number < 0 {
				number = len(p.lines)
				p.lines = append(p.lines, 0)
			}
			p.aside = append(p.aside, candidate{int32(number), bytes.Clone(event)})
			x.Hold(len(event) + candidateBytes)
		}
		return err
	})
	if number >= 0 {
		p.lines[number] = int64(timestamp)
	}
	return err
}

// candidate reports whether an event may be one of memory, and notes which texts it
// refers to.
func (x *reader) candidate(p *plane, event []byte, at int64) (bool, error) {
	stats := 0
	m := wire.NewMessage(event)
	for m.Next() {
		if m.Num == 4 && m.Type == protowire.BytesType {
			stats++
		}
	}
	if m.Bad {
		return false, x.Fail(at, "damaged: an event that does not end where it should")
	}
	if stats < minStats {
		return false, nil
	}
	m = wire.NewMessage(event)
	for m.Next() {
		if m.Num != 4 || m.Type != protowire.BytesType {
			continue
		}
		s := wire.NewMessage(m.Data)
		for s.Next() {
			if s.Num == 7 {
				n := len(p.want)
				p.want[s.Value] = struct{}{}
				x.Hold(64 * (len(p.want) - n))
			}
		}
		if s.Bad {
			return false, x.Fail(at, "damaged: an event with a stat that does not end where it should")
		}
	}
	return true, nil
}

// metadata reads an entry of the map of names of events, or of stats. What else is in
// its value can be a whole program.
func (x *reader) metadata(use func(id uint64, name []byte)) error {
	var id uint64
	x.text = x.text[:0]
	err := x.Within(func(field protowire.Number) (err error) {
		switch field {
		case 1:
			id, err = x.Number()
		case 2:
			return x.Within(func(field protowire.Number) error {
				if field != 2 {
					return nil
				}
				name, err := x.Small()
				x.text = append(x.text[:0], name...)
				return err
			})
		}
		return err
	})
	if err == nil {
		use(id, x.text)
	}
	return err
}

// keep reads the candidates of a whole plane again and keeps the memory events.
func (x *reader) keep(p *plane) error {
	if len(p.ops) == 0 {
		return nil
	}
	for i, c := range p.aside {
		if i%4096 == 0 {
			if err := x.in.Stopped(); err != nil {
				return err
			}
		}
		ev, ok, err := x.event(p, int(c.line), c.event)
		if err != nil {
			return err
		}
		if ok {
			ev.number = uint32(len(x.events))
			x.events = append(x.events, ev)
			x.Hold(memEventBytes)
		}
	}
	return nil
}
