// Package xla changes a module so that it needs less memory, exactly as XLA's pass
// rematerialization does, instruction by instruction
// (xla/hlo/transforms/simplifiers/hlo_rematerialization.cc, 2026).
//
// A walk. sweep.go goes through the instructions of a computation in their order and
// places each: what it defines is live, and what it used last is not any more (track.go).
// Say that a broadcast b of 4 KiB was placed long ago, and is used again far behind. Where
// more is live than the limit, pick.go compares what has been placed: for each value the
// limit divided by the bytes that it would free here. The lowest of these costs wins, say
// that of b. recompute.go clones it as b.remat before the first of its users still to come,
// and makes these use the clone: so b is dead from here on. The sweep goes on with the next
// instruction, and comes to b.remat later as to any other. Instead of a clone it may keep
// the value in a smaller layout (compress.go) or on the host (offload.go). At the end
// what nothing uses is removed.
//
// peakfirst.go is the other algorithm, which begins at the highest peak. list.go is the
// order of instructions while clones are put between them, names.go the names that XLA
// gives these, limit.go the limit that its GPU compiler sets.
package xla

import (
	"fmt"
	"math"
	"time"

	"gpumem/hlo"
	"gpumem/hlo/memory"
	"gpumem/hlo/passes"
	"gpumem/hlo/verify"
	"gpumem/remat/host"
)

// An Algorithm is how the pass goes about.
type Algorithm int

const (
	// Sweep goes once through the schedule and acts wherever the limit is
	// exceeded. It is the default, and the only one on GPUs.
	Sweep Algorithm = iota
	// PeakFirst acts at the highest peak, measures again, and repeats.
	PeakFirst
)

// A Strategy is a way to free memory. They may be added up.
type Strategy int

const (
	// Recompute computes a value again.
	Recompute Strategy = 1 << iota
	// Compress keeps a value in a layout that takes less; see Options.Compact.
	Compress
	// Offload moves a value to the host's memory and back; see Options.Host.
	Offload
)

// Options are those of the pass. The zero value of all but Limit is what XLA
// has on GPUs.
type Options struct {
	// Limit is what the module may take in bytes, its result included and its
	// parameters not (memory_limit_bytes). The function [Limit] gives it without the result.
	Limit uint64
	// Size is what shapes take; nil is [hlo.Shape.Bytes].
	Size memory.Size
	// BlockLimit is how many consecutive instructions may be computed again
	// together; 0 is 1. BlockFactor bounds the search for more than one, as a
	// multiple of the search for single ones; 0 is 1.
	BlockLimit, BlockFactor int
	// MinSize is what an instruction's result has to take in bytes for it to be a candidate.
	MinSize   uint64
	Algorithm Algorithm
	// Strategies are those allowed; 0 is Recompute.
	Strategies Strategy
	// Compact is the shape that a value takes when it is compressed; nil is the
	// same, so that nothing is.
	Compact func(*hlo.Shape) (*hlo.Shape, error)
	// Host is the host's memory; it is needed for Offload.
	Host *host.Memory
	// Async are computations that run beside the main thread, and on how many
	// devices each. Their peak times that number is set aside; the largest counts.
	Async map[*hlo.Computation]int64
	// Threads are the execution threads whose computations may be changed; nil: all.
	Threads []string
	// OnClone is called with an instruction and what its users get instead.
	OnClone func(original, clone *hlo.Instruction)
	// OnStep is called after each choice.
	OnStep func(Step)
	// Now is the clock for the warning of long runs; nil is [time.Now].
	Now func() time.Time
}

// A Step is one choice of the pass.
type Step struct {
	// At is the instruction at which memory was short.
	At       *hlo.Instruction
	Strategy Strategy
	// Chosen are the originals, in the order in which they run.
	Chosen []*hlo.Instruction
	// Added is how many instructions the step added, those that became superfluous taken off.
	Added int
	// Before and After are what was live at At, in bytes, without what it calls.
	Before, After int64
}

// A Result is what the pass did.
type Result struct {
	// Changed is also true if only something was taken out that nothing used.
	Changed bool
	// Chosen counts the instructions chosen, and Added those added, without the
	// ones that became superfluous.
	Chosen, Added int
	// Before and After are the peak as XLA reports it in bytes: of the entry, with its result and
	// with what is set aside for asynchronous computations. After is what the
	// pass kept account of, and Measured is the peak of the module as it is now. It may be
	// less, for what nothing uses is gone, and more: the pass does not go back to
	// where an operand has to live on because a clone will use it again.
	Before, After, Measured uint64
	// Reserved is what is set aside for asynchronous computations.
	Reserved uint64
	// LargestBlock is how many consecutive instructions were searched for the last
	// choice that needed the most.
	LargestBlock int
	Warnings     []Warning
}

// A Warning is something that the pass says without failing.
type Warning struct {
	Kind WarningKind
	Text string
}

// A WarningKind is one of the pass's warnings.
type WarningKind int

const (
	// OverLimit is that the module still takes more than the limit.
	OverLimit WarningKind = iota
	// TooLong is that the pass ran for more than three minutes.
	TooLong
	// TooLittle is that a round of PeakFirst saved less than one percent.
	TooLittle
)

// Run changes the module as XLA's pass does, so that it takes at most
// o.Limit. That may fail: then the module is changed all the same, and the
// result has the warning OverLimit.
//
// The pass goes by the order of each computation's list: in a module that is
// not scheduled, by that of its text. Clones are put into that order. The module is
// taken to be partitioned by SPMD, as JAX's are: collectives with a channel then have
// no side effects.
//
// The error is of [verify.Module] or [memory.Peaks], or host.ErrNoSpeed: then the module is
// as it was. After an error of Options.Size or Options.Compact it may be half changed.
func Run(m *hlo.Module, o Options) (*Result, error) {
	p, err := newPass(m, o)
	if err != nil {
		return nil, err
	}
	return p.run()
}

func newPass(m *hlo.Module, o Options) (*pass, error) {
	if o.Strategies == 0 {
		o.Strategies = Recompute
	}
	if o.Strategies&Offload != 0 {
		if err := o.Host.Check(); err != nil {
			return nil, err
		}
	}
	// More than any computation has is no other search.
	o.BlockLimit, o.BlockFactor = min(max(o.BlockLimit, 1), 1<<30), min(max(o.BlockFactor, 1), 1<<30)
	if o.Size == nil {
		o.Size = (*hlo.Shape).Bytes
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if err := verify.Module(m); err != nil {
		return nil, err
	}
	p := &pass{m: m, o: o, result: &Result{}, done: map[*hlo.Computation]bool{}, names: newNames(m), start: o.Now()}
	p.memory = memory.Options{Size: o.Size, Threads: o.Threads, HostFree: o.Host != nil}
	return p, nil
}

// A pass is one run.
type pass struct {
	m      *hlo.Module
	o      Options
	memory memory.Options
	result *Result
	// peaks are the peaks of the computations, done are those that are finished.
	peaks   map[*hlo.Computation]int64
	done    map[*hlo.Computation]bool
	names   *names
	effects passes.Effects
	channel int64 // the next free one
	start   time.Time
	full    bool // tests: always look at all blocks
}

// lean reports whether only single items are candidates, all of them, for being computed again. (PeakFirst
// passes over what was dead before: its clones may stand among what has been placed.)
func (p *pass) lean() bool {
	return p.o.Algorithm == Sweep && p.o.BlockLimit == 1 && p.o.MinSize == 0 && p.o.Strategies == Recompute && !p.full
}

func (p *pass) run() (*Result, error) {
	if !p.memory.Includes(p.m.Entry) {
		return p.result, nil
	}
	output, err := memory.ResultBytes(p.m, p.o.Size)
	if err != nil {
		return nil, err
	}
	reserved, err := p.reserve()
	if err != nil {
		return nil, err
	}
	limit := int64(min(p.o.Limit, math.MaxInt64))
	limit = max(0, max(0, limit-output)-reserved)
	all, err := memory.Peaks(p.m, p.memory)
	if err != nil {
		return nil, err
	}
	p.peaks = make(map[*hlo.Computation]int64, len(all))
	for c, x := range all {
		p.peaks[c] = x.Bytes
	}
	p.channel = nextChannel(p.m)
	p.effects = passes.Effects{}

	beside := uint64(output) + uint64(reserved)
	p.result.Reserved = uint64(reserved)
	p.result.Before = uint64(p.peaks[p.m.Entry]) + beside
	if p.o.Algorithm == PeakFirst {
		p.result.Changed, err = p.peakFirst(p.m.Entry, limit)
	} else {
		p.result.Changed, err = p.sweep(p.m.Entry, limit)
	}
	if err != nil {
		return nil, err
	}
	removed, err := passes.RemoveDead(p.m)
	if err != nil {
		return nil, err
	}
	p.result.Changed = p.result.Changed || removed
	p.result.After = uint64(p.peaks[p.m.Entry]) + beside
	now, _, err := memory.TempPeak(p.m, p.memory)
	if err != nil {
		return nil, err
	}
	p.result.Measured = now + beside
	if p.result.After > p.o.Limit {
		p.warn(OverLimit, fmt.Sprintf("can't reduce memory use below %d bytes: only reduced to %d, from %d",
			p.o.Limit, p.result.After, p.result.Before))
	}
	return p.result, nil
}

// reserve is what the asynchronous computations take in bytes.
func (p *pass) reserve() (most int64, err error) {
	for c, devices := range p.o.Async {
		o := p.memory
		o.Threads = []string{c.Thread}
		if c.Thread == "" {
			o.Threads = nil
		}
		x, err := o.PeakOf(c)
		if err != nil {
			return 0, err
		}
		if devices < 0 || devices > 0 && x.Bytes > math.MaxInt64/4/devices {
			return 0, fmt.Errorf("computation %s on %d devices: %w", c.Name, devices, hlo.ErrTooLarge)
		}
		most = max(most, x.Bytes*devices)
	}
	return most, nil
}

func (p *pass) warn(kind WarningKind, text string) {
	for _, w := range p.result.Warnings {
		if w.Kind == kind {
			return
		}
	}
	p.result.Warnings = append(p.result.Warnings, Warning{kind, text})
}

// long is when the pass says that it takes long.
const long = 3 * time.Minute

func (p *pass) watch() {
	if took := p.o.Now().Sub(p.start); took > long {
		p.warn(TooLong, fmt.Sprintf("takes longer than %v", long))
	}
}

// called is what the computations that an instruction runs as calls take in bytes. Those
// that came into being with clones take nothing.
func (p *pass) called(i *hlo.Instruction) (int64, error) {
	var sum int64
	for _, c := range p.memory.Calls(i) {
		sum += p.peaks[c]
	}
	return sum, nil
}
