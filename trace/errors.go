package trace

// This file is for the one error type of bad input.

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Error is bad input: what is wrong, and where. Its text is
// "FILE:LINE: MSG" when Line is known, "FILE: byte OFFSET: MSG" when Offset is,
// and else "FILE: MSG".
type Error struct {
	File   string // the path, "stdin", or the name given to Read
	Line   int    // from 1; 0 = not known, or not a format of lines
	Offset int64  // bytes from the start, after gzip is undone; 0 = not known
	Msg    string // what is wrong, and the way out where there is one
	Err    error  // the cause, for errors.Is; may be nil. Msg already says it.
}

// Error puts file, place and message together.
func (e *Error) Error() string {
	msg := e.Msg
	if msg == "" && e.Err != nil {
		msg = e.Err.Error()
	}
	switch {
	case e.Line > 0:
		return e.File + ":" + strconv.Itoa(e.Line) + ": " + msg
	case e.Offset > 0:
		return e.File + ": byte " + strconv.FormatInt(e.Offset, 10) + ": " + msg
	}
	return e.File + ": " + msg
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// stopped is the error for a cancelled context. It is not an *Error: the input
// is not at fault.
func stopped(ctx context.Context, name string) error {
	return fmt.Errorf("%s: reading was stopped: %w", name, context.Cause(ctx))
}

// isInput reports whether err already names the file, so that nobody wraps it a
// second time.
func isInput(err error) bool {
	var e *Error
	return errors.As(err, &e)
}

// maxQuote is how much of a damaged line or name an error shows, in bytes.
const maxQuote = 40

// quote shows input in a message: quoted, cut short, never a control character.
func quote[T string | []byte](s T) string {
	if len(s) <= maxQuote {
		return strconv.Quote(string(s))
	}
	return strconv.Quote(cutRunes(string(s[:maxQuote+1]), maxQuote)) + "..."
}

// cutRunes returns at most n bytes of s and never half a character, if s is
// UTF-8. n is at least utf8.UTFMax.
func cutRunes(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for back := range utf8.UTFMax {
		if utf8.RuneStart(s[n-back]) {
			return s[:n-back]
		}
	}
	return s[:n]
}

// printable returns s on one line: control characters become blanks and bytes
// that are not UTF-8 a question mark.
func printable(s string) string {
	s = strings.ToValidUTF8(s, "?")
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}
