package trace

// This file is for RMM's logs: the CSV that rmm::mr::logging_resource_adaptor
// writes, through rmm.enable_logging, RMM_LOG_FILE or Spark's
// spark.rapids.memory.gpu.debug.
//
//	Thread,Time,Action,Pointer,Size,Stream
//	1979932,14:21:19.998533,allocate,0x30a000000,256,0x2
//	1980043,14:21:32.661875,free,0x30a000000,256,0x2
//
// What it has written over the years (rapidsai/rmm, 2020 to 2026), and what its user guide says that it writes:
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
	"bufio"
	"bytes"
	"context"
	"io"
)

const rmmHeader = "Thread,Time,Action,Pointer,Size,Stream"

// rmmReader reads one log.
type rmmReader struct {
	*lineReader
	b       *builder
	play    *addressPlay
	clock   dayClock
	streams map[rmmStream]uint32 // dense stream numbers
}

// rmmStream is a stream as CUDA tells them apart.
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
func readRMM(_ context.Context, in *bufio.Reader, b *builder) error {
	r := &rmmReader{
		lineReader: newLineReader(in, b.trace.Source),
		b:          b,
		play:       newAddressPlay(b.pool("")),
		streams:    map[rmmStream]uint32{{}: 0},
	}
	for {
		line, long, err := r.next()
		switch {
		case err == io.EOF:
			r.play.notes(b, "")
			return nil
		case err != nil:
			return err
		case long:
			return r.tooLong("an RMM log")
		}
		if err := r.event(line); err != nil {
			return r.place(err)
		}
	}
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
			return r.fail("%s has %s; a line of an RMM log is %s", quote(line), count(i, "column"), rmmHeader)
		}
		f[i], rest, more = bytes.Cut(rest, []byte{','})
	}
	if more {
		return r.fail("%s has more than %s; a line of an RMM log is %s", quote(line), count(len(f), "column"), rmmHeader)
	}
	thread, ok := decimal(f[0])
	if !ok {
		if r.play.pool.p.Events == 0 && bytes.EqualFold(line, []byte(rmmHeader)) {
			return nil
		}
		return r.fail("%s is not the number of a thread; a line of an RMM log is %s", quote(f[0]), rmmHeader)
	}
	now, ok := r.clock.parse(f[1])
	if !ok {
		return r.fail("%s is not a time such as 14:21:19.998533 or 1634567890.123456", quote(f[1]))
	}
	addr, ok := pointer(f[3])
	if !ok {
		return r.fail("%s is not a pointer such as 0x30a000000", quote(f[3]))
	}
	size, err := byteCount(f[4])
	if err != nil {
		return r.fail("%s is not a number of bytes below 2^64", quote(f[4]))
	}
	handle, ok := pointer(f[5])
	if !ok {
		return r.fail("%s is not a stream such as 0 or 0x7f8a38001020", quote(f[5]))
	}
	stream, ok := r.stream(handle, thread)
	if !ok {
		return r.fail("the log has more than %d streams; it is damaged", maxStreams)
	}
	r.b.at(now)
	switch string(f[2]) {
	case "allocate":
		switch {
		case addr != 0:
			return r.play.alloc(addr, size, stream)
		case size != 0:
			return r.fail("the allocation of %d bytes has no pointer", size)
		}
		return nil // nothing was asked for, and there is nothing to free
	case "free", "deallocate":
		if addr == 0 {
			return nil
		}
		return r.play.free(addr, size, stream)
	case "allocate failure":
		return r.play.refuse(r.line, size, stream)
	}
	return r.fail("%s is not an action; the actions are allocate, allocate failure, free and deallocate", quote(f[2]))
}

// stream returns the dense number of a stream handle; false if there are too
// many.
func (r *rmmReader) stream(handle, thread uint64) (uint32, bool) {
	switch handle {
	case 0, legacyStream:
		return 0, true
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
	return n, n < maxStreams
}

// pointer reads an address in hexadecimal, with or without 0x; "(nil)" is 0.
func pointer(s []byte) (uint64, bool) {
	if string(s) == "(nil)" {
		return 0, true
	}
	if len(s) > 2 && s[0] == '0' && s[1]|0x20 == 'x' {
		s = s[2:]
	}
	if len(s) == 0 || len(s) > 16 {
		return 0, false
	}
	var n uint64
	for _, c := range s {
		d := c - '0'
		if d > 9 {
			if d = c | 0x20 - 'a'; d > 5 {
				return 0, false
			}
			d += 10
		}
		n = n<<4 | uint64(d)
	}
	return n, true
}
