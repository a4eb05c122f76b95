//go:build libgpumem

package main

// #include "front.h"
import "C"

import (
	"encoding/binary"
	"iter"
	"sync/atomic"
	"unsafe"

	"gpumem/device"
)

// Copies and fills. Each is work of no length in its stream, which device/sim
// checks: that the memory is there, and that nothing unordered touches it. What
// the bytes are is kept as far as the room goes (package contents).
//
// Contents have a place: of memory that cuMemMap mapped it is one of the physical
// memory, so that they are seen through every mapping of it; else the address.

// places cuts a range of device memory into the places of its contents and their lengths.
// Where hazards are only reported, some of it may be nobody's.
func (d *driver) places(addr, bytes uint64) iter.Seq2[uint64, uint64] {
	return func(yield func(uint64, uint64) bool) {
		for bytes > 0 {
			b := d.blocks.around(addr)
			place, n := addr, bytes
			if b != nil {
				n = min(bytes, b.end()-addr)
			}
			if b != nil && b.kind == mapped {
				place = b.physical.place + (addr - b.base)
			}
			if !yield(place, n) {
				return
			}
			addr, bytes = addr+n, bytes-n
		}
	}
}

func (d *driver) write(launches, addr uint64, p []byte) {
	for place, n := range d.places(addr, uint64(len(p))) {
		d.contents.Write(launches, place, p[:n])
		p = p[n:]
	}
}

func (d *driver) read(addr uint64, p []byte) {
	for place, n := range d.places(addr, uint64(len(p))) {
		d.contents.Read(place, p[:n])
		p = p[n:]
	}
}

// readNumber reads 0 where it may be a kernel's.
func (d *driver) readNumber(launches, addr uint64, p []byte) {
	for place, n := range d.places(addr, uint64(len(p))) {
		d.contents.ReadNumber(launches, place, p[:n])
		p = p[n:]
	}
}

// fill: a mapping begins at a multiple of what a pattern can be.
func (d *driver) fill(launches, addr, bytes uint64, pattern []byte) {
	for place, n := range d.places(addr, bytes) {
		d.contents.Fill(launches, place, n, pattern)
	}
}

func (d *driver) copy(launches, to, from, bytes uint64) {
	for source, n := range d.places(from, bytes) {
		for place, part := range d.places(to, n) {
			d.contents.Copy(launches, place, source, part)
			source += part
		}
		to += n
	}
}

// side is one end of a copy: rows of memory of the host or the device.
type side struct {
	host  unsafe.Pointer // nil: the device's
	room  uint64         // bytes from there to the end, of the host's memory that the driver knows; 0: unknown
	addr  uint64
	pitch uint64
}

// sideAt is what lies at an address, also as a pointer. Host and device have their addresses in
// common: memory of the host that the driver knows is used by them wherever the device's is.
// With anywhere it may be any other memory of the host. What is neither is refused.
func (d *driver) sideAt(addr uint64, pointer unsafe.Pointer, anywhere bool) side {
	if d.blocks.around(addr) != nil {
		return side{addr: addr}
	}
	if base, h := d.hostAround(addr); h != nil {
		return side{host: pointer, room: base + h.bytes - addr}
	}
	if anywhere && addr < hostEnd {
		return side{host: pointer}
	}
	return side{addr: addr} // which ranges refuses
}

// hostEnd is where the addresses of programs end on Linux; those that the device reserves lie
// above.
const hostEnd = 1 << 47

// ranges are the rows, at least one, of one end of a copy as device/sim checks them. Of the
// host's memory, and of another device's, there is nothing to check. Rows that are not there
// are refused, but for what pools have, of which device/sim says what is wrong.
func (d *driver) ranges(one side, g *gpu, width, rows uint64) (list []device.Range) {
	if one.host != nil {
		check(one.room == 0 || width <= one.room && (rows-1)*one.pitch <= one.room-width, invalidValue)
		return nil
	}
	for row := range rows {
		addr := one.addr + row*one.pitch
		switch of := d.blocks.usable(addr, width); {
		case of == nil:
			check(g.sim.InPool(g.in(addr), width), invalidValue) // a hazard
		case of != g, d.blocks.around(addr).kind == node, d.blocks.around(addr).kind == imported: // not device/sim's of this process
			continue
		}
		list = append(list, device.Range{Addr: g.in(addr), Bytes: width})
	}
	return list
}

// transfer is a copy of rows in a stream, or a fill if pattern is not nil; then
// there is no source. Without wait the host goes on at once.
func (c *call) transfer(s *stream, wait bool, to, from side, width, rows uint64, pattern []byte) {
	if width == 0 || rows == 0 {
		return
	}
	if atomic.SwapUint64((*uint64)(&C.simLaunched), 0) != 0 {
		c.launches++
	}
	m := movement{to, from, width, rows, pattern, c.launches}
	if s.capture != nil {
		if c.line != nil {
			s.capture.graph.takes.add(c.timeOf(m, s.gpu))
		}
		return
	}
	check(width <= 1<<48 && rows <= 1<<24, invalidValue)
	writes := c.ranges(to, s.gpu, width, rows)
	var reads []device.Range
	if pattern == nil {
		reads = c.ranges(from, s.gpu, width, rows)
	}
	c.work(s, func() error { return s.gpu.sim.Work(s.sim, 0, reads, writes) })
	if c.line != nil {
		c.submitTransfer(s, wait, m)
		return
	}
	c.move(m)
	if wait {
		c.thread.wait = C.u64(s.job)
		must(s.gpu.sim.StreamSynchronize(s.sim))
	}
}

// movement is what a transfer moves.
type movement struct {
	to, from    side
	width, rows uint64
	pattern     []byte // not nil: a fill
	launches    uint64 // of kernels before it
}

// move moves the bytes. Where work takes time, kernels may have been launched since the transfer was submitted.
func (d *driver) move(m movement) {
	for row := range m.rows {
		a, b := m.to.addr+row*m.to.pitch, m.from.addr+row*m.from.pitch
		switch {
		case m.pattern != nil && m.to.host != nil:
			repeat(m.to.row(row, m.width), m.pattern)
		case m.pattern != nil:
			d.fill(m.launches, a, m.width, m.pattern)
		case m.to.host == nil && m.from.host == nil:
			d.copy(m.launches, a, b, m.width)
		case m.to.host == nil:
			d.write(m.launches, a, m.from.row(row, m.width))
		case m.from.host == nil && m.width <= numberBytes && m.rows == 1:
			d.readNumber(m.launches, b, m.to.row(row, m.width))
		case m.from.host == nil:
			d.read(b, m.to.row(row, m.width))
		default:
			copy(m.to.row(row, m.width), m.from.row(row, m.width))
		}
	}
}

// numberBytes is the most that a number takes.
const numberBytes = 8

// repeat fills p with a pattern.
func repeat(p, pattern []byte) {
	for i := range p {
		p[i] = pattern[i%len(pattern)]
	}
}

// row is one row of the host's memory.
func (one side) row(row, width uint64) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(one.host, row*one.pitch)), width)
}

// streamFor is the stream that argument i names; below 0, that of calls that name
// none.
func (c *call) streamFor(i int) *stream {
	if i >= 0 {
		return c.stream(i)
	}
	return c.defaultStream(0)
}

// which says what an argument of a copy is.
type which uint8

const (
	ofDevice which = iota
	ofHost
	ofEither // what the address says
)

// side is argument i as one end of a copy. What is passed for the host's memory may be the device's,
// which a driver takes for what its address says.
func (c *call) side(i int, w which) side {
	if w == ofHost && c.u64(i) < hostEnd {
		return side{host: c.pointers[i]}
	}
	return c.sideAt(c.u64(i), c.pointers[i], w == ofEither)
}

// copyOf serves a copy: to argument 0, from argument from, as many bytes as
// argument bytes says, in the stream of argument i.
func copyOf(to which, from int, source which, bytes, i int) handler {
	return func(c *call) {
		s := c.streamFor(i)
		if c.u64(bytes) > 0 {
			c.need(0, from)
		}
		c.transfer(s, i < 0, c.side(0, to), c.side(from, source), c.u64(bytes), 1, nil)
	}
}

// fillOf serves a fill of argument 0 with a pattern of that many bytes; of rows,
// if the pitch is argument 1.
func fillOf(width int, rows bool, i int) handler {
	return func(c *call) {
		s := c.streamFor(i)
		to, value, columns, height := c.side(0, ofDevice), c.u32(1), c.u64(2), uint64(1)
		if rows {
			to.pitch, value, columns, height = c.u64(1), c.u32(2), c.u64(3), c.u64(4)
		}
		check(c.u64(0)%uint64(width) == 0 && columns <= 1<<48, invalidValue)
		pattern := binary.LittleEndian.AppendUint32(nil, value)[:width]
		c.transfer(s, i < 0, to, side{}, columns*uint64(width), height, pattern)
	}
}

// copyRows serves a copy that CUDA_MEMCPY2D describes: for each end the first
// byte and row, the kind of memory (1 host, 2 device, 4 either), the addresses
// and the pitch; then bytes of a row and rows.
func copyRows(i int) handler {
	return func(c *call) {
		s := c.streamFor(i)
		c.need(0)
		end := func(at0 int) side {
			x, y, pitch := at[uint64](c, 0, at0), at[uint64](c, 0, at0+8), at[uint64](c, 0, at0+48)
			switch at[uint32](c, 0, at0+16) {
			case 1:
				host := at[unsafe.Pointer](c, 0, at0+24)
				check(host != nil, invalidValue)
				return side{host: unsafe.Add(host, y*pitch+x), pitch: pitch}
			case 2, 4:
				first := at[uint64](c, 0, at0+32)
				one := c.sideAt(first+y*pitch+x, unsafe.Add(at[unsafe.Pointer](c, 0, at0+32), y*pitch+x), at[uint32](c, 0, at0+16) == 4)
				one.pitch = pitch
				return one
			}
			panic(notSupported)
		}
		from, to := end(0), end(56)
		c.transfer(s, i < 0, to, from, at[uint64](c, 0, 112), at[uint64](c, 0, 120), nil)
	}
}

var copyCalls = map[string]handler{
	"cuMemcpyHtoD_v2":        copyOf(ofDevice, 1, ofHost, 2, -1),
	"cuMemcpyDtoH_v2":        copyOf(ofHost, 1, ofDevice, 2, -1),
	"cuMemcpyDtoD_v2":        copyOf(ofDevice, 1, ofDevice, 2, -1),
	"cuMemcpy":               copyOf(ofEither, 1, ofEither, 2, -1),
	"cuMemcpyPeer":           copyOf(ofDevice, 2, ofDevice, 4, -1),
	"cuMemcpyHtoDAsync_v2":   copyOf(ofDevice, 1, ofHost, 2, 3),
	"cuMemcpyDtoHAsync_v2":   copyOf(ofHost, 1, ofDevice, 2, 3),
	"cuMemcpyDtoDAsync_v2":   copyOf(ofDevice, 1, ofDevice, 2, 3),
	"cuMemcpyAsync":          copyOf(ofEither, 1, ofEither, 2, 3),
	"cuMemcpyPeerAsync":      copyOf(ofDevice, 2, ofDevice, 4, 5),
	"cuMemcpy2D_v2":          copyRows(-1),
	"cuMemcpy2DUnaligned_v2": copyRows(-1),
	"cuMemcpy2DAsync_v2":     copyRows(1),
	"cuMemsetD8_v2":          fillOf(1, false, -1),
	"cuMemsetD16_v2":         fillOf(2, false, -1),
	"cuMemsetD32_v2":         fillOf(4, false, -1),
	"cuMemsetD8Async":        fillOf(1, false, 3),
	"cuMemsetD16Async":       fillOf(2, false, 3),
	"cuMemsetD32Async":       fillOf(4, false, 3),
	"cuMemsetD2D8_v2":        fillOf(1, true, -1),
	"cuMemsetD2D16_v2":       fillOf(2, true, -1),
	"cuMemsetD2D32_v2":       fillOf(4, true, -1),
	"cuMemsetD2D8Async":      fillOf(1, true, 5),
	"cuMemsetD2D16Async":     fillOf(2, true, 5),
	"cuMemsetD2D32Async":     fillOf(4, true, 5),
}
