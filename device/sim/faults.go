package sim

import (
	"strings"
	"time"

	"gpumem/device"
)

// faults make driver calls fail on demand, or take long, for tests of what
// stands above. Calls are numbered from 1 over the life of the device, every
// kind together, as Counters counts them.
type faults struct {
	at     uint64 // this call fails with err; 0: none
	err    error
	lostAt uint64        // from this call on the device is lost; 0: never
	above  uint64        // requests for more memory than this are refused, in bytes; 0: none
	slowAt uint64        // this call takes slow longer; 0: every one does
	slow   time.Duration // 0: none does
}

// check is why call number n fails, or nil.
func (f *faults) check(n uint64, name string, bytes uint64) error {
	switch {
	case f.lostAt != 0 && n >= f.lostAt:
		return device.ErrLost
	case f.at != 0 && n == f.at:
		return f.err
	case f.above != 0 && bytes > f.above && (strings.HasPrefix(name, "cuMemAlloc") || name == "cuMemCreate"):
		return device.ErrOutOfMemory
	}
	return nil
}

// call is the gate that every driver call passes before anything else: it
// counts the call with its least cost, lets a hook and the faults have their
// say, and takes the context's bytes by the first call that comes so far.
// Caller holds d.mu and has not looked at anything that it guards: while a hook
// runs, others may hold it.
func (d *Device) call(name string, bytes uint64, cost time.Duration) error {
	if d.closed {
		return d.refuse(name, bytes, device.ErrClosed)
	}
	d.count.Calls++
	d.count.Time += cost
	n := d.count.Calls
	if d.faults.slow != 0 && (d.faults.slowAt == 0 || d.faults.slowAt == n) {
		d.count.Time += d.faults.slow
	}
	if d.hook != nil {
		if err := d.ask(n, name, bytes); err != nil {
			return d.refuse(name, bytes, err)
		}
	}
	if err := d.faults.check(n, name, bytes); err != nil {
		return d.refuse(name, bytes, err)
	}
	if !d.context {
		if err := d.ledger.take(d.cfg.Context); err != nil {
			return d.refuse(name, bytes, err)
		}
		d.context = true
	}
	return nil
}

// ask runs the hook without d.mu, which the caller holds.
func (d *Device) ask(n uint64, name string, bytes uint64) error {
	hook := d.hook
	d.mu.Unlock()
	err := func() error {
		defer d.mu.Lock() // also where the hook ends its goroutine
		return hook(n, name, bytes)
	}()
	if d.closed {
		return device.ErrClosed
	}
	return err
}

// Hook is called for each driver call before it does anything: its number, from
// 1, the name that the driver has for it, such as "cuMemAlloc", and the bytes
// that it names, 0 where it names none. What it returns the call fails with;
// nil lets it go on. It may block, which holds that call still while others go
// on, and may use the device.
type Hook func(n uint64, name string, bytes uint64) error

// OnCall has every later call ask hook first; nil takes it away.
func (d *Device) OnCall(hook Hook) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hook = hook
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

// SlowCall makes the n-th call since the device was made take by longer, in
// modelled time; n = 0 means every call from here on. by = 0 takes the fault
// away. Only one such fault stands at a time.
func (d *Device) SlowCall(n uint64, by time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults.slowAt, d.faults.slow = n, by
}

// RefuseAbove refuses requests for more memory than bytes with
// device.ErrOutOfMemory, be it plain, managed, from a pool or for a handle; 0
// takes the fault away.
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
