package logs

// The reader of RMM's logs: the CSV that rmm::mr::logging_resource_adaptor
// writes, through rmm.enable_logging, RMM_LOG_FILE or Spark's
// spark.rapids.memory.gpu.debug.
//
//	Thread,Time,Action,Pointer,Size,Stream
//	1979932,14:21:19.998533,allocate,0x30a000000,256,0x2
//	1980043,14:21:32.661875,free,0x30a000000,256,0x2
//
// Its forms over the years (rapidsai/rmm, 2020 to 2026), and that of its user guide:
//
//	Time     24-hour clock without a date, a '.' or (2020) a ':' before the
//	         microseconds; in the guide's example, seconds since 1970
//	Action   "allocate", "allocate failure", "free"; in the guide "deallocate"
//	Pointer  with 0x; "(nil)" or 0 where there is none
//	Size     the bytes that were asked for
//	Stream   a handle in hexadecimal, with or without 0x
//
// The header may be missing: Spark writes the lines to its output. The lines
// are in the order in which the allocator served them: an allocation is written
// after it is made, a free before.

import (
	"bytes"
	"fmt"
	"strings"

	"gpumem/internal/input"
	"gpumem/record/internal/tape"
	"gpumem/size"
)

const rmmHeader = "Thread,Time,Action,Pointer,Size,Stream"

// RMM is a log of RMM.
var RMM = tape.Format{Name: "rmm", What: "a CSV log of RMM", Looks: looksRMM, Read: readRMM}

// looksRMM: the header of RMM's logging adaptor, or a line as it writes them.
func looksRMM(head []byte) bool {
	line, _ := input.FirstLine(head)
	fields := strings.Split(strings.ToLower(string(line[:min(len(line), 256)])), ",")
	if len(fields) != 6 {
		return false
	}
	for i := range fields {
		fields[i] = strings.TrimSpace(fields[i])
	}
	switch fields[2] {
	case "action":
		return fields[0] == "thread" && fields[1] == "time"
	case "allocate", "allocate failure", "free", "deallocate":
		return true
	}
	return false
}

// rmmReader reads one log.
type rmmReader struct {
	*input.Lines
	in      *input.Reader
	b       *tape.Builder
	blocks  *tape.Blocks
	begun   bool // a line with an event was read
	clock   dayClock
	streams map[rmmStream]uint32 // dense stream numbers
}

// rmmStream identifies a stream as CUDA does.
type rmmStream struct {
	handle uint64
	thread uint64 // of perThreadStream alone
}

// Handles that are not addresses (cuda_runtime_api.h, 12.x): 0 and the legacy
// stream are the same default stream; the other is one default stream for each
// thread.
const (
	legacyStream    = 1
	perThreadStream = 2
)

// readRMM reads a whole log into b.
func readRMM(in *input.Reader, b *tape.Builder) error {
	r := &rmmReader{
		Lines:   in.Lines("an RMM log"),
		in:      in,
		b:       b,
		blocks:  b.Pool("").Blocks(true),
		streams: map[rmmStream]uint32{{}: 0},
	}
	for r.Next() {
		if err := r.event(r.Text()); err != nil {
			return err
		}
	}
	r.blocks.Notes()
	return r.Err()
}

// event reads one line.
func (r *rmmReader) event(line []byte) error {
	line = bytes.TrimSpace(line)
	if len(line) == 0 {
		return nil
	}
	var f [6][]byte
	rest, more := line, true
	for i := range f {
		if !more {
			return r.in.Fail("%s has %s; a line of an RMM log is %s", input.Quote(line), size.Count(i, "column"), rmmHeader)
		}
		f[i], rest, more = bytes.Cut(rest, []byte{','})
	}
	if more {
		return r.in.Fail("%s has more than %s; a line of an RMM log is %s", input.Quote(line), size.Count(len(f), "column"), rmmHeader)
	}
	thread, ok := input.Decimal(f[0])
	if !ok {
		if !r.begun && bytes.EqualFold(line, []byte(rmmHeader)) {
			return nil
		}
		return r.in.Fail("%s is not the number of a thread; a line of an RMM log is %s", input.Quote(f[0]), rmmHeader)
	}
	now, ok := r.clock.parse(f[1])
	if !ok {
		return r.in.Fail("%s is not a time such as 14:21:19.998533 or 1634567890.123456", input.Quote(f[1]))
	}
	addr, ok := pointer(f[3])
	if !ok {
		return r.in.Fail("%s is not a pointer such as 0x30a000000", input.Quote(f[3]))
	}
	n, ok := input.Decimal(f[4])
	if !ok {
		return r.in.Fail("%s is not a number of bytes below 2^64", input.Quote(f[4]))
	}
	handle, ok := pointer(f[5])
	if !ok {
		return r.in.Fail("%s is not a stream such as 0 or 0x7f8a38001020", input.Quote(f[5]))
	}
	r.begun = true
	r.b.At(now)
	ev := tape.Event{Bytes: n, Stream: r.stream(handle, thread)}
	switch string(f[2]) {
	case "allocate":
		switch {
		case addr != 0:
			return r.blocks.Alloc(addr, ev)
		case n != 0:
			return r.in.Fail("the allocation of %d bytes has no pointer", n)
		}
		return nil // nothing was asked for, and there is nothing to free
	case "free", "deallocate":
		if addr == 0 {
			return nil
		}
		return r.blocks.Free(addr, ev)
	case "allocate failure":
		return r.blocks.Refuse(ev, fmt.Sprint("line ", r.Number()), 0)
	}
	return r.in.Fail("%s is not an action; the actions are allocate, allocate failure, free and deallocate", input.Quote(f[2]))
}

// stream returns the dense number of a stream handle.
func (r *rmmReader) stream(handle, thread uint64) uint32 {
	switch handle {
	case 0, legacyStream:
		return 0
	case perThreadStream:
	default:
		thread = 0
	}
	key := rmmStream{handle, thread}
	n, ok := r.streams[key]
	if !ok {
		n = uint32(len(r.streams))
		r.streams[key] = n
	}
	return n
}

// pointer reads an address in hexadecimal, with or without 0x; "(nil)" is 0.
func pointer(s []byte) (uint64, bool) {
	if string(s) == "(nil)" {
		return 0, true
	}
	n, rest, ok := input.Hex(s)
	return n, ok && len(rest) == 0
}
