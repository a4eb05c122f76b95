// Package cost estimates what the instructions of an HLO module cost: floating
// point operations, transcendental functions, bytes moved, and seconds.
//
// Counts follow XLA's HloCostAnalysis (xla/service/hlo_cost_analysis.cc, 2020 to
// 2026), with these differences: a while counts all its iterations where it is
// known how many there are; results that are tuples count their arrays, not the
// table of pointers; what only forwards its operand, or waits for what was
// started before, costs nothing; and a custom call counts the bytes of its
// operands and results and is named in [Analysis.Unknown], where XLA has -1.
// Sums do not wrap around: they stay at 2^64-1.
package cost

import (
	"errors"
	"fmt"
	"math"
	"math/bits"

	"gpumem/xla/internal/hlo"
)

// Rates are what a device does in a second. A zero means the default.
type Rates struct {
	Bytes float64 // default 3e12: an H100's memory has 3.35e12
	Flops float64 // default 4e14: about half of an H100's peak in bf16
}

// Default are the rates of a large GPU, in round numbers: plans are compared by them where no
// device is named.
var Default = Rates{Bytes: 3e12, Flops: 4e14}

// A Cost is that of an instruction or a computation, run once.
type Cost struct {
	Flops           uint64
	Transcendentals uint64 // exponentials, roots, sines and the like: not in Flops
	Bytes           uint64 // read and written
	// Seconds are the larger of Bytes and Flops at their rates. Those of a computation are the
	// sum, as if instructions ran one after the other. Copies between the memories of the host
	// and the device take none: they run beside the rest.
	Seconds float64
}

// An Analysis has the costs of a module's instructions by [hlo.Instruction.ID].
// What runs others (call, while, conditional, fusion) has their costs in its own.
type Analysis struct {
	Costs []Cost
	// Unknown are custom calls, whose flops are taken to be 0, and whiles of
	// which it is not known how often they run, taken to be once.
	Unknown []*hlo.Instruction

	rates Rates
	sums  map[*hlo.Computation]Cost
	reads []readBytes // of the parameters in fusions, by ID
	err   error       // the first of the instruction at hand
}

type readBytes struct {
	n     uint64
	known bool
}

// New analyses a module as it stands. The module must have passed xla/internal/verify. The error names
// an attribute that does not read, or a shape without size.
func New(m *hlo.Module, rates Rates) (*Analysis, error) {
	if rates.Bytes == 0 {
		rates.Bytes = 3e12
	}
	if rates.Flops == 0 {
		rates.Flops = 4e14
	}
	if !(rates.Bytes > 0) || !(rates.Flops > 0) {
		return nil, fmt.Errorf("cost: rates of %g bytes and %g flops a second: expected more than 0", rates.Bytes, rates.Flops)
	}
	a := &Analysis{
		Costs: make([]Cost, m.IDs()),
		rates: rates,
		sums:  make(map[*hlo.Computation]Cost, len(m.Computations)),
		reads: make([]readBytes, m.IDs()),
	}
	for _, c := range m.CalleesFirst() {
		var sum Cost
		for _, i := range c.Instructions {
			cost := a.instruction(i)
			if a.err != nil {
				var named *hlo.AttributeError
				if !errors.As(a.err, &named) {
					a.err = fmt.Errorf("%s: %w", hlo.Where(i), a.err)
				}
				return nil, a.err
			}
			if i.Opcode == hlo.CopyStart && len(i.Operands) > 0 && betweenMemories(i) {
				cost.Seconds = 0
			}
			a.Costs[i.ID] = cost
			sum = plus(sum, cost)
		}
		a.sums[c] = sum
	}
	return a, nil
}

// betweenMemories reports whether the start of a copy has the host's memory on one side.
func betweenMemories(i *hlo.Instruction) bool {
	e := i.Shape.Elements
	return len(e) > 0 && (e[0].Space() == hlo.HostSpace) != (i.Operands[0].Shape.Space() == hlo.HostSpace)
}

// Of is the cost of an instruction, and nothing for one that was made later.
func (a *Analysis) Of(i *hlo.Instruction) Cost {
	if i.ID < 0 || i.ID >= len(a.Costs) {
		return Cost{}
	}
	return a.Costs[i.ID]
}

// Seconds is what an instruction takes, run once.
func (a *Analysis) Seconds(i *hlo.Instruction) float64 { return a.Of(i).Seconds }

// Computation is the cost of running a computation of the module once.
func (a *Analysis) Computation(c *hlo.Computation) Cost { return a.sums[c] }

// timed sets the seconds of something that runs as one kernel.
func (a *Analysis) timed(c Cost) Cost {
	c.Seconds = max(float64(c.Bytes)/a.rates.Bytes, float64(c.Flops)/a.rates.Flops)
	return c
}

func plus(a, b Cost) Cost {
	return Cost{add(a.Flops, b.Flops), add(a.Transcendentals, b.Transcendentals), add(a.Bytes, b.Bytes), a.Seconds + b.Seconds}
}

func times(a Cost, n uint64) Cost {
	return Cost{mul(a.Flops, n), mul(a.Transcendentals, n), mul(a.Bytes, n), a.Seconds * float64(n)}
}

func larger(a, b Cost) Cost {
	return Cost{max(a.Flops, b.Flops), max(a.Transcendentals, b.Transcendentals), max(a.Bytes, b.Bytes), max(a.Seconds, b.Seconds)}
}

// add and mul stay at the largest number instead of wrapping around.
func add(list ...uint64) (sum uint64) {
	for _, n := range list {
		if sum += n; sum < n {
			return math.MaxUint64
		}
	}
	return sum
}

func mul(list ...uint64) uint64 {
	product, full := uint64(1), false
	for _, n := range list {
		if n == 0 {
			return 0
		}
		high, low := bits.Mul64(product, n)
		full = full || high > 0
		product = low
	}
	if full {
		return math.MaxUint64
	}
	return product
}
