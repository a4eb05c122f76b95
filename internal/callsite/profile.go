// The pool library (scripts/libgpumem) has no use for a profile, which would be a fifth of
// a megabyte of it: see noprofile.go.

//go:build !libgpumem

package callsite

import (
	"io"
	"math"
	"runtime"
	"time"

	"github.com/google/pprof/profile"
)

// Use is what the live blocks of one site come to.
type Use struct {
	Site   uint32
	Blocks int
	Bytes  uint64 // of whole blocks
}

// WriteProfile writes uses as a profile for go tool pprof, gzipped. Sample types and labels
// are those of JAX's device memory profile (jaxlib/py_client.cc, PyClient::HeapProfile), so
// that a tool that reads the one reads the other. device is the value of the label. Without
// a table the stacks are unknown, and the only function's name says so. Errors: w's.
func (t *Table) WriteProfile(w io.Writer, now time.Time, device string, uses []Use) error {
	b := profiler{
		p: &profile.Profile{
			SampleType: []*profile.ValueType{{Type: "allocations", Unit: "count"}, {Type: "space", Unit: "bytes"}},
			TimeNanos:  now.UnixNano(),
		},
		locations: map[uintptr]*profile.Location{},
		functions: map[[2]string]*profile.Function{},
	}
	labels := map[string][]string{"kind": {"buffer"}, "device": {device}}
	for _, u := range uses {
		b.p.Sample = append(b.p.Sample, &profile.Sample{
			Location: b.stack(t, u.Site),
			Value:    []int64{int64(u.Blocks), int64(min(u.Bytes, math.MaxInt64))},
			Label:    labels,
		})
	}
	return b.p.Write(w)
}

// profiler numbers the locations and functions of a profile, each once.
type profiler struct {
	p         *profile.Profile
	locations map[uintptr]*profile.Location
	functions map[[2]string]*profile.Function // by name and file
}

// stack returns the stack of a site, innermost first. pprof leaves out samples without one,
// so an unknown stack has a location that says so.
func (b *profiler) stack(t *Table, site uint32) []*profile.Location {
	if t == nil {
		return []*profile.Location{b.location([]runtime.Frame{{Function: "unknown: open the pool with gpumem.WithStacks"}})}
	}
	t.mu.Lock()
	frames := t.frames(site)
	t.mu.Unlock()
	if len(frames) == 0 { // such as go pool.Alloc(ctx, n)
		return []*profile.Location{b.location([]runtime.Frame{{Function: "unknown: a separate goroutine"}})}
	}
	// A frame without a Func was inlined into the next; they are one location.
	var out []*profile.Location
	for first, i := 0, 0; i < len(frames); i++ {
		if frames[i].Func != nil || i == len(frames)-1 {
			out = append(out, b.location(frames[first:i+1]))
			first = i + 1
		}
	}
	return out
}

// location returns that of a call and what was inlined into it, innermost first. The program
// counter of the innermost tells it from every other.
func (b *profiler) location(frames []runtime.Frame) *profile.Location {
	if l := b.locations[frames[0].PC]; l != nil {
		return l
	}
	l := &profile.Location{ID: uint64(len(b.p.Location) + 1)}
	for _, f := range frames {
		l.Line = append(l.Line, profile.Line{Function: b.function(f), Line: int64(f.Line)})
	}
	b.locations[frames[0].PC] = l
	b.p.Location = append(b.p.Location, l)
	return l
}

func (b *profiler) function(f runtime.Frame) *profile.Function {
	key := [2]string{f.Function, f.File}
	fn := b.functions[key]
	if fn == nil {
		fn = &profile.Function{ID: uint64(len(b.p.Function) + 1), Name: f.Function, SystemName: f.Function, Filename: f.File}
		b.functions[key] = fn
		b.p.Function = append(b.p.Function, fn)
	}
	return fn
}
