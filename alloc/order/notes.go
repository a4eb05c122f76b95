package order

import (
	"slices"
	"sort"

	"gpumem/device"
)

// event is one of the driver's, and how many notes have it.
type event struct {
	handle device.Event
	notes  int
}

// mark says that work in a stream is done when an event has passed.
type mark struct {
	stream uint32
	event  *event
}

// note is about free memory: whose work on it may still run.
type note struct {
	addr, bytes uint64
	marks       []mark // not changed once made: the parts of a note that is cut share it
}

// notes are in order of addresses and do not overlap. There are at most as many
// as there are pieces of memory freed and not handed out again since; programs
// have hundreds of these, so a sorted slice does.
type notes struct {
	list  []note
	limit int // many says yes beyond it
}

// firstLimit is how many notes are kept before they are looked through.
const firstLimit = 256

// many says whether it is time to look for notes that nobody needs: there are
// twice as many as were left the last time.
func (n *notes) many() bool { return len(n.list) > max(n.limit, firstLimit) }

// span is the numbers of the notes that overlap [addr, addr+bytes).
func (n *notes) span(addr, bytes uint64) (from, to int) {
	from = sort.Search(len(n.list), func(i int) bool { return n.list[i].addr+n.list[i].bytes > addr })
	to = from
	for to < len(n.list) && n.list[to].addr < addr+bytes {
		to++
	}
	return from, to
}

// over are the notes that overlap [addr, addr+bytes).
func (n *notes) over(addr, bytes uint64) []note {
	from, to := n.span(addr, bytes)
	return n.list[from:to]
}

// cut takes [addr, addr+bytes) out. retire is told of the marks of each note
// that is gone as a whole.
func (n *notes) cut(addr, bytes uint64, retire func([]mark)) {
	from, to := n.span(addr, bytes)
	var rest []note
	for _, old := range n.list[from:to] {
		parts := 0
		if old.addr < addr {
			rest = append(rest, note{old.addr, addr - old.addr, old.marks})
			parts++
		}
		if end := old.addr + old.bytes; end > addr+bytes {
			rest = append(rest, note{addr + bytes, end - (addr + bytes), old.marks})
			parts++
		}
		switch parts {
		case 0:
			retire(old.marks)
		case 2:
			for _, m := range old.marks {
				m.event.notes++
			}
		}
	}
	if from < to {
		n.list = slices.Replace(n.list, from, to, rest...)
	}
}

// add adds a note where there is none.
func (n *notes) add(one note) {
	from, _ := n.span(one.addr, one.bytes)
	n.list = slices.Insert(n.list, from, one)
}

// drop takes out the notes that gone says yes to.
func (n *notes) drop(gone func(note) bool, retire func([]mark)) {
	n.list = slices.DeleteFunc(n.list, func(one note) bool {
		if !gone(one) {
			return false
		}
		retire(one.marks)
		return true
	})
	n.limit = 2 * len(n.list)
}
