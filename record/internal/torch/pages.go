package torch

// Expandable segments. A snapshot has a segment for each run of pages that are mapped, and
// does not say where the addresses of the whole begin. Pages are mapped from the lowest
// address on, so the lowest that was ever seen is taken for the beginning.

import (
	"cmp"
	"slices"

	"gpumem/record/internal/tape"
)

// largePage is the size of the pages of large pools, unless large_segment_size_mb says another.
const largePage = 20 << 20

// kind is what the segments of one list of PyTorch's have in common.
type kind struct {
	stream, private uint32
	small           bool
}

func kindOf(s tape.Segment) kind { return kind{s.Stream, s.Private, s.Small} }

// maxRuns bounds the runs of pages at once, so that a damaged snapshot does not take long.
const maxRuns = 1 << 12

// pagesAtStart returns the runs of pages that were mapped at the first event, each with the
// beginning of its segment. ok is false if there are too many.
func (d *device) pagesAtStart() (list pageList, ok bool) {
	known := d.pageKinds()
	for _, s := range d.final {
		if s.Base != 0 && len(list) < maxRuns {
			list.add(s.Addr, s.Bytes, kindOf(s))
		}
	}
	for _, c := range slices.Backward(d.changed) {
		switch {
		case len(list) >= maxRuns:
			return nil, false
		case !c.paged:
		case c.freed:
			list.add(c.Addr, c.Bytes, known.of(c))
		default:
			list.remove(c.Addr, c.Addr+c.Bytes)
		}
	}
	base := map[kind]uint64{}
	mapped := map[kind]uint64{}
	for _, s := range list {
		k := kindOf(s)
		mapped[k] += s.Bytes
		if b, ok := base[k]; !ok || s.Addr < b {
			base[k] = s.Addr
		}
	}
	for _, c := range d.changed {
		if !c.paged {
			continue
		}
		k := known.of(c)
		switch {
		case mapped[k] == 0: // what comes is another segment
		case c.freed:
			mapped[k] -= min(c.Bytes, mapped[k])
		default:
			mapped[k] += c.Bytes
			base[k] = min(base[k], c.Addr)
		}
	}
	for i := range list {
		list[i].Base = base[kindOf(list[i])]
	}
	return list, len(list) < maxRuns
}

// pageKinds is where pages were seen whose list is known, by address.
type pageKinds []tape.Segment

// pageKinds collects those of the snapshot, and those that were mapped for a request.
func (d *device) pageKinds() pageKinds {
	var known pageKinds
	for _, s := range d.final {
		if s.Base != 0 {
			known = append(known, s)
		}
	}
	byAddress := func(a, b tape.Segment) int { return cmp.Compare(a.Addr, b.Addr) }
	slices.SortFunc(known, byAddress)
	all := slices.Clone(known)
	for _, c := range d.changed {
		if !c.paged || c.freed || c.before == len(d.events) {
			continue
		}
		e := d.events[c.before]
		if e.action != allocated || e.addr >= c.Addr+c.Bytes || c.Addr >= e.addr+max(e.size, 1) {
			continue
		}
		c.Segment.Private = known.of(c).private
		c.Segment.Small = e.size <= smallRequest
		all = append(all, c.Segment)
	}
	slices.SortStableFunc(all, byAddress)
	return all
}

// smallRequest is the largest request of the pools for small ones (kSmallSize).
const smallRequest = 1 << 20

// maxNear is how many known pages are looked at for those of the same stream.
const maxNear = 256

// of returns the list of pages: that of the nearest pages of the stream at a lower address,
// for segments begin far apart; else of those above.
func (known pageKinds) of(c change) kind {
	i, found := slices.BinarySearchFunc(known, c.Addr, func(s tape.Segment, addr uint64) int { return cmp.Compare(s.Addr, addr) })
	if found {
		i++
	}
	offGrid := func(base uint64) bool { return c.Bytes%largePage != 0 || (c.Addr-base)%largePage != 0 }
	for _, s := range slices.Backward(known[max(i-maxNear, 0):i]) {
		if s.Stream == c.Stream && (s.Small || !offGrid(s.Addr)) {
			return kindOf(s)
		}
	}
	for _, s := range known[i:min(i+maxNear, len(known))] {
		if s.Stream == c.Stream && (s.Small || c.Bytes%largePage == 0 && (s.Addr-c.Addr)%largePage == 0) {
			return kindOf(s)
		}
	}
	return kind{stream: c.Stream, small: c.Bytes%largePage != 0}
}

// pageList is runs of mapped pages by address, which do not overlap.
type pageList []tape.Segment

// add adds pages, and joins them with those of their list beside them.
func (l *pageList) add(addr, bytes uint64, k kind) {
	l.remove(addr, addr+bytes)
	i, _ := l.find(addr)
	list := slices.Insert(*l, i, tape.Segment{Addr: addr, Bytes: bytes, Stream: k.stream, Small: k.small, Private: k.private, Base: addr})
	if i+1 < len(list) && list[i].Addr+list[i].Bytes == list[i+1].Addr && kindOf(list[i+1]) == k {
		list[i].Bytes += list[i+1].Bytes
		list = slices.Delete(list, i+1, i+2)
	}
	if i > 0 && list[i-1].Addr+list[i-1].Bytes == addr && kindOf(list[i-1]) == k {
		list[i-1].Bytes += list[i].Bytes
		list = slices.Delete(list, i, i+1)
	}
	*l = list
}

// remove takes the pages from one address to another out.
func (l *pageList) remove(from, to uint64) {
	i, found := l.find(from)
	if !found && i > 0 {
		i--
	}
	for i < len(*l) && (*l)[i].Addr < to {
		s := (*l)[i]
		end := s.Addr + s.Bytes
		var rest []tape.Segment
		if s.Addr < from {
			low := s
			low.Bytes = min(end, from) - s.Addr
			rest = append(rest, low)
		}
		if end > to {
			high := s
			high.Addr, high.Bytes = to, end-to
			rest = append(rest, high)
		}
		*l = slices.Replace(*l, i, i+1, rest...)
		i += len(rest)
	}
}

// at returns the run that an address lies in, nil if there is none.
func (l *pageList) at(addr uint64) *tape.Segment {
	i, found := l.find(addr)
	if !found {
		i--
	}
	if i < 0 || addr-(*l)[i].Addr >= (*l)[i].Bytes {
		return nil
	}
	return &(*l)[i]
}

func (l *pageList) find(addr uint64) (int, bool) {
	return slices.BinarySearchFunc(*l, addr, func(s tape.Segment, addr uint64) int { return cmp.Compare(s.Addr, addr) })
}
