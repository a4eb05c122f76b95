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
	plain   kind = iota // cuMemAlloc and its kin
	managed             // cuMemAllocManaged
	pooled              // cuMemAllocAsync and its kin
	mapped              // cuMemMap
	node                // of a graph: addresses alone
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
	id          uint64
}

func (b *block) end() uint64 { return b.base + b.bytes }

// usable reports whether the device may read and write it.
func (b *block) usable() bool { return b.kind != node && (b.kind != mapped || b.access) }

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
func (d *driver) allocate(ctx *context, bytes uint64) (uint64, code) {
	if bytes == 0 {
		return 0, invalidValue
	}
	r, err := ctx.gpu.sim.Alloc(bytes)
	if err != nil {
		return 0, codeOf(err)
	}
	return d.enter(&block{base: ctx.gpu.out(r.Addr), bytes: bytes, kind: plain, gpu: ctx.gpu, context: ctx}).base, success
}

// release frees a block in the way of its kind, after all work on it.
func (d *driver) release(b *block) code {
	g := b.gpu
	var err error
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
	default:
		return invalidValue
	}
	if err == nil {
		d.forget(b)
	}
	return codeOf(err)
}

// forget takes a block that is freed out of the table, and its contents.
func (d *driver) forget(b *block) {
	d.blocks.remove(b)
	d.contents.drop(b.base, b.bytes)
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
func hostAlloc(d *driver, c *call, bytes uint64, flags uint32) code {
	if bytes == 0 || c.words[0] == 0 || bytes > 1<<47 {
		return invalidValue
	}
	p := C.aligned_alloc(4096, C.size_t((bytes+4095)&^4095))
	if p == nil {
		return outOfMemory
	}
	d.host[uint64(uintptr(p))] = &hostBlock{bytes: bytes, flags: flags, memory: p}
	return give(c, 0, p)
}

var memoryCalls = map[string]handler{
	"cuMemGetInfo_v2": inContext(func(d *driver, c *call, ctx *context) code {
		free, total, err := ctx.gpu.sim.MemInfo()
		if err != nil {
			return codeOf(err)
		}
		put(c, 0, free)
		put(c, 1, total)
		return success
	}),
	"cuMemAlloc_v2": inContext(func(d *driver, c *call, ctx *context) code {
		if c.words[0] == 0 {
			return invalidValue
		}
		addr, e := d.allocate(ctx, c.u64(1))
		if e != success {
			return e
		}
		return give(c, 0, addr)
	}),
	// Rows begin at multiples of 512 bytes, the alignment that the device names for textures.
	"cuMemAllocPitch_v2": inContext(func(d *driver, c *call, ctx *context) code {
		width, height, element := c.u64(2), c.u64(3), c.u32(4)
		if c.words[0] == 0 || c.words[1] == 0 || width == 0 || height == 0 || element != 4 && element != 8 && element != 16 {
			return invalidValue
		}
		pitch := (width + 511) &^ 511
		if pitch < width || pitch*height/height != pitch {
			return outOfMemory
		}
		addr, e := d.allocate(ctx, pitch*height)
		if e != success {
			return e
		}
		put(c, 1, pitch)
		return give(c, 0, addr)
	}),
	"cuMemAllocManaged": inContext(func(d *driver, c *call, ctx *context) code {
		if c.words[0] == 0 || c.u64(1) == 0 || c.u32(2) != 1 && c.u32(2) != 2 { // CU_MEM_ATTACH_GLOBAL, _HOST
			return invalidValue
		}
		r, err := ctx.gpu.sim.AllocManaged(c.u64(1))
		if err != nil {
			return codeOf(err)
		}
		b := d.enter(&block{base: ctx.gpu.out(r.Addr), bytes: c.u64(1), kind: managed, gpu: ctx.gpu, context: ctx})
		return give(c, 0, b.base)
	}),
	"cuMemFree_v2": inContext(func(d *driver, c *call, ctx *context) code {
		if c.u64(0) == 0 {
			return success
		}
		b := d.blocks.starting(c.u64(0))
		if b == nil {
			return invalidValue
		}
		return d.release(b)
	}),
	"cuMemGetAddressRange_v2": inContext(func(d *driver, c *call, ctx *context) code {
		b := d.blocks.around(c.u64(2))
		if b == nil {
			return notFound
		}
		put(c, 0, b.base)
		put(c, 1, b.bytes)
		return success
	}),
	"cuPointerGetAttribute": inContext(func(d *driver, c *call, ctx *context) code {
		if c.words[0] == 0 {
			return invalidValue
		}
		return d.pointerAttribute(c.pointers[0], c.int(1), c.u64(2))
	}),
	// A pointer that the driver does not know is no error here; its values are zeros.
	"cuPointerGetAttributes": inContext(func(d *driver, c *call, ctx *context) code {
		n := c.u32(0)
		if n == 0 || c.words[1] == 0 || c.words[2] == 0 {
			return invalidValue
		}
		numbers := unsafe.Slice((*int32)(c.pointers[1]), n)
		places := unsafe.Slice((*unsafe.Pointer)(c.pointers[2]), n)
		for i, number := range numbers {
			width, ok := pointerAttributes[number]
			if !ok || places[i] == nil {
				return invalidValue
			}
			clear(unsafe.Slice((*byte)(places[i]), width))
			if d.pointerAttribute(places[i], int(number), c.u64(3)) != success && number == 9 {
				*(*int32)(places[i]) = -2 // CU_DEVICE_INVALID
			}
		}
		return success
	}),
	"cuPointerSetAttribute": inContext(nothing),

	"cuMemHostAlloc":    inContext(func(d *driver, c *call, ctx *context) code { return hostAlloc(d, c, c.u64(1), c.u32(2)) }),
	"cuMemAllocHost_v2": inContext(func(d *driver, c *call, ctx *context) code { return hostAlloc(d, c, c.u64(1), 0) }),
	"cuMemFreeHost": inContext(func(d *driver, c *call, ctx *context) code {
		h := d.host[c.u64(0)]
		if h == nil || h.registered {
			return invalidValue
		}
		delete(d.host, c.u64(0))
		C.free(h.memory)
		return success
	}),
	"cuMemHostRegister_v2": inContext(func(d *driver, c *call, ctx *context) code {
		if c.u64(0) == 0 || c.u64(1) == 0 {
			return invalidValue
		}
		if d.host[c.u64(0)] != nil {
			return hostAlreadyRegistered
		}
		d.host[c.u64(0)] = &hostBlock{bytes: c.u64(1), flags: c.u32(2), registered: true}
		return success
	}),
	"cuMemHostUnregister": inContext(func(d *driver, c *call, ctx *context) code {
		if h := d.host[c.u64(0)]; h == nil || !h.registered {
			return hostNotRegistered
		}
		delete(d.host, c.u64(0))
		return success
	}),
	"cuMemHostGetDevicePointer_v2": inContext(func(d *driver, c *call, ctx *context) code {
		if _, h := d.hostAround(c.u64(1)); h == nil {
			return invalidValue
		}
		return give(c, 0, c.u64(1))
	}),
	"cuMemHostGetFlags": inContext(func(d *driver, c *call, ctx *context) code {
		_, h := d.hostAround(c.u64(1))
		if h == nil {
			return invalidValue
		}
		return give(c, 0, h.flags)
	}),
}

// pointerAttributes are those of CUpointer_attribute that are known, with the
// bytes of their values.
var pointerAttributes = map[int32]int{
	1: 8, 2: 4, 3: 8, 4: 8, 6: 1, 7: 8, 8: 1, 9: 4, 10: 1, 11: 8, 12: 8, 13: 1, 14: 8, 15: 1, 16: 4, 17: 8, 18: 8, 19: 8, 20: 8,
}

// pointerAttribute stores a property of an address. It fails for one that is
// neither the device's nor the driver's memory of the host.
func (d *driver) pointerAttribute(to unsafe.Pointer, number int, addr uint64) code {
	b := d.blocks.around(addr)
	var base uint64
	var h *hostBlock
	if b == nil {
		if base, h = d.hostAround(addr); h == nil {
			return invalidValue
		}
	}
	word := func(v uint64) code { *(*uint64)(to) = v; return success }
	number32 := func(v int32) code { *(*int32)(to) = v; return success }
	flag := func(v bool) code { *(*bool)(to) = v; return success }
	switch number {
	case 1: // context; none for mapped memory
		if b == nil || b.context == nil {
			return word(0)
		}
		return word(b.context.handle)
	case 2: // CU_MEMORYTYPE_HOST, _DEVICE
		if b == nil {
			return number32(1)
		}
		return number32(2)
	case 3:
		return word(addr)
	case 4:
		if b != nil && b.kind != managed {
			return invalidValue
		}
		return word(addr)
	case 6:
		return flag(false)
	case 7:
		if b == nil {
			return word(0)
		}
		return word(b.id)
	case 8:
		return flag(b != nil && b.kind == managed)
	case 9:
		if b == nil {
			return number32(0)
		}
		return number32(int32(b.gpu.ordinal))
	case 10: // cuIpcGetMemHandle would serve it
		return flag(b != nil && b.kind == plain)
	case 11, 19:
		if b != nil {
			base = b.base
		}
		return word(base)
	case 12, 18:
		if b != nil {
			return word(b.bytes)
		}
		return word(h.bytes)
	case 13:
		return flag(b == nil || b.usable())
	case 14: // CUmemAllocationHandleType
		if b != nil && b.kind == mapped {
			return word(uint64(b.physical.prop.handleTypes))
		}
		return word(0)
	case 15:
		return flag(b != nil && b.kind != managed)
	case 16: // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
		if b != nil && !b.usable() {
			return number32(0)
		}
		return number32(3)
	case 17:
		if b != nil && b.pool != nil {
			return word(b.pool.handle)
		}
		return word(0)
	case 20:
		if b == nil {
			return word(0)
		}
		return word(b.id)
	}
	return invalidValue
}
