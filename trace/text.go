package trace

// This file is for the text format: `a ID BYTES` and `f ID`, one event a line.

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strconv"
)

// textReader reads one text recording.
type textReader struct {
	*lineReader
	pool *poolBuilder

	// The live blocks by ID. Most recordings number their blocks; those IDs
	// need no string.
	byNumber *idTable
	byName   map[string]uint32
	born     []int // line of the Alloc of the block in each slot
}

// readText reads a whole text recording into b.
func readText(_ context.Context, in *bufio.Reader, b *builder) error {
	t := &textReader{
		lineReader: newLineReader(in, b.trace.Source),
		pool:       b.pool(""),
		byNumber:   newIDTable(),
		byName:     make(map[string]uint32),
	}
	for {
		line, long, err := t.next()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case long:
			return t.tooLong("a text recording")
		}
		if err := t.parse(line); err != nil {
			return err
		}
	}
}

// parse reads one line, without its newline.
func (t *textReader) parse(line []byte) error {
	if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	verb, i := field(line, 0)
	if len(verb) == 0 && i < len(line) {
		return t.control(line, i)
	}
	if len(verb) == 0 || verb[0] == '#' {
		return nil
	}
	id, i := field(line, i)
	size, i := field(line, i)
	extra, i := field(line, i)
	switch {
	case i < len(line) && isControl(line[i]):
		return t.control(line, i)
	case len(verb) != 1 || (verb[0] != 'a' && verb[0] != 'f'):
		return t.fail("%s is not an event; a line is %q or %q", quote(line), "a ID BYTES", "f ID")
	case len(id) == 0:
		return t.fail("%s: the ID is missing; a line is %q or %q", quote(line), "a ID BYTES", "f ID")
	case verb[0] == 'f' && len(size) > 0:
		return t.fail("%s: nothing may follow the ID of a free", quote(line))
	case verb[0] == 'f':
		return t.free(id)
	case len(size) == 0:
		return t.fail("%s: the number of bytes is missing; an allocation is %q", quote(line), "a ID BYTES")
	case len(extra) > 0:
		return t.fail("%s: nothing may follow the number of bytes", quote(line))
	}
	n, err := byteCount(size)
	if err != nil {
		return t.badSize(size, err)
	}
	return t.alloc(id, n)
}

// alloc adds `a id n`.
func (t *textReader) alloc(id []byte, n uint64) error {
	num, isNum := canonical(id)
	var cell *uint32
	if isNum {
		var live bool
		if cell, live = t.byNumber.put(num); live {
			return t.stillLive(id, *cell-1)
		}
	} else if slot, live := t.byName[string(id)]; live {
		return t.stillLive(id, slot)
	}
	slot, err := t.pool.alloc(n, 0, 0, id[0] == 'u')
	if err != nil {
		return t.place(err)
	}
	if isNum {
		*cell = slot + 1
	} else {
		t.byName[string(id)] = slot
		if err := t.pool.b.hold(len(id)); err != nil {
			return err
		}
	}
	if int(slot) == len(t.born) {
		t.born = append(t.born, t.line)
	} else {
		t.born[slot] = t.line
	}
	return nil
}

// free adds `f id`.
func (t *textReader) free(id []byte) error {
	num, isNum := canonical(id)
	var slot uint32
	var live bool
	if isNum {
		slot, live = t.byNumber.del(num)
	} else if slot, live = t.byName[string(id)]; live {
		delete(t.byName, string(id))
		_ = t.pool.b.hold(-len(id)) // less is never too much
	}
	if !live {
		return t.fail("id %s is not live: it was never allocated, or it is already freed", show(id))
	}
	if err := t.pool.release(slot, 0, 0, id[0] == 'u'); err != nil {
		return t.place(err)
	}
	return nil
}

// field returns the next run of bytes from i that are neither blank nor
// control characters, and where it ends. It stops at a control character.
func field(line []byte, i int) ([]byte, int) {
	for i < len(line) && (line[i] == ' ' || line[i] == '\t') {
		i++
	}
	start := i
	for i < len(line) && line[i] > ' ' && line[i] != 0x7f {
		i++
	}
	return line[start:i], i
}

// isControl: not part of a field, and not a blank between fields.
func isControl(c byte) bool { return c < ' ' && c != '\t' || c == 0x7f }

// canonical reads an ID that is a decimal number below 2^63 in its one
// spelling, without leading zeros: only then may the number stand for the text.
func canonical(id []byte) (uint64, bool) {
	if len(id) > 1 && id[0] == '0' {
		return 0, false
	}
	return decimal(id)
}

// decimal reads 1 to 18 decimal digits, which cannot overflow.
func decimal(s []byte) (uint64, bool) {
	if len(s) == 0 || len(s) > 18 {
		return 0, false
	}
	var n uint64
	for _, c := range s {
		d := c - '0'
		if d > 9 {
			return 0, false
		}
		n = n*10 + uint64(d)
	}
	return n, true
}

// byteCount reads a size in decimal digits: any 64 bits, since a size that
// underflowed is a usual cause of a refusal.
func byteCount(s []byte) (uint64, error) {
	if n, ok := decimal(s); ok {
		return n, nil
	}
	return strconv.ParseUint(string(s), 10, 64)
}

// show is an ID in a message: as it is if it is short and plain, else quoted.
func show(id []byte) string {
	if q := quote(id); len(q) != len(id)+2 {
		return q
	}
	return string(id)
}

func (t *textReader) control(line []byte, i int) error {
	return t.fail("%s: byte %d of the line is the control character 0x%02x; this is not a text recording",
		quote(line), i+1, line[i])
}

func (t *textReader) stillLive(id []byte, slot uint32) error {
	return t.fail("id %s is already live (allocated at line %d); free it first", show(id), t.born[slot])
}

func (t *textReader) badSize(size []byte, err error) error {
	if errors.Is(err, strconv.ErrRange) {
		return t.fail("%s bytes is more than 2^64-1", quote(size))
	}
	return t.fail("%s is not a number of bytes; write it in decimal digits, without a unit", quote(size))
}
