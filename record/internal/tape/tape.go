// Package tape holds recorded allocations: the model, what readers of formats
// build it with, and our own formats.
//
// A recording is a list of allocations and frees that a program made on one or
// more pools of memory. Package record/formats reads such a list once, whatever its
// format, and keeps it so that it can be replayed any number of times.
//
// # The walk of one recording
//
//  1. [Formats.Open] (open.go) opens the file or stdin, undoes gzip, and counts bytes
//     for the progress report. Then it looks at the first 64 KiB and picks the format.
//  2. [Format].Read turns what it reads into calls of [Builder.At], [PoolBuilder.Alloc]
//     and [PoolBuilder.Free].
//  3. The [PoolBuilder] (build.go) names each block by a slot, a small dense number that
//     is used again after the block's free. It keeps the sums: events, peaks, the
//     largest request. Nothing is kept per event. Where the recording has addresses,
//     they are spooled beside the events (places.go).
//  4. The encoder (encode.go) packs each event into a few bytes. Full blocks of
//     64 KiB go to the spool: in memory up to a limit, then into one unlinked
//     temporary file.
//  5. A [Cursor] (cursor.go) decodes a pool's blocks into a slice of [Event],
//     batch by batch. Any number may be open at once.
//
// So memory depends on how many blocks are live at once, and not on how long
// the recording is. There are four exceptions. A pickle can only be read whole, so its
// tree of values is in memory until Open returns. The lines of a MiniMalloc problem are not in
// the order of time, so they are in memory, too. An xplane is read whole, for the same reason.
// The events of a memory timeline are in memory, as a block's category is known at its end.
//
// # How to add a format
//
// Write a package that exports a [Format], and add it to the list in record/formats.
// Looks sees the first bytes. Read goes through the input once. A format of lines is
// this and a parser:
//
//		var Format = tape.Format{Name: "mine", What: "what it is", Looks: looks, Read: read}
//
//		func read(in *input.Reader, b *tape.Builder) error {
//			blocks := b.Pool("").Blocks(true)
//			lines := in.Lines("a log of mine")
//			for lines.Next() {
//				c, err := parse(lines.Text())
//				if err != nil {
//					return in.Fail("%v", err) // with the file and the line
//				}
//				b.At(c.nanoseconds)
//				if c.free {
//					err = blocks.Free(c.addr, tape.Event{Bytes: c.bytes})
//				} else {
//					err = blocks.Alloc(c.addr, tape.Event{Bytes: c.bytes, Site: b.Site(c.name)})
//				}
//				if err != nil {
//					return err
//				}
//			}
//			blocks.Notes()
//			return lines.Err()
//		}
//
//	  - Blocks are named by their addresses with [PoolBuilder.Blocks], which knows what is
//	    live, what is older than the recording and what was refused; by any other name with
//	    the slots of [PoolBuilder.Alloc]. Events come in the order of time.
//	  - What is older than the recording comes first, with [Blocks.Seed] or
//	    [PoolBuilder.Seed].
//	  - Sites are names ([Builder.Site]) or stacks ([Builder.Frame], [Builder.Stack]).
//	  - Protocol buffers are walked by package record/internal/wire. Memory that grows with the
//	    input is counted by its Take.
//	  - Whatever is dropped or assumed becomes a note.
//
// Add a row to docs/recording.md and to the comment of package record/formats.
// Tests compare with package record/internal/test/tracetest; a fuzz target calls its FuzzRead.
package tape

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"

	"gpumem/record/internal/spool"
	"gpumem/record/internal/stacks"
)

// Op is the kind of an [Event].
type Op uint8

const (
	// Alloc asks for memory.
	Alloc Op = iota
	// Free releases a block.
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
	// Bytes is the size that was requested, before any rounding; 0 is
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
	// Op is Alloc or Free.
	Op Op
	// Refused marks an Alloc that failed in the recorded program. Nothing
	// is live after such an event: no Free follows, and the slot, which was free
	// before, stays free. How long the program would have kept the block is
	// unknown, so the least is assumed: it is wanted at this event alone.
	Refused bool
	// Upper asks for collective memory: alloc.Upper. Text recordings have it (an
	// ID that begins with 'u'), on the Alloc and on its Free, and what is saved
	// of them.
	Upper bool
}

// Trace is one recording. It does not change after it is read, so any number of
// goroutines may use it, except that Close must come last.
type Trace struct {
	// Source is the path as it was given, or "stdin", or the name given to Read.
	Source string
	// Format is the format in which the program was recorded, by its name in the list: also of
	// what Save wrote of it.
	Format string
	// Pools has at least one pool. Text, rmm and minimalloc have one, named "";
	// torch has one per device, "cuda:0", "cuda:1" and so on, in the order of the
	// numbers; memdebug one per allocator, in the order of their first lines. Package
	// record/formats has those of others.
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
	// Timed reports whether the events carry times.
	Timed bool
	// Settings are those of the recorded program's allocator, as its framework writes them:
	// "expandable_segments:True,max_split_size_mb:128". It is "" for its defaults, or if the
	// recording does not have them.
	Settings string

	sites  siteTable
	spool  *spool.Spool
	found  *found
	origin uint64
}

// Origin returns the recording's own time of its first event, in nanoseconds; of PyTorch's
// since 1970.
func (t *Trace) Origin() uint64 { return t.origin }

// found is what was found out of pools, see Trace.Found.
type found struct {
	sync.Mutex // held while it is found out
	of         map[any]any
}

// Close releases the memory and the temporary file of the events. Cursors of the
// trace may fail from then on. A second Close does nothing. The error is that of
// closing or removing the temporary file.
func (t *Trace) Close() error {
	return t.spool.Close()
}

// Found returns what find returns for a key, which is asked once: what a package finds out of a
// pool in passes of its own is wanted by several others. The key is of a type of that package, so
// that no other has it. An error is not kept.
func (t *Trace) Found(key any, find func() (any, error)) (any, error) {
	t.found.Lock()
	defer t.found.Unlock()
	if v, ok := t.found.of[key]; ok {
		return v, nil
	}
	v, err := find()
	if err == nil {
		t.found.of[key] = v
	}
	return v, err
}

// Site returns the stack of a site: one line per frame, innermost first, each
// "name (file:line)", no newline at the end. A format that names operations
// instead has one line. It is "" for 0 and for a number that no event bears. The
// text is put together on each call.
func (t *Trace) Site(i uint32) string {
	return t.sites.text(i)
}

// FullSite returns the stack of a site with the directories of its files, whatever
// [Options] says: they tell the program's own files from a library's. It is for decisions,
// and for people only after Shown.
func (t *Trace) FullSite(i uint32) string { return t.sites.full(i) }

// Shown leaves the directories of files out of a stack of FullSite, unless
// Options.KeepPaths asks for them.
func (t *Trace) Shown(stack string) string { return t.sites.shown(stack) }

// Line returns the innermost frame of a site that is of the program's own files, or the
// innermost at all, as Site has it.
func (t *Trace) Line(i uint32) string { return t.Shown(stacks.OwnFrame(t.sites.full(i))) }

// Sites returns how many site numbers there are, 0 included: every Event.Site
// is below it.
func (t *Trace) Sites() uint32 { return t.sites.len() }

// Choose returns the pools of a name, all for "". If there is none the error is an *Error
// that lists the pools.
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

	trace    *Trace
	blocks   []block
	places   []spool.Block // of Places
	segments []Segment
	granted  []Segment
	final    []Segment
	reserved []Reserved
	trims    []uint64
	privates []Private
	waits    []Wait
	keepers  map[uint64]Keeper
	joint    any // *joint of a joined pool; its type is not to be linked into recorders
}

// Keeper is a container of the recorded program that keeps blocks when the recording is taken.
type Keeper struct {
	Container string `json:"container"` // such as "list `hist`"
	// Line is where the program fills it, as far as that is known, such as "train.py:8".
	Line string `json:"line"`
}

// HasKeepers reports whether the recording has what keeps some blocks.
func (p *Pool) HasKeepers() bool { return len(p.keepers) > 0 }

// Keeper returns what keeps the block of an Alloc event, by the event's number from 1. ok is
// false if that is not known.
func (p *Pool) Keeper(event uint64) (k Keeper, ok bool) {
	k, ok = p.keepers[event]
	return k, ok
}

// Segments returns what the recorded program's pool held at the first event after the
// seeds, by address; nil if the recording does not have it, and empty if it held nothing. Its
// blocks are the seeds, in the same order.
func (p *Pool) Segments() []Segment { return p.segments }

// Granted returns the segments that the recorded program's pool took from its device after
// that, in their order, without blocks.
func (p *Pool) Granted() []Segment { return p.granted }

// Final returns what the recorded program's pool held when the recording was taken, by
// address, with all live blocks; nil if the recording does not have it.
func (p *Pool) Final() []Segment { return p.final }

// Reserved returns how much the recorded program's pool held from its device, in the order
// of the events: each entry stands until the next one's. It is nil if the recording does
// not have it.
func (p *Pool) Reserved() []Reserved { return p.reserved }

// Reserved is what a pool held from an event on.
type Reserved struct {
	Event uint64 // counted from 1, the pool's seeds included; 0 in the first, for the beginning
	Bytes uint64
}

// Trims returns when the recorded program released what its framework's pool kept, as
// torch.cuda.empty_cache does: after how many events, in their order. It is nil if it never
// did, or if the recording does not have it.
func (p *Pool) Trims() []uint64 { return p.trims }

// Private says which of the recorded program's private pools serves its requests after the
// events so far, 0 for the default ones; or that a private pool ended.
type Private struct {
	Event uint64 // how many events come before
	Pool  uint32
	Ended bool
}

// Privates returns when private pools served the recorded program's requests, in the order of
// the events. It is nil if none did, or if the recording does not have it.
func (p *Pool) Privates() []Private { return p.privates }

// Wait is a block that the program freed while another stream still used it, so that its
// memory came back later: the block is active and not allocated, as PyTorch counts it.
type Wait struct {
	Slot uint32
	From uint64 // how many events came before the free
	To   uint64 // the event that is its Free, counted from 1; 0 if there is none
}

// Waits returns the blocks that waited, in the order of From. It is nil if none did, or if the
// recording does not have it.
func (p *Pool) Waits() []Wait { return p.waits }

// Segment is memory that the pool of a recorded program held from its device.
type Segment struct {
	Addr, Bytes uint64
	Stream      uint32 // as in Event
	Small       bool   // it is of the pool for small requests
	Private     uint32 // the private pool that it is of, from 1; 0 for the default one
	// Base is where the addresses of an expandable segment begin, of which this is a part
	// with memory, as far as that is known; 0 for a segment that is memory as a whole.
	Base   uint64
	Blocks []SegmentBlock
}

// SegmentBlock is a live block of a Segment, with what its size was rounded up to; 0 in
// Pool.Segments if the recording has only the request.
type SegmentBlock struct {
	Addr, Bytes uint64
	Requested   uint64 // set in Pool.Segments alone
	Site        uint32 // that allocated it, 0 if unknown; set in Pool.Final alone
}

// maxSlots is the most blocks that may be live at once: a slot is 32 bits and
// Pool.Slots must be able to hold the count.
const maxSlots = math.MaxUint32
