// Package contents is what lies in the memory of simulated GPUs, as far as the room for it goes, and which
// of it the program itself wrote since a kernel was last launched.
//
// Work may be done later than it was submitted, and kernels launched in between. So the caller counts launches,
// and says with each write, and with each number that is read, how many there were when it was submitted.
//
// Contents are kept in pages by their place, an address or what stands for one. A page that is missing is
// all zero, and takes none of the room.
//
// Kernels do nothing here, so that what lies where one may have written is older than it would be on a GPU.
// Of large data the program notices nothing, but a number that it reads back would be taken for a length.
// Which memory a kernel writes is not known: a launch may have changed every byte. So ReadNumber is for
// numbers: what the program has not written since the last launch reads as 0. A page has a bit for each
// byte of it, once a part of the page is written; one that is written as a whole needs none. No bit is
// kept for zeros, which read as 0 in any case.
//
// A page has one count of launches, the newest of the writes to it since it was last written as a whole, and older
// writes to a part of it leave no bits. So a number that was written before a launch may read as 0 where another
// write to its page, after that launch, was done first.
package contents

// Page is the unit in which contents are kept, in bytes.
const Page = 64 << 10

// reserve is the part of the room, one of so many, that is left to writes of at most a page: else the
// weights of a model, which nobody reads back, would leave none to numbers.
const reserve = 8

// Memory is the contents of all devices. The caller locks.
type Memory struct {
	room  uint64 // bytes that pages may take
	pages map[uint64]*page
}

// New returns memory that is all zero. Its pages take at most room bytes, and what is noted of them at
// most an eighth more.
func New(room uint64) *Memory {
	return &Memory{room: room, pages: map[uint64]*page{}}
}

// each cuts [addr, addr+bytes) at pages: f gets the page's number, the offset in
// it, and the offset from addr. It goes through the pages that are there if that
// is less than the range and absent ones do not matter.
func (m *Memory) each(addr, bytes uint64, absent bool, f func(number, off, from, n uint64)) {
	one := func(number uint64) {
		lo := max(addr, number*Page)
		hi := min(addr+bytes, (number+1)*Page)
		f(number, lo-number*Page, lo-addr, hi-lo)
	}
	if bytes == 0 {
		return
	}
	first, last := addr/Page, (addr+bytes-1)/Page
	if !absent && last-first >= uint64(len(m.pages)) {
		for number := range m.pages {
			if first <= number && number <= last {
				one(number)
			}
		}
		return
	}
	for number := first; number <= last; number++ {
		one(number)
	}
}

// hasRoom reports whether there is room for a page more, for a write of so many bytes.
func (m *Memory) hasRoom(bytes uint64) bool {
	room := m.room
	if bytes > Page {
		room -= room / reserve
	}
	return uint64(len(m.pages)+1)*Page <= room
}

// own is a page for a write of so many bytes, nil where there is no room for it.
func (m *Memory) own(number, bytes uint64) *page {
	p := m.pages[number]
	if p == nil && m.hasRoom(bytes) {
		p = &page{bytes: new([Page]byte)}
		m.pages[number] = p
	}
	return p
}

// Write writes p.
func (m *Memory) Write(launches, addr uint64, p []byte) {
	m.each(addr, uint64(len(p)), true, func(number, off, from, n uint64) {
		if to := m.own(number, uint64(len(p))); to != nil {
			copy(to.bytes[off:off+n], p[from:])
			to.note(launches, off, n)
		}
	})
}

// Read reads into p.
func (m *Memory) Read(addr uint64, p []byte) {
	clear(p)
	m.each(addr, uint64(len(p)), false, func(number, off, from, n uint64) {
		if have := m.pages[number]; have != nil {
			copy(p[from:from+n], have.bytes[off:])
		}
	})
}

// ReadNumber reads a number of at most 64 bytes into p. Bytes that the program did not write after that many
// launches and before the next are 0.
func (m *Memory) ReadNumber(launches, addr uint64, p []byte) {
	clear(p)
	m.each(addr, uint64(len(p)), false, func(number, off, from, n uint64) {
		have := m.pages[number]
		if have == nil {
			return
		}
		written := have.written(launches, off, n)
		for i := range n {
			if written>>i&1 != 0 {
				p[from+i] = have.bytes[off+i]
			}
		}
	})
}

// Drop makes a range zero.
func (m *Memory) Drop(addr, bytes uint64) {
	m.each(addr, bytes, false, func(number, off, _, n uint64) {
		if n == Page {
			delete(m.pages, number)
		} else if have := m.pages[number]; have != nil {
			clear(have.bytes[off : off+n])
		}
	})
}

// Fill repeats a pattern, which divides a page, over a range that begins with one.
func (m *Memory) Fill(launches, addr, bytes uint64, pattern []byte) {
	zero := true
	for _, b := range pattern {
		zero = zero && b == 0
	}
	if zero {
		m.Drop(addr, bytes)
		return
	}
	m.each(addr, bytes, m.hasRoom(bytes), func(number, off, from, n uint64) {
		if to := m.own(number, bytes); to != nil {
			for i := range n {
				to.bytes[off+i] = pattern[(from+i)%uint64(len(pattern))]
			}
			to.note(launches, off, n)
		}
	})
}

// Copy copies between ranges that do not overlap, or are the same. What the program has written since the
// last launch counts so at its new place.
func (m *Memory) Copy(launches, to, from, bytes uint64) {
	if to == from {
		return
	}
	m.Drop(to, bytes)
	m.each(from, bytes, false, func(source, start, at, length uint64) {
		have := m.pages[source]
		if have == nil {
			return
		}
		m.each(to+at, length, true, func(number, off, from, n uint64) {
			if into := m.own(number, bytes); into != nil {
				copy(into.bytes[off:off+n], have.bytes[start+from:])
				into.noteCopy(launches, off, n, have, start+from)
			}
		})
	})
}
