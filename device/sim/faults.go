package sim

import "gpumem/device"

// faults make driver calls fail on demand, for tests of what stands above.
// Calls are numbered from 1 over the life of the device, every kind together,
// as Counters counts them.
type faults struct {
	at     uint64 // this call fails with err; 0: none
	err    error
	lostAt uint64 // from this call on the device is lost; 0: never
	above  uint64 // requests for more bytes than this are refused; 0: none
}

func (f *faults) check(call, bytes uint64) error {
	switch {
	case f.lostAt != 0 && call >= f.lostAt:
		return device.ErrLost
	case f.at != 0 && call == f.at:
		return f.err
	case f.above != 0 && bytes > f.above:
		return device.ErrOutOfMemory
	}
	return nil
}

// FailCall makes the n-th call since the device was made fail with err (nil
// means device.ErrOutOfMemory). n = 0 takes the fault away. Only one such
// fault stands at a time.
func (d *Device) FailCall(n uint64, err error) {
	if err == nil {
		err = device.ErrOutOfMemory
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults.at, d.faults.err = n, err
}

// LoseAt loses the device at the n-th call: that one and all later ones fail
// with device.ErrLost. 0 means never.
func (d *Device) LoseAt(n uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults.lostAt = n
}

// RefuseAbove refuses requests for more than bytes; 0 takes the fault away.
func (d *Device) RefuseAbove(bytes uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults.above = bytes
}

// SetUsed changes what another program holds, as when it starts or ends. More
// than what is free is cut to that.
func (d *Device) SetUsed(bytes uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	_ = d.ledger.setUsed(bytes) // a private ledger never fails
}
