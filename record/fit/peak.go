// The peak: which compiled function was running there, and what its memory is for.
//
// XLA allocates what a function needs besides its arguments when it is called: its results,
// but for those that lie in the memory of arguments, and one block for all temporaries. So the
// newest blocks at the peak are those of the function that runs there, and their sizes show
// which one it is. What each argument is for is in its module.

package fit

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"gpumem/record/trace"
	"gpumem/xla/measure"
)

// Peak is what is live on one GPU when most is.
type Peak struct {
	Pool  string `json:"pool"`
	Bytes uint64 `json:"bytes"`
	// Function is the compiled function that was running, several with " or " between if their
	// blocks have the same sizes, and "" if there is none that explains the newest blocks.
	Function string `json:"function,omitempty"`
	// Parts add up to Bytes. Those of the arguments are by their names in the program, as
	// far as these are known.
	Parts []Part `json:"parts,omitempty"`
	// Largest are the largest temporaries of Function where it has the most of them, by a
	// model of XLA's buffer assignment.
	Largest []measure.LiveValue `json:"largest_temporaries,omitempty"`
}

// Peak returns that of the GPU with the most.
func (r *Report) Peak() Peak {
	return slices.MaxFunc(r.Peaks, func(a, b Peak) int { return cmp.Compare(a.Bytes, b.Bytes) })
}

// Kind is what a part of the memory at the peak is for.
type Kind string

// The kinds. Arguments and results are those of the function that was running.
const (
	InPlace     Kind = "state in place" // arguments that results take the memory of
	State       Kind = "state"          // arguments that have a result of the same shape
	Input       Kind = "input"          // other arguments, such as a batch
	Results     Kind = "results"        // in new memory
	Temporaries Kind = "temporaries"
	Other       Kind = "other" // no part of the function, or not found among its blocks
)

// Part is a part of the memory at the peak.
type Part struct {
	Kind  Kind   `json:"kind"`
	Name  string `json:"name,omitempty"` // of the arguments
	Bytes uint64 `json:"bytes"`
}

// Breaks is the request that would be refused first under the framework's defaults.
type Breaks struct {
	Bytes    uint64 `json:"bytes"`
	Function string `json:"function,omitempty"` // that asks for it, see Peak.Function; "" if it is not known
	For      Kind   `json:"for,omitempty"`      // Temporaries or Results; "" if it is not known
}

// small blocks, such as scalars and tables of addresses, are left out of comparisons.
const small = 1 << 10

// mostTemporaries is the number of temporaries that are named.
const mostTemporaries = 5

// function is a compiled function with the blocks that it needs.
type function struct {
	Compiled
	program   *measure.Program
	arguments []argument
	results   []uint64 // sizes of those that lie in new memory
}

type argument struct {
	name  string
	bytes uint64
	kind  Kind
}

// functions reads the modules of compiled functions. Those without one are left out; so are
// those whose module cannot be read, such as a newer XLA's, with a note.
func functions(ctx context.Context, compiled []Compiled) (list []*function, notes []string, err error) {
	for _, c := range compiled {
		if c.path == "" {
			continue
		}
		program, err := measure.Open(ctx, c.path)
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		if err != nil {
			notes = append(notes, fmt.Sprintf("%s is not looked for at the peak: its module cannot be read (%v)", c.Name, err))
			continue
		}
		list = append(list, functionOf(c, program))
	}
	return list, notes, nil
}

// functionOf finds the arguments and results of a function in its module.
func functionOf(c Compiled, program *measure.Program) *function {
	f := &function{Compiled: c, program: program}
	fresh := map[string]int{} // results in new memory, by their shapes
	for _, r := range program.Results() {
		if !r.InPlace && !r.Table {
			f.results = append(f.results, r.Bytes)
			fresh[r.Shape]++
		}
	}
	for _, p := range program.Arguments() {
		a := argument{named(p.OpName), p.Bytes, Input}
		if p.InPlace {
			a.kind = InPlace
		} else if fresh[p.Shape] > 0 {
			fresh[p.Shape]--
			a.kind = State
		}
		f.arguments = append(f.arguments, a)
	}
	return f
}

// own are the sizes of the blocks that a call allocates, without small ones.
func (f *function) own() []uint64 {
	list := slices.Clone(f.results)
	if f.Temp > 0 {
		list = append(list, f.Temp)
	}
	return slices.DeleteFunc(list, func(n uint64) bool { return n < small })
}

// bytes is the sum of own.
func (f *function) bytes() (sum uint64) {
	for _, n := range f.own() {
		sum += n
	}
	return sum
}

// explains reports whether the newest blocks are what a call of f allocates. blocks are in
// the order of their allocation.
func (f *function) explains(blocks []uint64) bool {
	own := f.own()
	if len(own) == 0 {
		return false
	}
	for i := len(blocks) - 1; i >= 0 && len(own) > 0; i-- {
		at := slices.Index(own, blocks[i])
		switch {
		case at >= 0:
			own = slices.Delete(own, at, at+1)
		case blocks[i] >= small:
			return false
		}
	}
	return len(own) == 0
}

// sizes returns the bytes of allocations.
func sizes(list []trace.Event) []uint64 {
	bytes := make([]uint64, len(list))
	for i, e := range list {
		bytes[i] = e.Bytes
	}
	return bytes
}

// peaks finds what is live at the peak of each pool. notes are what could not be found.
func peaks(ctx context.Context, t *trace.Trace, list []*function) (all []Peak, notes []string, err error) {
	for _, pool := range t.Pools {
		p := Peak{Pool: pool.Name, Bytes: pool.PeakLive}
		if len(list) > 0 {
			live, err := pool.AtPeak(ctx)
			if err != nil {
				return nil, nil, err
			}
			blocks := sizes(live)
			if f := p.find(blocks, list); f != nil {
				p.parts(f, blocks)
				if p.Largest, err = f.program.Temporaries(mostTemporaries); err != nil {
					notes = append(notes, fmt.Sprintf("the temporaries of %s are not listed (%v)", f.Name, err))
				}
			}
		}
		all = append(all, p)
	}
	return all, notes, nil
}

// find names the function that was running: of those that explain the newest blocks, the
// one that explains the most bytes.
func (p *Peak) find(blocks []uint64, list []*function) *function {
	var best *function
	most := uint64(0)
	for _, f := range list {
		if !f.explains(blocks) {
			continue
		}
		switch n := f.bytes(); {
		case n > most:
			best, most, p.Function = f, n, f.Name
		case n == most:
			p.Function = or(p.Function, f.Name)
		}
	}
	return best
}

// parts divides the blocks among the arguments of f, its results, its temporaries and the
// rest.
func (p *Peak) parts(f *function, blocks []uint64) {
	left := map[uint64]int{}
	for _, n := range blocks {
		left[n]++
	}
	rest := p.Bytes
	take := func(bytes uint64) bool {
		if left[bytes] == 0 {
			return false
		}
		left[bytes]--
		rest -= bytes
		return true
	}
	results := uint64(0)
	for _, bytes := range f.results {
		if take(bytes) {
			results += bytes
		}
	}
	temporaries := uint64(0)
	if f.Temp > 0 && take(f.Temp) {
		temporaries = f.Temp
	}
	var there []argument // without those that are not found: one array may be passed twice
	for _, a := range f.arguments {
		if take(a.bytes) {
			there = append(there, a)
		}
	}
	p.Parts = grouped(there)
	for _, part := range []Part{{Results, "", results}, {Temporaries, "", temporaries}, {Other, "", rest}} {
		if part.Bytes > 0 {
			p.Parts = append(p.Parts, part)
		}
	}
}

// segment is a step of an argument's name: state.opt_state[0].mu['w'] has five.
var segment = regexp.MustCompile(`^[^.\[]+|\.[^.\[]+|\[[^\]]*\]`)

// grouped adds up arguments by the beginnings of their names and their kinds, the largest
// first. A group that has more than half of all bytes is divided at the next step of the
// names, if that gives six groups at most.
func grouped(list []argument) []Part {
	all := uint64(0)
	paths := make([][]string, len(list))
	for i, a := range list {
		all += a.bytes
		paths[i] = segment.FindAllString(a.name, -1)
	}
	name := func(i, depth int) string { return strings.Join(paths[i][:min(depth, len(paths[i]))], "") }
	var parts []Part
	add := func(members []int) {
		common := 0 // steps that all names begin with
		differ := func(i int) bool { return name(i, common+1) != name(members[0], common+1) }
		for common < len(paths[members[0]]) && !slices.ContainsFunc(members, differ) {
			common++
		}
		sums := map[Kind]uint64{}
		for _, i := range members {
			sums[list[i].kind] += list[i].bytes
		}
		for _, kind := range []Kind{InPlace, State, Input} {
			if sums[kind] > 0 {
				parts = append(parts, Part{kind, name(members[0], common), sums[kind]})
			}
		}
	}
	var divide func(members []int, depth int)
	divide = func(members []int, depth int) {
		groups := map[string][]int{}
		var names []string // of groups, in their order
		bytes, longest := uint64(0), 0
		for _, i := range members {
			n := name(i, depth+1)
			if groups[n] == nil {
				names = append(names, n)
			}
			groups[n] = append(groups[n], i)
			bytes, longest = bytes+list[i].bytes, max(longest, len(paths[i]))
		}
		if depth > 0 && (bytes <= all/2 || len(names) > 6 || depth >= longest) {
			add(members)
			return
		}
		for _, n := range names {
			divide(groups[n], depth+1)
		}
	}
	members := make([]int, len(list))
	for i := range members {
		members[i] = i
	}
	divide(members, 0)
	slices.SortStableFunc(parts, func(a, b Part) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return parts
}

// or adds a name to those that are one or the other.
func or(names, name string) string {
	if slices.Contains(strings.Split(names, " or "), name) {
		return names
	}
	return names + " or " + name
}

// breaks finds which function makes the request that is an event of a pool, counted from 1,
// and what for: of the functions whose calls allocate the blocks around it, the one that
// allocates the most bytes.
//
// A step has two results of 4 MiB and temporaries of 4 MiB, and its weights lie in 4 MiB. The
// recording has four blocks of 4 MiB, the last of which is freed next. The third is a
// result: the call ends with the fourth. The fourth is the temporaries.
func breaks(ctx context.Context, pool *trace.Pool, event uint64, list []*function) (*Breaks, error) {
	w := pool.Walk()
	var e *trace.Event
	for range event {
		var err error
		if e, err = w.Next(ctx); e == nil || err != nil {
			return nil, err
		}
	}
	b := &Breaks{Bytes: e.Bytes}
	if e.Bytes < small {
		return b, nil
	}
	live := w.Live()
	if e.Refused {
		live = append(live, *e)
	}
	blocks := slices.DeleteFunc(sizes(live), func(n uint64) bool { return n < small })
	at := len(blocks) - 1
	// What is allocated before one of these blocks is freed may be of the same call.
	most := 0
	for _, f := range list {
		most = max(most, len(f.own()))
	}
	since := map[uint32]bool{e.Slot: true}
	for len(blocks)-1-at < most {
		e, err := w.Next(ctx)
		if err != nil {
			return nil, err
		}
		if e == nil || e.Op == trace.Free && since[e.Slot] {
			break
		}
		if e.Op == trace.Alloc && !e.Refused && e.Bytes >= small {
			since[e.Slot] = true
			blocks = append(blocks, e.Bytes)
		}
	}
	bytes := uint64(0)
	for _, f := range list {
		kind := f.makes(blocks, at)
		switch n := f.bytes(); {
		case kind == "" || n < bytes:
		case n > bytes:
			b.Function, b.For, bytes = f.Name, kind, n
		default:
			if b.Function = or(b.Function, f.Name); b.For != kind {
				b.For = ""
			}
		}
	}
	return b, nil
}

// makes returns what a block is for in a call of f; "" if no call allocates the blocks
// around it. A call allocates its temporaries last. Of several places for the call it is
// the last: what lies before may be arguments of the same sizes, and what follows is
// allocated when the temporaries are free.
func (f *function) makes(blocks []uint64, at int) Kind {
	for end := min(len(blocks), at+len(f.own())); end > at; end-- {
		if !f.explains(blocks[:end]) {
			continue
		}
		if f.Temp >= small && blocks[at] == f.Temp && !slices.Contains(blocks[at+1:end], f.Temp) {
			return Temporaries
		}
		return Results
	}
	return ""
}

// explain adds to the report what the peak is made of, and where the program would break.
func (r *Report) explain(ctx context.Context, t *trace.Trace) error {
	list, notes, err := functions(ctx, r.Program.Compiled)
	if err != nil {
		return err
	}
	var more []string
	if r.Peaks, more, err = peaks(ctx, t, list); err != nil {
		return err
	}
	r.Trace.Notes = slices.Concat(r.Trace.Notes, notes, more)
	if c := r.Candidates[0]; !c.Fits && c.FirstRefused != nil && r.Program.Framework == "jax" {
		pool := largestPool(t, r.Report)
		if i := slices.IndexFunc(t.Pools, func(p *trace.Pool) bool { return p.Name == c.RefusedPool }); i >= 0 {
			pool = t.Pools[i]
		}
		r.Breaks, err = breaks(ctx, pool, *c.FirstRefused, list)
	}
	return err
}
