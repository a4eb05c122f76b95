package dump

// The reader of the dumps that XLA's BFC allocator writes when it refuses a
// request and TF_BFC_MEMORY_DUMP is set: MaybeWriteMemoryMap of
// tsl/framework/bfc_allocator.cc puts the binary message MemoryDump into a file
// PREFIX_NAME.MICROSECONDS, one for each refusal. binary.go reads the message.
//
// A dump is one instant: chunks, used and free, in the order of their addresses
// within each region. The used ones become allocations, so that a replay answers
// whether they would fit elsewhere. Names, actions (the order of the allocations)
// and snapshots are there only if the allocator was built with TENSORFLOW_MEM_DEBUG.
// A snapshot is the size of the pool at an earlier action; it names no block, so
// there is nothing to replay in it.

import (
	"cmp"
	"slices"

	"gpumem/internal/input"
	"gpumem/record/internal/tape"
	"gpumem/size"
)

// Format is a pool dump of XLA's or TensorFlow's allocator.
var Format = tape.Format{Name: "memdump", What: "a pool dump of TF_BFC_MEMORY_DUMP", Looks: looksMemDump, Read: readMemDump}

// looksMemDump: a dump begins with the name of its pool, and something follows.
func looksMemDump(head []byte) bool {
	return head[0] == 1<<3|2 && isBinary(head) && len(head) > 2+int(head[1])
}

// readMemDump reads a whole dump into b.
func readMemDump(in *input.Reader, b *tape.Builder) error {
	dump, err := readBinary(in)
	if err != nil {
		return err
	}
	d := dump.finish()
	var used []*Chunk
	var free int
	var freeBytes, bytes uint64
	order := "addresses"
	for c := range d.Chunks {
		if !c.Live {
			free++
			freeBytes = size.Add(freeBytes, c.Size)
			continue
		}
		if c.Requested == 0 { // a pool has no chunk for 0 bytes, so it is not known
			c.Requested = c.Size
		}
		if used = append(used, c); d.action(c) != 0 {
			order = "allocations"
		}
	}
	if len(used) == 0 {
		return in.Fail("the dump has no chunk in use, so there is nothing to replay")
	}
	slices.SortStableFunc(used, func(x, y *Chunk) int {
		return cmp.Or(cmp.Compare(d.action(x), d.action(y)), cmp.Compare(x.Addr, y.Addr))
	})
	p := b.Pool(d.Allocator)
	for _, c := range used {
		ev := tape.Event{Bytes: c.Requested}
		if op := d.Name(c.Name); op != "UNKNOWN" {
			ev.Site = b.Site([]byte(op))
		}
		if _, err := p.Alloc(ev, 0); err != nil {
			return err
		}
		bytes = size.Add(bytes, ev.Bytes)
	}
	b.Note("a dump is one instant, when a request was refused: %s in use (%d bytes) %s allocated in the order of the %s, and nothing is freed; the request itself is not in the dump",
		size.Count(len(used), "chunk"), bytes, size.Are(len(used)), order)
	if free > 0 {
		b.Note("%s between them (%d bytes) %s left out", size.Count(free, "free chunk"), freeBytes, size.Are(free))
	}
	if n := d.Snapshots; n > 0 {
		b.Note("%s of the pool over time %s left out: they name no blocks", size.Count(n, "size"), size.Are(n))
	}
	return nil
}
