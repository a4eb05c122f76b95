package sim

import (
	"iter"

	"gpumem/device"
)

// What lies in the device's memory. It is kept sparsely: a page takes room on
// the host once something is written to it, and a page that is filled with one
// byte, as a test does that marks all memory, takes a few bytes. What was never
// written reads as zero; a real device may have anything there.
//
// Contents belong to physical memory, not to addresses: what is written
// through one mapping of a handle is read through another, and is still there
// when the handle is mapped again somewhere else. They go with the memory.

// memory is a piece of physical memory: a grant's, a pool block's, or a
// handle's. Its zero value but for bytes is ready to use.
type memory struct {
	bytes uint64
	uses  []use           // work that touches it and that the host does not know to be done (hazard.go)
	pages map[uint64]page // by offset / pageSize; one that is missing is all zero

	// Of a handle's memory alone. It is released when both end.
	handle bool // the handle is there
	maps   int  // mappings of it
}

// piece is a part of physical memory: what lies behind some addresses.
type piece struct {
	mem        *memory
	off, bytes uint64
	addr       uint64 // by which it is used; 0: by none
}

// pageSize is the unit of contents: small beside what a program writes, large
// beside what the map takes for each.
const pageSize = 64 << 10

// page is the contents of pageSize bytes.
type page struct {
	data *[pageSize]byte // nil: all of it is b
	b    byte
}

// chunks cuts [off, off+bytes) where pages begin: the number of each page, and
// which bytes of it.
func chunks(off, bytes uint64) iter.Seq2[uint64, [2]uint64] {
	return func(yield func(uint64, [2]uint64) bool) {
		for bytes > 0 {
			lo := off % pageSize
			hi := min(pageSize, lo+bytes)
			if !yield(off/pageSize, [2]uint64{lo, hi}) {
				return
			}
			off, bytes = off+hi-lo, bytes-(hi-lo)
		}
	}
}

// present is chunks without the pages that are missing, in any order. Pages may
// be dropped meanwhile.
func (m *memory) present(off, bytes uint64) iter.Seq2[uint64, [2]uint64] {
	return func(yield func(uint64, [2]uint64) bool) {
		if bytes == 0 {
			return
		}
		first, last := off/pageSize, (off+bytes-1)/pageSize
		if last-first < uint64(len(m.pages)) {
			for i, c := range chunks(off, bytes) {
				if _, ok := m.pages[i]; ok && !yield(i, c) {
					return
				}
			}
			return
		}
		// Few pages in much memory: looking for each would take long.
		for i := range m.pages {
			if first <= i && i <= last {
				lo := max(off, i*pageSize) - i*pageSize
				hi := min(off+bytes-i*pageSize, pageSize)
				if !yield(i, [2]uint64{lo, hi}) {
					return
				}
			}
		}
	}
}

// own is page i, to be written to.
func (m *memory) own(i uint64) *[pageSize]byte {
	p := m.pages[i]
	if p.data == nil {
		p.data = new([pageSize]byte)
		if p.b != 0 {
			set(p.data[:], p.b)
		}
		m.put(i, p)
	}
	return p.data
}

func (m *memory) put(i uint64, p page) {
	if m.pages == nil {
		m.pages = make(map[uint64]page)
	}
	m.pages[i] = p
}

// set fills p, at least one byte, with b.
func set(p []byte, b byte) {
	p[0] = b
	for n := 1; n < len(p); n *= 2 {
		copy(p[n:], p[:n])
	}
}

// read, write, fill: off and the length lie inside.

func (m *memory) read(off uint64, p []byte) {
	for i, c := range chunks(off, uint64(len(p))) {
		n := c[1] - c[0]
		if from := m.pages[i]; from.data != nil {
			copy(p[:n], from.data[c[0]:])
		} else {
			set(p[:n], from.b)
		}
		p = p[n:]
	}
}

func (m *memory) write(off uint64, p []byte) {
	for i, c := range chunks(off, uint64(len(p))) {
		p = p[copy(m.own(i)[c[0]:c[1]], p):]
	}
}

func (m *memory) fill(off, bytes uint64, b byte) {
	if b == 0 {
		for i, c := range m.present(off, bytes) {
			if c == [2]uint64{0, pageSize} {
				delete(m.pages, i)
			} else {
				clear(m.own(i)[c[0]:c[1]])
			}
		}
		return
	}
	for i, c := range chunks(off, bytes) {
		if c == [2]uint64{0, pageSize} {
			m.put(i, page{b: b})
		} else {
			set(m.own(i)[c[0]:c[1]], b)
		}
	}
}

// copyFrom copies bytes of src, from its offset from, to off. The two do not
// overlap.
func (m *memory) copyFrom(off uint64, src *memory, from, bytes uint64) {
	m.fill(off, bytes, 0)
	for i, c := range src.present(from, bytes) {
		p := src.pages[i]
		to := off + (i*pageSize + c[0] - from)
		if p.data != nil {
			m.write(to, p.data[c[0]:c[1]])
		} else {
			m.fill(to, c[1]-c[0], p.b)
		}
	}
}

// copyPieces copies what lies in src to dst, which is as many bytes, cut in
// other places perhaps. The two do not overlap. What was never written in src
// takes no room in dst.
func copyPieces(dst, src []piece) {
	var i, j int    // where in the two lists
	var a, b uint64 // and how far in each piece
	for i < len(dst) && j < len(src) {
		to, from := dst[i], src[j]
		n := min(to.bytes-a, from.bytes-b)
		to.mem.copyFrom(to.off+a, from.mem, from.off+b, n)
		if a += n; a == to.bytes {
			i, a = i+1, 0
		}
		if b += n; b == from.bytes {
			j, b = j+1, 0
		}
	}
}

// pieces is what lies behind [addr, addr+bytes), in order of addresses; false
// where some of it is not there or may not be accessed, or bytes is 0. Mappings
// side by side are one range of memory, as a pool of pages wants them; a grant
// ends where it ends, even where another begins, so that what runs over its end
// is found. Caller holds d.mu.
func (d *Device) pieces(addr, bytes uint64) ([]piece, bool) {
	end := addr + bytes
	if end <= addr {
		return nil, false
	}
	var list []piece
	for s := range d.space.from(addr) {
		if s.addr <= addr && s.kind == pooled {
			if b := d.pools.block(addr); b != nil && end <= b.end() {
				return append(list, d.pools.piece(b, addr, end-addr)), true
			}
			break
		}
		if s.addr > addr || s.kind == mapped || s.kind != readable && s.end() < end {
			break
		}
		if s.mem == nil {
			s.mem = &memory{bytes: s.bytes}
		}
		n := min(s.end(), end) - addr
		list = append(list, piece{s.mem, s.off + addr - s.addr, n, addr})
		if addr += n; addr == end {
			return list, true
		}
	}
	return nil, false
}

// Write copies p to addr. A range that is not there, or may not be accessed,
// answers device.ErrInvalidValue; nothing is always there.
func (d *Device) Write(addr uint64, p []byte) error {
	return d.reach("cuMemcpyHtoD", addr, uint64(len(p)), true, func(part piece) {
		part.mem.write(part.off, p[:part.bytes])
		p = p[part.bytes:]
	})
}

// Read fills p from addr, with zeros where nothing was written. Errors are
// those of Write.
func (d *Device) Read(addr uint64, p []byte) error {
	return d.reach("cuMemcpyDtoH", addr, uint64(len(p)), false, func(part piece) {
		part.mem.read(part.off, p[:part.bytes])
		p = p[part.bytes:]
	})
}

// Fill sets bytes bytes from addr to b. Errors are those of Write.
func (d *Device) Fill(addr, bytes uint64, b byte) error {
	return d.reach("cuMemsetD8", addr, bytes, true, func(part piece) { part.mem.fill(part.off, part.bytes, b) })
}

// reach makes a call of the host's that reads or writes a range, and calls each for what
// lies behind it, in order: for nothing behind no bytes.
func (d *Device) reach(call string, addr, bytes uint64, write bool, each func(piece)) error {
	base, perMiB := d.costs.Copy, d.costs.CopyPerMiB
	if call == "cuMemsetD8" {
		base, perMiB = d.costs.Fill, d.costs.FillPerMiB
	}
	return d.do(call, bytes, base, func() error {
		if bytes == 0 {
			return nil
		}
		list, ok := d.pieces(addr, bytes)
		if !ok {
			return device.ErrInvalidValue
		}
		if err := d.check(call, nil, access{list, write}); err != nil {
			return err
		}
		d.count.Time += byMiB(perMiB, bytes)
		for _, part := range list {
			each(part)
		}
		return nil
	})
}
