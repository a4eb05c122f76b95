package trace

import "gpumem/internal/input"

// Error describes bad input: what is wrong, and where. Its text is
// "FILE:LINE: MSG" when Line is known, "FILE: byte OFFSET: MSG" when Offset is,
// and else "FILE: MSG".
type Error struct {
	File   string // the path, "stdin", or the name given to Read
	Line   int    // from 1; 0 if unknown, or not a format of lines
	Offset int64  // bytes from the start, after gzip is undone; 0 if unknown
	Msg    string // what is wrong, and the way out where there is one
	Err    error  // the cause, for errors.Is; may be nil. Msg includes it.
}

// Error puts file, place and message together.
func (e *Error) Error() string { return (*input.Error)(e).Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
