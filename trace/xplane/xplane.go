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
// is can be told only when its plane has been read. Events that may be one of
// memory are set aside as they are, in memory up to a limit and then in a
// temporary file, and read again at the end of the plane.
package xplane

import (
	"bytes"
	"encoding/binary"

	"google.golang.org/protobuf/encoding/protowire"

	"gpumem/internal/input"
	"gpumem/internal/spool"
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
	events *memEvents
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
	aside *asideEvents
}

// readXPlane reads a whole profile into b.
func readXPlane(in *input.Reader, b *trace.Builder) error {
	x := &reader{
		Stream: wire.NewStream(in, looksXPlane),
		in:     in,
		b:      b,
		events: &memEvents{spool: b.Spool()},
		play:   &player{in: in, b: b},
	}
	defer x.events.spool.Close() // what it has is not needed any more
	err := x.Fields(func(field protowire.Number) error {
		if field != 1 {
			return nil
		}
		return x.plane()
	})
	if err != nil {
		return err
	}
	if x.events.n == 0 {
		return x.Refuse("the profile has no MemoryAllocation or MemoryDeallocation events; " +
			"record one of a GPU or TPU, with a host_tracer_level of 2 or more, of a part of the run that allocates")
	}
	return x.play.run(x.events)
}

// plane reads a plane and takes its memory events.
func (x *reader) plane() error {
	p := &plane{
		ops:   make(map[uint64]trace.Op),
		stats: make(map[uint64]stat),
		refs:  make(map[uint64]string),
		want:  make(map[uint64]struct{}),
		aside: &asideEvents{spool: x.b.Spool()},
	}
	defer p.aside.spool.Close()
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
				if s := statNamed(name); s != 0 {
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
			return p.aside.add(number, event)
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
	n := 0
	return p.aside.each(func(line int, event []byte) error {
		if n++; n%4096 == 0 {
			if err := x.in.Stopped(); err != nil {
				return err
			}
		}
		ev, ok, err := x.event(p, line, event)
		if err != nil || !ok {
			return err
		}
		return x.events.add(ev)
	})
}

// asideEvents holds events as they are in the file, each with the number of its
// line.
type asideEvents struct {
	spool  *spool.Spool
	blocks []spool.Block
	buf    []byte
}

func (a *asideEvents) add(line int, event []byte) error {
	a.buf = binary.AppendUvarint(a.buf, uint64(line))
	a.buf = protowire.AppendBytes(a.buf, event)
	if len(a.buf) < blockBytes {
		return nil
	}
	return a.seal()
}

func (a *asideEvents) seal() error {
	if len(a.buf) == 0 {
		return nil
	}
	blk, err := a.spool.Store(a.buf)
	a.blocks = append(a.blocks, blk)
	a.buf = a.buf[:0]
	return err
}

// each calls f with every event, in order.
func (a *asideEvents) each(f func(line int, event []byte) error) error {
	if err := a.seal(); err != nil {
		return err
	}
	var buf []byte
	for _, blk := range a.blocks {
		data, err := a.spool.Load(blk, &buf)
		if err != nil {
			return err
		}
		for len(data) > 0 {
			line, n := binary.Uvarint(data)
			event, k := protowire.ConsumeBytes(data[max(n, 0):])
			if n <= 0 || k < 0 {
				return spool.ErrDamaged
			}
			data = data[n+k:]
			if err := f(int(line), event); err != nil {
				return err
			}
		}
	}
	return nil
}
