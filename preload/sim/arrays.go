//go:build libgpumem

package main

// #include "front.h"
import "C"

// Arrays, mipmapped ones among them, are memory without an address: a grant each, with no
// contents.

// array is one.
type array struct {
	gpu     *gpu
	context *context
	base    uint64 // of the grant, in device/sim
}

// layered and cubemap are flags of CUDA_ARRAY3D_DESCRIPTOR whose depth is no extent.
const layered, cubemap = 1, 4

// elementBytes are the bytes of a channel by CUarray_format.
var elementBytes = map[int32]uint64{1: 1, 2: 2, 3: 4, 8: 1, 9: 2, 10: 4, 0x10: 2, 0x20: 4}

// shape is what the three descriptors have in common.
type shape struct {
	extent           [3]uint64 // 0 for a dimension that is not there
	format, channels int32
	flags            uint32
}

// bytes is what all levels take.
func (s shape) bytes(levels uint32) (sum uint64) {
	one := elementBytes[s.format] * uint64(s.channels)
	check(one != 0 && s.extent[0] != 0 && s.extent[0] <= 1<<17, invalidValue)
	for l := range max(levels, 1) {
		n := one
		for i, e := range s.extent {
			check(e <= 1<<17, invalidValue)
			if i < 2 || s.flags&(layered|cubemap) == 0 {
				e >>= l
			}
			n *= max(e, 1)
		}
		sum += n
	}
	return sum
}

func (c *call) newArray(s shape, levels uint32) {
	ctx := c.current()
	c.need(0, 1)
	r, err := ctx.gpu.sim.Alloc(s.bytes(levels))
	must(err)
	h := c.handle()
	c.arrays[h] = &array{ctx.gpu, ctx, r.Addr}
	give(c, 0, h)
}

// shape3D reads CUDA_ARRAY3D_DESCRIPTOR, which argument 1 points to.
func (c *call) shape3D() shape {
	c.need(1)
	return shape{at[[3]uint64](c, 1, 0), at[int32](c, 1, 24), at[int32](c, 1, 28), at[uint32](c, 1, 32)}
}

func destroyArray(c *call) {
	c.drain(c.current().gpu)
	a := c.arrays[c.u64(0)]
	check(a != nil, invalidValue)
	must(a.gpu.sim.Free(a.base))
	delete(c.arrays, c.u64(0))
}

var arrayCalls = map[string]handler{
	"cuArrayCreate_v2": func(c *call) {
		c.need(1)
		e := at[[2]uint64](c, 1, 0)
		c.newArray(shape{[3]uint64{e[0], e[1]}, at[int32](c, 1, 16), at[int32](c, 1, 20), 0}, 1)
	},
	"cuArray3DCreate_v2":      func(c *call) { c.newArray(c.shape3D(), 1) },
	"cuMipmappedArrayCreate":  func(c *call) { c.newArray(c.shape3D(), c.u32(2)) },
	"cuArrayDestroy":          destroyArray,
	"cuMipmappedArrayDestroy": destroyArray,
}
