// Package trace holds recorded allocations: the model, and a reader per format.
//
// A recording is a list of allocations and frees that a program made on one or
// more pools of memory. This package reads such a list once, whatever its
// format, and keeps it so that it can be replayed any number of times.
//
// # The walk of one recording
//
//  1. [Open] (open.go, source.go) opens the file or stdin, undoes gzip, and
//     counts bytes for the progress report.
//  2. recognise (formats.go, recognise.go) looks at the first bytes and picks the
//     reader from the table of formats.
//  3. The reader turns what it reads into calls of alloc and release on a pool
//     builder (build.go), and of at where it knows the time. Those of protocol
//     buffers stand on wire.go, those of lines on lines.go.
//  4. The pool builder names each block by a slot, a small dense number that is
//     used again after the block's free. It keeps the sums: events, peaks, the
//     largest request. Nothing is kept per event.
//     Where the recording has addresses, they are spooled beside the events
//     (places.go).
//  5. The encoder (encode.go) packs each event into a few bytes. Full blocks of
//     64 KiB go to the spool (spool.go): in memory up to a limit, then into one
//     unlinked temporary file.
//  6. A [Cursor] (cursor.go) decodes a pool's blocks into a slice of [Event],
//     batch by batch. Any number may be open at once.
//
// So memory depends on how many blocks are live at once, and not on how long
// the recording is. The exceptions: a pickle can only be read whole, so its tree of
// values is in memory until Open returns; the lines of a MiniMalloc problem are not
// in the order of time, and lie in memory, too; an xplane has its events in another
// order as well, and they are sorted through temporary files of their own.
//
// # Formats
//
// "text": one event a line. Blank lines are skipped, and so are lines whose
// first character that is not a blank is '#'.
//
//	a ID BYTES    ID asks for BYTES bytes
//	f ID          ID is freed
//
// ID is any text without blanks. An ID that begins with 'u' asks for
// collective memory: alloc.Upper. An ID may be used again after its free.
//
// "torch": what PyTorch's torch.cuda.memory._dump_snapshot writes, in the
// layouts of 2023, 2025 and 2026, with times from 2025 on; see torch.go.
//
// "rmm": the CSV of RMM's logging adaptor, with times; see rmm.go.
//
// "memdebug": the lines "[mem-debug] AllocateRaw" and "DeallocateRaw" of XLA's
// and TensorFlow's BFC allocator in the log of a program, with times where the
// lines have them; a pool per allocator; see memdebug.go.
//
// "minimalloc": a problem of MiniMalloc, CSV with id, lower, upper and size; see
// minimalloc.go.
//
// "gpumem": our own, which [Trace.Save] writes of a recording in any format, and
// [Writer] of a running program: compact, with everything that the model has,
// readable up to where a killed program left it; see binary.go.
//
// "xplane": what the profiler of XLA writes for JAX and TensorFlow,
// NAME.xplane.pb. A pool is an allocator, by its name or the number of its
// device, "GPU_0_bfc" or "0". What a pool held before the recording is seeded;
// see xplaneplay.go. A site is an operation with the type, shape and use of its
// block.
//
// "memdump": what XLA's BFC allocator writes when it refuses a request and
// TF_BFC_MEMORY_DUMP is set: one pool at one instant, so allocations only.
//
// "pprof": what jax.profiler.save_device_memory_profile writes: one instant, so
// allocations only. A pool is a device, "cuda:0", or "executable" for programs,
// which lie outside of the devices' pools.
//
// Each may be gzip-compressed; that is seen from the content.
package trace

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"gpumem/internal/spool"
)

// Op says what an [Event] does.
type Op uint8

const (
	// Alloc asks for memory.
	Alloc Op = iota
	// Free gives a block back.
	Free
)

// String returns "alloc" or "free".
func (op Op) String() string {
	switch op {
	case Alloc:
		return "alloc"
	case Free:
		return "free"
	}
	return "unknown"
}

// Event is one allocation or free.
type Event struct {
	// Bytes is how many bytes were asked for, before any rounding; 0 is
	// possible. Of a Free it is 0.
	Bytes uint64
	// Time is nanoseconds since the recording's first event, and at most 2^63-1.
	// It never decreases within a pool. It is 0 where the recording has no times
	// (Trace.Timed is false), and of blocks older than the recording.
	Time uint64
	// Slot names the block, from 0. It is live between its Alloc and its Free
	// and is used again after that, so it is always below Pool.Slots, the most
	// blocks that were live at once.
	Slot uint32
	// Site is the place in the program, for Trace.Site; 0 is none. Of a Free it
	// is the place that freed.
	Site uint32
	// Stream is a dense number from 0 within the pool; 0 is the default stream.
	Stream uint32
	// Op says whether the event is an Alloc or a Free.
	Op Op
	// Refused says of an Alloc that the recorded program was refused it. Nothing
	// is live after such an event: no Free follows, and the slot, which was free
	// before, stays free. How long the program would have kept the block is
	// unknown, so the least is assumed: it is wanted at this event alone.
	Refused bool
	// Upper asks for collective memory: alloc.Upper. Text recordings have it (an
	// ID that begins with 'u'), on the Alloc and on its Free, and what is saved
	// of them.
	Upper bool
}

// Trace is one recording. It does not change after [Open], so any number of
// goroutines may use it, except that Close must come last.
type Trace struct {
	// Source is the path as it was given, or "stdin", or the name given to Read.
	Source string
	// Format is the format that was read, by its name in [Formats].
	Format string
	// Pools has at least one pool. Text, rmm and minimalloc have one, named "";
	// torch has one per device, "cuda:0", "cuda:1" and so on, in the order of the
	// numbers; memdebug one per allocator, in the order of their first lines. The
	// package's documentation has those of other formats.
	Pools []*Pool
	// Notes are sentences for people: what was seeded, dropped or assumed.
	Notes []string
	// Events counts the events over all pools, seeds included.
	Events uint64
	// Allocs counts the Alloc events over all pools, seeds included.
	Allocs uint64
	// Refused counts the Alloc events over all pools that the recorded program
	// was refused.
	Refused uint64
	// Seeds counts the Alloc events over all pools that the recording does not
	// have itself; see Pool.Seeds. So Events - Seeds were recorded.
	Seeds uint64
	// PeakLive is the most requested bytes that were live at once over all
	// pools, in the recording's order, a refused request counted at its event.
	// Pools whose events carry no times are taken one after the other. It stops at
	// the largest uint64.
	PeakLive uint64
	// Timed says that the events carry times.
	Timed bool

	sites siteTable
	spool *spool.Spool
}

// Close gives the spool back: its memory and its temporary file. Cursors of the
// trace may fail from then on. A second Close does nothing. The error is that of
// closing or removing the temporary file.
func (t *Trace) Close() error {
	return t.spool.Close()
}

// Site returns the stack of a site: one line per frame, innermost first, each
// "name (file:line)", no newline at the end. A format that names operations
// instead has one line. It is "" for 0 and for a number that no event bears. The
// text is put together on each call.
func (t *Trace) Site(i uint32) string {
	return t.sites.text(i)
}

// Sites returns how many site numbers there are, 0 included: every Event.Site
// is below it.
func (t *Trace) Sites() uint32 { return t.sites.len() }

// Choose is the pools that a name means; "" means all. The error is an *Error that says
// which there are.
func (t *Trace) Choose(name string) ([]*Pool, error) {
	var pools []*Pool
	for _, p := range t.Pools {
		if name == "" || p.Name == name {
			pools = append(pools, p)
		}
	}
	if len(pools) > 0 {
		return pools, nil
	}
	have := "the recording has one pool, without a name"
	if len(t.Pools) > 1 || t.Pools[0].Name != "" {
		var names []string
		for _, p := range t.Pools {
			names = append(names, strconv.Quote(p.Name))
		}
		have = "there are " + strings.Join(names, ", ")
	}
	return nil, &Error{File: t.Source, Msg: fmt.Sprintf("no pool is named %q; %s", name, have)}
}

// Pool is the events of one pool of memory, with its sums.
type Pool struct {
	// Name is "" where the format knows only one pool.
	Name string
	// Events counts the events, seeds included.
	Events uint64
	// Allocs counts the Alloc events, seeds included.
	Allocs uint64
	// Refused counts the Alloc events that the recorded program was refused.
	Refused uint64
	// Placed counts the Alloc events whose address the recording has, for Places.
	// It is 0 where the format has none, or where the order in which the blocks
	// were allocated is lost. So it leaves out the seeds.
	Placed uint64
	// Seeds counts the Alloc events at the front that stand for blocks older
	// than the recording. They are the first events of the pool. Where only
	// their bytes are known, one stands for all.
	Seeds uint64
	// Slots is the most blocks that were live at once, a refused request
	// counted as one at its event.
	Slots uint32
	// Streams is one more than the largest Event.Stream.
	Streams uint32
	// PeakLive is the most requested bytes live at once, a refused request
	// counted at its event. It stops at the largest uint64.
	PeakLive uint64
	// PeakLive256 is the same with each block rounded up to 256 bytes, the
	// grain of the GPU allocators (a request for 0 bytes counts 0). A pool of
	// pages cannot hold the run in less.
	PeakLive256 uint64
	// LargestAlloc is the largest request in bytes.
	LargestAlloc uint64
	// EndLive and EndBlocks are the requested bytes and the blocks that are
	// still live after the last event.
	EndLive   uint64
	EndBlocks uint64

	trace  *Trace
	blocks []block
	places []spool.Block // of Places
}

// maxSlots is the most blocks that may be live at once: a slot is 32 bits and
// Pool.Slots must be able to hold the count.
const maxSlots = math.MaxUint32
