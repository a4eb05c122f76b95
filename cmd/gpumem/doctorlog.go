package main

// The bytes of a log: from a file or a pipe, gzip or not, and given up when the
// command is interrupted.

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// A logReader is an open log. It keeps one buffer of it.
type logReader struct {
	name    string // what messages call it
	ctx     context.Context
	file    *os.File
	in      *bufio.Reader
	read    int64 // bytes that were given, decompressed
	wide    bool  // it begins as UTF-16 does
	strange bool  // it has bytes that no text has, near its beginning
	failed  error // of reading, with the name; not the end
}

// openLog opens the log at path; "-" is standard input. line may be nil.
func openLog(ctx context.Context, path string, line *progress) (*logReader, error) {
	l := &logReader{name: path, ctx: ctx, file: os.Stdin}
	if path == "-" {
		l.name = "stdin"
	} else {
		var err error
		// Opening a named pipe waits for a writer, perhaps for ever.
		if l.file, err = await(ctx, func() (*os.File, error) { return os.Open(path) }); err != nil {
			return nil, l.error(fmt.Errorf("cannot be opened: %w", reason(err)))
		}
	}
	source := &logSource{ctx: ctx, file: l.file, line: line, mayBlock: true}
	if st, err := l.file.Stat(); err == nil && st.IsDir() {
		l.close()
		return nil, l.error(errors.New("is a directory; name the file of a log"))
	} else if err == nil && st.Mode().IsRegular() {
		source.total, source.mayBlock = st.Size(), false
	}
	if err := l.begin(source); err != nil {
		l.close()
		return nil, l.error(err)
	}
	return l, nil
}

// begin looks at the first bytes: gzip is undone, and what Windows PowerShell
// redirects into a file is text, though it has zeros.
func (l *logReader) begin(source io.Reader) error {
	const bufferSize = 256 << 10
	l.in = bufio.NewReaderSize(source, bufferSize)
	head, err := l.in.Peek(2)
	if err == nil && head[0] == 0x1f && head[1] == 0x8b { // RFC 1952, 2.3.1
		z, err := gzip.NewReader(l.in)
		if err != nil {
			return gzipReason(err)
		}
		l.in = bufio.NewReaderSize(gunzipped{z}, bufferSize)
		head, _ = l.in.Peek(2)
	} else if err != nil && err != io.EOF {
		return err
	}
	l.wide = bytes.Equal(head, []byte{0xff, 0xfe}) || bytes.Equal(head, []byte{0xfe, 0xff})
	return nil
}

// Read gives the log's text.
func (l *logReader) Read(p []byte) (int, error) {
	if err := l.ctx.Err(); err != nil { // a few compressed bytes can stand for very many
		l.failed = err
		return 0, err
	}
	n, err := l.in.Read(p)
	if !l.wide && l.read < 64<<10 && bytes.IndexByte(p[:n], 0) >= 0 {
		l.strange = true
	}
	l.read += int64(n)
	if err != nil && err != io.EOF {
		err = l.error(err)
		l.failed = err
	}
	return n, err
}

// error gives an error the log's name; the end of the context needs none.
func (l *logReader) error(err error) error {
	if l.ctx.Err() != nil && errors.Is(err, l.ctx.Err()) {
		return err
	}
	return fmt.Errorf("%s: %w", l.name, err)
}

func (l *logReader) close() {
	if l.file != os.Stdin {
		l.file.Close()
	}
}

// A logSource is a file under a context, with its progress.
type logSource struct {
	ctx      context.Context
	file     *os.File
	line     *progress // nil: none
	total    int64     // 0: not known
	read     int64
	mayBlock bool
}

func (s *logSource) Read(p []byte) (n int, err error) {
	if s.mayBlock {
		n, err = await(s.ctx, func() (int, error) { return s.file.Read(p) })
	} else {
		n, err = s.file.Read(p)
	}
	s.read += int64(n)
	if s.line != nil {
		s.line.bytes("reading", s.read, s.total)
	}
	if err != nil && err != io.EOF && s.ctx.Err() == nil {
		err = fmt.Errorf("reading failed after %d bytes: %w", s.read, reason(err))
	}
	return n, err
}

// await does what may block. When the context ends it does not wait any longer,
// and what is given to it must not be used again.
func await[T any](ctx context.Context, do func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := do()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// reason is an error of a file without its path, which the message has already.
func reason(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// gunzipped gives the errors of gzip in words.
type gunzipped struct{ z *gzip.Reader }

func (g gunzipped) Read(p []byte) (int, error) {
	n, err := g.z.Read(p)
	if err != nil && err != io.EOF {
		err = gzipReason(err)
	}
	return n, err
}

func gzipReason(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return errors.New("the gzip data is cut short; copy the file again, or decompress what there is: zcat FILE | gpumem doctor")
	}
	return fmt.Errorf("the gzip data is damaged: %w", err)
}
