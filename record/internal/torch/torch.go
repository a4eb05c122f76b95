// Package torch reads PyTorch's memory snapshots: torch.go goes from the pickle's tree to
// a list of events and a set of active blocks per device, play.go makes the recording of
// those, start.go what the pool held at its first event, trim.go when the program emptied
// the cache.
//
// A snapshot is a dict with two parts that matter:
//
//	segments       what the allocator holds when the snapshot is taken, block
//	               by block
//	device_traces  for each device the last events, oldest first; a ring
//	               buffer, so what came before is lost
//
// Its layout changed over the years; all are read:
//
//	2023  a block has no address: it is the segment's address plus the sizes
//	      of the blocks before it. Its stack is in history[0], newest first.
//	2025  a block has an address and frames.
//	2026  events have user_metadata, which is not used.
//
// Recordings of gpumem's own recorders have one key more, keepers.go.
//
// Sizes are those that the program requested: size of an event,
// requested_size of a block. A bare list of segments, as
// torch.cuda.memory_snapshot returns it, is read as a snapshot without events.
//
// # One case
//
// The last events of device 0 are a free_completed of 0x100 with 512 bytes and an alloc of
// 0x200 with 1000 bytes. The segments have two active blocks: 0x200, and 0x300 with 2000
// bytes. So 0x100 lived before the first event, which is known from its free, and so did
// 0x300, which no event touches. The recording of the pool cuda:0 begins with these two
// blocks, in the order of their addresses, and then has the two events. After them 0x200
// and 0x300 are live, as in the segments.
package torch

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"gpumem/internal/input"
	"gpumem/record/internal/tape"
)

// Format is a memory snapshot of PyTorch.
var Format = tape.Format{Name: "torch", What: "a pickle of torch.cuda.memory._dump_snapshot", Looks: looksPickled, Read: read}

// looksPickled: opcode PROTO (0x80) and a protocol number. Protocol 2 is the
// first that begins so; 5 is the newest (PEP 574).
func looksPickled(head []byte) bool {
	return len(head) >= 2 && head[0] == 0x80 && head[1] >= 2 && head[1] <= 5
}

// action is what an event does, as far as it matters here.
type action uint8

const (
	skipped action = iota
	allocated
	freeRequested
	freeCompleted
	outOfMemory
	segmentAllocated
	segmentFreed
	segmentMapped
	segmentUnmapped
)

// actions has every action that is known. Those of segments are for start.go and trim.go;
// otherwise a replay has its own allocator.
var actions = map[string]action{
	"alloc":          allocated,
	"free_requested": freeRequested,
	"free_completed": freeCompleted,
	"oom":            outOfMemory,
	"segment_alloc":  segmentAllocated,
	"segment_free":   segmentFreed,
	"segment_map":    segmentMapped,
	"segment_unmap":  segmentUnmapped,
	"snapshot":       skipped,
}

// event is one event that matters.
type event struct {
	addr   uint64 // of outOfMemory: the free bytes of the device
	size   uint64
	time   int64 // microseconds; 0 or less = not given
	stream uint32
	site   uint32
	action action
}

// block is a block that lived at some time: active in a segment, or freed
// by an event without its allocation.
type block struct {
	addr   uint64
	size   uint64
	stream uint32
	site   uint32
}

// device is all that the snapshot has about one device, and its state while its events
// are played.
type device struct {
	index   int64
	events  []event
	active  map[uint64]block // in the segments, by address
	streams map[int64]uint32 // dense stream numbers
	unknown int              // events with an action that is not known
	strange string           // the first such action
	doubled int              // active blocks that share an address
	timed   bool             // every event has a time

	sizes    map[uint64]uint64 // of active blocks with what they were rounded up to, by address
	maxSplit bool              // as in reader
	foreign  bool              // some segments lack what must be known of them
	changed  []change          // segments that came and went, between the events
	final    []tape.Segment    // at the end, with their blocks
	damaged  bool              // a segment lacks its size or overlaps another

	privates map[[2]int64]uint32 // numbers of private pools, by their ids
	served   []tape.Private      // which of them serve the events, by number in events

	keepers map[uint64]*kept // of the blocks at the end, by address

	pool    *tape.PoolBuilder
	blocks  *tape.Blocks
	pending map[uint64]uint64   // live blocks whose free is requested: how many events came before
	awaited map[uint64]struct{} // blocks of the segments that wait for a stream
	asked   bool                // some event requests a free
	waits   []tape.Wait
	older   map[uint64]struct{} // addresses of seeds that are not freed yet
	next    int                 // next event

	held   uint64 // bytes in segments after the events so far
	trims  []int  // events before which the program emptied the cache
	seeds  []block
	unseen int     // seeds that are known from their free
	late   []block // active at the end, allocated after the last event
	lost   int     // live after the last event, not active
}

// reader walks the tree of one snapshot.
type reader struct {
	in      *input.Reader
	b       *tape.Builder
	stacks  *stacks
	devices map[int64]*device
	// seen guards against a small pickle whose lists are one list many times
	// over: what is walked from two places is walked once.
	seen map[any]bool
	// served reports that no request was repeated after PyTorch had emptied its cache. The
	// snapshots of gpumem fit say so, in the words of memory_stats.
	served bool
	// maxSplit reports that large blocks are not split, so that they do not serve smaller requests.
	maxSplit bool
}

// read reads a whole snapshot into b.
func read(in *input.Reader, b *tape.Builder) error {
	if head, _ := in.Head(); !looksPickled(head) {
		return in.Fail("is not a pickle of protocol 2 to 5, so not a PyTorch snapshot")
	}
	tree, more, err := unpickle(in)
	if err != nil {
		return err
	}
	// Reading on to the end lets gzip check its sum.
	_, err = in.Content().Peek(1)
	if err != nil && err != io.EOF {
		return err
	}
	if more || err == nil {
		b.Note("what follows the end of the pickle was not read")
	}
	return readTree(tree, in, b)
}

// readTree reads the tree of a snapshot into b.
func readTree(tree any, in *input.Reader, b *tape.Builder) error {
	t := &reader{
		in:      in,
		b:       b,
		stacks:  newStacks(b),
		devices: make(map[int64]*device),
		seen:    make(map[any]bool),
	}
	if err := t.snapshot(tree); err != nil {
		return err
	}
	if top, ok := tree.(*dict); ok {
		v, _ := top.get(keepersKey)
		t.keepers(v)
	}
	devices := make([]*device, 0, len(t.devices))
	for _, d := range t.devices {
		devices = append(devices, d)
	}
	slices.SortFunc(devices, func(x, y *device) int { return cmp.Compare(x.index, y.index) })
	return play(b, devices, t.served)
}

// fail is bad input at a place in the tree, such as "segments[3]".
func (t *reader) fail(place, format string, args ...any) error {
	return t.in.Fail("%s: %s", place, fmt.Sprintf(format, args...))
}

// snapshot walks the top of the tree.
func (t *reader) snapshot(tree any) error {
	segments := tree
	if top, ok := tree.(*dict); ok {
		retries, _ := top.get("num_alloc_retries")
		t.served = retries == int64(0)
		set, _ := top.get("allocator_settings")
		text := settings(set)
		t.b.Settings(text)
		t.maxSplit = strings.Contains(text, "max_split_size_mb")
		traces, hasTraces := top.get("device_traces")
		var hasSegments bool
		segments, hasSegments = top.get("segments")
		if !hasTraces && !hasSegments {
			return t.fail("the pickle", "has neither %q nor %q, so it is not a PyTorch memory snapshot", "segments", "device_traces")
		}
		if err := t.traces(traces); err != nil {
			return err
		}
	}
	if segments == nil {
		return nil
	}
	l, ok := segments.(*list)
	if !ok {
		return t.fail("segments", "is not a list, so this is not a PyTorch memory snapshot")
	}
	for i, v := range l.items {
		if err := t.in.Stopped(); err != nil {
			return err
		}
		if err := t.segment(fmt.Sprintf("segments[%d]", i), v); err != nil {
			return err
		}
	}
	return nil
}

// once reports whether v, a *list or *dict, comes for the first time.
func (t *reader) once(v any) bool {
	if t.seen[v] {
		return false
	}
	t.seen[v] = true
	return true
}

// maxDevices bounds what a damaged snapshot can ask for: a pool has buffers.
// PyTorch itself is compiled for at most 120 devices
// (C10_COMPILE_TIME_MAX_GPUS).
const maxDevices = 256

// device returns the device of an index, new if need be; nil if there are too
// many.
func (t *reader) device(index int64) *device {
	d := t.devices[index]
	if d == nil && len(t.devices) < maxDevices {
		d = &device{
			index:    index,
			active:   make(map[uint64]block),
			sizes:    make(map[uint64]uint64),
			awaited:  make(map[uint64]struct{}),
			privates: make(map[[2]int64]uint32),
			streams:  map[int64]uint32{0: 0}, // the default stream is handle 0
			maxSplit: t.maxSplit,
			timed:    true,
		}
		t.devices[index] = d
	}
	return d
}

// stream returns the dense number of a stream handle.
func (d *device) stream(handle int64) uint32 {
	n, ok := d.streams[handle]
	if !ok {
		n = uint32(len(d.streams))
		d.streams[handle] = n
	}
	return n
}

// traces walks device_traces, a list of events for each device index.
func (t *reader) traces(v any) error {
	if v == nil {
		return nil
	}
	l, ok := v.(*list)
	if !ok {
		return t.fail("device_traces", "is not a list, so this is not a PyTorch memory snapshot")
	}
	for i, v := range l.items {
		place := fmt.Sprintf("device_traces[%d]", i)
		events, ok := v.(*list)
		if !ok {
			return t.fail(place, "is not a list of events")
		}
		if len(events.items) == 0 {
			continue
		}
		if !t.once(events) {
			return t.fail(place, "is the same list as an earlier one; the snapshot is damaged")
		}
		d := t.device(int64(i))
		if d == nil {
			return t.fail(place, "the snapshot has more than %d devices; it is damaged", maxDevices)
		}
		for k, v := range events.items {
			if k%4096 == 0 {
				if err := t.in.Stopped(); err != nil {
					return err
				}
			}
			if msg := t.event(d, v); msg != "" {
				return t.fail(fmt.Sprintf("%s[%d]", place, k), "%s", msg)
			}
		}
	}
	return nil
}

// event adds one event to d, or returns what is wrong with it.
func (t *reader) event(d *device, v any) string {
	ev, ok := v.(*dict)
	if !ok {
		return "is not an event"
	}
	name := stringField(ev, "action")
	what, known := actions[name]
	if !known {
		if d.unknown == 0 {
			d.strange = name
		}
		d.unknown++
		return ""
	}
	switch what {
	case skipped:
		return ""
	case segmentAllocated, segmentFreed, segmentMapped, segmentUnmapped:
		d.segmentEvent(t, ev, what)
		return ""
	}
	e := event{action: what}
	addrKey := "addr"
	if e.action == outOfMemory {
		addrKey = "device_free"
	}
	if e.addr, ok = addressField(ev, addrKey); !ok && e.action != outOfMemory {
		return fmt.Sprintf("the %s has no address %q that is a 64-bit number", name, addrKey)
	}
	if e.size, ok = sizeField(ev, "size"); !ok {
		return fmt.Sprintf("the %s has no %q that is a number of bytes below 2^64", name, "size")
	}
	e.stream = d.stream(intField(ev, "stream"))
	e.time = intField(ev, "time_us")
	d.timed = d.timed && e.time > 0 && e.time <= math.MaxInt64/1000
	if e.action != freeRequested {
		frames, _ := ev.get("frames")
		e.site = t.stacks.site(frames)
	}
	d.events = append(d.events, e)
	return ""
}

// segment adds the active blocks of one segment to its device.
func (t *reader) segment(place string, v any) error {
	seg, ok := v.(*dict)
	if !ok {
		return t.fail(place, "is not a segment")
	}
	if !t.once(seg) {
		return t.fail(place, "is the same as an earlier one; the snapshot is damaged")
	}
	index := intField(seg, "device")
	if index < 0 {
		return t.fail(place, "the device number %d is negative", index)
	}
	d := t.device(index)
	if d == nil {
		return t.fail(place, "the snapshot has more than %d devices; it is damaged", maxDevices)
	}
	addr, ok := addressField(seg, "address")
	if !ok {
		return t.fail(place, "has no %q that is a 64-bit number", "address")
	}
	blocks, _ := seg.get("blocks")
	l, ok := blocks.(*list)
	if !ok {
		return t.fail(place, "has no list of %q", "blocks")
	}
	if len(l.items) > 0 && !t.once(l) {
		return t.fail(place, "has the same blocks as an earlier one; the snapshot is damaged")
	}
	stream := d.stream(intField(seg, "stream"))
	d.addSegment(seg, addr, stream)
	for i, v := range l.items {
		blk, ok := v.(*dict)
		if !ok {
			return t.fail(place, "blocks[%d] is not a block", i)
		}
		size, ok := sizeField(blk, "size")
		if !ok {
			return t.fail(place, "blocks[%d] has no %q that is a number of bytes below 2^64", i, "size")
		}
		if a, ok := addressField(blk, "address"); ok {
			addr = a
		}
		if isActive(stringField(blk, "state")) {
			d.sizes[addr] = size
			b := t.block(blk, addr, size, stream)
			if stringField(blk, "state") != "active_allocated" {
				d.awaited[addr] = struct{}{}
			}
			d.addActive(b)
			d.addSegmentBlock(b, size)
		}
		addr += size
	}
	return nil
}

// isActive: the states of a block that belongs to the program, or whose free
// waits for a stream. The third name is that of snapshots since 2023; the other
// state is "inactive".
func isActive(state string) bool {
	return state == "active_allocated" || state == "active_pending_free" || state == "active_awaiting_free"
}

func (d *device) addActive(b block) {
	if _, ok := d.active[b.addr]; ok {
		d.doubled++
		return
	}
	d.active[b.addr] = b
}

// block reads an active block. Its request is requested_size; before that
// existed, the size in its history; else the rounded size.
func (t *reader) block(blk *dict, addr, size uint64, stream uint32) block {
	b := block{addr: addr, size: size, stream: stream}
	frames, _ := blk.get("frames")
	if v, _ := blk.get("history"); v != nil {
		if l, ok := v.(*list); ok && len(l.items) > 0 {
			if newest, ok := l.items[0].(*dict); ok {
				if n, ok := sizeField(newest, "real_size"); ok {
					b.size = n
				}
				if frames == nil {
					frames, _ = newest.get("frames")
				}
			}
		}
	}
	if n, ok := sizeField(blk, "requested_size"); ok {
		b.size = n
	}
	b.site = t.stacks.site(frames)
	return b
}
