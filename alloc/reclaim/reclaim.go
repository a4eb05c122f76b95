// Package reclaim lets the pools of one process on one device release idle
// memory to each other.
//
// A pool that keeps memory nothing lives in joins under its device. A pool whose
// request was refused asks there, and every other member releases what it can.
// Pools of other processes are asked through the device, if it can pass the word
// on: device.Sharing.
package reclaim

import (
	"reflect"
	"sync"

	"gpumem/device"
)

// Member is a pool that keeps idle memory.
type Member interface {
	// Release releases idle memory to the device, bytes or more if it has that
	// much, and returns how many bytes it released. It does not wait for work on
	// the device.
	Release(bytes uint64) uint64
}

var (
	mu     sync.Mutex
	groups = map[any][]Member{} // by device; guarded by mu
)

// key is the same for pools that share memory. It is nil for a device that
// cannot be distinguished from others: its pools stay alone.
func key(dev device.Device) any {
	if info := dev.Info(); info.UUID != "" && !info.Simulated {
		return info.UUID
	}
	if reflect.TypeOf(dev).Comparable() {
		return dev
	}
	return nil
}

// Join adds a member to those on dev. The caller removes it with leave.
func Join(dev device.Device, m Member) (leave func()) {
	k := key(dev)
	if k == nil {
		return func() {}
	}
	mu.Lock()
	defer mu.Unlock()
	groups[k] = append(groups[k][:len(groups[k]):len(groups[k])], m)
	return func() {
		mu.Lock()
		defer mu.Unlock()
		var rest []Member
		for _, other := range groups[k] {
			if other != m {
				rest = append(rest, other)
			}
		}
		if rest == nil {
			delete(groups, k)
			return
		}
		groups[k] = rest
	}
}

// Ask has the members on dev but one release bytes in all, and returns how many
// they released. The caller holds no pool's lock.
func Ask(dev device.Device, bytes uint64, but Member) (released uint64) {
	k := key(dev)
	mu.Lock()
	members := groups[k] // never changed in place
	mu.Unlock()
	for _, m := range members {
		if released >= bytes {
			break
		}
		if m != but {
			released += m.Release(bytes - released)
		}
	}
	return released
}
