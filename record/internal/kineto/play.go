package kineto

// The player, which makes a recording of the records: a pool a device, with the stack that each
// thread has at an event.
//
// A trace covers a part of a run. What a pool held before it is Total Allocated less the first
// event's bytes. Some of those blocks are freed in the trace and so known; the rest is one
// block, since how many they are is not known.
//
// Total Allocated also shows whether the trace is whole: from one event of a pool to the next
// it moves by the bytes of the event.

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"gpumem/internal/input"
	"gpumem/record/internal/tape"
	"gpumem/size"
)

// maxPools bounds what a damaged trace can ask for.
const maxPools = 1024

// poolKey names a pool. Traces of several processes may be merged into one.
type poolKey struct{ pid, deviceType, device int64 }

// player makes the recording.
type player struct {
	in       *input.Reader
	b        *tape.Builder
	pools    []*poolPlayer
	byKey    map[poolKey]uint32
	count    int // of memory events
	unusable int
	places   []place
	byText   map[string]uint32 // places
	text     []byte
	open     map[uint32]*openSpans
	err      error

	processes []int64                // of the threads, by number
	forward   map[operation][]uint32 // the stacks of operations of the forward pass
	stacks    map[string][]uint32    // each of these once
	link      uint32                 // the frame between the two passes
}

// operation is one of the forward pass, by its number.
type operation struct {
	process  int64
	sequence uint64
}

// maxForward is how many operations of the forward pass are remembered: more than a step has.
// When they are more, all are forgotten.
const maxForward = 1 << 18

// place is what a span adds to a stack: its own name, and what the trace says is below it.
type place struct {
	frame  uint32
	below  []uint32
	python bool // it is, or has, a line of Python
}

// poolPlayer is one pool.
type poolPlayer struct {
	poolKey
	out    *tape.PoolBuilder
	blocks *tape.Blocks
	live   map[uint64][]uint32 // slots by size, of blocks without addresses

	before   uint64 // Total Allocated before the first event
	held     uint64 // and after the latest
	counted  bool   // it is known
	reserved uint64
	steps    int // of Total Allocated
	wrong    int // that were not the bytes of the event
}

func newPlayer(in *input.Reader, b *tape.Builder) *player {
	return &player{
		in: in, b: b, byKey: make(map[poolKey]uint32), byText: make(map[string]uint32), open: make(map[uint32]*openSpans),
		forward: make(map[operation][]uint32), stacks: make(map[string][]uint32),
	}
}

// take counts memory.
func (p *player) take(n int64) {
	if p.err == nil {
		p.err = p.in.Take(n)
	}
}

// pool returns the number of a pool; false if there are too many.
func (p *player) pool(key poolKey) (uint32, bool) {
	n, ok := p.byKey[key]
	if ok || len(p.pools) == maxPools {
		return n, ok
	}
	n = uint32(len(p.pools))
	p.byKey[key] = n
	p.pools = append(p.pools, &poolPlayer{poolKey: key, live: make(map[uint64][]uint32)})
	return n, true
}

// deviceTypes are the names of c10::DeviceType that have memory which PyTorch allocates.
var deviceTypes = map[int64]string{
	0: "cpu", 1: "cuda", 6: "hip", 9: "xla", 12: "xpu", 13: "mps", 15: "hpu", 19: "mtia", 20: "privateuseone",
}

// onHost reports whether the device is the host's memory.
func (k poolKey) onHost() bool { return k.deviceType == 0 }

// name returns what PyTorch calls the device.
func (k poolKey) name() string {
	name, ok := deviceTypes[k.deviceType]
	if !ok {
		name = fmt.Sprintf("device type %d", k.deviceType)
	}
	if k.device >= 0 {
		name += fmt.Sprintf(":%d", k.device)
	}
	return name
}

// placeBytes is what a place needs in memory.
const placeBytes = 150

// frames returns the number of a span's place by its name and the stack that the trace has
// for it. The name of a built-in function has the address of an object, which tells no place.
func (p *player) frames(name, stack []byte) uint32 {
	name = withoutAddresses(name)
	p.text = append(append(append(p.text[:0], name...), 0), stack...)
	n, ok := p.byText[string(p.text)]
	if ok {
		return n
	}
	p.take(int64(placeBytes + len(p.text)))
	n = uint32(len(p.places))
	p.byText[string(p.text)] = n
	at := place{}
	at.frame, at.python = p.frame(name)
	for line := range bytes.SplitSeq(stack, []byte(";")) {
		if line = bytes.TrimSpace(line); len(line) > 0 {
			frame, _ := p.frame(line)
			at.below, at.python = append(at.below, frame), true
		}
	}
	p.places = append(p.places, at)
	return n
}

// withoutAddresses cuts each " at 0x7fb95517f5c0" out of a name, which it changes.
func withoutAddresses(name []byte) []byte {
	const before = " at 0x"
	for from := 0; ; {
		at := bytes.Index(name[from:], []byte(before))
		if at < 0 {
			return name
		}
		from += at
		end := from + len(before)
		for end < len(name) && (name[end]-'0' <= 9 || name[end]-'a' <= 5) {
			end++
		}
		name = append(name[:from], name[end:]...)
	}
}

// frame returns the frame of a name, "file(line): function" or any other, and reports which.
func (p *player) frame(text []byte) (frame uint32, python bool) {
	if place, function, ok := bytes.Cut(text, []byte("): ")); ok {
		if at := bytes.LastIndexByte(place, '('); at > 0 {
			if line, ok := input.Decimal(place[at+1:]); ok {
				return p.b.Frame(string(function), string(place[:at]), int64(line)), true
			}
		}
	}
	return p.b.Frame(string(text), "", 0), false
}

// openSpans are the spans of one thread that are not over, in the order in which they began.
// They need not lie within each other: one that the program opens with record_function begins
// in the call that opens it, and outlives that.
type openSpans struct {
	spans []openSpan
	least uint64 // no span ends earlier
	site  uint32
	known bool // site is that of the spans
}

type openSpan struct {
	end     uint64
	of      uint32
	forward []uint32 // the stack of what it is the backward pass of; nil for none
}

// maxOpen is how many open spans of a thread are kept, the innermost.
const maxOpen = 4096

// open adds a span.
func (o *openSpans) open(s openSpan) {
	o.least = min(o.least, s.end)
	if len(o.spans) == maxOpen {
		o.spans = o.spans[:copy(o.spans, o.spans[maxOpen/2:])]
	}
	o.spans = append(o.spans, s)
	o.known = false
}

// close takes out the spans that ended before a time.
func (o *openSpans) close(now uint64) {
	if o.least >= now {
		return
	}
	o.spans = slices.DeleteFunc(o.spans, func(s openSpan) bool { return s.end < now })
	o.least = math.MaxUint64
	for _, s := range o.spans {
		o.least = min(o.least, s.end)
	}
	o.known = false
}

// run makes the recording.
func (p *player) run(records *sorter) error {
	sorted := slices.Clone(p.pools)
	// GPUs first; processes one after the other.
	slices.SortFunc(sorted, func(x, y *poolPlayer) int {
		switch {
		case x.onHost() && !y.onHost():
			return 1
		case y.onHost() && !x.onHost():
			return -1
		}
		return cmp.Or(cmp.Compare(x.deviceType, y.deviceType), cmp.Compare(x.device, y.device), cmp.Compare(x.pid, y.pid))
	})
	names := make(map[string]int)
	for _, pool := range sorted {
		names[pool.name()]++
	}
	for _, pool := range sorted {
		name := pool.name()
		if names[name] > 1 {
			name += fmt.Sprintf(" of process %d", pool.pid)
		}
		pool.out = p.b.Pool(name)
		if pool.blocks = pool.out.Blocks(true); pool.onHost() {
			pool.blocks.OnHost()
		}
	}
	if err := records.each(p.record); err != nil {
		return err
	}
	for _, pool := range sorted {
		pool.notes()
		if err := pool.rest(p.b); err != nil {
			return err
		}
	}
	if n := p.unusable; n > 0 {
		p.b.Note("%s without a device or bytes; skipped", size.Count(n, "memory event"))
	}
	return nil
}

// record plays one record.
func (p *player) record(r *record) error {
	thread := p.open[r.thread]
	if thread == nil {
		thread = &openSpans{least: math.MaxUint64}
		p.open[r.thread] = thread
	}
	if r.kind == span {
		thread.close(r.begin + 1) // what ends where the next begins is not around it
		s := openSpan{end: r.end, of: r.of}
		if r.backward {
			s.forward = p.forward[operation{p.processes[r.thread], r.sequence}]
		}
		thread.open(s)
		if r.sequence > 0 && !r.backward {
			p.remember(operation{p.processes[r.thread], r.sequence}, thread.spans)
		}
		return p.err
	}
	thread.close(r.begin)
	if !thread.known {
		thread.site, thread.known = p.site(thread.spans), true
	}
	p.b.At(r.begin)
	return p.pools[r.of].event(r, thread.site)
}

// remember notes the stack of an operation of the forward pass. Of several with one number the
// last is the one that the backward pass belongs to, as PyTorch has it.
func (p *player) remember(op operation, spans []openSpan) {
	if len(p.forward) == maxForward {
		clear(p.forward)
	}
	stack, _, _ := p.stack(spans)
	p.text = p.text[:0]
	for _, frame := range stack {
		p.text = binary.LittleEndian.AppendUint32(p.text, frame)
	}
	known, ok := p.stacks[string(p.text)]
	if !ok {
		p.take(int64(96 + 8*len(stack)))
		known = stack
		p.stacks[string(p.text)] = stack
	}
	p.forward[op] = known
}

// stack returns the frames of open spans, the innermost first, reports whether a line of Python
// is among them, and returns the stack of what the innermost is the backward pass of.
func (p *player) stack(spans []openSpan) (stack []uint32, python bool, forward []uint32) {
	stack = make([]uint32, 0, min(len(spans)+8, tape.MaxFrames))
	var below []uint32
	for _, s := range slices.Backward(spans) {
		at := &p.places[s.of]
		if stack = append(stack, at.frame); len(stack) == tape.MaxFrames {
			return stack, true, nil
		}
		if below == nil {
			below = at.below
		}
		python = python || at.python
		if forward == nil {
			forward = s.forward
		}
	}
	return append(stack, below[:min(len(below), tape.MaxFrames-len(stack))]...), python, forward
}

// site returns the site of open spans.
func (p *player) site(spans []openSpan) uint32 {
	if len(spans) == 0 {
		return 0
	}
	stack, python, forward := p.stack(spans)
	if !python && len(forward) > 0 {
		if p.link == 0 {
			p.link = p.b.Frame("in the backward pass of", "", 0)
		}
		stack = append(append(stack, p.link), forward...)
		stack = stack[:min(len(stack), tape.MaxFrames)]
	}
	return p.b.Stack(stack)
}

// event plays a memory event.
func (p *poolPlayer) event(r *record, site uint32) error {
	if r.has&hasReserved != 0 && !p.onHost() {
		p.reserve(r.reserved)
	}
	ev := tape.Event{Bytes: uint64(max(r.bytes, -r.bytes)), Site: site}
	if r.kind == refused {
		return p.blocks.Refuse(ev, fmt.Sprint("event ", p.out.Events()+1), 0)
	}
	p.count(r)
	switch {
	case r.bytes == 0:
		return nil
	case r.has&hasAddr == 0:
		return p.withoutAddress(r, ev)
	case r.bytes > 0:
		return p.blocks.Alloc(r.addr, ev)
	}
	return p.blocks.Free(r.addr, ev)
}

// reserve notes what the pool holds from its device.
func (p *poolPlayer) reserve(bytes uint64) {
	if p.out.Events() > 0 && bytes == p.reserved {
		return
	}
	p.out.Reserved(bytes)
	p.reserved = bytes
}

// count follows Total Allocated.
func (p *poolPlayer) count(r *record) {
	if r.has&hasAllocated == 0 {
		p.counted = false
		return
	}
	switch {
	case p.counted:
		p.steps++
		if r.allocated-p.held != uint64(r.bytes) {
			p.wrong++
		}
	case p.out.Events() == 0:
		if before := r.allocated - uint64(r.bytes); before < 1<<62 { // not below 0
			p.before = before
		}
	}
	p.held, p.counted = r.allocated, true
}

// withoutAddress plays an event of a trace of 2021. Which block is freed is not known, only
// its size: the youngest of that size.
func (p *poolPlayer) withoutAddress(r *record, ev tape.Event) error {
	slots := p.live[ev.Bytes]
	if r.bytes > 0 {
		slot, err := p.out.Alloc(ev, 0)
		p.live[ev.Bytes] = append(slots, slot)
		return err
	}
	if n := len(slots) - 1; n >= 0 {
		p.live[ev.Bytes] = slots[:n]
		ev.Slot = slots[n]
		return p.out.Free(ev)
	}
	slot, err := p.out.Older(0, tape.Event{Bytes: ev.Bytes})
	if err != nil {
		return err
	}
	ev.Slot = slot
	return p.out.Free(ev)
}

// rest adds what the pool held before the recording, and did not free in it.
func (p *poolPlayer) rest(b *tape.Builder) error {
	known := p.out.OlderBytes()
	if p.before <= known {
		return nil
	}
	bytes := p.before - known
	p.out.Note("%s is live when the recording begins and is not freed in it; allocated at its start as one block", size.Format(bytes))
	_, err := p.out.Older(0, tape.Event{Bytes: bytes, Site: b.Site([]byte(tape.Rest))})
	return err
}

// notes adds what was assumed.
func (p *poolPlayer) notes() {
	if len(p.live) > 0 {
		p.out.Note("the events have no addresses, as PyTorch wrote them until 2021; a free is taken for the youngest block of its size")
	}
	if p.wrong > 0 {
		p.out.Note("%d of %s of Total Allocated %s not the bytes of the event: events are missing or out of order",
			p.wrong, size.Count(p.steps, "step"), size.Are(p.wrong))
	}
	p.blocks.Notes()
}
