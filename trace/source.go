package trace

// This file is for the bytes under the readers: counting and progress, gzip,
// and readers that block.

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
)

// progressStep is how many source bytes lie between two progress reports.
const progressStep = 1 << 20

// source is the input before gzip is undone. It counts, reports, gives up when
// the context ends, and turns a failed read into an *Error.
type source struct {
	ctx      context.Context
	r        io.Reader
	name     string
	total    int64
	read     int64
	reported int64
	progress func(read, total int64)
}

func (s *source) Read(p []byte) (int, error) {
	if s.ctx.Err() != nil {
		return 0, stopped(s.ctx, s.name)
	}
	n, err := s.r.Read(p)
	for empty := 0; n == 0 && err == nil && len(p) > 0; empty++ {
		if empty == 100 { // as bufio does
			err = io.ErrNoProgress
			break
		}
		n, err = s.r.Read(p)
	}
	s.read += int64(n)
	if s.read-s.reported >= progressStep {
		s.report(false)
	}
	if err != nil && err != io.EOF {
		if s.ctx.Err() != nil {
			return n, stopped(s.ctx, s.name)
		}
		err = &Error{File: s.name, Msg: fmt.Sprintf("reading failed after %d bytes: %v", s.read, err), Err: err}
	}
	return n, err
}

// report tells the caller where reading is; last also when nothing is new.
func (s *source) report(last bool) {
	if s.progress == nil || (!last && s.read == s.reported) {
		return
	}
	s.reported = s.read
	s.progress(s.read, s.total)
}

// gunzip returns the content of src, decompressed if it begins with gzip's
// magic number 1f 8b (RFC 1952, 2.3.1). Twice, if need be: JAX profiles are gzip
// themselves, and people compress what they send.
func gunzip(ctx context.Context, src *source) (*bufio.Reader, error) {
	in := bufio.NewReaderSize(src, headBytes)
	for range 2 {
		magic, err := in.Peek(2)
		if err != nil && err != io.EOF {
			return nil, err
		}
		if len(magic) < 2 || magic[0] != 0x1f || magic[1] != 0x8b {
			break
		}
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, gzipError(ctx, src.name, 0, err)
		}
		in = bufio.NewReaderSize(&gunzipped{ctx: ctx, z: z, name: src.name}, headBytes)
	}
	return in, nil
}

// gunzipped is the decompressed content. It looks at the context itself: a few
// compressed bytes can stand for very many.
type gunzipped struct {
	ctx  context.Context
	z    *gzip.Reader
	name string
	n    int64
}

func (g *gunzipped) Read(p []byte) (int, error) {
	if g.ctx.Err() != nil {
		return 0, stopped(g.ctx, g.name)
	}
	n, err := g.z.Read(p)
	g.n += int64(n)
	if err != nil && err != io.EOF {
		err = gzipError(g.ctx, g.name, g.n, err)
	}
	return n, err
}

// gzipError says in words what gzip found, n decompressed bytes in. Errors of
// the source pass unchanged.
func gzipError(ctx context.Context, name string, n int64, err error) error {
	switch {
	case ctx.Err() != nil:
		return stopped(ctx, name)
	case isInput(err):
		return err
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return &Error{File: name, Offset: n, Msg: "the gzip data is cut short; copy the file again", Err: io.ErrUnexpectedEOF}
	case errors.Is(err, gzip.ErrChecksum), errors.Is(err, gzip.ErrHeader):
		return &Error{File: name, Offset: n, Msg: "the gzip data is damaged (" + err.Error() + "); copy the file again", Err: err}
	}
	// What is left is flate.CorruptInputError.
	return &Error{File: name, Offset: n, Msg: "the gzip data is damaged (" + err.Error() + "); copy the file again", Err: err}
}

// pump reads a reader that may block (a pipe, a terminal) in a goroutine of its
// own, so that the end of the context ends the wait.
//
// Two buffers go round: empty ones to the goroutine, full ones back. Both
// channels hold two, so the goroutine never blocks on a send, and it ends when
// empty is closed and its read has returned.
type pump struct {
	ctx   context.Context
	empty chan []byte
	full  chan pumped
	held  []byte // the buffer that rest lies in; nil if none
	rest  []byte // read, not handed out yet
	err   error
}

type pumped struct {
	buf []byte
	n   int
	err error
}

// pumpBytes is the size of one buffer; a pipe on Linux holds 64 KiB.
const pumpBytes = 64 << 10

func newPump(ctx context.Context, r io.Reader) *pump {
	p := &pump{ctx: ctx, empty: make(chan []byte, 2), full: make(chan pumped, 2)}
	p.empty <- make([]byte, pumpBytes)
	p.empty <- make([]byte, pumpBytes)
	go func() {
		for buf := range p.empty {
			n, err := r.Read(buf)
			p.full <- pumped{buf, n, err}
			if err != nil {
				return
			}
		}
	}()
	return p
}

func (p *pump) Read(dst []byte) (int, error) {
	if len(p.rest) == 0 {
		if p.err != nil {
			return 0, p.err
		}
		if p.held != nil {
			p.empty <- p.held
			p.held = nil
		}
		select {
		case c := <-p.full:
			p.held, p.rest, p.err = c.buf, c.buf[:c.n], c.err
		case <-p.ctx.Done():
			return 0, p.ctx.Err()
		}
	}
	n := copy(dst, p.rest)
	p.rest = p.rest[n:]
	if len(p.rest) == 0 {
		return n, p.err
	}
	return n, nil
}

// stop lets the goroutine end. Read must not be called after it.
func (p *pump) stop() { close(p.empty) }
