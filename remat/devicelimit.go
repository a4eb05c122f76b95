package remat

// The limit that XLA computes for a device.

import (
	"fmt"

	"gpumem/hlo"
	"gpumem/policy"
	"gpumem/remat/xla"
	"gpumem/size"
)

// DeviceLimit returns the limit in bytes that XLA computes for a module on a device under a
// policy, and where it comes from, as text for people. The error is xla.ErrNoRoom, or that of
// a shape without size.
func DeviceLimit(m *hlo.Module, p policy.Policy, d policy.Device) (limit uint64, from string, err error) {
	base := d.Total/100*xla.FallbackPercent + d.Total%100*xla.FallbackPercent/100
	from = fmt.Sprintf("%d %% of %s", xla.FallbackPercent, size.Format(d.Total))
	switch p.Kind {
	case policy.BFC, policy.VMM, policy.Async:
		base = p.LimitBytes(d)
		from = "the pool's " + size.Format(base)
	}
	limit, err = xla.Limit(m, base)
	return limit, from, err
}
