package replay

import (
	"fmt"
	"math"

	"gpumem/device"
)

// A digest identifies all placements: FNV-1a over eight bytes for each allocation, low
// byte first, with the basis of the recorded results (which is not the usual one). The bytes
// are the offset from the device's origin.
type digest uint64

// nowhere stands for the offset of an allocation that has no place.
const nowhere = math.MaxUint64

func newDigest() digest { return 1469598103934665603 }

func (d *digest) add(offset uint64) {
	h := uint64(*d)
	for range 8 {
		h = (h ^ offset&0xff) * 1099511628211
		offset >>= 8
	}
	*d = digest(h)
}

func (d digest) text() string { return fmt.Sprintf("%016x", uint64(d)) }

// origin is a device that keeps the first address which it gave, by a grant, a reservation
// or a pool of the driver. Placements count from there, because grants and reservations
// lie far apart: the same placements have the same digest wherever a pool has its memory.
type origin struct {
	device.GPU
	first uint64 // 0 before
}

// Another opens the device for another process.
func (o *origin) Another() (device.GPU, error) {
	if card, ok := o.GPU.(sharer); ok {
		return card.Another()
	}
	return nil, errNoSharing
}

func (o *origin) gave(addr uint64, err error) {
	if err == nil && o.first == 0 {
		o.first = addr
	}
}

func (o *origin) Alloc(bytes uint64) (device.Range, error) {
	r, err := o.GPU.Alloc(bytes)
	o.gave(r.Addr, err)
	return r, err
}

func (o *origin) AllocManaged(bytes uint64) (device.Range, error) {
	r, err := o.GPU.AllocManaged(bytes)
	o.gave(r.Addr, err)
	return r, err
}

func (o *origin) AddressReserve(bytes, align uint64) (uint64, error) {
	addr, err := o.GPU.AddressReserve(bytes, align)
	o.gave(addr, err)
	return addr, err
}

func (o *origin) AllocAsync(p device.Pool, bytes uint64, s device.Stream) (device.Range, error) {
	r, err := o.GPU.AllocAsync(p, bytes, s)
	o.gave(r.Addr, err)
	return r, err
}
