//go:build libgpumem

package main

// #include <stdlib.h>
import "C"

import (
	"cmp"
	"slices"
	"unsafe"
)

// kind is what a block is.
type kind uint8

const (
	plain    kind = iota // cuMemAlloc and its kin
	managed              // cuMemAllocManaged
	pooled               // cuMemAllocAsync and its kin
	mapped               // cuMemMap
	node                 // of a graph: addresses alone
	imported             // of another process: addresses alone
	hosted               // in answers about the host's memory alone
)

// block is a run of addresses in one hand.
type block struct {
	base, bytes uint64 // as asked for
	kind        kind
	gpu         *gpu
	context     *context  // nil: of none
	pool        *pool     // pooled
	physical    *physical // mapped
	access      bool      // mapped: the device may use it
	graph       graphPart // node
	id          uint64
}

func (b *block) end() uint64 { return b.base + b.bytes }

// usable reports whether the device may read and write it.
func (b *block) usable() bool {
	switch b.kind {
	case node:
		return b.graph.live
	case mapped:
		return b.access
	}
	return true
}

// blocks are all, by address. They do not overlap.
type blocks struct{ all []*block }

func (t *blocks) search(addr uint64) (int, bool) {
	return slices.BinarySearchFunc(t.all, addr, func(b *block, addr uint64) int { return cmp.Compare(b.base, addr) })
}

func (t *blocks) add(b *block) {
	i, _ := t.search(b.base)
	t.all = slices.Insert(t.all, i, b)
}

func (t *blocks) remove(b *block) {
	if i, ok := t.search(b.base); ok {
		t.all = slices.Delete(t.all, i, i+1)
	}
}

func (t *blocks) drop(gone func(*block) bool) { t.all = slices.DeleteFunc(t.all, gone) }

// around is the block that addr lies in, nil if there is none.
func (t *blocks) around(addr uint64) *block {
	i, found := t.search(addr)
	if !found {
		i--
	}
	if i < 0 || addr-t.all[i].base >= t.all[i].bytes {
		return nil
	}
	return t.all[i]
}

// starting is the block that starts at addr, nil if none does.
func (t *blocks) starting(addr uint64) *block {
	if i, ok := t.search(addr); ok {
		return t.all[i]
	}
	return nil
}

// usable is the device whose memory all of [addr, addr+bytes) is, nil if some of
// it is not there. Mappings side by side are one range.
func (t *blocks) usable(addr, bytes uint64) *gpu {
	first := t.around(addr)
	for b := first; b != nil && b.usable() && b.gpu == first.gpu; b = t.starting(b.end()) {
		if bytes <= b.end()-addr {
			return b.gpu
		}
		if b.kind != mapped {
			return nil
		}
		bytes -= b.end() - addr
		addr = b.end()
	}
	return nil
}

// enter puts a new block into the table.
func (d *driver) enter(b *block) *block {
	b.id = d.id()
	d.blocks.add(b)
	return b
}

// allocate is a plain grant.
func (d *driver) allocate(ctx *context, bytes uint64) uint64 {
	check(bytes != 0, invalidValue)
	r, err := ctx.gpu.sim.Alloc(bytes)
	must(err)
	return d.enter(&block{base: ctx.gpu.out(r.Addr), bytes: bytes, kind: plain, gpu: ctx.gpu, context: ctx}).base
}

// release frees a block in the way of its kind, after all work on it.
func (d *driver) release(b *block) (err error) {
	g := b.gpu
	switch b.kind {
	case plain, managed:
		err = g.sim.Free(g.in(b.base))
	case pooled:
		// The host waits before, so that the free comes after whatever used the
		// block, and after, so that its memory may be anyone's.
		if err = g.sim.Synchronize(); err == nil {
			err = g.sim.FreeAsync(g.in(b.base), 0)
		}
		if err == nil {
			err = g.sim.StreamSynchronize(0)
		}
	case node:
		check(b.graph.live, invalidValue)
		if err = g.sim.Synchronize(); err == nil {
			d.end(b)
		}
		return err
	case imported:
		if err = g.sim.Synchronize(); err == nil {
			err = g.sim.AddressFree(g.in(b.base), b.bytes)
		}
	default:
		panic(invalidValue)
	}
	if err == nil {
		d.forget(b)
	}
	return err
}

// forget takes a block that is freed out of the table, and its contents.
func (d *driver) forget(b *block) {
	d.blocks.remove(b)
	d.contents.Drop(b.base, b.bytes)
}

// hostBlock is memory of the host that the driver allocated or registered.
type hostBlock struct {
	bytes      uint64
	flags      uint32
	registered bool
	memory     unsafe.Pointer
}

// hostAround is the host's block that addr lies in.
func (d *driver) hostAround(addr uint64) (base uint64, h *hostBlock) {
	for base, h := range d.host {
		if addr >= base && addr-base < h.bytes {
			return base, h
		}
	}
	return 0, nil
}

// hostAlloc gives plain memory of the host, at the first argument.
func hostAlloc(c *call, flags uint32) {
	c.current()
	bytes := c.u64(1)
	c.need(0, 1)
	check(bytes <= 1<<47, invalidValue)
	p := C.aligned_alloc(4096, C.size_t((bytes+4095)&^4095))
	check(p != nil, outOfMemory)
	c.host[uint64(uintptr(p))] = &hostBlock{bytes: bytes, flags: flags, memory: p}
	give(c, 0, p)
}

// hostBlockOf is the host's block that the address in argument i lies in.
func (c *call) hostBlockOf(i int) *hostBlock {
	c.current()
	_, h := c.hostAround(c.u64(i))
	check(h != nil, invalidValue)
	return h
}

var memoryCalls = map[string]handler{
	"cuMemGetInfo_v2": func(c *call) {
		free, total, err := c.current().gpu.sim.MemInfo()
		must(err)
		put(c, 0, free)
		put(c, 1, total)
	},
	"cuMemAlloc_v2": func(c *call) {
		ctx := c.current()
		c.need(0)
		give(c, 0, c.allocate(ctx, c.u64(1)))
	},
	// Rows begin at multiples of 512 bytes, the alignment that the device names for textures.
	"cuMemAllocPitch_v2": func(c *call) {
		ctx := c.current()
		width, height, element := c.u64(2), c.u64(3), c.u32(4)
		c.need(0, 1, 2, 3)
		check(element == 4 || element == 8 || element == 16, invalidValue)
		pitch := (width + 511) &^ 511
		check(pitch >= width && pitch*height/height == pitch, outOfMemory)
		addr := c.allocate(ctx, pitch*height)
		put(c, 1, pitch)
		give(c, 0, addr)
	},
	"cuMemAllocManaged": func(c *call) {
		ctx := c.current()
		c.need(0, 1)
		check(c.u32(2) == 1 || c.u32(2) == 2, invalidValue) // CU_MEM_ATTACH_GLOBAL, _HOST
		r, err := ctx.gpu.sim.AllocManaged(c.u64(1))
		must(err)
		b := c.enter(&block{base: ctx.gpu.out(r.Addr), bytes: c.u64(1), kind: managed, gpu: ctx.gpu, context: ctx})
		give(c, 0, b.base)
	},
	"cuMemFree_v2": func(c *call) {
		if c.current(); c.u64(0) == 0 {
			return
		}
		b := c.blocks.starting(c.u64(0))
		check(b != nil, invalidValue)
		c.drain(b.gpu)
		check(c.blocks.starting(c.u64(0)) == b, invalidValue)
		must(c.release(b))
	},
	"cuMemGetAddressRange_v2": func(c *call) {
		c.current()
		b := c.blocks.around(c.u64(2))
		check(b != nil, notFound)
		put(c, 0, b.base)
		put(c, 1, b.bytes)
	},
	"cuPointerGetAttribute": func(c *call) {
		c.current()
		c.need(0)
		check(c.pointerAttribute(c.pointers[0], c.int(1), c.u64(2)), invalidValue)
	},
	// A pointer that the driver does not know is no error here; its values are zeros.
	"cuPointerGetAttributes": func(c *call) {
		c.current()
		n := c.u32(0)
		c.need(1, 2)
		check(n != 0, invalidValue)
		numbers := unsafe.Slice((*int32)(c.pointers[1]), n)
		places := unsafe.Slice((*unsafe.Pointer)(c.pointers[2]), n)
		for i, number := range numbers {
			width, ok := pointerAttributes[number]
			check(ok && places[i] != nil, invalidValue)
			clear(unsafe.Slice((*byte)(places[i]), width))
			if !c.pointerAttribute(places[i], int(number), c.u64(3)) && number == 9 {
				*(*int32)(places[i]) = -2 // CU_DEVICE_INVALID
			}
		}
	},
	"cuPointerSetAttribute": nothing,

	"cuMemHostAlloc":    func(c *call) { hostAlloc(c, c.u32(2)) },
	"cuMemAllocHost_v2": func(c *call) { hostAlloc(c, 0) },
	"cuMemFreeHost": func(c *call) {
		c.current()
		c.drainAll() // copies may yet use it
		h := c.host[c.u64(0)]
		check(h != nil && !h.registered, invalidValue)
		delete(c.host, c.u64(0))
		C.free(h.memory)
	},
	"cuMemHostRegister_v2": func(c *call) {
		c.current()
		c.need(0, 1)
		check(c.host[c.u64(0)] == nil, hostAlreadyRegistered)
		c.host[c.u64(0)] = &hostBlock{bytes: c.u64(1), flags: c.u32(2), registered: true}
	},
	"cuMemHostUnregister": func(c *call) {
		c.current()
		c.drainAll()
		h := c.host[c.u64(0)]
		check(h != nil && h.registered, hostNotRegistered)
		delete(c.host, c.u64(0))
	},
	"cuMemHostGetDevicePointer_v2": func(c *call) {
		c.hostBlockOf(1)
		give(c, 0, c.u64(1))
	},
	"cuMemHostGetFlags": func(c *call) { give(c, 0, c.hostBlockOf(1).flags) },
}

// pointerAttributes are those of CUpointer_attribute that are known, with the
// bytes of their values.
var pointerAttributes = map[int32]int{
	1: 8, 2: 4, 3: 8, 4: 8, 6: 1, 7: 8, 8: 1, 9: 4, 10: 1, 11: 8, 12: 8, 13: 1, 14: 8, 15: 1, 16: 4, 17: 8, 18: 8, 19: 8, 20: 8,
}

// pointerAttribute stores a property of an address. It is false for an unknown property, and
// for an address that is neither the device's nor the driver's memory of the host.
func (d *driver) pointerAttribute(to unsafe.Pointer, number int, addr uint64) bool {
	b := d.blocks.around(addr)
	if b == nil {
		base, h := d.hostAround(addr)
		if h == nil {
			return false
		}
		b = &block{base: base, bytes: h.bytes, kind: hosted}
	}
	context, pool, handleTypes := uint64(0), uint64(0), uint64(0)
	if b.context != nil {
		context = b.context.handle
	}
	if b.pool != nil {
		pool = b.pool.handle
	}
	if b.kind == mapped {
		handleTypes = uint64(b.physical.prop.handleTypes)
	}
	kind, ordinal, access := int32(2), int32(0), int32(3) // CU_MEMORYTYPE_DEVICE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE
	if b.kind == hosted {
		kind = 1 // CU_MEMORYTYPE_HOST
	} else {
		ordinal = int32(b.gpu.ordinal)
	}
	if !b.usable() {
		access = 0
	}

	word := func(v uint64) { *(*uint64)(to) = v }
	number32 := func(v int32) { *(*int32)(to) = v }
	flag := func(v bool) { *(*bool)(to) = v }
	switch number {
	case 1: // none for mapped memory
		word(context)
	case 2:
		number32(kind)
	case 3:
		word(addr)
	case 4:
		if b.kind != hosted && b.kind != managed {
			return false
		}
		word(addr)
	case 6:
		flag(false)
	case 7, 20:
		word(b.id)
	case 8:
		flag(b.kind == managed)
	case 9:
		number32(ordinal)
	case 10: // cuIpcGetMemHandle would serve it
		flag(b.kind == plain)
	case 11, 19:
		word(b.base)
	case 12, 18:
		word(b.bytes)
	case 13:
		flag(b.usable())
	case 14: // CUmemAllocationHandleType
		word(handleTypes)
	case 15:
		flag(b.kind != hosted && b.kind != managed)
	case 16:
		number32(access)
	case 17:
		word(pool)
	default:
		return false
	}
	return true
}
