package remat

// The limit that XLA computes for a device.

import (
	"fmt"

	"gpumem/policy"
	"gpumem/size"
	"gpumem/xla/internal/cost"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/pass"
)

// DeviceLimit returns the limit in bytes that XLA computes for a module on a device under a
// policy, and where it comes from, as text for people. The error is pass.ErrNoRoom, or that of
// a shape without size.
func DeviceLimit(m *hlo.Module, p policy.Policy, d policy.Device) (limit uint64, from string, err error) {
	base := d.Total/100*pass.FallbackPercent + d.Total%100*pass.FallbackPercent/100
	from = fmt.Sprintf("%d %% of %s", pass.FallbackPercent, size.Format(d.Total))
	switch p.Kind {
	case policy.BFC, policy.VMM, policy.Async:
		base = p.LimitBytes(d)
		from = "the pool's " + size.Format(base)
	}
	limit, err = pass.Limit(m, base)
	return limit, from, err
}

// DefaultRates are those of a device of which no others are known.
var DefaultRates = cost.Default

// RoomLimit returns the limit in bytes with which a module runs within total bytes of a
// device, of which inUse are taken while it is compiled. Its arguments are among those that
// are taken if that is possible: a program is mostly compiled for arrays that it has. As XLA
// does, it leaves 5 % of the rest. The errors are those of DeviceLimit.
func RoomLimit(m *hlo.Module, total, inUse uint64) (limit uint64, from string, err error) {
	var arguments uint64
	for _, p := range m.Entry.Parameters() {
		if p != nil {
			n, err := p.Shape.TotalBytes()
			if err != nil {
				return 0, "", err
			}
			arguments += n
		}
	}

	from = fmt.Sprintf("%s with %s in use", size.Format(total), size.Format(inUse))
	beside := inUse
	if beside >= arguments {
		beside -= arguments
	}

	limit, err = pass.Limit(m, total-min(total, beside))
	return limit, from, err
}
