// Package jsontext reads JSON of any length piece by piece, in the memory of one buffer.
//
// The caller names what it expects, and skips what it does not want:
//
//	s := jsontext.New(in)
//	for s.Enter('{'); s.More(); {
//		switch string(s.Key()) {
//		case "size":
//			size = s.Number()
//		default:
//			s.Skip()
//		}
//	}
//	return s.Err()
//
// After the first error nothing more is there: More is false, and values are empty. What is
// skipped is checked as far as brackets and quotes go.
package jsontext

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"

	"gpumem/internal/input"
)

const (
	bufferBytes = 256 << 10
	// MaxText is how much of a string is kept, in bytes.
	MaxText = 16 << 10
	// maxScalar is the longest number or word, in bytes.
	maxScalar = 64
	// maxDepth is how deep values lie in each other.
	maxDepth = 256
)

// A Scanner reads one JSON text.
type Scanner struct {
	in       *input.Reader
	buf      []byte
	pos, end int   // of what is read and not used yet, in buf
	base     int64 // of buf in the content
	open     []byte
	first    bool   // the innermost open value has had no member yet
	scratch  []byte // a string that had to be put together
	eof      bool
	err      error
}

// New returns a scanner of the content of in.
func New(in *input.Reader) *Scanner { return newScanner(in, bufferBytes) }

func newScanner(in *input.Reader, bytes int) *Scanner {
	return &Scanner{in: in, buf: make([]byte, bytes)}
}

// Err returns the first error: one of reading, or where and why the content is no JSON.
func (s *Scanner) Err() error { return s.err }

// Fail makes an error of the place that was reached the error of the scanner.
func (s *Scanner) Fail(format string, args ...any) {
	if s.err == nil {
		s.Stop(s.in.FailAt(s.base+int64(s.pos), format, args...))
	}
}

// Stop ends reading with an error of the caller, unless there is one, or err is nil.
func (s *Scanner) Stop(err error) {
	if s.err == nil && err != nil {
		s.err = err
		s.pos = s.end
	}
}

// fill reads more behind buf[from:end], which it keeps at the front; the caller's place is pos.
// It returns false at the end of the content.
func (s *Scanner) fill(from int) bool {
	if s.err != nil || s.eof {
		return false
	}
	copy(s.buf, s.buf[from:s.end])
	s.base += int64(from)
	s.pos -= from
	s.end -= from
	n, err := s.in.Read(s.buf[s.end:])
	s.end += n
	switch {
	case err == io.EOF:
		s.eof = true
	case err != nil:
		s.err = err
		s.pos, s.end = 0, 0
		return false
	}
	return n > 0 || !s.eof && s.fill(0)
}

// Peek returns the first byte of what comes next, blanks aside: 0 at the end of the content.
func (s *Scanner) Peek() byte {
	for {
		for s.pos < s.end {
			switch c := s.buf[s.pos]; c {
			case ' ', '\n', '\t', '\r':
				s.pos++
			default:
				return c
			}
		}
		if !s.fill(s.pos) {
			return 0
		}
	}
}

// unexpected is the error of a byte that cannot stand where it does.
func (s *Scanner) unexpected(want string) {
	switch c := s.Peek(); {
	case s.err != nil:
	case s.eof && s.pos == s.end:
		s.Fail("the file is cut short: %s is missing; copy the file again", want)
	default:
		s.Fail("damaged: %s where %s should be; copy the file again", quoteByte(c), want)
	}
}

func quoteByte(c byte) string {
	if c < ' ' || c >= utf8.RuneSelf {
		return fmt.Sprintf("the byte %d", c)
	}
	return strconv.Quote(string(rune(c)))
}

// Enter begins an object, '{', or an array, '['.
func (s *Scanner) Enter(bracket byte) {
	switch {
	case s.Peek() != bracket:
		s.unexpected(strconv.Quote(string(rune(bracket))))
		return
	case len(s.open) == maxDepth:
		s.Fail("damaged: values lie more than %d deep in each other; copy the file again", maxDepth)
		return
	}
	s.pos++
	s.open = append(s.open, bracket+2) // '{' + 2 is '}', '[' + 2 is ']'
	s.first = true
}

// More reports whether the innermost open object or array has another member; if not, it is
// closed.
func (s *Scanner) More() bool {
	if s.err != nil || len(s.open) == 0 {
		return false
	}
	bracket := s.open[len(s.open)-1]
	switch c := s.Peek(); {
	case c == bracket:
		s.pos++
		s.open = s.open[:len(s.open)-1]
		s.first = false
		return false
	case s.first:
		s.first = false
	case c == ',':
		s.pos++
		if s.Peek() == bracket {
			s.unexpected("another value")
		}
	default:
		s.unexpected(strconv.Quote(string(rune(bracket))))
	}
	return s.err == nil
}

// Key returns the name of a member of an object. It is good until the next call.
func (s *Scanner) Key() []byte {
	key := s.Text()
	if s.pos < s.end && s.buf[s.pos] == ':' && s.err == nil { // no blank, and the buffer stays
		s.pos++
		return key
	}
	s.scratch = append(s.scratch[:0], key...) // what follows may move the buffer
	key = s.scratch
	if s.Peek() != ':' {
		s.unexpected(`":"`)
		return nil
	}
	s.pos++
	return key
}

// Text returns a string, with its escapes undone, cut to MaxText bytes. It is good until the
// next call.
func (s *Scanner) Text() []byte {
	if s.Peek() != '"' {
		s.unexpected("a string")
		return nil
	}
	s.pos++
	rest := s.buf[s.pos:s.end]
	if n := bytes.IndexByte(rest, '"'); n >= 0 && n <= MaxText && bytes.IndexByte(rest[:n], '\\') < 0 {
		s.pos += n + 1
		return rest[:n]
	}
	return s.longText()
}

// longText is Text for strings with escapes, and those that the buffer does not hold whole.
func (s *Scanner) longText() []byte {
	text := s.scratch[:0]
	for {
		rest := s.buf[s.pos:s.end]
		n := bytes.IndexAny(rest, `"\`)
		if n < 0 {
			n = len(rest)
		}
		text = append(text, rest[:min(n, MaxText-len(text))]...)
		s.pos += n
		if s.pos == s.end {
			if !s.fill(s.pos) {
				s.unexpected("the end of a string")
				return nil
			}
			continue
		}
		if s.buf[s.pos] == '"' {
			s.pos++
			s.scratch = text
			return text
		}
		r, ok := s.escape()
		if !ok {
			s.unexpected("the end of a string")
			return nil
		}
		if len(text)+utf8.UTFMax <= MaxText {
			text = utf8.AppendRune(text, r)
		}
	}
}

var escapes = map[byte]rune{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// escape reads an escape. Half of a character beyond 16 bits becomes U+FFFD, and one that JSON
// does not have is its letter.
func (s *Scanner) escape() (rune, bool) {
	for s.end-s.pos < len(`\u0000`) && s.fill(s.pos) {
	}
	if s.end-s.pos < 2 {
		s.pos = s.end
		return 0, false
	}
	c := s.buf[s.pos+1]
	if c == 'u' && s.end-s.pos >= len(`\u0000`) {
		if n, rest, ok := input.Hex(s.buf[s.pos+2 : s.pos+6]); ok && len(rest) == 0 {
			s.pos += 6
			return rune(n), true
		}
	}
	s.pos += 2
	if r, ok := escapes[c]; ok {
		return r, true
	}
	return rune(c), true
}

// Scalar returns a number, true, false or null as it is written, or the text of a string. It is
// good until the next call.
func (s *Scanner) Scalar() []byte {
	if s.Peek() == '"' {
		return s.Text()
	}
	n := 0
	for {
		for s.pos+n < s.end && inScalar(s.buf[s.pos+n]) {
			n++
		}
		if s.pos+n < s.end || n > maxScalar || !s.fill(s.pos) {
			break
		}
	}
	if n == 0 || n > maxScalar {
		s.unexpected("a value")
		return nil
	}
	word := s.buf[s.pos : s.pos+n]
	s.pos += n
	return word
}

// inScalar reports whether a byte may stand in a number or a word.
func inScalar(c byte) bool {
	return c-'0' <= 9 || c|0x20-'a' <= 'z'-'a' || c == '-' || c == '+' || c == '.'
}

// Skip passes over a value of any kind.
func (s *Scanner) Skip() {
	depth := len(s.open)
	for s.err == nil {
		switch s.Peek() {
		case '"':
			s.skipText()
		case '{', '[':
			s.Enter(s.buf[s.pos])
		default:
			s.Scalar()
		}
		for len(s.open) > depth && !s.More() && s.err == nil {
		}
		if len(s.open) == depth {
			return
		}
		if s.open[len(s.open)-1] == '}' {
			s.skipText()
			if s.Peek() != ':' {
				s.unexpected(`":"`)
			}
			s.pos = min(s.pos+1, s.end)
		}
	}
}

// skipText passes over a string.
func (s *Scanner) skipText() {
	if s.Peek() != '"' {
		s.unexpected("a string")
		return
	}
	s.pos++
	for {
		rest := s.buf[s.pos:s.end]
		n := bytes.IndexByte(rest, '"')
		if n >= 0 && bytes.IndexByte(rest[:n], '\\') < 0 {
			s.pos += n + 1
			return
		}
		if n = bytes.IndexByte(rest, '\\'); n < 0 {
			s.pos = s.end
			if !s.fill(s.pos) {
				s.unexpected("the end of a string")
				return
			}
			continue
		}
		s.pos += n
		if _, ok := s.escape(); !ok {
			s.unexpected("the end of a string")
			return
		}
	}
}

// End reports whether nothing but blanks is left.
func (s *Scanner) End() bool { return s.Peek() == 0 && s.eof && s.pos == s.end }
