package pass

// The limit that XLA's GPU compiler hands to the pass.
//
// A pool of 20 GiB, and a training step with 6 GiB of parameters that returns 5 GiB, 4 of
// them in the memory of parameters that it was given (input_output_alias). Parameters and
// results take 6 + 5 - 4 = 7 GiB, which leaves 13 GiB, and 95 % of that are 12.35 GiB for
// temporaries.

import (
	"cmp"
	"errors"
	"math/bits"

	"gpumem/xla/internal/hlo"
)

// slop is the percentage of what is left that the compiler plans with:
// --xla_gpu_memory_limit_slop_factor, 95 since it exists (XLA's debug_options_flags.cc).
const slop = 95

// FallbackPercent is the percentage of the GPU that XLA plans with if the
// allocator reports no limit: `platform`, ahead-of-time compilation without a
// device, other clients than JAX's (gpu_hlo_schedule.cc).
const FallbackPercent = 80

// ErrNoRoom is the error of [Limit] if arguments and results alone take more than base.
var ErrNoRoom = errors.New("arguments and results alone take more than the device has")

// Limit returns what the pass has for temporaries, in bytes: 95 % of what base leaves beside
// the entry's parameters and its result. Outputs that lie in parameters count once, and the
// host's memory does not count. base is what JAX's pool may take, or [FallbackPercent] of
// the GPU without a pool. The pass compares its peak with this figure, which does not
// include the result: XLA adds that to the option and takes it away again. The error is
// ErrNoRoom, or that of a shape without size.
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

// arguments returns the bytes of the entry's parameters and its result on the device. Those
// that share memory count once.
func arguments(m *hlo.Module) (uint64, error) {
	var all, shared total
	for _, p := range m.Entry.Parameters() {
		if p != nil {
			all.add(p.Shape)
		}
	}
	all.add(m.Entry.Root.Shape)
	for _, a := range m.Aliases {
		if s := m.Entry.Root.Shape.At(a.Output...); s != nil {
			shared.add(s)
		}
	}
	return all.bytes - min(all.bytes, shared.bytes), cmp.Or(all.err, shared.err)
}

// A total is a sum of bytes, and the first error of adding to it: a shape without size, or a
// sum of more than 2^64-1 bytes.
type total struct {
	bytes uint64
	err   error
}

// add adds a shape with all its elements, without those in the host's memory.
func (t *total) add(s *hlo.Shape) {
	if s.Space() == hlo.HostSpace || t.err != nil {
		return
	}
	n, err := s.Bytes()
	if t.bytes += n; err == nil && t.bytes < n {
		err = hlo.ErrTooLarge
	}
	t.err = err
	for _, e := range s.Elements {
		t.add(e)
	}
}
