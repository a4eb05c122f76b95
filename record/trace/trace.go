// Package trace is the recording of a program's allocations and frees, for Go programs that
// write one or look into one.
//
// A program records itself with a [Writer]: each of its allocations and frees is one [Call].
// What it writes, and what other programs write in the formats that gpumem knows, package
// record/formats opens:
//
//	t, err := formats.Open(ctx, path, trace.Options{})
//	...
//	defer t.Close()
//	for _, pool := range t.Pools {
//		fmt.Println(pool.Name, pool.Events, "events, at most", pool.PeakLive, "bytes live")
//	}
//
// The [Trace] has sums; a [Cursor] of each [Pool] has its events, in order, as often as they
// are wanted. Blocks are named by slots, small numbers that are used again, and stacks by the
// numbers that Trace.Site takes. Trace.Save writes the recording in gpumem's own format, which
// is small and read fast.
//
// What readers of formats build a recording with is in package record/internal/tape, whose
// comment says how to add a format.
package trace

import (
	"io"

	"gpumem/record/internal/tape"
)

type (
	// Trace is one recording: its Pools, with sums over all of them, and its Notes. It does
	// not change after it is read, so any number of goroutines may use it, except that Close
	// must come last.
	Trace = tape.Trace
	// Pool is the events of one pool of memory, with its sums: Events, Allocs, PeakLive and
	// others. Pool.Cursor reads the events, and Pool.Walk knows what is live after each.
	Pool = tape.Pool
	// Keeper is a container of the recorded program, with what it keeps at the end.
	Keeper = tape.Keeper
	// Event is one allocation or free: the requested Bytes, its Time, the Slot of its block.
	Event = tape.Event
	// Op is the kind of an Event.
	Op = tape.Op
	// Cursor reads the events of one pool in order, a slice at a time.
	Cursor = tape.Cursor
	// Walk reads the events of one pool in order, one at a time, and knows what is live.
	Walk = tape.Walk
	// Block is a block of a Walk: one that is live, or was.
	Block = tape.Block
	// LiveSite is what one site allocated and the recording does not free, see Trace.Live.
	LiveSite = tape.LiveSite
	// Options say how to read a recording. The zero value is a good default.
	Options = tape.Options
	// Format is a format of recordings, Formats a list of them, see record/formats.
	Format = tape.Format
	// Formats is a list of formats.
	Formats = tape.Formats
	// Error describes bad input: what is wrong, and where.
	Error = tape.Error
	// Writer records the allocations of a running program. Any number of goroutines may use
	// it at once.
	Writer = tape.Writer
	// Call describes one allocation or free to be recorded.
	Call = tape.Call
)

// The kinds of an Event.
const (
	// Alloc asks for memory.
	Alloc = tape.Alloc
	// Free releases a block.
	Free = tape.Free
)

// NewWriter begins a recording on w. The error is that of writing the first bytes.
func NewWriter(w io.Writer) (*Writer, error) { return tape.NewWriter(w) }
