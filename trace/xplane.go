package trace

// This file is for profiles of XLA's profiler: from the planes of an XSpace to a
// sorted list of memory events. xplaneevent.go reads one event, xplaneplay.go
// makes the recording of them.
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

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"

	"google.golang.org/protobuf/encoding/protowire"
)

// minStats is how many stats a memory event has at least: its pool, its address
// and the state of the pool. The least that was met is 7, of a free on a TPU.
const minStats = 4

// xplaneReader reads one profile.
type xplaneReader struct {
	*wire
	ctx    context.Context
	b      *builder
	events *memEvents
	play   *xplanePlay
	text   []byte // for the text of a site
	held   int    // bytes of memory, as far as they are not counted yet
}

// xplane is the plane that is being read.
type xplane struct {
	lined bool                // a line was read
	lines []int64             // timestamp_ns of each line that has candidates
	ops   map[uint64]Op       // what an event is, by metadata_id
	stats map[uint64]stat     // what a stat is, by metadata_id
	refs  map[uint64]string   // texts that stats refer to
	want  map[uint64]struct{} // those that the candidates refer to
	aside *asideEvents
}

// readXPlane reads a whole profile into b.
func readXPlane(ctx context.Context, in *bufio.Reader, b *builder) error {
	x := &xplaneReader{
		wire:   newWire(in, b.trace.Source, looksXPlane),
		ctx:    ctx,
		b:      b,
		events: newMemEvents(b.trace.spool),
		play:   &xplanePlay{b: b},
	}
	defer x.events.close()
	for {
		ok, err := x.next(toEOF)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if x.num != 1 {
			err = x.skip()
		} else {
			err = x.plane()
		}
		if err != nil {
			return err
		}
	}
	if x.events.n == 0 {
		return x.whole("the profile has no MemoryAllocation or MemoryDeallocation events; " +
			"record one of a GPU or TPU, with a host_tracer_level of 2 or more, of a part of the run that allocates")
	}
	return x.play.run(ctx, x.events)
}

// plane reads a plane and takes its memory events.
func (x *xplaneReader) plane() error {
	end, err := x.inner()
	if err != nil {
		return err
	}
	p := &xplane{
		ops:   make(map[uint64]Op),
		stats: make(map[uint64]stat),
		refs:  make(map[uint64]string),
		want:  make(map[uint64]struct{}),
		aside: newAsideEvents(x.b.trace.spool),
	}
	defer p.aside.close()
	for {
		ok, err := x.next(end)
		if err != nil {
			return err
		}
		if !ok {
			return x.keep(p)
		}
		if x.held >= 64<<10 {
			if err := x.b.hold(x.held); err != nil {
				return err
			}
			x.held = 0
		}
		switch x.num {
		case 2:
			var name []byte
			name, err = x.small("a name")
			if bytes.HasPrefix(name, []byte("/device:")) {
				// What ran on a device: most of a profile, and no allocations.
				return x.skipTo(end)
			}
		case 3:
			p.lined = true
			err = x.line(p)
		case 4:
			err = x.metadata(func(id uint64, name []byte) {
				switch string(name) {
				case "MemoryAllocation":
					p.ops[id] = Alloc
				case "MemoryDeallocation":
					p.ops[id] = Free
				}
			})
		case 5:
			err = x.metadata(func(id uint64, name []byte) {
				x.held += 150
				if s := statNamed(name); s != 0 {
					p.stats[id] = s
				}
				// Only those that are needed are kept; their number has no bound.
				// If a plane has them before its lines, all may be.
				if _, ok := p.want[id]; ok || !p.lined {
					p.refs[id] = cutName(string(name), maxNameBytes)
					x.held += min(len(name), maxNameBytes)
				}
			})
		default:
			err = x.skip()
		}
		if err != nil {
			return err
		}
	}
}

// line reads a line and sets its candidates aside.
func (x *xplaneReader) line(p *xplane) error {
	end, err := x.inner()
	if err != nil {
		return err
	}
	number := -1 // in p.lines
	var timestamp int64
	for {
		ok, err := x.next(end)
		if err != nil {
			return err
		}
		if !ok {
			if number >= 0 {
				p.lines[number] = timestamp
			}
			return nil
		}
		switch x.num {
		case 3:
			timestamp, err = int64(x.v), x.want(protowire.VarintType)
		case 4:
			at := x.at
			var event []byte
			if event, err = x.small("an event"); err != nil {
				return err
			}
			var candidate bool
			if candidate, err = x.candidate(p, event, at); candidate {
				if number < 0 {
					number = len(p.lines)
					p.lines = append(p.lines, 0)
				}
				err = p.aside.add(number, event)
			}
		default:
			err = x.skip()
		}
		if err != nil {
			return err
		}
	}
}

// candidate says whether an event may be one of memory, and notes which texts it
// refers to.
func (x *xplaneReader) candidate(p *xplane, event []byte, at int64) (bool, error) {
	stats := 0
	m := message{b: event}
	for m.next() {
		if m.num == 4 && m.typ == protowire.BytesType {
			stats++
		}
	}
	if m.bad {
		return false, x.fail(at, "damaged: an event that does not end where it should")
	}
	if stats < minStats {
		return false, nil
	}
	m = message{b: event}
	for m.next() {
		if m.num != 4 || m.typ != protowire.BytesType {
			continue
		}
		s := message{b: m.data}
		for s.next() {
			if s.num == 7 {
				n := len(p.want)
				p.want[s.v] = struct{}{}
				x.held += 64 * (len(p.want) - n)
			}
		}
		if s.bad {
			return false, x.fail(at, "damaged: an event with a stat that does not end where it should")
		}
	}
	return true, nil
}

// metadata reads an entry of the map of names of events, or of stats.
func (x *xplaneReader) metadata(use func(id uint64, name []byte)) error {
	end, err := x.inner()
	if err != nil {
		return err
	}
	var id uint64
	var name []byte
	for {
		ok, err := x.next(end)
		if err != nil {
			return err
		}
		if !ok {
			use(id, name)
			return nil
		}
		switch x.num {
		case 1:
			id, err = x.v, x.want(protowire.VarintType)
		case 2:
			name, err = x.metadataName(name)
		default:
			err = x.skip()
		}
		if err != nil {
			return err
		}
	}
}

// metadataName reads the name in the value of an entry into buf. What else is
// there can be a whole program.
func (x *xplaneReader) metadataName(buf []byte) ([]byte, error) {
	end, err := x.inner()
	if err != nil {
		return nil, err
	}
	buf = buf[:0]
	for {
		ok, err := x.next(end)
		if err != nil || !ok {
			return buf, err
		}
		if x.num != 2 {
			err = x.skip()
		} else {
			var name []byte
			name, err = x.small("a name")
			buf = append(buf[:0], name...)
		}
		if err != nil {
			return nil, err
		}
	}
}

// keep reads the candidates of a whole plane again and keeps the memory events.
func (x *xplaneReader) keep(p *xplane) error {
	if len(p.ops) == 0 {
		return nil
	}
	n := 0
	return p.aside.each(func(line int, event []byte) error {
		if n++; n%4096 == 0 && x.ctx.Err() != nil {
			return stopped(x.ctx, x.file)
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
	spool  *spool
	blocks []block
	buf    []byte
}

// newAsideEvents returns an empty list, for which a quarter of the memory of
// main may be used.
func newAsideEvents(main *spool) *asideEvents {
	return &asideEvents{spool: &spool{limit: main.limit / 4, dir: main.dir}}
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
	blk, err := a.spool.store(a.buf)
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
		data, err := a.spool.load(blk, buf)
		if err != nil {
			return err
		}
		if blk.mem == nil {
			buf = data
		}
		m := message{b: data}
		for len(m.b) > 0 {
			line := m.number()
			event, n := protowire.ConsumeBytes(m.b)
			if n < 0 || m.bad {
				return errSpool
			}
			m.b = m.b[n:]
			if err := f(int(line), event); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *asideEvents) close() { a.spool.close() } // what it held is not needed any more
