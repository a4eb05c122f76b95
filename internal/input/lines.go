package input

import (
	"bytes"
	"io"
)

// MaxLine is the longest line in bytes, without its newline. Longer ones are not lines
// of a format that gpumem reads, and must not be gathered in memory.
const MaxLine = 64 << 10

// utf8BOM is what some editors put in front of UTF-8.
var utf8BOM = []byte("\xef\xbb\xbf")

// Lines splits text into lines, in bounded memory whatever their length:
//
//	lines := in.Lines("a text recording")
//	for lines.Next() {
//		use(lines.Text(), lines.Number())
//	}
//	return lines.Err()
//
// Errors that the loop makes with [Reader.Fail] have the number of the current line.
type Lines struct {
	from   io.Reader
	of     *Reader // for errors; nil for plain readers, whose long lines are cut
	kind   string  // the format, if it has no long lines
	text   []byte
	number int
	cut    bool // the end of the line was skipped
	whole  bool // the line ends in a newline
	err    error

	// buf[start:end] is what is read and not handed out: whole lines, then the beginning
	// of one. It is four lines long at least, so that moving that beginning to the front
	// is rare.
	buf        []byte
	start, end int
	eof        bool
}

// NewLines returns the lines of a reader. Of a line longer than [MaxLine] it returns the
// beginning and skips the rest.
func NewLines(from io.Reader) *Lines { return &Lines{from: from, buf: make([]byte, 4*MaxLine)} }

// Lines returns the lines of the content. kind is the format for the error about a line
// longer than [MaxLine], as in "a text recording"; if it is "", long lines are cut.
func (r *Reader) Lines(kind string) *Lines {
	r.lines = NewLines(r.in)
	r.lines.of, r.lines.kind = r, kind
	return r.lines
}

// Next goes to the next line. It returns false at the end, and after an error, which Err
// returns then.
func (l *Lines) Next() bool {
	if l.err != nil {
		return false
	}
	l.text, l.cut, l.err = l.part()
	if l.err == nil && l.cut {
		if l.kind != "" {
			l.err = l.of.Fail("the line is longer than %d bytes; this is not %s", MaxLine, l.kind)
			return false
		}
		l.text = bytes.Clone(l.text)
		for n, more := l.number, true; more && l.err == nil; l.number = n {
			_, more, l.err = l.part()
		}
		if l.err == io.EOF { // it comes again on the next call
			l.err = nil
		}
		l.whole = false
	}
	if l.err != nil {
		l.number = 0 // what follows is about no line
	}
	return l.err == nil
}

// window is how far Skip looks ahead: what it finds there is found again line by line.
const window = 8 << 10

// Skip goes past lines that have none of the marks, as far as they are read: it may stop
// before a line that has none. It must not be used where long lines are errors. For large
// texts of which few lines matter it is some ten times as fast as to look at each line.
func (l *Lines) Skip(marks [][]byte) {
	for l.err == nil {
		rest := l.buf[l.start:min(l.start+window, l.end)]
		whole := bytes.LastIndexByte(rest, '\n') + 1
		to := whole
		for _, m := range marks {
			if i := bytes.Index(rest[:to], m); i >= 0 {
				to = i
			}
		}
		end := bytes.LastIndexByte(rest[:to], '\n') + 1
		if end == 0 {
			return
		}
		l.number += bytes.Count(rest[:end], newline)
		l.start += end
		if to < whole {
			return
		}
	}
}

var newline = []byte{'\n'}

// Text returns the current line without its newline, good until the next call of Next.
func (l *Lines) Text() []byte { return l.text }

// Number returns the number of the current line, from 1; 0 after the last one.
func (l *Lines) Number() int { return l.number }

// Whole reports whether the current line ends in a newline and was not cut.
func (l *Lines) Whole() bool { return l.whole }

// Err returns the error that ended the lines, nil at the end of the text.
func (l *Lines) Err() error {
	if l.err == io.EOF {
		return nil
	}
	return l.err
}

// part returns the next line, or the next MaxLine bytes of one that is longer; more
// reports whether it goes on.
func (l *Lines) part() (line []byte, more bool, err error) {
	for {
		rest := l.buf[l.start:l.end]
		i := bytes.IndexByte(rest[:min(len(rest), MaxLine+1)], '\n')
		switch {
		case i >= 0:
			l.number++
			l.start += i + 1
			l.whole = true
			return rest[:i], false, nil
		case len(rest) > MaxLine:
			l.number++
			l.start += MaxLine
			return rest[:MaxLine], true, nil
		case l.eof && len(rest) > 0: // a last line without a newline
			l.number++
			l.start = l.end
			l.whole = false
			return rest, false, nil
		case l.eof:
			return nil, false, io.EOF
		}
		first := l.number == 0 && l.end == 0
		l.end = copy(l.buf, rest)
		l.start = 0
		n, err := l.read(first)
		l.end += n
		if l.eof = err == io.EOF; err != nil && !l.eof {
			return nil, false, err
		}
	}
}

// read reads on. The first bytes are read together, to leave out a mark of UTF-8.
func (l *Lines) read(first bool) (int, error) {
	if !first {
		return l.from.Read(l.buf[l.end:])
	}
	n, err := io.ReadAtLeast(l.from, l.buf, len(utf8BOM))
	if err == io.ErrUnexpectedEOF {
		err = io.EOF
	}
	if bytes.HasPrefix(l.buf[:n], utf8BOM) {
		l.start = len(utf8BOM)
	}
	return n, err
}
