package trace

// This file is for the dumps that XLA's BFC allocator writes when it refuses a
// request and TF_BFC_MEMORY_DUMP is set: MaybeWriteMemoryMap of
// tsl/framework/bfc_allocator.cc puts the binary message MemoryDump into a file
// PREFIX_NAME.MICROSECONDS, one for each refusal. Its fields
// (tsl/protobuf/bfc_memory_map.proto):
//
//	MemoryDump  allocator_name 1, bin_summary 2, chunk 3, snap_shot 4, stats 5
//	MemChunk    address 1, size 2, requested_size 3, bin 4, op_name 5,
//	            freed_at_count 6, action_count 7, in_use 8, step_id 9
//
// A dump is one instant: chunks, used and free, in the order of their addresses
// within each region. The used ones become allocations, so that a replay answers
// whether they would fit elsewhere. op_name, action_count (the order of the
// allocations) and snap_shot are there only if the allocator was built with
// TENSORFLOW_MEM_DEBUG. A snap_shot is the size of the pool at an earlier action;
// it names no block, so there is nothing to replay in it.

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"slices"
)

// memChunk is one chunk in use.
type memChunk struct {
	addr, size, action uint64
	site               uint32
}

// memDump is one dump.
type memDump struct {
	*wire
	b         *builder
	name      string
	used      []memChunk
	ordered   bool // some chunk has an action_count
	free      int
	freeBytes sum
	snapshots int
}

// readMemDump reads a whole dump into b.
func readMemDump(ctx context.Context, in *bufio.Reader, b *builder) error {
	d := &memDump{wire: newWire(in, b.trace.Source, looksMemDump), b: b}
	for {
		ok, err := d.next(toEOF)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		switch d.num {
		case 1:
			var name []byte
			name, err = d.take("a name")
			d.name = printable(cutName(string(name), maxNameBytes))
		case 3:
			err = d.chunk()
		case 4:
			d.snapshots++
			err = d.skip()
		default:
			err = d.skip()
		}
		if err != nil {
			return err
		}
	}
	return d.play(ctx)
}

// chunk reads a chunk.
func (d *memDump) chunk() error {
	at := d.at
	data, err := d.take("a chunk")
	if err != nil {
		return err
	}
	var size, requested int64
	var used bool
	var c memChunk
	m := message{b: data}
	for m.next() {
		switch m.num {
		case 1:
			c.addr = m.v
		case 2:
			size = int64(m.v)
		case 3:
			requested = int64(m.v)
		case 5:
			if op := printable(cutName(string(m.data), maxNameBytes)); op != "UNKNOWN" {
				c.site = d.b.sites.named([]byte(op))
			}
		case 7:
			c.action = m.v
		case 8:
			used = m.v != 0
		}
	}
	if m.bad || size < 0 || requested < 0 {
		return d.fail(at, "damaged: a chunk that does not end where it should, or with a size below 0")
	}
	if !used {
		d.free++
		d.freeBytes.add(uint64(size))
		return nil
	}
	// A pool gives no chunk for a request of 0 bytes, so 0 is not known.
	if c.size = uint64(requested); requested == 0 {
		c.size = uint64(size)
	}
	d.ordered = d.ordered || c.action != 0
	if d.used = append(d.used, c); len(d.used)%4096 == 0 {
		return d.b.hold(4096 * 64)
	}
	return nil
}

// play allocates the chunks in use.
func (d *memDump) play(ctx context.Context) error {
	if len(d.used) == 0 {
		return d.whole("the dump has no chunk in use, so there is nothing to replay")
	}
	order := "addresses"
	slices.SortStableFunc(d.used, func(x, y memChunk) int {
		return cmp.Or(cmp.Compare(x.action, y.action), cmp.Compare(x.addr, y.addr))
	})
	if d.ordered {
		order = "allocations"
	}
	p := d.b.pool(d.name)
	var bytes sum
	for i, c := range d.used {
		if i%4096 == 0 && ctx.Err() != nil {
			return stopped(ctx, d.file)
		}
		if _, err := p.alloc(c.size, c.site, 0, false); err != nil {
			return err
		}
		bytes.add(c.size)
	}
	d.b.note(fmt.Sprintf("a dump is one instant, when a request was refused: %s in use (%d bytes) %s allocated in the order of the %s, and nothing is freed; the request itself is not in the dump",
		count(len(d.used), "chunk"), bytes.cap(), is(len(d.used)), order))
	if d.free > 0 {
		d.b.note(fmt.Sprintf("%s between them (%d bytes) %s left out", count(d.free, "free chunk"), d.freeBytes.cap(), is(d.free)))
	}
	if d.snapshots > 0 {
		d.b.note(fmt.Sprintf("%s of the pool over time %s left out: they name no blocks", count(d.snapshots, "size"), is(d.snapshots)))
	}
	return nil
}
