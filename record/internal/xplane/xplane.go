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
// The names of events and of their stats come behind the lines, so a plane is walked twice:
// for the names, then for the events. The file is in memory, and so are all memory events
// until the end, where they are put in the order of time.
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
	"gpumem/record/internal/tape"
	"gpumem/record/internal/wire"
)

// Format is a profile of XLA's profiler.
var Format = tape.Format{Name: "xplane", What: "a profile of JAX, XLA or TensorFlow, *.xplane.pb", Looks: looksXPlane, Read: readXPlane}

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

// maxPools bounds what a damaged profile can ask for: a pool has buffers.
const maxPools = 256

// maxText is how much is kept of the texts that events refer to, in bytes.
const maxText = 200

// nameBytes is what the name of an event or a stat needs in memory.
const nameBytes = 150

// reader reads one profile.
type reader struct {
	file   *wire.File
	in     *input.Reader
	b      *tape.Builder
	events []memEvent
	play   *player
	text   []byte // for the text of a site
}

// plane is the plane that is being read.
type plane struct {
	ops   map[uint64]tape.Op // what an event is, by metadata_id
	stats map[uint64]stat    // what a stat is, by metadata_id
	refs  map[uint64][]byte  // the names of stats, to which stats refer as texts
}

// readXPlane reads a whole profile into b.
func readXPlane(in *input.Reader, b *tape.Builder) error {
	file, space, err := wire.Read(in, looksXPlane)
	if err != nil {
		return err
	}
	x := &reader{file: file, in: in, b: b, play: &player{in: in, b: b}}
	for space.Next() {
		if space.Num == 1 {
			if err := x.plane(space.Message()); err != nil {
				return err
			}
		}
	}
	if err := space.Err(); err != nil {
		return err
	}
	if len(x.events) == 0 {
		return file.Refuse("the profile has no MemoryAllocation or MemoryDeallocation events; " +
			"record one of a GPU or TPU, with a host_tracer_level of 2 or more, of a part of the run that allocates")
	}
	// Those of the same time stay in the order of the file.
	slices.SortFunc(x.events, func(a, b memEvent) int {
		return cmp.Or(cmp.Compare(a.ns, b.ns), cmp.Compare(a.ps, b.ps), cmp.Compare(a.number, b.number))
	})
	return x.play.run(x.events)
}

// plane reads a plane and takes its memory events.
func (x *reader) plane(m *wire.Message) error {
	p := &plane{ops: make(map[uint64]tape.Op), stats: make(map[uint64]stat), refs: make(map[uint64][]byte)}
	names := *m
	for names.Next() {
		switch names.Num {
		case 2:
			if bytes.HasPrefix(names.Data, []byte("/device:")) {
				return nil // what ran on a device: most of a profile, and no allocations
			}
		case 4:
			switch id, name := metadata(names.Message()); string(name) {
			case "MemoryAllocation":
				p.ops[id] = tape.Alloc
			case "MemoryDeallocation":
				p.ops[id] = tape.Free
			}
		case 5:
			id, name := metadata(names.Message())
			p.refs[id] = name
			if s, ok := statNames[string(name)]; ok {
				p.stats[id] = s
			}
			if err := x.in.Take(nameBytes); err != nil {
				return err
			}
		}
	}
	for m.Next() {
		if m.Num == 3 {
			if err := x.line(p, m.Message()); err != nil {
				return err
			}
		}
	}
	return m.Err()
}

// metadata reads an entry of the map of names of events, or of stats.
func metadata(entry *wire.Message) (id uint64, name []byte) {
	for entry.Next() {
		switch entry.Num {
		case 1:
			id = entry.Number()
		case 2:
			for value := entry.Message(); value.Next(); {
				if value.Num == 2 {
					name = value.Data
				}
			}
		}
	}
	return id, name
}

// line takes the memory events of a line. Its time may come behind them.
func (x *reader) line(p *plane, m *wire.Message) error {
	first := len(x.events)
	var timestamp int64
	for n := 0; m.Next(); n++ {
		if n%4096 == 0 {
			if err := x.in.Stopped(); err != nil {
				return err
			}
		}
		switch m.Num {
		case 3:
			timestamp = int64(m.Number())
		case 4:
			ev, ok, err := x.event(p, m.Bytes(), m.At)
			if err != nil {
				return err
			}
			if !ok {
				continue
			}
			ev.number = uint32(len(x.events))
			x.events = append(x.events, ev)
			if err := x.in.Take(memEventBytes); err != nil {
				return err
			}
		}
	}
	for i := range x.events[first:] {
		e := &x.events[first+i]
		e.ns, e.ps = xplaneTime(timestamp, e.offset)
	}
	return m.Err()
}
