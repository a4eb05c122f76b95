package sim

import (
	"cmp"
	"strings"
	"time"

	"gpumem/device"
)

// Faults make driver calls fail on demand, or take long, for tests of what stands
// above. Calls are numbered from 1 over the life of the device, every kind together, as
// Counters counts them. The zero value has none.
type Faults struct {
	FailAt      uint64        // this call fails with Err; 0: none
	Err         error         // nil means device.ErrOutOfMemory
	LoseAt      uint64        // from this call on all fail with device.ErrLost; 0: never
	RefuseAbove uint64        // requests for more bytes than this, be they plain, managed, from a pool or for a handle, fail with device.ErrOutOfMemory; 0: none
	SlowAt      uint64        // this call takes Slow longer, in modelled time; 0: every one does
	Slow        time.Duration // 0 or more
}

// check is why call number n fails, or nil.
func (f *Faults) check(n uint64, name string, bytes uint64) error {
	switch {
	case f.LoseAt != 0 && n >= f.LoseAt:
		return device.ErrLost
	case f.FailAt == n:
		return cmp.Or(f.Err, device.ErrOutOfMemory)
	case f.RefuseAbove != 0 && bytes > f.RefuseAbove && (strings.HasPrefix(name, "cuMemAlloc") || name == "cuMemCreate"):
		return device.ErrOutOfMemory
	}
	return nil
}

// call is the gate that every driver call passes before anything else: it
// counts the call with its least cost, asks the hook and the faults, and takes the
// context's bytes if that is yet to be done.
// Caller holds d.mu and has not looked at anything that it guards: while a hook
// runs, others may hold it.
func (d *Device) call(name string, bytes uint64, cost time.Duration) error {
	if d.closed {
		return d.refuse(name, bytes, device.ErrClosed)
	}
	d.count.Calls++
	d.count.Time += cost
	n := d.count.Calls
	if d.faults.SlowAt == 0 || d.faults.SlowAt == n {
		d.count.Time += d.faults.Slow
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
		if err := d.charge(d.cfg.Context); err != nil {
			return d.refuse(name, bytes, err)
		}
		d.context = true
	}
	return nil
}

// do is a driver call from its beginning to its end: body does what the call is for, with
// d.mu held, and what it returns is why the call is refused.
func (d *Device) do(name string, bytes uint64, cost time.Duration, body func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.call(name, bytes, cost)
	if err == nil {
		err = body()
	}
	return d.refuse(name, bytes, err)
}

// doIf is do for one of a group of calls that the device may lack: then all of them are
// refused, after they are counted.
func (d *Device) doIf(has bool, name string, bytes uint64, cost time.Duration, body func() error) error {
	return d.do(name, bytes, cost, func() error {
		if !has {
			return device.ErrNotSupported
		}
		return body()
	})
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
// that it names, 0 where it names none. The call fails with the error that the hook
// returns; nil lets it proceed. The hook may block, which delays that call and no other,
// and may use the device.
type Hook func(n uint64, name string, bytes uint64) error

// OnCall sets the hook that every later call asks first; nil removes it.
func (d *Device) OnCall(hook Hook) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hook = hook
}

// SetFaults replaces the faults, from the next call on.
func (d *Device) SetFaults(f Faults) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults = f
}

// SetUsed sets how many bytes another program holds, as when it starts or ends. More
// than what is free is cut to that.
func (d *Device) SetUsed(bytes uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	_ = d.ledger.setUsed(bytes) // a private ledger never fails
}
