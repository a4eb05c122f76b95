//go:build libgpumem

package main

import (
	"os"
)

// Memory and events that another process opens. The memory stays that of the process which
// allocated it: the one that opens it takes nothing of the device and gets addresses, behind which
// lie zeros, for contents are not passed. An event that is opened is a new one.

// ipcHandle is the beginning of CUipcMemHandle, of 64 bytes.
type ipcHandle struct {
	magic  uint64
	pid    uint64
	device uint64 // in the machine
	bytes  uint64 // of the allocation
}

const ipcMagic = 0x6d656d7570673031

// extent returns the allocation that an address lies in. In a run of gpumem fit the pool library's
// blocks lie in mapped pages, as far as these are one behind the other; else a driver passes none of
// those.
func (d *driver) extent(addr uint64) (b *block, bytes uint64) {
	b = d.blocks.around(addr)
	_, fit := environment("GPUMEM_FIT")
	check(b != nil && (b.kind == plain || b.kind == mapped && fit), invalidValue)
	for x := b; x != nil && x.kind == b.kind && x.usable(); x = d.blocks.starting(x.end()) {
		bytes = x.end() - b.base
		if x.kind == plain {
			break
		}
	}
	return b, bytes
}

// handleWords is the first argument that has the words of a handle which is passed by value: it
// lies on the stack, behind the six words of registers.
const handleWords = 6

// open opens the memory of a handle, of which the words are arguments.
func openMemory(c *call) {
	ctx := c.current()
	h := ipcHandle{c.u64(handleWords), c.u64(handleWords + 1), c.u64(handleWords + 2), c.u64(handleWords + 3)}
	c.need(0)
	check(h.magic == ipcMagic && h.device < uint64(len(c.machine)) && h.bytes > 0, invalidValue)
	check(h.pid != uint64(os.Getpid()), invalidContext)
	g := ctx.gpu
	page := max(g.info.Page, 1)
	n := (h.bytes + page - 1) / page * page
	addr, err := g.sim.AddressReserve(n, 0)
	must(err)
	c.enter(&block{base: g.out(addr), bytes: n, kind: imported, gpu: g, context: ctx})
	give(c, 0, g.out(addr))
}

var ipcCalls = map[string]handler{
	"cuIpcGetMemHandle": func(c *call) {
		b, n := c.extent(c.u64(1))
		give(c, 0, [8]uint64{ipcMagic, uint64(os.Getpid()), uint64(b.gpu.number), n})
	},
	"cuIpcOpenMemHandle":    openMemory,
	"cuIpcOpenMemHandle_v2": openMemory,
	"cuIpcCloseMemHandle": func(c *call) {
		b := c.blocks.starting(c.u64(0))
		check(b != nil && b.kind == imported, invalidValue)
		c.drain(b.gpu)
		check(c.blocks.starting(c.u64(0)) == b, invalidValue)
		must(c.release(b))
	},
	"cuIpcGetEventHandle": func(c *call) {
		c.event(1)
		give(c, 0, [8]uint64{ipcMagic, uint64(os.Getpid())})
	},
	"cuIpcOpenEventHandle": func(c *call) {
		check(c.u64(handleWords) == ipcMagic, invalidValue)
		newEvent(c)
	},
}
