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

// SetDeviceLimit sets the limit that XLA computes for a module on a device under a policy. name is
// the device, for people. The error is pass.ErrNoRoom, or that of a shape without size.
func (r *Request) SetDeviceLimit(m *hlo.Module, p policy.Policy, d policy.Device, name string) error {
	base := d.Total/100*pass.FallbackPercent + d.Total%100*pass.FallbackPercent/100
	from := fmt.Sprintf("%d %% of %s", pass.FallbackPercent, size.Format(d.Total))
	switch p.Kind {
	case policy.BFC, policy.VMM, policy.Async:
		base = p.LimitBytes(d)
		from = "the pool's " + size.Format(base)
	}

	if err := r.setPassLimit(m, base, from); err != nil {
		return fmt.Errorf("%w on %s; --device or --limit name another", err, name)
	}
	r.LimitFrom = fmt.Sprintf("95 %% of what %s leave beside arguments and results, on %s", from, name)
	return nil
}

// setPassLimit sets the limit that XLA computes for base bytes, which come from somewhere.
func (r *Request) setPassLimit(m *hlo.Module, base uint64, from string) error {
	limit, err := pass.Limit(m, base)
	if err != nil {
		return fmt.Errorf("%s: %w: %s", m.Name, err, from)
	}
	r.Limit, r.LimitFrom = Bytes(limit), "95 % of what is left of "+from
	return nil
}

// DefaultRates are those of a device of which no others are known.
var DefaultRates = cost.Default

// SetRoomLimit sets the limit with which a module runs within total bytes of a device, of which
// inUse are taken while it is compiled. Its arguments are among those that are taken if that is
// possible: a program is mostly compiled for arrays that it has. As XLA does, it leaves 5 % of the
// rest. The errors are those of SetDeviceLimit.
func (r *Request) SetRoomLimit(m *hlo.Module, total, inUse uint64) error {
	var arguments uint64
	for _, p := range m.Entry.Parameters() {
		if p != nil {
			n, err := p.Shape.TotalBytes()
			if err != nil {
				return err
			}
			arguments += n
		}
	}

	from := fmt.Sprintf("%s with %s in use", size.Format(total), size.Format(inUse))
	beside := inUse
	if beside >= arguments {
		beside -= arguments
	}

	return r.setPassLimit(m, total-min(total, beside), from)
}
