// Package pass changes a module so that it needs less memory, exactly as XLA's pass
// rematerialization does, instruction by instruction
// (xla/hlo/transforms/simplifiers/hlo_rematerialization.cc, 2026).
//
// A walk, with a limit of 14 KiB:
//
//	b = f32[1024] broadcast(x)       4 KiB
//	n = f32[1024] negate(b)          4 KiB
//	c = f32[2048] concatenate(n, n)  8 KiB
//	s = f32[1] slice(c)
//	d = f32[1025] concatenate(b, s)
//
// sweep.go goes through the instructions in their order and places each: what it defines is
// live from there, and what it is the last to use is dead after it (track.go). At c, 16 KiB
// are live: b, n and c. pick.go compares what has been placed. n is in use, but b would free
// 4 KiB, at the cost of the limit divided by that. The lowest cost wins. recompute.go clones
// b as b.remat before the first of its users that is not placed, here d, and makes these
// read the clone. So b is dead, and 12 KiB are live at c. The sweep goes on with s, and comes to
// b.remat later as to any other instruction. Instead of being recomputed, a value may wait on
// the host (offload.go). At the end, instructions that nothing uses are removed.
//
// This is the pass as XLA runs it on GPUs: one sweep, and one instruction at a time. What
// only other compilers switch on is not here: blocks of several instructions, compressed
// layouts, and the algorithm that begins at the highest peak.
//
// list.go is the order of instructions while clones are put between them, names.go the
// names that XLA gives these, limit.go the limit that its GPU compiler sets.
package pass

import (
	"math"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/host"
	"gpumem/xla/internal/memory"
)

// Options are those of [Run].
type Options struct {
	// Limit is what the entry's temporaries may take, in bytes as [memory.TempPeak]
	// counts. XLA's own limit has the result besides.
	Limit uint64
	// Host lets values wait in the host's memory, which then counts for nothing; nil: they
	// are only recomputed. XLA:GPU does so with --xla_gpu_enable_host_memory_offloading.
	Host *host.Memory
	// offloadOnly is that nothing is recomputed, as in XLA's own tests of offloading.
	offloadOnly bool
}

// A Result is what the pass did, in its own count: remat.Run measures the module again.
type Result struct {
	// Chosen counts the values that were recomputed or offloaded, and Added the instructions
	// added for that, without clones that only moved their original.
	Chosen, Added int
	// Before and After are the entry's peak in bytes, as the pass counts it on the way. The
	// module may take less than After, as what nothing uses is gone, and more: the pass
	// does not go back to where an operand now lives on for a clone.
	Before, After uint64
}

// Run changes the module as XLA's pass does, so that its temporaries take at most o.Limit.
// If that fails it has done what it could, and After is above the limit.
//
// The pass goes by the order of each computation's list, which in a module that is not
// scheduled is the order of its text. Collectives with a channel are taken to have no side
// effects, as in modules that were partitioned by SPMD, which JAX's are.
//
// The pass does not ask whether an operand is overwritten between the original and its clone, as
// XLA's does not: the module may compute something else. xla/internal/legal finds that out.
//
// The module must have passed xla/internal/verify. The error is that of [memory.Meter.Peak], or
// host.ErrNoSpeed: then the module is as it was. After any other error it may be half changed.
func Run(m *hlo.Module, o Options) (*Result, error) {
	if o.Host != nil {
		if err := o.Host.Check(); err != nil {
			return nil, err
		}
	}
	p := &pass{o: o, meter: memory.NewMeter(memory.Options{HostFree: o.Host != nil}), result: &Result{}, peaks: map[*hlo.Computation]int64{},
		done: map[*hlo.Computation]bool{}, names: newNames(m), effects: hlo.Effects{}, channel: nextChannel(m)}
	if _, err := p.meter.Peak(m.Entry); err != nil {
		return nil, err
	}
	// From here on the pass keeps its own figures, as the computations change.
	for c, x := range p.meter.Peaks() {
		p.peaks[c] = x.Bytes
	}
	p.result.Before = uint64(p.peaks[m.Entry])
	if err := p.sweep(m.Entry, int64(min(o.Limit, math.MaxInt64))); err != nil {
		return nil, err
	}
	p.result.After = uint64(p.peaks[m.Entry])
	_, err := hlo.RemoveDead(m)
	return p.result, err
}

// A pass is one run over a module. Its parts are one file each: the sweep, which calls the
// others; the tracker, which knows what lives; the choice; and the two ways to free a value.
type pass struct {
	o      Options
	meter  *memory.Meter
	result *Result
	// peaks are the bytes of computations with what they call, and done are those that
	// were swept.
	peaks   map[*hlo.Computation]int64
	done    map[*hlo.Computation]bool
	names   names
	effects hlo.Effects
	channel int64 // the next free one
	fault   error // the first error on the way
}

// called returns the bytes of the computations that an instruction runs as calls: as they were
// measured before the pass, or as their sweep left them. Clones of computations take nothing,
// as in XLA.
func (p *pass) called(i *hlo.Instruction) (sum int64) {
	for _, c := range memory.ControlFlow(i) {
		sum += p.peaks[c]
	}
	return sum
}
