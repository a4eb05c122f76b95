package sim

import (
	"fmt"
	"time"

	"gpumem/device/internal/shared"
)

// An Engine is a part of the device that does one piece of work at a time, for all programs.
type Engine int

// The engines of a device: a kernel, or a fill or copy within the device, is taken to fill it; and there
// is one engine for copies each way, as the smaller of NVIDIA's cards have them.
const (
	Kernels Engine = iota
	ToDevice
	ToHost
	Engines = shared.Engines
)

func (e Engine) String() string {
	if e < 0 || e >= Engines {
		return fmt.Sprintf("engine %d", int(e))
	}
	return [...]string{"kernels", "copies to the device", "copies to the host"}[e]
}

// Occupy gives an engine work that is ready to begin and takes a time, behind all that it was given before
// by any program on the device, and returns when it is done. It is for those who have work take real time:
// the times are those of a clock that all these programs read, such as CLOCK_MONOTONIC, and now is its
// time. It is no driver call, and has nothing to do with the simulated time of others.
func (d *Device) Occupy(e Engine, now, ready, takes time.Duration) (end time.Duration) {
	return d.ledger.occupy(e, now, ready, takes)
}

// Busy returns the time of all work that an engine was given so far, by any program on the device.
func (d *Device) Busy(e Engine) time.Duration { return d.ledger.busy(e) }

// CopyTime returns how long a copy within the device takes on it, and FillTime a fill, see
// costs.txt.
func (d *Device) CopyTime(bytes uint64) time.Duration { return byMiB(d.costs.Async.CopyPerMiB, bytes) }

// FillTime is CopyTime for a fill.
func (d *Device) FillTime(bytes uint64) time.Duration { return byMiB(d.costs.Async.FillPerMiB, bytes) }

// LookBusy returns what [Device.Busy] does for every device and engine of a shared file, without joining it.
func LookBusy(path string) (busy [][Engines]time.Duration, err error) {
	states, err := shared.Look(path)
	for _, s := range states {
		busy = append(busy, s.Busy)
	}
	return busy, err
}
