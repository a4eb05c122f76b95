package gpumem

import (
	"fmt"
	"math"
	"strings"
	"time"

	"gpumem/alloc"
	"gpumem/size"
)

// OutOfMemoryError is a failed allocation: the request, the state of the pool, and the
// cause. errors.Is(err, ErrOutOfMemory) is true for it, and also errors.Is of the
// context's error if that ended the wait.
type OutOfMemoryError struct {
	Request Request
	Policy  string        // as it was asked for, such as "jax"
	Pool    string        // the pool's name, such as GPU_0_bfc
	Device  int           // its ordinal
	Waited  time.Duration // for memory to be freed
	Stats   Stats         // when the allocation failed
	Cause   alloc.Cause   // our own account
	Stack   string        // of this request, a line for each frame; "" unless stacks are kept
	Live    []Use         // what is allocated by allocation site, largest first; nil unless stacks are kept

	// Layout is the original's report, record for record. Only the first ten
	// errors of a pool have it.
	Layout alloc.Report

	reason error // why the allocator refused
	ended  error // the context's error, if that ended the wait
}

// Error returns the line that a JAX user sees.
func (e *OutOfMemoryError) Error() string {
	return fmt.Sprintf("RESOURCE_EXHAUSTED: Out of memory while trying to allocate %s with allocator %s on device %d.",
		size.XLA(int64(min(e.Request.Bytes, math.MaxInt64))), e.Pool, e.Device)
}

// Unwrap returns ErrOutOfMemory (or ErrTooLarge, which wraps it, for a size near 2^64),
// and the context's error if there is one.
func (e *OutOfMemoryError) Unwrap() []error {
	if e.ended != nil {
		return []error{e.reason, e.ended}
	}
	return []error{e.reason}
}

// Report returns everything: the original's report, record for record, then Error,
// then Why.
func (e *OutOfMemoryError) Report() string {
	text := e.Error() + "\n" + e.Why()
	if len(e.Layout) > 0 {
		text = e.Layout.String() + "\n" + text
	}
	return text
}

// Why returns our own account, some ten lines: the stack of the request, the largest
// free block and the allocation that blocks it, what would have served the request, and
// what is allocated by allocation site.
func (e *OutOfMemoryError) Why() string {
	var b strings.Builder
	if e.Waited >= time.Millisecond {
		fmt.Fprintf(&b, "Waited %v for memory to be freed.\n", e.Waited.Round(time.Millisecond))
	}
	if e.Stack != "" {
		b.WriteString("Asked for by\n" + indent(e.Stack))
	}
	stacks := map[alloc.Site]string{}
	for _, u := range e.Live {
		stacks[u.Site] = u.Stack
	}
	b.WriteString(e.Cause.Text(func(s alloc.Site) string { return stacks[s] }))
	if len(e.Live) > 0 {
		b.WriteString("Alive, by who asked for it:\n")
		for _, u := range e.Live {
			fmt.Fprintf(&b, "  %s (%d x), asked for by\n%s", size.Format(u.Bytes), u.Blocks, indent(u.Stack))
		}
	}
	return b.String()
}

func indent(s string) string {
	return "    " + strings.ReplaceAll(strings.TrimSuffix(s, "\n"), "\n", "\n    ") + "\n"
}

// outOfMemory makes the error for a request that is given up. Caller holds
// p.mu.
func (p *Pool) outOfMemory(r Request, reason error, waited time.Duration, ended error) error {
	deviceFree := int64(-1)
	if free, _, err := p.dev.MemInfo(); err == nil {
		deviceFree = int64(min(free, math.MaxInt64))
	}
	e := &OutOfMemoryError{
		Request: r,
		Policy:  p.policy.Spec,
		Pool:    p.name,
		Device:  p.dev.Info().Ordinal,
		Waited:  waited,
		Stats:   p.stats(),
		Cause:   alloc.Explain(p.a, alloc.Request(r), deviceFree),
		reason:  reason,
		ended:   ended,
	}
	if rep, ok := p.a.(alloc.Reporter); ok && p.refused < fullReports {
		e.Layout = rep.Report(alloc.Request(r))
	}
	p.refused++
	p.record.refuse(p, r)
	if p.stacks != nil {
		e.Stack = p.stacks.text(r.Site)
		e.Live = p.named(p.live())
	}
	return e
}
