// The pool library (scripts/libgpumem) has no use for a profile, which would be a fifth of
// a megabyte of it.

//go:build !libgpumem

package gpumem

import (
	"fmt"
	"io"
	"math"
	"runtime"
	"time"

	"github.com/google/pprof/profile"

	"gpumem/alloc"
)

// The pool's profile for go tool pprof. Sample types and labels are those of JAX's
// device memory profile (jaxlib/py_client.cc, PyClient::HeapProfile), so that
// a tool that reads the one reads the other.

// WriteProfile writes what is allocated now as a profile for go tool pprof, gzipped:
//
//	go tool pprof -top gpu.pb.gz
//	go tool pprof -top -sample_index=allocations -tagfocus=device=cuda:0 gpu.pb.gz
//
// There is a sample for each stack whose allocations are live: the number of
// blocks (allocations) and the bytes of whole blocks (space). Their
// sums are those of Live. The labels are kind, always "buffer", and device:
// "cuda:0", or "sim:0" for the simulated one. Free memory of the pool is in Stats and in
// no sample, as in JAX: it would count as allocated.
//
// Samples have stacks if the pool keeps them (see WithStacks), without the frames
// of the runtime and of the pool. Otherwise all is one sample, whose function's name
// says so.
//
// All samples are of one moment. The pool is locked while its blocks are
// counted, some 2 ms for 100,000, and no longer. Of a closed pool the profile is
// empty. Errors: w's.
func (p *Pool) WriteProfile(w io.Writer) error {
	p.mu.Lock()
	now := time.Now()
	live := p.live()
	p.mu.Unlock()

	b := profiler{
		p: &profile.Profile{
			SampleType: []*profile.ValueType{{Type: "allocations", Unit: "count"}, {Type: "space", Unit: "bytes"}},
			TimeNanos:  now.UnixNano(),
		},
		locations: map[uintptr]*profile.Location{},
		functions: map[[2]string]*profile.Function{},
	}
	labels := map[string][]string{"kind": {"buffer"}, "device": {p.deviceLabel()}}
	for _, u := range live {
		b.p.Sample = append(b.p.Sample, &profile.Sample{
			Location: b.stack(p.stacks, u.Site),
			Value:    []int64{int64(u.Blocks), int64(min(u.Bytes, math.MaxInt64))},
			Label:    labels,
		})
	}
	return b.p.Write(w)
}

// deviceLabel is JAX's name for the device.
func (p *Pool) deviceLabel() string {
	info := p.dev.Info()
	if info.Simulated {
		return fmt.Sprintf("sim:%d", info.Ordinal)
	}
	return fmt.Sprintf("cuda:%d", info.Ordinal)
}

// profiler numbers the locations and functions of a profile, each once.
type profiler struct {
	p         *profile.Profile
	locations map[uintptr]*profile.Location
	functions map[[2]string]*profile.Function // by name and file
}

// stack is a site's, innermost first. pprof leaves out what has none, so one is
// made where there is nothing to tell.
func (b *profiler) stack(s *stacks, site alloc.Site) []*profile.Location {
	if s == nil {
		return []*profile.Location{b.location([]runtime.Frame{{Function: "unknown: open the pool with gpumem.WithStacks"}})}
	}
	s.mu.Lock()
	frames := s.frames(site)
	s.mu.Unlock()
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

// location is a call and what was inlined into it, innermost first. The program
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
