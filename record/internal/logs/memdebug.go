// Package logs reads logs of allocators, and what is like one: the lines of XLA's and
// TensorFlow's pool (memdebug.go), put in order by logorder.go, RMM's CSV (rmm.go) and
// MiniMalloc's problems (minimalloc.go).
package logs

// The reader of the lines that the BFC allocator of XLA and TensorFlow writes
// into a program's log when TF_CPP_VMODULE=bfc_allocator=4 is set (and
// TF_CPP_MIN_LOG_LEVEL is 0, as JAX needs, which sets 1):
//
//	2026-01-01 12:00:00.123456: I xla/tsl/framework/bfc_allocator.cc:480] [mem-debug] AllocateRaw,GPU_0_bfc,1024,0x7f2a00000000,*** Begin stack trace ***
//	2026-01-01 12:00:00.123789: I xla/tsl/framework/bfc_allocator.cc:840] [mem-debug] DeallocateRaw,GPU_0_bfc,1024,0x7f2a00000000,*** Begin stack trace ***
//
// The fields are the allocator's name, which is the pool here, the bytes that
// were asked for, and the address. JAX's plugins have such lines from 0.4.26 to
// 0.12.0.1 (asked of ten of them), TensorFlow 2.21.0 too; 0.4.23 has none, and what it
// has instead does not say which block is freed. An allocation is written after it is
// made, a refused one with the address 0, a free before. logorder.go puts the
// lines of several threads in order. Everything else in the log is skipped, the
// stacks that follow the lines too: wheels have hardly any names in them.

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"gpumem/internal/input"
	"gpumem/record/internal/tape"
	"gpumem/size"
)

// memDebug marks the lines.
const memDebug = "[mem-debug]"

// Each line has one of these behind the mark and a blank.
var (
	memAlloc = []byte(memDebug + " AllocateRaw,")
	memFree  = []byte(memDebug + " DeallocateRaw,")
)

// hasMemDebug reports whether such a line is among the first of a log.
func hasMemDebug(head []byte) bool {
	return bytes.Contains(head, memAlloc) || bytes.Contains(head, memFree)
}

// memDebugReader reads one log.
type memDebugReader struct {
	*input.Lines
	in      *input.Reader
	b       *tape.Builder
	clock   logClock
	order   logOrder
	pools   map[string]*tape.Blocks
	blocks  []*tape.Blocks // those of the pools, in the order of their first lines
	skipped int            // lines of other kinds
}

// maxPools bounds what a damaged log can ask for: a pool has buffers. A program
// has an allocator for each GPU, and some for the host.
const maxPools = 1024

// MemDebug is the log of a program with the lines of XLA's or TensorFlow's allocator.
var MemDebug = tape.Format{Name: "memdebug", What: "a log with lines of [mem-debug] of XLA or TensorFlow near its start", Looks: hasMemDebug, Read: readMemDebug}

// readMemDebug reads a whole log into b.
func readMemDebug(in *input.Reader, b *tape.Builder) error {
	r := &memDebugReader{Lines: in.Lines(""), in: in, b: b, pools: make(map[string]*tape.Blocks)}
	r.order.play = r.play
	for r.Next() {
		if err := r.event(r.Text()); err != nil {
			return err
		}
	}
	if err := r.Err(); err != nil {
		return err
	}
	if err := r.order.end(); err != nil {
		return err
	}
	return r.end()
}

// end adds the notes.
func (r *memDebugReader) end() error {
	if len(r.pools) == 0 {
		return r.in.Fail("no line has %q; run the program with TF_CPP_VMODULE=bfc_allocator=4 TF_CPP_MIN_LOG_LEVEL=0 and keep its stderr", memDebug)
	}
	for _, p := range r.blocks {
		p.Notes()
	}
	if n := r.order.moved; n > 0 {
		by := "times, which can be wrong by microseconds; a log with the lines \"Returning\" and \"F\" has the exact order"
		if r.order.marked {
			by = "allocator's lines \"Returning\" and \"F\""
		}
		r.b.Note("%s out of order, as several threads write the log; put in order by the %s", size.Count(n, "line"), by)
	}
	if r.skipped > 0 {
		r.b.Note("%s without an allocation or a free; skipped", size.Count(r.skipped, "line"))
	}
	return nil
}

// event reads one line, if it is one of ours.
func (r *memDebugReader) event(line []byte) error {
	i := bytes.Index(line, []byte(memDebug))
	if i < 0 {
		r.skipped++
		return r.mark(line)
	}
	prefix, rest := line[:i], line[i:]
	isFree := bytes.HasPrefix(rest, memFree)
	switch {
	case isFree:
		rest = rest[len(memFree):]
	case bytes.HasPrefix(rest, memAlloc):
		rest = rest[len(memAlloc):]
	default:
		r.skipped++
		return nil
	}
	name, rest, _ := bytes.Cut(rest, []byte{','})
	bytesField, rest, _ := bytes.Cut(rest, []byte{','})
	addrField, _, whole := bytes.Cut(rest, []byte{','})
	n, okBytes := input.Decimal(bytesField)
	addr, okAddr := pointer(addrField)
	if !whole || !okBytes || !okAddr {
		return r.in.Fail("%s is not followed by a name, a number of bytes, an address and a comma; the line is cut or mixed with another, take it out",
			input.Quote(line[i:]))
	}
	play, err := r.pool(name)
	if err != nil {
		return err
	}
	if addr == 0 && (isFree || n == 0) {
		return nil // 0 bytes lie nowhere, and freeing nothing does nothing
	}
	e := &logEvent{play: play, addr: addr, bytes: n, line: r.Number(), free: isFree, thread: threadOf(prefix)}
	e.now, e.timed = r.clock.parse(prefix)
	return r.order.add(e)
}

// mark reads a line that is none of ours: it may be one that the allocator writes
// as it serves.
func (r *memDebugReader) mark(line []byte) error {
	text := bfcText(line)
	switch {
	case bytes.HasPrefix(text, bfcServed):
		if addr, ok := pointer(text[len(bfcServed):]); ok {
			return r.order.served(threadOf(line), addr)
		}
	case bytes.HasPrefix(text, bfcFreed):
		return r.order.freed(threadOf(line))
	}
	return nil
}

// play plays an event; they come in order.
func (r *memDebugReader) play(e *logEvent) error {
	if e.timed {
		r.b.At(e.now)
	}
	err := r.playAt(e)
	var bad *tape.Error
	if errors.As(err, &bad) {
		bad.Line = e.line
	}
	return err
}

func (r *memDebugReader) playAt(e *logEvent) error {
	switch {
	case e.free:
		return e.play.Free(e.addr, tape.Event{Bytes: e.bytes})
	case e.addr == 0:
		return e.play.Refuse(tape.Event{Bytes: e.bytes}, fmt.Sprint("line ", e.line), 0)
	}
	if e.play.Live(e.addr) {
		// Its free must come first, wherever that stands.
		if free := r.order.pull(e.play, e.addr); free != nil {
			if err := r.playAt(free); err != nil {
				return err
			}
		}
	}
	return e.play.Alloc(e.addr, tape.Event{Bytes: e.bytes})
}

// pool returns the pool of an allocator, new if need be.
func (r *memDebugReader) pool(name []byte) (*tape.Blocks, error) {
	if p := r.pools[string(name)]; p != nil {
		return p, nil
	}
	if len(r.pools) == maxPools {
		return nil, r.in.Fail("the log has more than %d allocators; it is damaged", maxPools)
	}
	p := r.b.Pool(string(name)).Blocks(true)
	r.pools[string(name)] = p
	r.blocks = append(r.blocks, p)
	return p, nil
}

// logClock reads the times in front of log lines.
type logClock struct {
	years int // turns of the year so far
	last  time.Month
}

// parse reads the time that a line begins with, in nanoseconds; false if there
// is none. These forms are known:
//
//	2026-01-01 12:00:00.123456: I file.cc:1]           TensorFlow, XLA, JAX
//	I0101 12:00:00.123456    1234 file.cc:1]           glog, Abseil: no year
//	I0000 00:00:1767268800.123456    1234 file.cc:1]   Abseil before it knows the time zone
func (c *logClock) parse(s []byte) (uint64, bool) {
	s = bytes.TrimLeft(s, " \t")
	switch {
	case len(s) >= len("2026-01-01 12:00:00") && s[4] == '-' && s[10] == ' ':
		year, okY := input.Decimal(s[:4])
		month, okM := twoDigits(s[5:7])
		date, okD := twoDigits(s[8:10])
		if !okY || !okM || !okD || year < 1970 || year > 2500 {
			return 0, false
		}
		return onDate(int(year), month, date, s[11:])
	case len(s) > len("I0101 12:00:00") && s[5] == ' ':
		month, okM := twoDigits(s[1:3])
		date, okD := twoDigits(s[3:5])
		if !okM || !okD {
			return 0, false
		}
		if month == 0 {
			if s = s[6:]; bytes.HasPrefix(s, []byte("00:00:")) {
				var d dayClock
				s = s[len("00:00:"):]
				return d.parse(s[:len(s)-len(bytes.TrimLeft(s, "0123456789."))])
			}
			return 0, false
		}
		// A log has no year; 2000 has every date. It is the next year after
		// December.
		if c.last == time.December && time.Month(month) == time.January {
			c.years++
		}
		c.last = time.Month(month)
		return onDate(2000+c.years, month, date, s[6:])
	}
	return 0, false
}

// onDate reads the time of day that s begins with.
func onDate(year int, month, date uint64, s []byte) (uint64, bool) {
	now, ok := timeOfDay(s[:8])
	if s = s[8:]; len(s) > 0 && s[0] == '.' {
		s = s[1:]
		ns, okNs := fractionOf(s[:len(s)-len(bytes.TrimLeft(s, "0123456789"))])
		now, ok = now+ns, ok && okNs
	}
	midnight := time.Date(year, time.Month(month), int(date), 0, 0, 0, 0, time.UTC)
	return uint64(midnight.Unix())*1e9 + now, ok
}
