package memory

// The most that lives at once, as XLA's rematerialization pass counts it. A buffer takes
// memory from its definer to its last user, and parameters and results take none.
//
// In the module of live.go the buffers that count are n, which takes 16 bytes while n, t, g
// and s run, and the table of t, which takes 16 while t and g do. The peak is 32 bytes, and
// t is the first instruction at which it is reached.

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"gpumem/hlo"
)

// Options say how memory is counted.
type Options struct {
	// Size is what shapes take, [hlo.Shape.Bytes] if nil.
	Size Size
	// Threads are the execution threads whose computations count, nil for all. The
	// main one is called "main". What an instruction calls on another thread takes nothing.
	Threads []string
	// HostFree counts buffers in the host's memory (S(5) in the layout) as taking nothing.
	// XLA counts them unless it may move buffers there.
	HostFree bool
}

// MainThread is the execution thread of computations that name none.
const MainThread = "main"

// Includes reports whether a computation runs on one of the threads that count.
func (o Options) Includes(c *hlo.Computation) bool {
	return o.Threads == nil || slices.Contains(o.Threads, cmp.Or(c.Thread, MainThread))
}

// Calls are the computations of [ControlFlow] that run on threads that count.
func (o Options) Calls(i *hlo.Instruction) []*hlo.Computation {
	all := ControlFlow(i)
	if len(all) == 0 || o.Threads == nil {
		return all
	}
	// The start of a call on another thread says which, even if the computation does not.
	start, _ := i.Attribute("async_execution_thread")
	start = strings.Trim(start, `"`)
	list := make([]*hlo.Computation, 0, len(all))
	for _, c := range all {
		if slices.Contains(o.Threads, cmp.Or(c.Thread, start, MainThread)) {
			list = append(list, c)
		}
	}
	return list
}

// Allocated is what a buffer takes: nothing for a parameter and for what the computation
// returns, which is the caller's.
func (o Options) Allocated(b *Buffers, id int32) int64 {
	x := &b.List[id]
	if x.LiveOut || b.Computation.Instructions[x.Definer].Opcode == hlo.Parameter {
		return 0
	}
	if o.HostFree && x.Shape.Space() == hlo.HostSpace {
		return 0
	}
	return x.Bytes
}

// A Peak is the most that lives at once in a computation, with what it calls,
// and the first instruction at which it does.
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

// Peaks are the peaks of the entry and of all computations that it runs as
// calls, on the threads that count. Of several that an instruction calls, all
// take memory at once: the body of a while and its condition, all branches of
// a conditional.
//
// Instructions run in the order of their computation's list. A module that is
// not scheduled is measured in the order of its text.
func Peaks(m *hlo.Module, o Options) (map[*hlo.Computation]Peak, error) {
	if m.Entry == nil {
		return nil, noEntry(m)
	}
	p := o.NewMeter()
	_, err := p.Peak(m.Entry)
	return p.done, err
}

// PeakOf is the peak of one computation with all that it runs as calls.
func (o Options) PeakOf(c *hlo.Computation) (Peak, error) { return o.NewMeter().Peak(c) }

// TempPeak is the peak of the entry in bytes, without parameters and results,
// and where it is: what XLA's pass compares with its limit. The error names the
// instruction that does not fit.
func TempPeak(m *hlo.Module, o Options) (bytes uint64, at *hlo.Instruction, err error) {
	all, err := Peaks(m, o)
	if err != nil {
		return 0, nil, err
	}
	p := all[m.Entry]
	return uint64(p.Bytes), p.At, nil
}

func noEntry(m *hlo.Module) error {
	return fmt.Errorf("module %s has no entry computation with a result", m.Name)
}

// A Meter measures computations with all that they run as calls, each once, however often
// they are called or measured. It is not safe for concurrent use.
type Meter struct {
	o       Options
	a       *analyzer
	done    map[*hlo.Computation]Peak
	open    map[*hlo.Computation]bool
	callers map[*hlo.Computation][]*hlo.Computation // those measured, by what they call
}

// NewMeter returns a meter that has measured nothing yet.
func (o Options) NewMeter() *Meter {
	return &Meter{o, newAnalyzer(o.Size), map[*hlo.Computation]Peak{}, map[*hlo.Computation]bool{}, map[*hlo.Computation][]*hlo.Computation{}}
}

// Peak is the peak of one computation, as it was when it was measured first: see [Meter.Forget].
// The error is that of [Peaks].
func (p *Meter) Peak(c *hlo.Computation) (Peak, error) {
	if done, ok := p.done[c]; ok {
		return done, nil
	}
	if p.open[c] {
		return Peak{}, fmt.Errorf("computation %s calls itself", c.Name)
	}
	p.open[c] = true
	defer delete(p.open, c)
	b, err := p.a.analyze(c)
	if err != nil {
		return Peak{}, err
	}
	x, err := p.o.Peak(b, p.called)
	if err != nil {
		return Peak{}, err
	}
	p.done[c] = x
	return x, nil
}

// called is what the callees of an instruction take together.
func (p *Meter) called(i *hlo.Instruction) (sum int64, err error) {
	for _, callee := range p.o.Calls(i) {
		x, err := p.Peak(callee)
		if err != nil {
			return 0, err
		}
		if sum > math.MaxInt64/2-x.Bytes {
			return 0, fmt.Errorf("%s: %w", hlo.Where(i), hlo.ErrTooLarge)
		}
		sum += x.Bytes
		p.callers[callee] = append(p.callers[callee], i.Parent)
	}
	return sum, nil
}

// Forget makes the next Peak measure a computation again, and all that call it, because it
// was changed. What fusions call must not change.
func (p *Meter) Forget(c *hlo.Computation) {
	delete(p.done, c)
	callers := p.callers[c]
	delete(p.callers, c) // who is measured again, is there again
	for _, caller := range callers {
		p.Forget(caller)
	}
}

// Peak is the peak of one computation in the order of its list; called is what
// an instruction's callees take while it runs.
func (o Options) Peak(b *Buffers, called func(*hlo.Instruction) (int64, error)) (Peak, error) {
	var best Peak
	if len(b.Computation.Instructions) > 0 {
		best.At = b.Computation.Instructions[0]
	}
	err := o.run(b, called, func(k int, bytes int64) {
		if bytes > best.Bytes {
			best = Peak{Bytes: bytes, At: b.Computation.Instructions[k]}
		}
	})
	return best, err
}

// run calls step with what lives while each instruction runs, by its place.
func (o Options) run(b *Buffers, called func(*hlo.Instruction) (int64, error), step func(k int, bytes int64)) error {
	left := make([]int, len(b.List))
	for id := range b.List {
		left[id] = b.List[id].Users
	}
	var now int64
	for k, i := range b.Computation.Instructions {
		for _, id := range b.Defined[k] {
			now += o.Allocated(b, id)
		}
		callees, err := called(i)
		if err != nil {
			return err
		}
		if callees > math.MaxInt64/2-now {
			return fmt.Errorf("%s: %w", hlo.Where(i), hlo.ErrTooLarge)
		}
		step(k, now+callees)
		for _, id := range b.Used[k] {
			if left[id]--; left[id] == 0 {
				now -= o.Allocated(b, id)
			}
		}
		for _, id := range b.Defined[k] {
			if left[id] == 0 {
				now -= o.Allocated(b, id)
			}
		}
	}
	return nil
}
