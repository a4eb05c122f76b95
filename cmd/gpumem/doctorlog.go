package main

// The text of a log, and what is strange about it.

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"gpumem/internal/input"
	"gpumem/trace"
)

// A logReader is an open log.
type logReader struct {
	*input.Reader
	size    int64 // bytes of text that were read
	wide    bool  // it begins as UTF-16 does
	strange bool  // it has bytes that no text has, near its beginning
	failed  error // of reading, with the name; not the end
}

// openLog opens what kind names, such as "a log"; "-" is standard input. line may be nil.
func openLog(ctx context.Context, path, kind string, line *progress) (*logReader, error) {
	opt := input.Options{Kind: kind}
	if line != nil {
		opt.Progress = func(read, total int64) { line.bytes("reading", read, total) }
	}
	in, err := input.Open(ctx, path, opt)
	if err != nil {
		return nil, err
	}
	l := &logReader{Reader: in}
	// What Windows PowerShell redirects into a file is text, though it has zeros.
	head, err := in.Content().Peek(2)
	if err != nil && err != io.EOF {
		in.Close()
		return nil, err
	}
	l.wide = bytes.Equal(head, []byte{0xff, 0xfe}) || bytes.Equal(head, []byte{0xfe, 0xff})
	return l, nil
}

// recordingNote says that a file is a recording, and what reads it. It is empty for all
// other files. Logs with allocations in them are logs.
func recordingNote(ctx context.Context, path string) string {
	if path == "-" {
		return ""
	}
	t, err := trace.Open(ctx, path, trace.Options{})
	if err != nil {
		return ""
	}
	defer t.Close()
	if t.Format == "memdebug" {
		return ""
	}
	return fmt.Sprintf("it is a recording (%s), for gpumem replay %[2]s or gpumem leaks %[2]s", t.Format, shellQuote(path))
}

// Read reads the log's text.
func (l *logReader) Read(p []byte) (int, error) {
	n, err := l.Reader.Read(p)
	if !l.wide && l.size < 64<<10 && bytes.IndexByte(p[:n], 0) >= 0 {
		l.strange = true
	}
	l.size += int64(n)
	if err != nil && err != io.EOF {
		l.failed = err
	}
	return n, err
}
