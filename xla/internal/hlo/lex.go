package hlo

// The pieces that HLO text is made of: names, numbers, strings, comments and
// values in brackets. Nothing here knows what a module is.

import (
	"fmt"
	"math"
	"strings"
)

// A SyntaxError says where a text is no HLO, and what was expected there.
type SyntaxError struct {
	Line    int // from 1
	Column  int // from 1, in bytes
	Message string
}

// Error is the place and the message in one line: "12:7: ...".
func (e *SyntaxError) Error() string {
	return fmt.Sprintf("%d:%d: %s", e.Line, e.Column, e.Message)
}

// A lexer is a place in a text.
type lexer struct {
	text string
	at   int
	open []int // the brackets that raw is in
	// noEnd is where a comment was found to have no end, plus 1; 0: nowhere. Later ones have none
	// either: without it a text of /*/*/* would take quadratic time.
	noEnd int
}

// isName are the bytes of names, of opcodes and of keys; isLetter those they begin with.
var isName, isLetter = func() (name, letter [256]bool) {
	for c := range 256 {
		letter[c] = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
		name[c] = letter[c] || isDigit(byte(c)) || c == '.' || c == '-'
	}
	return name, letter
}()

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// A stop is what reading panics with where the text is no HLO, and what [ParseWithin]
// recovers from: so every part reads on without a look at the error of the part before.
type stop struct{ err error }

// catch is deferred by those that read a text: it sets the error of a stop.
func catch(err *error) {
	if r := recover(); r != nil {
		s, ok := r.(stop)
		if !ok {
			panic(r)
		}
		*err = s.err
	}
}

// fail is the error at a place.
func (l *lexer) fail(at int, format string, args ...any) stop {
	e := l.place(at)
	e.Message = fmt.Sprintf(format, args...)
	return stop{e}
}

// place is the line and the column of a place.
func (l *lexer) place(at int) *SyntaxError {
	before := l.text[:at]
	return &SyntaxError{Line: 1 + strings.Count(before, "\n"), Column: at - strings.LastIndexByte(before, '\n')}
}

// wanted is the error that the text has something else than what was wanted here.
func (l *lexer) wanted(what string) stop {
	return l.fail(l.at, "expected %s, found %s", what, l.found())
}

// found is what stands here, in a few words.
func (l *lexer) found() string {
	rest := l.text[l.at:]
	switch {
	case rest == "":
		return "the end of the text"
	case strings.HasPrefix(rest, "/*"):
		return "a comment without an end"
	}
	n := 1
	if isName[rest[0]] || rest[0] == '%' {
		for n < len(rest) && isName[rest[n]] {
			n++
		}
	}
	return quote(rest[:n])
}

// quote is a piece of text in quotes, cut where it is long: a message is one line.
func quote(s string) string {
	if len(s) > 60 {
		return fmt.Sprintf("%q...", s[:50])
	}
	return fmt.Sprintf("%q", s)
}

// skip moves over blanks, line ends and comments. It stays at a comment that has no end.
func (l *lexer) skip() {
	for l.at < len(l.text) {
		switch l.text[l.at] {
		case ' ', '\n', '\t', '\r':
			l.at++
		case '/':
			rest := l.text[l.at:]
			n := -1
			if strings.HasPrefix(rest, "/*") {
				if l.noEnd > 0 && l.at >= l.noEnd-1 {
					return
				}
				if n = strings.Index(rest[2:], "*/"); n >= 0 {
					n += 4
				} else {
					l.noEnd = l.at + 1
				}
			} else if strings.HasPrefix(rest, "//") {
				if n = strings.IndexAny(rest, "\r\n"); n < 0 {
					n = len(rest)
				}
			}
			if n < 0 {
				return
			}
			l.at += n
		default:
			return
		}
	}
}

// peek is the byte here, and 0 at the end.
func (l *lexer) peek() byte {
	if l.at < len(l.text) {
		return l.text[l.at]
	}
	return 0
}

// eat moves over c, with what skip leaves out on both sides, and reports whether c was there.
func (l *lexer) eat(c byte) bool {
	l.skip()
	if l.peek() != c || l.at == len(l.text) {
		return false
	}
	l.at++
	l.skip()
	return true
}

// expect is eat where c has to be. where says what c is for.
func (l *lexer) expect(c byte, where string) {
	if !l.eat(c) {
		panic(l.wanted(fmt.Sprintf("%q %s", c, where)))
	}
}

// list reads a list in braces, of which item reads one element. what says what it is a
// list of.
func (l *lexer) list(what string, item func()) {
	if !l.eat('{') {
		panic(l.wanted(fmt.Sprintf("%q before %s", '{', what)))
	}
	for l.peek() != '}' {
		if item(); !l.eat(',') {
			break
		}
	}
	if !l.eat('}') {
		panic(l.wanted(fmt.Sprintf("%q behind %s", '}', what)))
	}
}

// word moves over a word. It is empty if none is here.
func (l *lexer) word() string {
	start := l.at
	if !isLetter[l.peek()] {
		return ""
	}
	for l.at < len(l.text) && isName[l.text[l.at]] {
		l.at++
	}
	return l.text[start:l.at]
}

// name moves over a name, which may begin with %, and leaves that out.
func (l *lexer) name(what string) string {
	start := l.at
	if l.peek() == '%' {
		l.at++
	}
	name := l.word()
	if name == "" {
		l.at = start
		panic(l.wanted(what))
	}
	return name
}

// keyword moves over a word and reports whether it was here.
func (l *lexer) keyword(word string) bool {
	rest := l.text[l.at:]
	if !strings.HasPrefix(rest, word) || len(rest) > len(word) && isName[rest[len(word)]] {
		return false
	}
	l.at += len(word)
	l.skip()
	return true
}

// integer moves over digits.
func (l *lexer) integer(what string) int64 {
	start := l.at
	var n int64
	for l.at < len(l.text) && isDigit(l.text[l.at]) {
		d := int64(l.text[l.at] - '0')
		if n > (math.MaxInt64-d)/10 {
			panic(l.fail(start, "%s does not fit into 64 bits", what))
		}
		n = 10*n + d
		l.at++
	}
	if l.at == start {
		panic(l.wanted(what))
	}
	return n
}

// quoted moves over a string, which begins here with " or '. A backslash keeps the
// next byte from ending it.
func (l *lexer) quoted() string {
	quote := l.text[l.at]
	for i := l.at + 1; i < len(l.text); i++ {
		switch l.text[i] {
		case '\\':
			i++
		case quote:
			s := l.text[l.at+1 : i]
			l.at = i + 1
			return s
		}
	}
	panic(l.fail(l.at, "a string without an end"))
}

// closing is the bracket that closes another, and 0.
func closing(c byte) byte {
	switch c {
	case '(':
		return ')'
	case '[', '{', '<':
		return c + 2
	}
	return 0
}

// raw moves over a value that need not be understood: brackets in pairs and
// strings as a whole. It stops at a bracket that closes none in it, and if
// it is an attribute also at a comma and behind a blank. What it returns is
// without blanks and comments at the ends.
func (l *lexer) raw(attribute bool) string {
	l.skip()
	start, end := l.at, l.at
	l.open = l.open[:0]
loop:
	for l.at < len(l.text) {
		switch c := l.text[l.at]; c {
		case '"', '\'':
			l.quoted()
		case '(', '[', '{':
			l.open = append(l.open, l.at)
			l.at++
		case '<':
			// <= is the arrow of tiled device lists, not a bracket.
			if !strings.HasPrefix(l.text[l.at:], "<=") {
				l.open = append(l.open, l.at)
			}
			l.at++
		case '>':
			if n := len(l.open); n > 0 && l.text[l.open[n-1]] == '<' && l.text[l.at-1] != '-' {
				l.open = l.open[:n-1]
			}
			l.at++
		case ')', ']', '}':
			// A < that nothing closed was none.
			n := len(l.open)
			for n > 0 && l.text[l.open[n-1]] == '<' {
				n--
			}
			if n == 0 {
				break loop
			}
			if from := l.open[n-1]; closing(l.text[from]) != c {
				at := l.place(from)
				panic(l.fail(l.at, "%q does not close the %q of %d:%d", c, l.text[from], at.Line, at.Column))
			}
			l.open = l.open[:n-1]
			l.at++
		case ',':
			if attribute && len(l.open) == 0 {
				break loop
			}
			l.at++
		case ' ', '\n', '\t', '\r', '/':
			before := l.at
			l.skip()
			// Behind a blank only brackets go on: no instruction begins with one.
			if attribute && len(l.open) == 0 && closing(l.peek()) == 0 && l.at > before {
				break loop
			}
			if l.at > before {
				continue // and leave end where it is
			}
			l.at++
		default:
			l.at++
		}
		end = l.at
	}
	if n := len(l.open); n > 0 && l.at == len(l.text) {
		panic(l.fail(l.open[n-1], "the %q is not closed", l.text[l.open[n-1]]))
	}
	return l.text[start:end]
}

// json moves over a dictionary in braces. Only braces and strings in "" count, as in
// XLA: what is inside need not be HLO.
func (l *lexer) json() string {
	start, depth := l.at, 0
	for l.at < len(l.text) {
		switch l.text[l.at] {
		case '"':
			l.quoted()
			continue
		case '{':
			depth++
		case '}':
			depth--
		}
		l.at++
		if depth == 0 {
			return l.text[start:l.at]
		}
	}
	panic(l.fail(start, `the '{' is not closed`))
}
