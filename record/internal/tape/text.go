package tape

import (
	"bytes"

	"gpumem/internal/input"
	"gpumem/record/internal/idtable"
)

// Text is the text format: `a ID BYTES` and `f ID`, one event a line.
var Text = Format{Name: "text", What: `lines "a ID BYTES" and "f ID"`, Looks: looksText, Read: readText}

// looksText: the first line that is neither blank nor a comment is an event, or
// there is no such line so far.
func looksText(head []byte) bool {
	line, _ := input.FirstLine(head)
	if line == nil {
		return true
	}
	verb, _ := field(line, 0)
	return string(verb) == "a" || string(verb) == "f"
}

// textReader reads one text recording.
type textReader struct {
	*input.Lines
	in   *input.Reader
	pool *PoolBuilder

	// The live blocks by ID. Most recordings number their blocks; those IDs
	// need no string.
	byNumber *idtable.Table
	byName   map[string]uint32
	born     []int // line of the Alloc of the block in each slot
}

// readText reads a whole text recording into b.
func readText(in *input.Reader, b *Builder) error {
	t := &textReader{
		Lines:    in.Lines("a text recording"),
		in:       in,
		pool:     b.Pool(""),
		byNumber: idtable.New(),
		byName:   make(map[string]uint32),
	}
	for t.Next() {
		if err := t.parse(t.Text()); err != nil {
			return err
		}
	}
	return t.Err()
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
		return t.in.Fail("%s is not an event; a line is %q or %q", input.Quote(line), "a ID BYTES", "f ID")
	case len(id) == 0:
		return t.in.Fail("%s: the ID is missing; a line is %q or %q", input.Quote(line), "a ID BYTES", "f ID")
	case verb[0] == 'f' && len(size) > 0:
		return t.in.Fail("%s: nothing may follow the ID of a free", input.Quote(line))
	case verb[0] == 'f':
		return t.free(id)
	case len(size) == 0:
		return t.in.Fail("%s: the number of bytes is missing; an allocation is %q", input.Quote(line), "a ID BYTES")
	case len(extra) > 0:
		return t.in.Fail("%s: nothing may follow the number of bytes", input.Quote(line))
	}
	n, ok := input.Decimal(size)
	if !ok {
		return t.badSize(size)
	}
	return t.alloc(id, n)
}

// alloc adds `a id n`.
func (t *textReader) alloc(id []byte, n uint64) error {
	num, isNum := canonical(id)
	var cell *uint32
	if isNum {
		var live bool
		if cell, live = t.byNumber.Put(num); live {
			return t.stillLive(id, *cell-1)
		}
	} else if slot, live := t.byName[string(id)]; live {
		return t.stillLive(id, slot)
	}
	slot, err := t.pool.Alloc(Event{Bytes: n, Upper: id[0] == 'u'}, 0)
	if err != nil {
		return err
	}
	if isNum {
		*cell = slot + 1
	} else {
		t.byName[string(id)] = slot
		if err := t.in.Take(int64(len(id))); err != nil {
			return err
		}
	}
	if int(slot) == len(t.born) {
		t.born = append(t.born, t.Number())
	} else {
		t.born[slot] = t.Number()
	}
	return nil
}

// free adds `f id`.
func (t *textReader) free(id []byte) error {
	num, isNum := canonical(id)
	var slot uint32
	var live bool
	if isNum {
		slot, live = t.byNumber.Delete(num)
	} else if slot, live = t.byName[string(id)]; live {
		delete(t.byName, string(id))
		_ = t.in.Take(-int64(len(id))) // less is never too much
	}
	if !live {
		return t.in.Fail("id %s is not live: it was never allocated, or it is already freed", show(id))
	}
	return t.pool.Free(Event{Slot: slot, Upper: id[0] == 'u'})
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

// canonical reads an ID that is a decimal number below 2^64 in its one
// spelling, without leading zeros: only then may the number stand for the text.
func canonical(id []byte) (uint64, bool) {
	if len(id) > 1 && id[0] == '0' {
		return 0, false
	}
	return input.Decimal(id)
}

// show returns an ID in a message: as it is if it is short and plain, else quoted.
func show(id []byte) string {
	if q := input.Quote(id); len(q) != len(id)+2 {
		return q
	}
	return string(id)
}

func (t *textReader) control(line []byte, i int) error {
	return t.in.Fail("%s: byte %d of the line is the control character 0x%02x; this is not a text recording",
		input.Quote(line), i+1, line[i])
}

func (t *textReader) stillLive(id []byte, slot uint32) error {
	return t.in.Fail("id %s is already live (allocated at line %d); free it first", show(id), t.born[slot])
}

func (t *textReader) badSize(size []byte) error {
	if len(bytes.Trim(size, "0123456789")) == 0 {
		return t.in.Fail("%s bytes is more than 2^64-1", input.Quote(size))
	}
	return t.in.Fail("%s is not a number of bytes; write it in decimal digits, without a unit", input.Quote(size))
}
