package trace

// This file is for formats of lines: one line at a time, whatever its length,
// in bounded memory.

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// maxLine is the longest line in bytes, without its newline. Longer ones are
// not lines of a recording, and must not be gathered in memory.
const maxLine = 64 << 10

// utf8BOM is what some editors put in front of UTF-8.
var utf8BOM = []byte("\xef\xbb\xbf")

// lineReader splits a recording into lines.
type lineReader struct {
	in   *bufio.Reader
	name string // of the recording, for errors
	line int    // number of the current line, from 1

	// buf[start:end] is what is read and not handed out: whole lines, then the
	// beginning of one. It is four lines long at least, so that moving that
	// beginning to the front is rare.
	buf        []byte
	start, end int
	eof        bool
}

func newLineReader(in *bufio.Reader, name string) *lineReader {
	if head, _ := in.Peek(len(utf8BOM)); bytes.Equal(head, utf8BOM) {
		in.Discard(len(utf8BOM)) // they are in the buffer
	}
	return &lineReader{in: in, name: name, buf: make([]byte, 4*maxLine)}
}

// next returns the next line without its newline, good until the next call. Of
// a line longer than maxLine it returns the beginning, maxLine bytes, and long;
// the rest is skipped. At the end the error is io.EOF.
func (r *lineReader) next() (line []byte, long bool, err error) {
	line, long, err = r.part()
	if !long {
		return line, false, err
	}
	line = bytes.Clone(line)
	for n := r.line; long && err == nil; r.line = n {
		_, long, err = r.part()
	}
	if err == io.EOF {
		err = nil
	}
	return line, true, err
}

// part is next, but what follows maxLine bytes of a line is the next part.
func (r *lineReader) part() (line []byte, long bool, err error) {
	for {
		rest := r.buf[r.start:r.end]
		i := bytes.IndexByte(rest[:min(len(rest), maxLine+1)], '\n')
		switch {
		case i >= 0:
			r.line++
			r.start += i + 1
			return rest[:i], false, nil
		case len(rest) > maxLine:
			r.line++
			r.start += maxLine
			return rest[:maxLine], true, nil
		case r.eof && len(rest) > 0: // a last line without a newline
			r.line++
			r.start = r.end
			return rest, false, nil
		case r.eof:
			return nil, false, io.EOF
		}
		r.end = copy(r.buf, rest)
		r.start = 0
		n, err := r.in.Read(r.buf[r.end:])
		r.end += n
		if r.eof = err == io.EOF; err != nil && !r.eof {
			return nil, false, err
		}
	}
}

// fail is bad input on the current line.
func (r *lineReader) fail(format string, args ...any) error {
	return &Error{File: r.name, Line: r.line, Msg: fmt.Sprintf(format, args...)}
}

// tooLong is for a reader whose format has no long lines; kind names it, as in
// "a text recording".
func (r *lineReader) tooLong(kind string) error {
	return r.fail("the line is longer than %d bytes; this is not %s", maxLine, kind)
}

// place adds the line to an error of the pool builder.
func (r *lineReader) place(err error) error {
	var e *Error
	if errors.As(err, &e) && e.Line == 0 {
		e.Line = r.line
	}
	return err
}
