package memory

// The most that lives at once, as XLA's rematerialization pass counts it. A buffer takes
// memory from its definer to its last user, and parameters and results take none.
//
// In the module of live.go the buffers that count are n, which takes 16 bytes while n, t, g
// and s run, and the table of t, which takes 16 while t and g do. The peak is 32 bytes, and
// t is the first instruction at which it is reached.
//
// What an instruction calls is there while it runs, each callee with its own peak: a call in
// the place of t with a peak of 100 bytes would make 100 of the callee, 16 of n and 16 of its
// result. That overstates callees that reach their peaks one after the other, as condition
// and body of a while do, and so does XLA.

import (
	"errors"
	"fmt"
	"math"

	"gpumem/xla/internal/hlo"
)

// Options say how memory is counted.
type Options struct {
	// HostFree counts buffers in the host's memory (S(5) in the layout) as taking nothing.
	// XLA counts them unless it may move buffers there.
	HostFree bool
}

// A Peak is the most that lives at once in a computation, with what it calls,
// and the first instruction at which it does: the first of the list if nothing ever lives.
type Peak struct {
	Bytes int64
	At    *hlo.Instruction
}

// ControlFlow are the computations that an instruction runs as calls, in memory that is
// separate from the caller's: those of call, while, conditional and the
// starts of asynchronous calls. What a fusion, a reduction or a custom call
// calls needs none.
func ControlFlow(i *hlo.Instruction) []*hlo.Computation {
	switch i.Opcode {
	case hlo.Call, hlo.While, hlo.Conditional, hlo.AsyncStart, "call-start", "while-start", "conditional-start":
		return i.Called()
	}
	return nil
}

// TempPeak is the peak of the entry in bytes, without parameters and results,
// and where it is: what XLA's pass compares with its limit. The error is that of
// [Meter.Peak]. For more figures of the same module make a [Meter].
func TempPeak(m *hlo.Module, o Options) (bytes uint64, at *hlo.Instruction, err error) {
	p, err := NewMeter(o).Peak(m.Entry)
	return uint64(p.Bytes), p.At, err
}

// A Meter looks at the computations of one module, each once, however often they are
// called or asked for: what needs the buffers, the peak and the curve of one state of the
// module takes one Meter. It is not safe for concurrent use.
type Meter struct {
	a       *analyzer
	buffers map[*hlo.Computation]*Buffers
	done    map[*hlo.Computation]Peak
	open    map[*hlo.Computation]bool
	callers map[*hlo.Computation][]*hlo.Computation // those measured, by what they call
}

// NewMeter returns a meter that has looked at nothing yet.
func NewMeter(o Options) *Meter {
	return &Meter{
		a:       newAnalyzer(o),
		buffers: map[*hlo.Computation]*Buffers{},
		done:    map[*hlo.Computation]Peak{},
		open:    map[*hlo.Computation]bool{},
		callers: map[*hlo.Computation][]*hlo.Computation{},
	}
}

// Buffers are those of one computation, those that its instructions call not included. The
// meter keeps them until [Meter.Forget].
//
// The values are those of [alias.AnalyzeComputation], each a buffer, but a while defines
// none: it has the buffers of its operand.
//
// The error names an instruction whose shape does not fit its operands', or
// whose size is not known, or too large.
func (p *Meter) Buffers(c *hlo.Computation) (*Buffers, error) {
	if b := p.buffers[c]; b != nil {
		return b, nil
	}
	if c == nil {
		return nil, errors.New("the module has no entry computation with a result")
	}
	b, err := p.a.analyze(c)
	if err == nil {
		p.buffers[c] = b
	}
	return b, err
}

// Peak is the peak of one computation with all that it runs as calls. Of several that an
// instruction calls, all take memory at once: the body of a while and its condition, all
// branches of a conditional. Instructions run in the order of the list: a module that is
// not scheduled is measured in the order of its text.
//
// The error is that of [Meter.Buffers], or names a computation that calls itself.
func (p *Meter) Peak(c *hlo.Computation) (Peak, error) {
	if done, ok := p.done[c]; ok {
		return done, nil
	}
	if p.open[c] {
		return Peak{}, fmt.Errorf("computation %s calls itself", c.Name)
	}
	// A verified module has no recursion; one that was changed by hand ends here.
	p.open[c] = true
	defer delete(p.open, c)
	var best Peak
	err := p.run(c, func(i *hlo.Instruction, bytes int64) {
		if bytes > best.Bytes || best.At == nil {
			best = Peak{Bytes: bytes, At: i}
		}
	})
	if err != nil {
		return Peak{}, err
	}
	p.done[c] = best
	return best, nil
}

// Peaks are the peaks that the meter knows: after Peak of the entry, those of all
// computations that run as calls.
func (p *Meter) Peaks() map[*hlo.Computation]Peak { return p.done }

// Forget makes the meter look at a computation again, and measure all that call it, because
// it was changed. What fusions call must not change. The buffers of callers are kept: they
// do not depend on what a callee does inside.
func (p *Meter) Forget(c *hlo.Computation) {
	delete(p.buffers, c)
	p.unmeasure(c)
}

func (p *Meter) unmeasure(c *hlo.Computation) {
	delete(p.done, c)
	callers := p.callers[c]
	delete(p.callers, c) // a caller that is measured again is entered again
	for _, caller := range callers {
		p.unmeasure(caller)
	}
}

// run calls step with what lives while each instruction of a computation runs: what was
// defined before and is still used, what the instruction defines, and what its callees take.
// A buffer dies behind its last user, one without users behind its definer.
func (p *Meter) run(c *hlo.Computation, step func(i *hlo.Instruction, bytes int64)) error {
	b, err := p.Buffers(c)
	if err != nil {
		return err
	}
	left := make([]int, len(b.List))
	for id := range b.List {
		left[id] = b.List[id].Users
	}
	// now is between two instructions: what was defined and has a user to come.
	var now int64
	for k, i := range c.Instructions {
		for _, id := range b.Defined[k] {
			now += b.List[id].Temp
		}
		called, err := p.called(i, math.MaxInt64/2-now)
		if err != nil {
			return err
		}
		step(i, now+called)
		for _, id := range b.Used[k] {
			if left[id]--; left[id] == 0 {
				now -= b.List[id].Temp
			}
		}
		for _, id := range b.Defined[k] {
			if left[id] == 0 {
				now -= b.List[id].Temp
			}
		}
	}
	return nil
}

// called is what the callees of an instruction take together, which is most at most. It notes
// the caller, so that Forget of a callee finds whose peaks are out of date.
func (p *Meter) called(i *hlo.Instruction, most int64) (sum int64, err error) {
	for _, callee := range ControlFlow(i) {
		x, err := p.Peak(callee)
		if err != nil {
			return 0, err
		}
		if sum > most-x.Bytes {
			return 0, fmt.Errorf("%s: %w", hlo.Where(i), hlo.ErrTooLarge)
		}
		sum += x.Bytes
		p.callers[callee] = append(p.callers[callee], i.Parent)
	}
	return sum, nil
}
