package xla

// The limit that XLA's GPU compiler hands to the pass.

import (
	"errors"
	"math/bits"

	"gpumem/hlo"
)

// slop is the part of what is left, in percent, that the compiler plans with:
// --xla_gpu_memory_limit_slop_factor, 95 since it exists (XLA's debug_options_flags.cc).
const slop = 95

// FallbackPercent is the part of the GPU that XLA plans with where the
// allocator reports no limit: `platform`, ahead-of-time compilation without a
// device, other clients than JAX's (gpu_hlo_schedule.cc).
const FallbackPercent = 80

// ErrNoRoom is the error of [Limit] where arguments and results alone are more
// than there is.
var ErrNoRoom = errors.New("arguments and results alone take more than the device has")

// Limit is what the pass has for temporaries, in bytes: 95 % of what base leaves
// beside the entry's parameters and its result, outputs that lie in parameters
// counted once. base is what JAX's pool may take, [FallbackPercent] of the GPU without
// a pool. Memory of the host does not count. This is the figure that the pass
// compares its peak with, that is, without the result (XLA adds the result to
// the option and takes it away again).
func Limit(m *hlo.Module, base uint64) (uint64, error) {
	io, err := arguments(m)
	if err != nil {
		return 0, err
	}
	if io > base {
		return 0, ErrNoRoom
	}
	high, low := bits.Mul64(base-io, slop)
	limit, _ := bits.Div64(high, low, 100) // high is below 100
	return limit, nil
}

// arguments are the bytes of the entry's parameters and its result, those that
// share memory counted once.
func arguments(m *hlo.Module) (uint64, error) {
	var sum uint64
	add := func(s *hlo.Shape) error {
		n, err := deviceBytes(s)
		if err == nil && sum+n < sum {
			err = hlo.ErrTooLarge
		}
		sum += n
		return err
	}
	for _, p := range m.Entry.Parameters() {
		if p == nil {
			continue
		}
		if err := add(p.Shape); err != nil {
			return 0, err
		}
	}
	if err := add(m.Entry.Root.Shape); err != nil {
		return 0, err
	}
	for _, a := range m.Aliases {
		if s := m.Entry.Root.Shape.At(a.Output...); s != nil {
			n, err := deviceBytes(s)
			if err != nil {
				return 0, err
			}
			sum -= min(sum, n)
		}
	}
	return sum, nil
}

// deviceBytes is a shape with all its elements, without those in the host's memory.
func deviceBytes(s *hlo.Shape) (uint64, error) {
	if s.Space() == hlo.HostSpace {
		return 0, nil
	}
	sum, err := s.Bytes()
	for _, e := range s.Elements {
		if err != nil {
			return 0, err
		}
		var n uint64
		if n, err = deviceBytes(e); err == nil && sum+n < sum {
			err = hlo.ErrTooLarge
		}
		sum += n
	}
	return sum, err
}
