package sim

import "gpumem/device"

// Managed memory. On a GPU its pages take nothing until they are touched, come
// to the GPU when work there touches them, and leave it for the host when plain
// grants need the room. Here that is as simple as it can be:
//
//   - a managed grant takes nothing of the device, touched or not: what is free
//     stays as it is, and a plain grant never finds the room taken;
//   - all managed grants together hold at most the device's total and the host's
//     memory (Config.Host). A driver may grant more, since it counts addresses:
//     it gave 1 TB on a DGX-1 (rmm#14). Who touches all of that fails later;
//   - pages move in no time.
//
// A device that does not oversubscribe grants managed memory from its memory, as
// real ones do: those before compute capability 6.0, and those whose memory is
// the host's, where there is no more of it elsewhere.
//
// The bound is each program's own, on a shared device too: what its programs
// have in common is the device's bytes, and these grants take none.

// AllocManaged grants bytes of managed memory, rounded up to the granularity. It
// refuses with device.ErrOutOfMemory what is more than the device and the host
// have, and 0 bytes with device.ErrInvalidValue.
func (d *Device) AllocManaged(bytes uint64) (r device.Range, err error) {
	err = d.doIf(d.info.HasManaged, "cuMemAllocManaged", bytes, d.costs.SmallAlloc, func() (err error) {
		r, err = d.grant(bytes, managed)
		return err
	})
	return r, err
}

// HeldManaged returns how many bytes of managed grants there are now that take
// nothing of the device.
func (d *Device) HeldManaged() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.managed
}

// apart reports whether a grant of that kind takes nothing of the device.
func (d *Device) apart(k kind) bool { return k == managed && d.info.Oversubscribes }

// hold is take for a grant of that kind. Caller holds d.mu.
func (d *Device) hold(n uint64, k kind) error {
	if !d.apart(k) {
		return d.take(n)
	}
	if n > d.cfg.Total+d.cfg.Host-d.managed {
		return device.ErrOutOfMemory
	}
	d.managed += n
	return nil
}

// letGo is give for a grant of that kind. Caller holds d.mu.
func (d *Device) letGo(n uint64, k kind) error {
	if !d.apart(k) {
		return d.give(n)
	}
	d.managed -= n
	return nil
}
