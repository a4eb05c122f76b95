package sim

import (
	"iter"
	"slices"
	"sort"
)

// Addresses, and what lies behind them.
//
// Grants, plain and managed, lie from Base on, each at the first boundary after
// the last. What has addresses of its own choosing (reservations, the chunks of
// pools) lies from highBase on, likewise. No address is used twice, so the two
// meet only on a device that has granted a thousand times its memory; from there
// on they take turns (see Device.addresses and Device.grant).
//
// A space knows what lies behind an address now. A device has two: one of the
// runs of addresses that have memory behind them, one of the reservations.

// highBase is the first address of a reservation or a pool's chunk.
const highBase = 1 << 48

// segment is a run of addresses with one thing behind it.
type segment struct {
	addr, bytes uint64
	mem         *memory // what lies there; nil: a grant's, made when somebody looks, or a reservation
	off         uint64  // of the first address in mem
	block       uint64  // a grant's shared block; 0: it has separate blocks
	kind        kind
}

// kind says who may do what with a segment.
type kind uint8

const (
	granted  kind = iota // by Alloc; Free releases it
	managed              // by AllocManaged; Free releases it
	pooled               // a pool's chunk; what lies there is the pool's to know
	mapped               // by MemMap, without access
	readable             // the same, after MemSetAccess
	reserved             // addresses alone
)

func (s *segment) end() uint64 { return s.addr + s.bytes }

// leafMax: more segments than this make two leaves of one. With it, adding and
// removing moves some kilobytes at most, in a leaf as among 500,000 segments'
// leaves.
const leafMax = 64

// space is a set of segments that do not overlap, in order of addresses. The
// zero space is empty.
type space struct {
	leaves [][]segment // sorted, in and across; none is empty
	spare  []segment   // the room of a leaf that became empty, so that a loop of one Alloc and one Free makes no garbage
}

// leaf is the number of the last leaf that begins at or before addr, 0 if none
// does.
func (s *space) leaf(addr uint64) int {
	// What was added last is what is asked for most.
	if last := len(s.leaves) - 1; last <= 0 || s.leaves[last][0].addr <= addr {
		return max(last, 0)
	}
	return max(sort.Search(len(s.leaves), func(i int) bool { return s.leaves[i][0].addr > addr })-1, 0)
}

// after is the number of segments of a leaf that begin at or before addr.
func after(leaf []segment, addr uint64) int {
	lo, hi := 0, len(leaf)
	for lo < hi {
		if mid := (lo + hi) / 2; leaf[mid].addr <= addr {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// starting is the segment that starts at addr, nil if none does. It is good
// until the next add or remove.
func (s *space) starting(addr uint64) *segment {
	if len(s.leaves) == 0 {
		return nil
	}
	leaf := s.leaves[s.leaf(addr)]
	if i := after(leaf, addr) - 1; i >= 0 && leaf[i].addr == addr {
		return &leaf[i]
	}
	return nil
}

// from gives the segments in order of addresses, the first being the one that
// addr lies in or else the next one. None may be added or removed meanwhile.
func (s *space) from(addr uint64) iter.Seq[*segment] {
	return func(yield func(*segment) bool) {
		if len(s.leaves) == 0 {
			return
		}
		l := s.leaf(addr)
		i := after(s.leaves[l], addr)
		if i > 0 && addr-s.leaves[l][i-1].addr < s.leaves[l][i-1].bytes {
			i--
		}
		for ; l < len(s.leaves); l, i = l+1, 0 {
			for ; i < len(s.leaves[l]); i++ {
				if !yield(&s.leaves[l][i]) {
					return
				}
			}
		}
	}
}

// holding is the segment that all of [addr, addr+bytes) lies in, nil if there
// is none; bytes is at least 1.
func (s *space) holding(addr, bytes uint64) *segment {
	for g := range s.from(addr) {
		if off := addr - g.addr; addr >= g.addr && off < g.bytes && bytes <= g.bytes-off {
			return g
		}
		break
	}
	return nil
}

// empty reports whether nothing lies in [addr, addr+bytes), which does not pass
// the end of the addresses.
func (s *space) empty(addr, bytes uint64) bool {
	for g := range s.from(addr) {
		return g.addr >= addr+bytes
	}
	return true
}

// add adds a segment of at least one byte where nothing lies.
func (s *space) add(g segment) {
	if len(s.leaves) == 0 {
		s.leaves = append(s.leaves, append(s.spare, g))
		s.spare = nil
		return
	}
	l := s.leaf(g.addr)
	leaf := s.leaves[l]
	i := after(leaf, g.addr)
	if len(leaf) < leafMax {
		s.leaves[l] = slices.Insert(leaf, i, g)
		return
	}
	// A full leaf is cut in two where the new segment goes, but for one that
	// comes in the middle: those that come in order of addresses, as nearly all
	// do, leave full leaves behind.
	cut := i
	if 0 < i && i < len(leaf) {
		cut = leafMax / 2
	}
	high := append(s.spare, leaf[cut:]...)
	s.spare = nil
	clear(leaf[cut:])
	s.leaves[l] = leaf[:cut]
	s.leaves = slices.Insert(s.leaves, l+1, high)
	if i > cut || cut == len(leaf) {
		l, i = l+1, i-cut
	}
	s.leaves[l] = slices.Insert(s.leaves[l], i, g)
}

// remove takes out the segment that starts at addr, which is there.
func (s *space) remove(addr uint64) {
	l := s.leaf(addr)
	leaf := s.leaves[l]
	i := after(leaf, addr) - 1
	if leaf = slices.Delete(leaf, i, i+1); len(leaf) > 0 {
		s.leaves[l] = leaf
		return
	}
	s.spare = leaf
	s.leaves = slices.Delete(s.leaves, l, l+1)
}

// addresses finds bytes of them for a reservation or a pool's chunk, at a
// multiple of align (at least 1); false where none are left. They are never
// given out again. Caller holds d.mu.
func (d *Device) addresses(bytes, align uint64) (addr uint64, ok bool) {
	addr, ok = roundUp(max(d.high, d.next), align)
	if !ok || addr+bytes < addr {
		return 0, false
	}
	high, ok := roundUp(addr+bytes, addrStep)
	if !ok {
		return 0, false
	}
	d.high = high
	return addr, true
}
