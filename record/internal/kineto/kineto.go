// Package kineto reads traces of PyTorch's profiler, JSON as Chrome's viewer has it: kineto.go
// goes from the text to records, order.go puts them in the order of time, play.go makes the
// recording of them.
//
// With profile_memory=True each allocation and each free is an instant event
// (torch/csrc/profiler/collection.cpp, libkineto's output_json.cpp, 2021 to 2026):
//
//	{"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 5, "tid": 5, "ts": 1218.334,
//	 "args": {"Total Reserved": 0, "Total Allocated": 65536, "Bytes": 65536, "Device Id": -1, "Device Type": 0, "Addr": 94131793950784}}
//
// Bytes is negative for a free. Device Type is c10::DeviceType. What PyTorch was refused is
// an event "[OutOfMemory]" with the same arguments but Addr. Traces of 2021 have only the
// device and the bytes.
//
// A block's stack is made of the spans of the same thread that lie around its event:
//
//	{"ph": "X", "cat": "python_function", "name": "train.py(20): <module>", "pid": 5, "tid": 5, "ts": 1178.2, "dur": 632.5, "args": {...}}
//	{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 5, "tid": 5, "ts": 1210.1, "dur": 20, "args": {"Call stack": ...}}
//
// The first kind is there with with_stack=True. Traces of 2021 and 2022 have the lines of
// Python in an operation's argument "Call stack", the innermost first, parted by ';'.
//
// The backward pass may run in a thread without Python. Its operations have the "Sequence
// number" of the one of the forward pass that they belong to, and a "Fwd thread id" above 0, so
// the stack goes on with that one's.
//
// The events are in the order of threads and kinds, not of time. All others, most of a trace of
// a GPU, are passed over. Nothing but the records is kept, and those go to a file if they are
// many, so a trace of any length is read in the same memory.
package kineto

import (
	"bytes"
	"cmp"
	"math"
	"strconv"

	"gpumem/internal/input"
	"gpumem/record/internal/jsontext"
	"gpumem/record/internal/tape"
)

// Format is a trace of PyTorch's profiler.
var Format = tape.Format{Name: "kineto", What: "a trace of PyTorch's profiler with profile_memory=True, JSON", Looks: Looks, Read: read}

// Looks reports whether content begins as a trace for Chrome's viewer: an object with the
// member traceEvents, or the array of the events itself.
func Looks(head []byte) bool {
	head = bytes.TrimLeft(head, " \t\r\n")
	if rest, ok := bytes.CutPrefix(head, []byte("{")); ok {
		rest = bytes.TrimLeft(rest, " \t\r\n")
		// What Kineto writes in front of the events may be long.
		return bytes.HasPrefix(rest, []byte(`"schemaVersion"`)) || bytes.Contains(head, []byte(`"traceEvents"`))
	}
	rest, ok := bytes.CutPrefix(head, []byte("["))
	rest = bytes.TrimLeft(rest, " \t\r\n")
	return ok && bytes.HasPrefix(rest, []byte("{")) && bytes.Contains(rest[:min(len(rest), 1024)], []byte(`"ph"`))
}

// kind says what an event is, of those that are read.
type kind uint8

const (
	ignored kind = iota
	span
	memory
	refused
)

// event is what is read of one event.
type event struct {
	phase    byte
	category []byte
	name     []byte
	pid, tid int64
	begin    uint64 // in nanoseconds
	duration uint64
	stack    []byte // "Call stack"
	sequence int64  // "Sequence number"; -1 if there is none
	forward  int64  // "Fwd thread id": above 0 in the backward pass
	memoryArgs
}

type memoryArgs struct {
	deviceType, device int64
	bytes              int64
	addr               uint64
	allocated          uint64
	reserved           uint64
	has                uint8 // which of these are given
}

// Bits of memoryArgs.has.
const (
	hasBytes = 1 << iota
	hasAddr
	hasAllocated
	hasReserved
	hasDevice
)

// reader reads one trace.
type reader struct {
	s       *jsontext.Scanner
	in      *input.Reader
	b       *tape.Builder
	ev      event
	records *sorter
	play    *player
	threads map[thread]uint32

	events   bool // the member traceEvents was there
	ofXLA    bool // a trace of XLA's profiler, which has no memory events in any case
	unusable int  // memory events without bytes or a device
}

// thread is a thread of a process, whose number is that of the event's line.
type thread struct{ pid, tid int64 }

func read(in *input.Reader, b *tape.Builder) error {
	r := &reader{s: jsontext.New(in), in: in, b: b, threads: make(map[thread]uint32), play: newPlayer(in, b)}
	r.records = newSorter(b.Spool())
	defer r.records.close()
	if r.s.Peek() == '[' {
		r.list()
	} else {
		r.object()
	}
	if r.s.Err() == nil && !r.s.End() {
		r.s.Fail("damaged: the trace is at its end here, and more follows; copy the file again")
	}
	switch {
	case r.s.Err() != nil:
		return r.s.Err()
	case !r.events:
		return in.Fail(`JSON without the member "traceEvents", so no trace of PyTorch's profiler`)
	case r.play.count == 0 && r.ofXLA:
		return in.Fail("a Chrome trace of XLA's profiler, without memory events; the file NAME.xplane.pb beside it has them")
	case r.play.count == 0:
		return in.Fail("a Chrome trace without memory events; record with torch.profiler.profile(profile_memory=True, with_stack=True)")
	}
	r.play.unusable = r.unusable
	return r.play.run(r.records)
}

// object reads the trace that is an object. Its other members are about the program and the
// machine.
func (r *reader) object() {
	for r.s.Enter('{'); r.s.More(); {
		switch string(r.s.Key()) {
		case "traceEvents":
			r.list()
		case "metadata":
			r.metadata()
		default:
			r.s.Skip()
		}
	}
}

// metadata notes XLA's profiler by the member that it alone writes.
func (r *reader) metadata() {
	if r.s.Peek() != '{' {
		r.s.Skip()
		return
	}
	for r.s.Enter('{'); r.s.More(); r.s.Skip() {
		r.ofXLA = r.ofXLA || string(r.s.Key()) == "highres-ticks"
	}
}

// list reads the events.
func (r *reader) list() {
	r.events = true
	for r.s.Enter('['); r.s.More(); {
		if r.s.Peek() != '{' {
			r.s.Skip()
			continue
		}
		r.event()
		r.keep()
		r.s.Stop(cmp.Or(r.records.err, r.play.err))
	}
}

// event reads an event into r.ev.
func (r *reader) event() {
	ev := &r.ev
	*ev = event{category: ev.category[:0], name: ev.name[:0], stack: ev.stack[:0], sequence: -1}
	for r.s.Enter('{'); r.s.More(); {
		switch string(r.s.Key()) {
		case "ph":
			if text := r.scalar(); len(text) == 1 {
				ev.phase = text[0]
			}
		case "cat":
			ev.category = append(ev.category, r.scalar()...)
		case "name":
			ev.name = append(ev.name, r.scalar()...)
		case "pid":
			r.signed(&ev.pid, 0)
		case "tid":
			r.signed(&ev.tid, 0)
		case "ts":
			ev.begin = nanoseconds(r.scalar())
		case "dur":
			ev.duration = nanoseconds(r.scalar())
		case "args":
			r.args()
		default:
			r.s.Skip()
		}
	}
}

// args reads the arguments of an event. The event's name may come behind them.
func (r *reader) args() {
	if r.s.Peek() != '{' {
		r.s.Skip()
		return
	}
	a := &r.ev.memoryArgs
	for r.s.Enter('{'); r.s.More(); {
		switch string(r.s.Key()) {
		case "Bytes":
			r.signed(&a.bytes, hasBytes)
		case "Addr":
			r.unsigned(&a.addr, hasAddr)
		case "Total Allocated":
			r.unsigned(&a.allocated, hasAllocated)
		case "Total Reserved":
			r.unsigned(&a.reserved, hasReserved)
		case "Device Type":
			r.signed(&a.deviceType, hasDevice)
		case "Device Id":
			r.signed(&a.device, 0)
		case "name": // of a process: XLA's are planes
			name := r.scalar()
			r.ofXLA = r.ofXLA || bytes.HasPrefix(name, []byte("/host:")) || bytes.HasPrefix(name, []byte("/device:"))
		case "Sequence number":
			r.signed(&r.ev.sequence, 0)
		case "Fwd thread id":
			r.signed(&r.ev.forward, 0)
		case "Call stack":
			r.ev.stack = append(r.ev.stack, r.scalar()...)
		default:
			r.s.Skip()
		}
	}
}

// scalar reads a value that should be one number or text. An operation may have arguments of
// any name and shape: what is neither is passed over.
func (r *reader) scalar() []byte {
	if c := r.s.Peek(); c == '{' || c == '[' {
		r.s.Skip()
		return nil
	}
	return r.s.Scalar()
}

// signed reads an argument; bit notes that it was there.
func (r *reader) signed(to *int64, bit uint8) {
	if n, err := strconv.ParseInt(string(r.scalar()), 10, 64); err == nil {
		*to = n
		r.ev.has |= bit
	}
}

// unsigned reads an argument; bit notes that it was there.
func (r *reader) unsigned(to *uint64, bit uint8) {
	if n, ok := input.Decimal(r.scalar()); ok {
		*to = n
		r.ev.has |= bit
	}
}

// kindOf says what an event is.
func (ev *event) kindOf() kind {
	switch ev.phase {
	case 'X':
		switch string(ev.category) {
		case "python_function", "cpu_op", "Operator":
			return span
		case "user_annotation": // of the program; the profiler's own has the number of the step
			if !bytes.HasPrefix(ev.name, []byte("ProfilerStep#")) {
				return span
			}
		}
	case 'i':
		switch string(ev.name) {
		case "[memory]":
			return memory
		case "[OutOfMemory]":
			return refused
		}
	}
	return ignored
}

// keep makes a record of an event that is read.
func (r *reader) keep() {
	ev := &r.ev
	kind := ev.kindOf()
	if kind == ignored || r.s.Err() != nil {
		return
	}
	rec := record{begin: ev.begin, thread: r.thread(ev.pid, ev.tid), kind: kind}
	if kind == span {
		rec.end = ev.begin + ev.duration
		rec.of = r.play.frames(ev.name, ev.stack)
		rec.sequence, rec.backward = uint64(ev.sequence+1), ev.forward > 0
		r.records.add(&rec)
		return
	}
	if ev.has&hasBytes == 0 || ev.has&hasDevice == 0 {
		r.unusable++
		return
	}
	pool, ok := r.play.pool(poolKey{ev.pid, ev.deviceType, ev.device})
	if !ok {
		r.s.Fail("memory events of more than %d devices; the trace is damaged", maxPools)
		return
	}
	rec.of, rec.bytes, rec.addr, rec.allocated, rec.reserved, rec.has = pool, ev.bytes, ev.addr, ev.allocated, ev.reserved, ev.has
	r.play.count++
	r.records.add(&rec)
}

// thread returns the number of a thread.
func (r *reader) thread(pid, tid int64) uint32 {
	key := thread{pid, tid}
	n, ok := r.threads[key]
	if !ok {
		n = uint32(len(r.threads))
		r.threads[key] = n
		r.play.processes = append(r.play.processes, pid)
		r.play.take(bytesOfThread)
	}
	return n
}

// bytesOfThread is what a thread takes, with about as many open spans as Python's have.
const bytesOfThread = 2 << 10

// nanoseconds reads a time in microseconds, with up to three digits behind the point as
// PyTorch writes them: exactly, which a float of 64 bits could not be since 1970. What is no
// time from 0 on is 0. A time is below 1<<63, so that a begin and a duration can be added.
func nanoseconds(text []byte) uint64 {
	micros, rest, ok := input.Digits(text)
	if !ok || len(rest) > 0 && rest[0] != '.' || micros >= math.MaxInt64/1000 {
		return roughly(text)
	}
	ns := micros * 1000
	for i, unit := 1, uint64(100); i < len(rest); i, unit = i+1, unit/10 {
		d := rest[i] - '0'
		if d > 9 {
			return roughly(text)
		}
		ns += uint64(d) * unit
	}
	return ns
}

// roughly reads a time that is written as floats are.
func roughly(text []byte) uint64 {
	us, err := strconv.ParseFloat(string(text), 64)
	if err != nil || !(us > 0) {
		return 0
	}
	return uint64(min(us*1000, math.MaxInt64/2))
}
