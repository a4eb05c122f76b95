package load

// XLA's own buffer assignment: the message BufferAssignmentProto of xla/service/hlo.proto. It
// has the memory of a compiled module to the byte. --xla_dump_to with
// --xla_dump_hlo_as_proto writes it beside the module, in one HloProto; JAX hands it out by
// itself (compiled.memory_analysis().serialized_buffer_assignment_proto).
//
// An allocation is a piece of memory that is there for the whole run. Logical buffers are the
// values that lie in it, some of them one after the other in the same place.

import (
	"errors"
	"fmt"
	"iter"

	"google.golang.org/protobuf/encoding/protowire"
)

// ErrNoAssignment is the error of input without a buffer assignment.
var ErrNoAssignment = errors.New("xla/internal/load: neither a BufferAssignmentProto, nor an HloProto with one in it")

// An Assignment is the memory of a compiled module as XLA assigned it.
type Assignment struct {
	Allocations []Allocation
	// Text reports whether it was read from XLA's text, whose values have names and shapes,
	// and no times.
	Text bool
}

// An Allocation is memory that lies there for the whole run.
type Allocation struct {
	Bytes uint64
	// Space is the memory space: see [hlo.Shape.Space].
	Space uint64
	// At most one of the first three is set, and Parameter may be LiveOut, too. Without
	// any of the four it is for temporaries.
	Parameter, Constant bool // of the entry
	ThreadLocal         bool // in the registers of a thread: no memory of the device
	LiveOut             bool // a result lies in it
	Aliased             bool // a parameter whose memory a result has
	Number              int  // of the parameter
	// Buffers are the values that lie in it at any time. Peak are those that do when the most
	// does, as far as the file says.
	Buffers, Peak []Buffer

	largest *logical // in it
}

// Temporary reports whether an allocation is for values that neither come in nor go out.
func (a *Allocation) Temporary() bool {
	return !a.Parameter && !a.Constant && !a.ThreadLocal && !a.LiveOut
}

// A Buffer is a value in an allocation.
type Buffer struct {
	// Instruction computes it, as far as the module is known: "" otherwise. Index is the
	// part of its result.
	Instruction string
	Index       []int
	Shape       string // as XLA writes it, of an assignment in text alone
	Bytes       uint64
	Offset      uint64 // in the allocation

	id int64 // of the instruction
}

// Fields of BufferAssignmentProto and, of what is in it, LogicalBufferProto with its Location,
// BufferAllocationProto with Assigned, PeakBuffers, and HeapSimulatorTrace with Event.
const (
	assignmentLogicalBuffers, assignmentBufferAllocations, assignmentHeapSimulatorTraces, assignmentPeakBuffers no = 1, 3, 4, 5

	bufferID, bufferSize, bufferDefinedAt, locationInstructionName, locationShapeIndex, locationInstructionID no = 1, 2, 3, 2, 3, 4

	allocationSize, allocationIsThreadLocal, allocationIsEntryComputationParameter no = 2, 3, 5
	allocationParameterNumber, allocationMaybeLiveOut, allocationColor             no = 6, 7, 8
	allocationAssigned, allocationIsConstant                                       no = 9, 12
	allocationIsParameterAliasedWithOutput                                         no = 13
	assignedLogicalBufferID, assignedOffset, assignedSize                          no = 1, 2, 3

	peakIndex, peakLogicalBufferIDs                     no = 1, 2
	traceEvents, traceBufferAllocationIndex             no = 1, 3
	eventKind, eventBufferID, eventShareWithCanonicalID no = 1, 2, 5
)

// mostSum bounds sizes, and the sum of all: 2^59 bytes, as package memory does.
const mostSum = 1 << 59

// DecodeAssignment reads an assignment from a BufferAssignmentProto, or from an HloProto or
// HloSnapshot with one in it; then its values have names. hold is as for [Decode]. The error is
// [ErrNoAssignment], or names what contradicts itself.
func DecodeAssignment(b []byte, hold func(bytes int64) error) (*Assignment, error) {
	if len(b) > maxBytes {
		return nil, ErrTooLarge
	}
	d := &assignmentDecoder{decoder: decoder{hold: hold}, buffers: map[int64]*logical{}}
	// An HloProto has the module in field 1 and the assignment in field 3; a snapshot has an
	// HloProto in field 1.
	inner, _ := first(b)
	if again, _ := first(inner); isModule(again) && !isModule(inner) {
		b, inner = inner, again
	}
	named := isModule(inner)
	if named {
		f := d.fields(b)
		if b = f.bytes(protoBufferAssignment); *f.err != nil {
			return nil, ErrNoAssignment
		}
	}
	if !isAssignment(b) {
		return nil, ErrNoAssignment
	}
	a, err := d.assignment(b)
	if err != nil {
		return nil, fmt.Errorf("xla/internal/load: buffer assignment: %w", err)
	}
	if named {
		a.Name(inner)
	}
	return a, nil
}

// Name gives the values of an assignment the names that they have in a binary module, an
// HloModuleProto or a message with one in it. It reports false, and gives none, if that is
// another module.
func (a *Assignment) Name(module []byte) bool {
	for range 3 {
		if inner, ok := first(module); !isModule(module) && ok {
			module = inner
		}
	}
	names := map[int64]string{}
	for b := range a.buffers() {
		names[b.id] = ""
	}
	f := (&decoder{}).fields(module)
	f.messages(moduleComputations, func(c *fields) {
		c.messages(computationInstructions, func(i *fields) {
			id := i.int(instructionID)
			if _, wanted := names[id]; wanted {
				names[id] = i.string(instructionName)
			}
		})
	})
	for _, name := range names {
		if name == "" || *f.err != nil {
			return false
		}
	}
	for b := range a.buffers() {
		b.Instruction = names[b.id]
	}
	return true
}

// buffers goes through all lists of values.
func (a *Assignment) buffers() iter.Seq[*Buffer] {
	return func(yield func(*Buffer) bool) {
		for k := range a.Allocations {
			for _, list := range [][]Buffer{a.Allocations[k].Buffers, a.Allocations[k].Peak} {
				for n := range list {
					if !yield(&list[n]) {
						return
					}
				}
			}
		}
	}
}

// isAssignment reports whether a message has the fields of a buffer assignment: messages
// alone, and allocations with a size among them.
func isAssignment(b []byte) bool {
	allocations := false
	err := walk(b, func(x field) error {
		if x.typ != protowire.BytesType || x.n > 15 {
			return errCut
		}
		if x.n != assignmentBufferAllocations || allocations {
			return nil
		}
		allocations = true
		return walk(x.bytes, func(y field) error {
			if y.n == allocationSize && y.typ != protowire.VarintType || y.n == allocationAssigned && y.typ != protowire.BytesType {
				return errCut
			}
			return nil
		})
	})
	return err == nil && allocations
}

// logical is a logical buffer: bytes is its size, and at most one allocation has it.
type logical struct {
	Buffer
	allocation int // -1 for none
}

type assignmentDecoder struct {
	decoder
	buffers map[int64]*logical // by id
}

func (d *assignmentDecoder) assignment(b []byte) (*Assignment, error) {
	f := d.fields(b)
	f.messages(assignmentLogicalBuffers, func(m *fields) {
		id := m.int(bufferID)
		at := m.message(bufferDefinedAt)
		x := &logical{allocation: -1}
		x.Instruction, x.Bytes, x.id = at.string(locationInstructionName), readSize(m, bufferSize), at.int(locationInstructionID)
		for _, k := range at.ints(locationShapeIndex) {
			x.Index = append(x.Index, int(k))
		}
		if d.buffers[id] != nil {
			m.fail(fmt.Errorf("two buffers have the number %d", id))
		}
		d.buffers[id] = x
		m.fail(d.count(200 + 8*len(x.Index)))
	})
	a := &Assignment{}
	sum := uint64(0)
	f.messages(assignmentBufferAllocations, func(m *fields) {
		x := Allocation{
			Bytes:       readSize(m, allocationSize),
			ThreadLocal: m.bool(allocationIsThreadLocal),
			Parameter:   m.bool(allocationIsEntryComputationParameter),
			Number:      int(m.int(allocationParameterNumber)),
			LiveOut:     m.bool(allocationMaybeLiveOut),
			Constant:    m.bool(allocationIsConstant),
			Aliased:     m.bool(allocationIsParameterAliasedWithOutput),
		}
		if x.Space = uint64(m.int(allocationColor)); x.Space > 1<<32 {
			m.fail(fmt.Errorf("allocation %d is in memory space %d", len(a.Allocations), int64(x.Space)))
		}
		// Releases before 2026 do not say which parameters are given away. What comes in
		// and goes out by the same memory was.
		x.Aliased = x.Parameter && (x.Aliased || x.LiveOut)
		if sum += x.Bytes; sum > mostSum {
			m.fail(errors.New("its allocations have more than 2^59 bytes"))
		}
		m.messages(allocationAssigned, func(p *fields) { d.placeBuffer(len(a.Allocations), &x, p) })
		a.Allocations = append(a.Allocations, x)
		m.fail(d.count(200))
	})
	said := false
	f.messages(assignmentPeakBuffers, func(m *fields) {
		said = true
		n := m.int(peakIndex)
		if n < 0 || n >= int64(len(a.Allocations)) {
			m.fail(fmt.Errorf("allocation %d is not there", n))
			return
		}
		for _, id := range m.ints(peakLogicalBufferIDs) {
			d.addToPeak(m, &a.Allocations[n], int(n), id)
		}
	})
	// Releases before 2026 do not say what lives at the peak: their events do.
	if !said {
		f.messages(assignmentHeapSimulatorTraces, func(m *fields) { d.replayHeap(m, a) })
		for n := range a.Allocations {
			if x := &a.Allocations[n]; len(x.Peak) == 0 && x.largest != nil && !x.Temporary() {
				x.Peak = []Buffer{x.largest.Buffer}
			}
		}
	}
	if *f.err != nil {
		return nil, *f.err
	}
	return a, nil
}

// readSize reads a size in bytes.
func readSize(f *fields, n protowire.Number) uint64 {
	v := f.int(n)
	if v < 0 || v > mostSum {
		f.fail(fmt.Errorf("a size of %d bytes", v))
		return 0
	}
	return uint64(v)
}

// placeBuffer reads where a buffer lies in allocation n.
func (d *assignmentDecoder) placeBuffer(n int, x *Allocation, f *fields) {
	id, offset, bytes := f.int(assignedLogicalBufferID), readSize(f, assignedOffset), readSize(f, assignedSize)
	buffer := d.buffers[id]
	switch {
	case *f.err != nil:
	case buffer == nil:
		f.fail(fmt.Errorf("allocation %d has buffer %d, which is not there", n, id))
	case buffer.allocation >= 0:
		f.fail(fmt.Errorf("buffer %d lies in allocations %d and %d", id, buffer.allocation, n))
	case offset+bytes > x.Bytes:
		f.fail(fmt.Errorf("buffer %d lies beyond the end of allocation %d: %d bytes at %d of %d", id, n, bytes, offset, x.Bytes))
	default:
		buffer.allocation, buffer.Offset, buffer.Bytes = n, offset, bytes
		x.Buffers = append(x.Buffers, buffer.Buffer)
		f.fail(d.count(80))
		if x.largest == nil || bytes > x.largest.Bytes {
			x.largest = buffer
		}
	}
}

// addToPeak notes that a buffer lives at the peak of allocation n.
func (d *assignmentDecoder) addToPeak(f *fields, x *Allocation, n int, id int64) {
	buffer := d.buffers[id]
	if buffer == nil || buffer.allocation != n {
		f.fail(fmt.Errorf("buffer %d is said to live at the peak of allocation %d, in which it does not lie", id, n))
		return
	}
	f.fail(d.count(80))
	x.Peak = append(x.Peak, buffer.Buffer)
}

// Kinds of events of XLA's heap simulator.
const (
	eventFree      = 1
	eventShareWith = 2
)

// replayHeap goes through the events of one heap and notes what lives where the most does. A
// buffer that shares the memory of another is there as long as one of both is.
func (d *assignmentDecoder) replayHeap(f *fields, a *Assignment) {
	n := f.int(traceBufferAllocationIndex)
	if n < 0 || n >= int64(len(a.Allocations)) {
		f.fail(fmt.Errorf("allocation %d of a heap is not there", n))
		return
	}
	type event struct {
		id    int64
		first int64 // of those that share the memory
		free  bool
	}
	var events []event
	first := map[int64]int64{}
	live := map[int64]int{} // by first
	bytes, most, at := uint64(0), uint64(0), -1
	f.messages(traceEvents, func(m *fields) {
		e := event{id: m.int(eventBufferID)}
		if d.buffers[e.id] == nil {
			m.fail(fmt.Errorf("an event is of buffer %d, which is not there", e.id))
			return
		}
		switch kind := m.int(eventKind); kind {
		case eventFree:
			known := false
			if e.first, known = first[e.id]; !known || live[e.first] == 0 {
				m.fail(fmt.Errorf("buffer %d is freed and was not made", e.id))
				return
			}
			e.free = true
			if live[e.first]--; live[e.first] == 0 {
				bytes -= d.buffers[e.first].Bytes
			}
		default:
			e.first = e.id
			if kind == eventShareWith {
				with := m.int(eventShareWithCanonicalID)
				shared, known := first[with]
				if !known {
					m.fail(fmt.Errorf("buffer %d shares the memory of buffer %d, which was not made", e.id, with))
					return
				}
				e.first = shared
			}
			if _, again := first[e.id]; again {
				m.fail(fmt.Errorf("buffer %d is made twice", e.id))
				return
			}
			first[e.id] = e.first
			if live[e.first]++; live[e.first] == 1 {
				bytes += d.buffers[e.first].Bytes
			}
		}
		if bytes > most {
			most, at = bytes, len(events)
		}
		events = append(events, e)
		m.fail(d.count(100))
	})
	// Of those that share memory the last one made is there.
	alive, last := map[int64]bool{}, map[int64]int64{}
	for _, e := range events[:at+1] {
		alive[e.id] = !e.free
	}
	for _, e := range events[:at+1] {
		if alive[e.id] {
			last[e.first] = e.id
		}
	}
	for _, e := range events[:at+1] {
		if buffer := d.buffers[e.id]; last[e.first] == e.id && alive[e.id] && !e.free && buffer.allocation >= 0 {
			x := &a.Allocations[buffer.allocation]
			x.Peak = append(x.Peak, buffer.Buffer)
		}
	}
}
