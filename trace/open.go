package trace

// This file is for the way in: Open, Read, and what they may be told.

import (
	"context"
	"io"

	"gpumem/internal/input"
)

// Options say how to read a recording. The zero value is a good default.
type Options struct {
	// Format is the name of the format, one of [Formats]; "" recognises it by
	// content.
	Format string
	// KeepPaths keeps the directories of files in stacks. Without it only the
	// base name of each file is kept, since paths name users and machines.
	KeepPaths bool
	// SpoolLimit is how many bytes of encoded events stay in memory before the
	// rest goes to a temporary file; an event takes about 3 to 11 bytes. 0 means
	// 64 MiB; below 0 everything goes to the file.
	SpoolLimit int
	// TempDir is where the temporary file is made; "" means os.TempDir().
	TempDir string
	// Progress is called from Open's goroutine each time about 1 MiB of the
	// source has been read, and at its end. bytesTotal is 0 if not known. nil
	// is allowed.
	Progress func(bytesRead, bytesTotal int64)
}

// defaultSpoolLimit holds about 15 million events in memory.
const defaultSpoolLimit = 64 << 20

// headBytes is how much of the content is looked at to recognise the format. It
// is the longest line a text recording may have, so one line always fits.
const headBytes = maxLine

// Open reads the whole recording at path once ("-" is stdin) and keeps it as
// compact events, so that it can be replayed any number of times. The caller
// closes the trace.
//
// Memory follows the most blocks that are live at once, the sites, and
// Options.SpoolLimit. Only torch needs more while it is read: its whole pickle
// lies in memory as a tree, about six times the size of the file; and xplane, up
// to half of SpoolLimit again. All that is bounded by the size of the file, see
// gpumem/internal/input: a small file that stands for very much is refused.
//
// Bad input, a file that cannot be opened and a read that fails give an *Error.
// If ctx ends first, Open stops at once, and errors.Is(err, context.Cause(ctx))
// holds. Any other error is about the spool (a full disk).
func Open(ctx context.Context, path string, opt Options) (*Trace, error) {
	f, err := formatOf(path, opt)
	if err != nil {
		return nil, err
	}
	in, err := input.Open(ctx, path, opt.input())
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return read(ctx, in, f, opt)
}

// Read is Open for a reader; name is what messages call it. If ctx ends while
// r.Read blocks, Read returns and leaves that one call behind in a goroutine: r
// must not be used again then.
func Read(ctx context.Context, r io.Reader, name string, opt Options) (*Trace, error) {
	f, err := formatOf(name, opt)
	if err != nil {
		return nil, err
	}
	in, err := input.New(ctx, r, name, opt.input())
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return read(ctx, in, f, opt)
}

// formatOf is the format that the options name, and nil if they name none.
func formatOf(name string, opt Options) (*format, error) {
	if opt.Format == "" {
		return nil, nil
	}
	if name == "-" {
		name = "stdin"
	}
	return formatNamed(name, opt.Format)
}

// input is how a recording is read.
func (opt Options) input() input.Options {
	return input.Options{Kind: "one recording", Progress: opt.Progress, Error: func(e *input.Error) error {
		return &Error{File: e.File, Offset: e.Offset, Msg: e.Msg, Err: e.Err}
	}}
}

// read does the work of Open and Read. f is nil where the content says what the format is.
func read(ctx context.Context, src *input.Reader, f *format, opt Options) (*Trace, error) {
	in, name := src.Content(), src.Name()
	head, err := in.Peek(headBytes)
	if err != nil && err != io.EOF {
		return nil, err
	}
	if f == nil {
		if f, err = recognise(name, head); err != nil {
			return nil, err
		}
	}

	b := newBuilder(name, f.Name, opt)
	b.input = src
	if err = f.read(ctx, in, b); err == nil {
		err = b.finish()
	}
	if err != nil {
		b.discard()
		return nil, err
	}
	src.Report()
	return b.trace, nil
}
