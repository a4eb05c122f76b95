package trace

// This file is for the way in: Open, Read, and what they may be told.

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
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
// to half of SpoolLimit again.
//
// Bad input, a file that cannot be opened and a read that fails give an *Error.
// If ctx ends first, Open stops at once, and errors.Is(err, context.Cause(ctx))
// holds. Any other error is about the spool (a full disk).
func Open(ctx context.Context, path string, opt Options) (*Trace, error) {
	if path == "-" {
		return readFile(ctx, os.Stdin, "stdin", opt)
	}
	f, err := openFile(ctx, path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readFile(ctx, f, path, opt)
}

// Read is Open for a reader; name is what messages call it. If ctx ends while
// r.Read blocks, Read returns and leaves that one call behind in a goroutine: r
// must not be used again then.
func Read(ctx context.Context, r io.Reader, name string, opt Options) (*Trace, error) {
	return read(ctx, r, name, 0, true, opt)
}

// openFile is os.Open under a context: opening a named pipe waits for a writer,
// perhaps for ever.
func openFile(ctx context.Context, path string) (*os.File, error) {
	type opened struct {
		f   *os.File
		err error
	}
	done := make(chan opened, 1)
	go func() {
		f, err := os.Open(path)
		done <- opened{f, err}
	}()
	select {
	case o := <-done:
		if o.err != nil {
			msg := o.err.Error()
			var pe *os.PathError
			if errors.As(o.err, &pe) { // the path is in File already
				msg = "cannot be opened: " + pe.Err.Error()
			}
			return nil, &Error{File: path, Msg: msg, Err: o.err}
		}
		return o.f, nil
	case <-ctx.Done():
		go func() {
			if o := <-done; o.f != nil {
				o.f.Close()
			}
		}()
		return nil, stopped(ctx, path)
	}
}

// readFile is read with what a file knows about itself: its size, and whether
// reading it may block.
func readFile(ctx context.Context, f *os.File, name string, opt Options) (*Trace, error) {
	var total int64
	mayBlock := true
	if st, err := f.Stat(); err == nil {
		switch {
		case st.IsDir():
			return nil, &Error{File: name, Msg: "is a directory; name the file of one recording"}
		case st.Mode().IsRegular():
			total, mayBlock = st.Size(), false
		}
	}
	return read(ctx, f, name, total, mayBlock, opt)
}

// read does the work of Open and Read. total is the size of r in bytes, 0 if
// not known.
func read(ctx context.Context, r io.Reader, name string, total int64, mayBlock bool, opt Options) (*Trace, error) {
	var f *format
	var err error
	if opt.Format != "" {
		if f, err = formatNamed(name, opt.Format); err != nil {
			return nil, err
		}
	}
	if ctx.Err() != nil {
		return nil, stopped(ctx, name)
	}
	src := &source{ctx: ctx, r: r, name: name, total: total, progress: opt.Progress}
	if mayBlock && ctx.Done() != nil {
		p := newPump(ctx, r)
		defer p.stop()
		src.r = p
	}
	in, err := gunzip(ctx, src)
	if err != nil {
		return nil, err
	}
	head, err := in.Peek(headBytes)
	if err != nil && err != io.EOF && !errors.Is(err, bufio.ErrBufferFull) {
		return nil, err
	}
	if f == nil {
		if f, err = recognise(name, head); err != nil {
			return nil, err
		}
	}

	b := newBuilder(name, f.Name, opt)
	if err = f.read(ctx, in, b); err == nil {
		err = b.finish()
	}
	if err != nil {
		b.discard()
		return nil, err
	}
	src.report(true)
	return b.trace, nil
}
