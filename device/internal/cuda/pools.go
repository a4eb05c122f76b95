//go:build linux && (amd64 || arm64) && !nodriver

// The driver's stream-ordered pools. A handle is the driver's CUmemoryPool.

package cuda

import (
	"fmt"
	"unsafe"

	"gpumem/device"
)

// beginPool is begin for the calls that need pools.
func (d *Device) beginPool(f int, bytes uint64) *call {
	c := d.begin(f, bytes)
	c.requires(d.info.HasPools)
	return c
}

// requires refuses the call where the device cannot do such things at all: the
// driver lacks the function, or knows it but not for this device.
func (c *call) requires(has bool) {
	switch {
	case has:
	case c.d.m.cuda.at[c.f] == 0:
		c.fail(missing)
	default:
		c.refuse(notSupported)
	}
}

// pooled adds p to the call, which is refused where there is no such pool.
func (c *call) pooled(p device.Pool) *call {
	_, ok := known(c.d, c.d.pools, uint64(p))
	return c.check(ok).arg(uint64(p))
}

// DefaultPool is the device's own pool, which all users of the primary context
// share.
func (d *Device) DefaultPool() (device.Pool, error) {
	c := d.beginPool(cuDeviceGetDefaultMemPool, 0)
	defer c.end()
	c.returns(0).arg(uint64(d.id))
	return create[device.Pool](c, d.pools, false)
}

// PoolCreate makes a pool. A limit needs a driver for CUDA 12.2.
func (d *Device) PoolCreate(max uint64) (device.Pool, error) {
	c := d.beginPool(cuMemPoolCreate, max)
	defer c.end()
	if max != 0 && d.m.version < versionPoolMaxBytes {
		c.refuse(fmt.Errorf("%w: the driver (CUDA %s) cannot limit a pool; update it to one for CUDA %s or newer, or make the pool without a limit",
			device.ErrNotSupported, version(d.m.version), version(versionPoolMaxBytes)))
	}
	c.pool = poolProps{kind: allocationPinned, location: memLocation{locationDevice, d.id}, max: max}
	c.returns(0).ptr(unsafe.Pointer(&c.pool))
	return create[device.Pool](c, d.pools, true)
}

// PoolDestroy ends a pool of PoolCreate.
func (d *Device) PoolDestroy(p device.Pool) error {
	c := d.beginPool(cuMemPoolDestroy, 0)
	defer c.end()
	ours, ok := known(d, d.pools, uint64(p))
	c.check(ok && ours).arg(uint64(p))
	return forget(c, d.pools, uint64(p))
}

// attribute adds a to the call and the place of its value, which is 4 bytes
// wide for the switches and 8 for the others. Where a is unknown, so is its
// width.
func (c *call) attribute(a device.PoolAttribute) *call {
	return c.check(a >= device.PoolReuseFollowEventDependencies && a <= device.PoolUsedHigh).arg(uint64(a)).returns(0)
}

// isSwitch tells an attribute that is an int from one that is a number of
// bytes.
func isSwitch(a device.PoolAttribute) bool { return a <= device.PoolReuseAllowInternalDependencies }

// PoolGetAttribute reads an attribute.
func (d *Device) PoolGetAttribute(p device.Pool, a device.PoolAttribute) (uint64, error) {
	c := d.beginPool(cuMemPoolGetAttribute, 0)
	defer c.end()
	c.out[0] = 0
	if err := c.pooled(p).attribute(a).do(); err != nil {
		return 0, err
	}
	if isSwitch(a) {
		return uint64(*(*uint32)(unsafe.Pointer(&c.out[0]))), nil
	}
	return c.out[0], nil
}

// PoolSetAttribute sets an attribute.
func (d *Device) PoolSetAttribute(p device.Pool, a device.PoolAttribute, v uint64) error {
	c := d.beginPool(cuMemPoolSetAttribute, 0)
	defer c.end()
	c.pooled(p).attribute(a)
	c.out[0] = v
	if isSwitch(a) {
		c.check(v <= 1)
		*(*uint32)(unsafe.Pointer(&c.out[0])) = uint32(v)
	}
	return c.do()
}

// PoolTrim releases unused memory until at most keep bytes are held.
func (d *Device) PoolTrim(p device.Pool, keep uint64) error {
	c := d.beginPool(cuMemPoolTrimTo, 0)
	defer c.end()
	return c.pooled(p).arg(keep).do()
}

// AllocAsync allocates bytes, rounded up to a multiple of 512, in the order of
// s.
func (d *Device) AllocAsync(p device.Pool, bytes uint64, s device.Stream) (device.Range, error) {
	c := d.beginPool(cuMemAllocFromPoolAsync, bytes)
	defer c.end()
	n := roundUp(bytes)
	return c.returns(0).arg(n).pooled(p).stream(s).fits(bytes, d.info.Total).grant(n, byAllocAsync)
}

// FreeAsync frees what AllocAsync or Alloc gave, in the order of s.
func (d *Device) FreeAsync(addr uint64, s device.Stream) error {
	c := d.beginPool(cuMemFreeAsync, 0)
	defer c.end()
	from, _ := known(d, d.grants, addr)
	c.arg(addr).stream(s).check(from != byAllocManaged)
	return forget(c, d.grants, addr)
}
