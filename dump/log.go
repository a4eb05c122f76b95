package dump

// Both readers over one log, line by line.

import (
	"bufio"
	"bytes"
	"errors"
	"io"

	"gpumem/internal/input"
)

// ReadLog reads a log to its end once, and returns what [Read] and [ReadProgram] find in it.
// Each is nil if the log has none. The error is that of r.
func ReadLog(r io.Reader) (*Dump, *Program, error) {
	in := bufio.NewReaderSize(r, 4<<10)
	head, err := in.Peek(binaryHead)
	if err != nil && err != io.EOF {
		return nil, nil, err
	}
	if IsBinary(head) {
		d, err := Read(in)
		if errors.Is(err, ErrNone) {
			err = nil
		}
		return d, nil, err
	}
	lines := input.NewLines(in)
	t := &textReader{lines: lines}
	p := programs{of: map[string]*Program{}}
	for lines.Next() {
		line := lines.Text()
		if t.cur == nil && len(p.of) == 0 && !marked(line) {
			continue
		}
		t.take(line)
		p.line(lines.Number(), line)
	}
	if err := lines.Err(); err != nil {
		return nil, nil, err
	}
	d, _ := t.result()
	q, _ := p.result()
	return d, q, nil
}

// heads are the texts that begin a dump, a program's report or a message of
// rematerialization, each with the place of four letters that are rare in logs.
var heads = []struct {
	text []byte
	rare int
}{
	{ofSize, len(" of ")},
	{refusal, len("ran out of memory ")},
	{dumpFor, 0},
	{binLine, 0},
	{rematWords, 0},
	{headWords[0], len("Buffe")},
	{headWords[1], len("Buffe")},
	{peakWords, 0},
	{allocation, len("allo")},
	{fragments, len("fra")},
}

// marked reports whether a line has one of heads. Of four letters in a row, three pairs
// begin one after the other, so it is enough to look at every third pair of the line.
func marked(line []byte) bool {
	for i := 0; i+1 < len(line); i += 3 {
		pair := uint16(line[i])<<8 | uint16(line[i+1])
		if rarePairs[pair>>6]&(1<<(pair&63)) == 0 {
			continue
		}
		for _, h := range heads {
			for k := h.rare; k < h.rare+3; k++ {
				if h.text[k] == line[i] && k <= i && bytes.HasPrefix(line[i-k:], h.text) {
					return true
				}
			}
		}
	}
	return false
}

// rarePairs are the pairs in the rare letters of heads, as a set of bits.
var rarePairs = func() (set [1 << 10]uint64) {
	for _, h := range heads {
		for k := h.rare; k < h.rare+3; k++ {
			pair := uint16(h.text[k])<<8 | uint16(h.text[k+1])
			set[pair>>6] |= 1 << (pair & 63)
		}
	}
	return set
}()
