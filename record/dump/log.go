package dump

// Both readers of text over one log, line by line.

import (
	"bufio"
	"context"
	"errors"
	"io"

	"gpumem/internal/input"
)

// ReadLog reads a log to its end once: a file of text, with or without prefixes before the
// messages, or a binary dump.
//
// The dump is the last in it that is complete, or else the last; no more than the chunks of
// two are kept. Dumps that two writers mixed line by line come out as incomplete ones. What a
// dump lacks is in its Notes. The program is the last complete report of XLA's compiler on one
// that did not fit, or else the last, with the messages of rematerialization. Each is nil if
// the log has none. The error is that of r, or of a damaged binary dump.
func ReadLog(r io.Reader) (*Dump, *Program, error) {
	in := bufio.NewReaderSize(r, 4<<10)
	head, err := in.Peek(binaryHead)
	if err != nil && err != io.EOF {
		return nil, nil, err
	}
	if isBinary(head) {
		d, err := readBroken(in)
		return d, nil, err
	}
	lines := input.NewLines(in)
	t := &textReader{lines: lines}
	p := programs{of: map[string]*Program{}}
	for lines.Next() {
		t.take(lines.Text())
		p.line(lines.Number(), lines.Text())
		if t.cur == nil && len(p.of) == 0 {
			lines.Skip(allMarks)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, nil, err
	}
	return t.result(), p.result(), nil
}

// readBroken reads a binary dump, which may break off or be damaged: what comes before that
// is taken. It is nil if that is nothing.
func readBroken(r io.Reader) (*Dump, error) {
	file, err := input.New(context.Background(), r, "dump", input.Options{})
	if err != nil {
		return nil, err
	}
	defer file.Close()
	b, err := readBinary(file)
	var damage *input.Error
	switch {
	case errors.As(err, &damage) && damage.Err == nil:
		b.note("The file breaks off or is damaged at byte %d; what follows is not read.", damage.Offset)
	case err != nil:
		return nil, err
	}
	if len(b.d.Regions) == 0 {
		return nil, nil
	}
	return b.finish(), nil
}

// allMarks are of the lines that begin a dump, a report or a message of rematerialization. Each
// takes a pass over the log, so that one does for what has the same words.
var allMarks = append([][]byte{rematWords, peakWords, []byte("ation:"), []byte("BufferAssignment ")}, dumpMarks...)
