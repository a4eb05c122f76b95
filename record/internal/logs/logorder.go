package logs

// The order of a log's events. Several threads write the lines, and each line is about
// what its thread did some time before or will do next. The order in which the allocator
// served them, under its lock, is found in two ways.
//
// # Marks
//
// The whole log has lines that are written under the lock, and so in the order in
// which the allocator served:
//
//	thread 1: Returning: 0x7f0000000000          serves, under the lock
//	thread 2: Returning: 0x7f0000001000
//	thread 2: [mem-debug] AllocateRaw,GPU_0_bfc,100,0x7f0000001000,
//	thread 1: [mem-debug] AllocateRaw,GPU_0_bfc,200,0x7f0000000000,
//	thread 2: [mem-debug] DeallocateRaw,GPU_0_bfc,100,0x7f0000001000,
//	thread 1: Returning: 0x7f0000002000
//	thread 2: F: ****____                        frees, under the lock
//
// An allocation takes the place of its "Returning", a free that of its "F".
//
// # Times
//
// Where a log was filtered the marks are gone. Each line has a time, which was
// taken when its text began to be made; the stack in it can take milliseconds
// before the line is written. An allocation is made before its time, a free after
// its line is written. Hence, for any line L that stands before a free in the
// log, with the times t:
//
//	the free comes after t(L), for L was written before the free's line was
//	an allocation comes before its own t
//
// So an allocation is ordered by its time and a free by the latest time up to its
// line. An allocation that stands behind a free but has an earlier time than a
// line before that free came first. What two threads did within microseconds can
// still be the other way round: no line shows it.

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"gpumem/internal/input"
	"gpumem/record/internal/tape"
)

const (
	// orderWindow is how many events wait for earlier ones whose lines come
	// late. A thread that is late by more is played where its line stands.
	orderWindow = 4096
	// orderStep is how far a time lies before the latest one when the clock was
	// set back. No line takes so long to be written.
	orderStep = uint64(5 * time.Second)
	// maxFreeing is how many frees wait for their marks, one for each thread; as
	// long as there was no such mark, maxUnmarked.
	maxFreeing  = 1024
	maxUnmarked = 64
)

// logEvent is an allocation, a refusal (addr 0) or a free, as its line has it.
type logEvent struct {
	play   *tape.Blocks
	addr   uint64
	bytes  uint64 // its size
	now    uint64 // its time in nanoseconds, if timed
	key    uint64 // orders events by time
	thread uint64 // 0: the line does not say
	line   int
	free   bool
	timed  bool
}

// logOrder hands events on in the order in which they happened.
type logOrder struct {
	play  func(*logEvent) error
	moved int // events that were played right after one of a later line
	last  int // the line played last

	// By times.
	waiting []*logEvent // by key, and of the same key by line
	latest  uint64

	// By marks, from the first one on.
	marked    bool
	unmarked  bool        // frees have no marks in this log
	freeMarks bool        // there was one
	queue     []*logEvent // an event whose play is nil waits for its line
	open      []*logEvent // those of them
	freeing   []*logEvent // frees whose marks have not come
}

// add takes the event of the next line.
func (o *logOrder) add(e *logEvent) error {
	if !o.marked {
		return o.addByTime(e)
	}
	if err := o.settle(e.thread); err != nil {
		return err
	}
	if e.free {
		o.freeing = append(o.freeing, e)
		o.unmarked = o.unmarked || !o.freeMarks && len(o.freeing) > maxUnmarked
		if o.unmarked || len(o.freeing) > maxFreeing {
			return o.endFrees()
		}
		return nil
	}
	for i, at := range o.open {
		if at.addr == e.addr && e.addr != 0 {
			*at = *e
			o.open = append(o.open[:i], o.open[i+1:]...)
			return o.drain(orderWindow)
		}
	}
	return o.push(e)
}

// served is the mark of an allocation.
func (o *logOrder) served(thread, addr uint64) error {
	if !o.marked {
		o.marked = true
		if err := o.endTimes(); err != nil {
			return err
		}
	}
	if err := o.settle(thread); err != nil {
		return err
	}
	e := &logEvent{addr: addr}
	o.open = append(o.open, e)
	return o.push(e)
}

// freed is the mark of a free.
func (o *logOrder) freed(thread uint64) error {
	o.freeMarks = o.freeMarks || o.marked
	for i, e := range o.freeing {
		if e.thread == thread {
			o.freeing = append(o.freeing[:i], o.freeing[i+1:]...)
			return o.push(e)
		}
	}
	return nil
}

// settle plays the free of a thread that now does something else: its mark is
// missing.
func (o *logOrder) settle(thread uint64) error {
	for i, e := range o.freeing {
		if e.thread == thread && thread != 0 {
			o.unmarked = o.unmarked || !o.freeMarks
			o.freeing = append(o.freeing[:i], o.freeing[i+1:]...)
			return o.push(e)
		}
	}
	return nil
}

func (o *logOrder) push(e *logEvent) error {
	o.queue = append(o.queue, e)
	return o.drain(orderWindow)
}

// drain plays what waits for nothing, and forgets the first marks without lines
// where more than most events wait.
func (o *logOrder) drain(most int) error {
	for len(o.queue) > 0 && (o.queue[0].play != nil || len(o.queue) > most) {
		e := o.queue[0]
		o.queue[0] = nil
		o.queue = o.queue[1:]
		if e.play == nil {
			o.open = o.open[1:] // it is as old as the queue's
			continue
		}
		if err := o.emit(e); err != nil {
			return err
		}
	}
	return nil
}

func (o *logOrder) emit(e *logEvent) error {
	err := o.play(e)
	o.count(e)
	return err
}

// count notes that e was played. Only the event played just before it counts: a
// line that is played early makes one event late, not all that stand before it.
func (o *logOrder) count(e *logEvent) {
	if e.line < o.last {
		o.moved++
	}
	o.last = e.line
}

// addByTime takes an event of a log without marks.
func (o *logOrder) addByTime(e *logEvent) error {
	if e.timed && e.now < o.latest && o.latest-e.now > orderStep {
		if err := o.endTimes(); err != nil {
			return err
		}
		o.latest = 0
	}
	if e.timed {
		o.latest = max(o.latest, e.now)
	}
	e.key = o.latest
	if e.timed && !e.free {
		e.key = e.now
	}
	// Lines are nearly in order, so the place is near the end.
	i, _ := slices.BinarySearchFunc(o.waiting, e, func(a, b *logEvent) int {
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.line, b.line))
	})
	o.waiting = slices.Insert(o.waiting, i, e)
	if len(o.waiting) > orderWindow {
		return o.emitFirst()
	}
	return nil
}

// emitFirst plays the first of the events that wait.
func (o *logOrder) emitFirst() error {
	e := o.waiting[0]
	o.waiting = o.waiting[1:]
	return o.emit(e)
}

// pull takes the free of an address out of those that wait, to be played now; nil
// if there is none.
func (o *logOrder) pull(play *tape.Blocks, addr uint64) *logEvent {
	first := -1
	for i, e := range o.waiting {
		if e.free && e.play == play && e.addr == addr && (first < 0 || e.line < o.waiting[first].line) {
			first = i
		}
	}
	if first < 0 {
		return nil
	}
	e := o.waiting[first]
	o.waiting = slices.Delete(o.waiting, first, first+1)
	o.count(e)
	return e
}

func (o *logOrder) endTimes() error {
	for len(o.waiting) > 0 {
		if err := o.emitFirst(); err != nil {
			return err
		}
	}
	return nil
}

// end plays what still waits.
func (o *logOrder) end() error {
	if err := o.endFrees(); err != nil {
		return err
	}
	if err := o.drain(0); err != nil {
		return err
	}
	return o.endTimes()
}

// endFrees plays the frees whose marks have not come.
func (o *logOrder) endFrees() error {
	for _, e := range o.freeing {
		if err := o.push(e); err != nil {
			return err
		}
	}
	o.freeing = o.freeing[:0]
	return nil
}

// The lines that the allocator writes under its lock, behind the name of its
// file.
var (
	bfcFile    = []byte("bfc_allocator.cc:")
	bfcServed  = []byte("Returning: ")
	bfcFreed   = []byte("F: ")
	endOfPlace = []byte("] ")
)

// bfcText returns the text of a line of the allocator, nil if the line is another's.
func bfcText(line []byte) []byte {
	i := bytes.Index(line, bfcFile)
	if i < 0 {
		return nil
	}
	_, text, _ := bytes.Cut(line[i:], endOfPlace)
	return text
}

// threadOf returns the number of the thread that wrote a line; 0 if the line does
// not say. It stands before the file's name:
//
//	I1121 20:57:33.707016   27233 bfc_allocator.cc:329]
//	2026-01-01 12:00:00.123456: I    4711 xla/tsl/framework/bfc_allocator.cc:509]
func threadOf(line []byte) uint64 {
	i := bytes.Index(line, bfcFile)
	if i < 0 {
		return 0
	}
	line = line[:i]
	line = bytes.TrimRight(line[:bytes.LastIndexByte(line, ' ')+1], " ")
	n, _ := input.Decimal(line[bytes.LastIndexByte(line, ' ')+1:])
	return n
}
