// Package input opens what the readers of gpumem read: a file, a pipe or standard input,
// packed by gzip or not. It bounds what a reader may take: a few bytes of gzip can stand
// for very many, and a few bytes of a format for much memory.
//
// A file and what it unpacks to, see [Reader.Read], and the memory that a reader holds,
// see [Reader.Take], are in proportion to the file as it is on disk. What exceeds the
// proportion is refused with an [Error] that is [ErrTooMuch].
package input

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"gpumem/size"
)

// The proportions. Recordings, logs and modules pack to a third up to a fortieth; gzip
// itself ends at a thousandth. Readers hold up to 20 bytes for a byte of what they read.
const (
	// Content may be maxUnpacked times the file, and floorUnpacked in any case.
	maxUnpacked   = 100
	floorUnpacked = 64 << 20
	// Memory may be maxHeld times the file, and floorHeld in any case.
	maxHeld   = 32
	floorHeld = 512 << 20
)

// ErrTooMuch is the error of input that unpacks to more, or needs more memory, than is in
// proportion to it.
var ErrTooMuch = errors.New("too much for a file of this size")

// An Error is input that cannot be read. Its text is "FILE:LINE: MSG" if Line is known,
// "FILE: byte OFFSET: MSG" if Offset is, and else "FILE: MSG".
type Error struct {
	File   string // the path, "stdin", or the name given to New
	Line   int    // from 1; 0 if unknown, or not a format of lines
	Offset int64  // bytes from the start of the content, that is behind gzip; 0 if unknown
	Msg    string // what is wrong, and the way out if there is one
	Err    error  // the cause, for errors.Is; may be nil. Msg includes it.
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

// Options say how input is read.
type Options struct {
	// Kind is what the input is, for messages: "a log".
	Kind string
	// Progress is called from the goroutine that reads, each time about 1 MiB of the source
	// was read; total is 0 if unknown. It may be nil.
	Progress func(read, total int64)
	// Held is how many bytes of memory may be held in any case, see [Reader.Take]. 0 means
	// 512 MiB.
	Held int64
}

// bufferBytes is the size of the buffers.
const bufferBytes = 256 << 10

// A Reader is open input. One goroutine uses it at a time.
type Reader struct {
	ctx      context.Context
	opt      Options
	name     string
	file     *os.File // to be closed; nil: none
	source   io.Reader
	pipe     *io.PipeReader // the source, if it may block; else nil
	total    int64          // of the source in bytes; 0: not known
	read     int64          // of the source
	reported int64
	packed   int           // layers of gzip
	in       *bufio.Reader // the content
	lines    *Lines        // of the content; nil if it is not read by the line
	held     int64         // see Take
}

// Open opens the file at path, or standard input if path is "-". The caller closes it.
//
// Opening a named pipe waits for a program that writes to it; after a second the callback
// of [WithNotice] is called. The end of ctx ends this wait, and the wait for data. The
// error then wraps context.Cause(ctx) and is not an [Error].
func Open(ctx context.Context, path string, opt Options) (*Reader, error) {
	r := &Reader{ctx: ctx, opt: opt, name: path}
	f := os.Stdin
	if path == "-" {
		watch()
		r.name = "stdin"
	} else {
		var err error
		if f, err = r.open(path); err != nil {
			return nil, err
		}
		r.file = f
	}
	mayBlock := true
	if st, err := f.Stat(); err == nil {
		switch {
		case st.IsDir():
			r.Close()
			kind := opt.Kind
			if kind == "" {
				kind = "the input"
			}
			return nil, r.fail(&Error{Msg: "is a directory; name the file of " + kind})
		case st.Mode().IsRegular():
			r.total, mayBlock = st.Size(), false
		}
	}
	return r.begin(f, mayBlock)
}

// New reads from a reader, see [Open]. Messages call it name. If ctx ends while from.Read
// blocks, that one call is left behind in a goroutine: from must not be used again then.
func New(ctx context.Context, from io.Reader, name string, opt Options) (*Reader, error) {
	return (&Reader{ctx: ctx, opt: opt, name: name}).begin(from, ctx.Done() != nil)
}

// Name returns the name of the input in messages: its path, or "stdin".
func (r *Reader) Name() string { return r.name }

// Content returns the content behind gzip, which Read reads, with its buffer of 256 KiB.
func (r *Reader) Content() *bufio.Reader { return r.in }

// Head returns the first 64 KiB of the content, less if it is short, without reading past
// them. It is called before anything is read.
func (r *Reader) Head() ([]byte, error) {
	head, err := r.in.Peek(MaxLine)
	if err == io.EOF {
		err = nil
	}
	return head, err
}

// Stopped returns an error if the context has ended, for loops that read nothing.
func (r *Reader) Stopped() error {
	if r.ctx.Err() != nil {
		return r.stopped()
	}
	return nil
}

// Fail returns an error of the input, at the current line if it is read with
// [Reader.Lines].
func (r *Reader) Fail(format string, args ...any) error {
	e := &Error{Msg: fmt.Sprintf(format, args...)}
	if r.lines != nil {
		e.Line = r.lines.number
	}
	return r.fail(e)
}

// FailAt returns an error of the input at an offset in the content.
func (r *Reader) FailAt(offset int64, format string, args ...any) error {
	return r.fail(&Error{Offset: offset, Msg: fmt.Sprintf(format, args...)})
}

// Read reads the content, behind gzip. Its errors are an [Error], those of the context, and
// io.EOF.
func (r *Reader) Read(p []byte) (int, error) {
	if err := r.Stopped(); err != nil { // a few packed bytes can stand for very many
		return 0, err
	}
	return r.in.Read(p)
}

// ReadAll reads the whole content, which counts as memory that is held.
func (r *Reader) ReadAll() ([]byte, error) {
	var all bytes.Buffer
	err := r.readAll(&all)
	return all.Bytes(), err
}

// Text reads the whole content as a string, see [Reader.ReadAll].
func (r *Reader) Text() (string, error) {
	var all strings.Builder
	err := r.readAll(&all)
	return all.String(), err
}

// readAll gathers pieces first: content that grows in one piece would be there more than
// twice at times.
func (r *Reader) readAll(to interface {
	io.Writer
	Grow(int)
}) error {
	const most = 4 << 20
	var pieces [][]byte
	size := 0
	for n := bufferBytes; ; n = min(2*n, most) {
		if err := r.Take(int64(n)); err != nil {
			return err
		}
		piece := make([]byte, n)
		got, err := io.ReadFull(r, piece)
		size += got
		pieces = append(pieces, piece[:got])
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			break
		}
		if err != nil {
			return err
		}
	}
	to.Grow(size)
	for n, piece := range pieces {
		to.Write(piece) // to memory: no error
		pieces[n] = nil
	}
	return nil
}

// Take counts n bytes of memory that the reader needs from now on; below 0, bytes that
// are not needed any more. The error is [ErrTooMuch] if the sum is out of proportion to the
// file.
func (r *Reader) Take(n int64) error {
	r.held += n
	limit := int64(floorHeld)
	if r.opt.Held > 0 {
		limit = r.opt.Held
	}
	if limit += maxHeld * r.size(); r.held > limit {
		return r.tooMuch("cannot be held in", limit)
	}
	return nil
}

// size returns that of the file as far as it is known.
func (r *Reader) size() int64 { return max(r.total, r.read) }

// Report calls Options.Progress once more, at the end.
func (r *Reader) Report() { r.report(true) }

// Close ends reading. It does not close standard input.
func (r *Reader) Close() {
	if r.pipe != nil {
		r.pipe.Close()
	}
	if r.file != nil {
		r.file.Close()
	}
}

// fail makes the error to return.
func (r *Reader) fail(e *Error) error {
	e.File = r.name
	return e
}

// tooMuch is what exceeds a limit.
func (r *Reader) tooMuch(what string, limit int64) error {
	cure := "it is damaged, or needs a smaller part taken out of it"
	if r.packed > 0 {
		cure = "if it is not damaged, unpack it with gzip -d and name the result"
	}
	return r.fail(&Error{Err: ErrTooMuch, Msg: fmt.Sprintf("%s %s, the limit for a file of %s; %s",
		what, size.Format(uint64(limit)), size.Format(uint64(r.size())), cure)})
}

// stopped is the error of a context that ended. The input is not at fault.
func (r *Reader) stopped() error {
	return fmt.Errorf("%s: reading was stopped: %w", r.name, context.Cause(r.ctx))
}

// patience is how long a wait may be before the callback of WithNotice is called.
var patience = time.Second

type noticeKey struct{}

// WithNotice returns a context in which f is called with one line about what reading
// waits for. f may be called from any goroutine.
func WithNotice(ctx context.Context, f func(string)) context.Context {
	return context.WithValue(ctx, noticeKey{}, f)
}

// waiting calls the callback of WithNotice.
func (r *Reader) waiting(what string) {
	if f, ok := r.ctx.Value(noticeKey{}).(func(string)); ok {
		f(r.name + ": " + what)
	}
}

// open is os.Open under the context: opening a named pipe waits for a program that writes
// to it, perhaps for ever.
func (r *Reader) open(path string) (*os.File, error) {
	type opened struct {
		f   *os.File
		err error
	}
	done := make(chan opened, 1)
	go func() {
		f, err := os.Open(path)
		done <- opened{f, err}
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case o := <-done:
			if o.err != nil {
				cause := o.err
				var pe *fs.PathError
				if errors.As(cause, &pe) { // the path is in File already
					cause = pe.Err
				}
				return nil, r.fail(&Error{Msg: "cannot be opened: " + cause.Error(), Err: o.err})
			}
			return o.f, nil
		case <-timer.C:
			r.waiting("waiting for a program that writes to it")
		case <-r.ctx.Done():
			go func() {
				if o := <-done; o.f != nil {
					o.f.Close()
				}
			}()
			return nil, r.stopped()
		}
	}
}

// begin undoes gzip, as often as twice: JAX's profiles are packed themselves, and people
// pack what they send.
func (r *Reader) begin(source io.Reader, mayBlock bool) (*Reader, error) {
	if r.source = source; mayBlock {
		r.pipe = pump(r.ctx, source)
		r.source = r.pipe
	}
	r.in = bufio.NewReaderSize((*raw)(r), bufferBytes)
	for range 2 {
		magic, err := r.in.Peek(2)
		if err != nil && err != io.EOF {
			r.Close()
			return nil, err
		}
		if len(magic) < 2 || magic[0] != 0x1f || magic[1] != 0x8b { // RFC 1952, 2.3.1
			break
		}
		r.packed++
		u := &unpacked{r: r}
		if u.z, err = gzip.NewReader(r.in); err != nil {
			r.Close()
			return nil, u.error(err)
		}
		r.in = bufio.NewReaderSize(u, bufferBytes)
	}
	return r, nil
}

// pump reads a reader that may block, such as a pipe or a terminal, in a goroutine, so that
// the end of the context ends the wait. The goroutine ends when the pipe is closed and its
// last read has returned.
func pump(ctx context.Context, from io.Reader) *io.PipeReader {
	out, in := io.Pipe()
	stop := context.AfterFunc(ctx, func() { out.CloseWithError(ctx.Err()) })
	go func() {
		defer stop()
		_, err := io.Copy(in, bufio.NewReader(struct{ io.Reader }{from})) // an error if reads go on giving nothing
		in.CloseWithError(err)
	}()
	return out
}

// raw is a Reader's source. It counts, reports, gives up when the context ends, and turns
// a failed read into an error of the input.
type raw Reader

// progressStep is how many source bytes lie between two reports.
const progressStep = 1 << 20

func (s *raw) Read(p []byte) (int, error) {
	r := (*Reader)(s)
	if r.ctx.Err() != nil {
		return 0, r.stopped()
	}
	n, err := r.source.Read(p)
	if r.read += int64(n); r.read-r.reported >= progressStep {
		r.report(false)
	}
	if err != nil && err != io.EOF {
		if r.ctx.Err() != nil {
			return n, r.stopped()
		}
		cause := err
		var pe *fs.PathError
		if errors.As(err, &pe) {
			cause = pe.Err
		}
		err = r.fail(&Error{Msg: fmt.Sprintf("reading failed after %d bytes: %v", r.read, cause), Err: err})
	}
	return n, err
}

// report calls Options.Progress; if last, also when nothing is new.
func (r *Reader) report(last bool) {
	if r.opt.Progress == nil || !last && r.read == r.reported {
		return
	}
	r.reported = r.read
	r.opt.Progress(r.read, r.total)
}

// unpacked is what a layer of gzip unpacks to.
type unpacked struct {
	r *Reader
	z *gzip.Reader
	n int64
}

func (u *unpacked) Read(p []byte) (int, error) {
	if u.r.ctx.Err() != nil {
		return 0, u.r.stopped()
	}
	n, err := u.z.Read(p)
	u.n += int64(n)
	if limit := floorUnpacked + maxUnpacked*u.r.size(); u.n > limit {
		return 0, u.r.tooMuch("unpacks to more than", limit)
	}
	if err != nil && err != io.EOF {
		err = u.error(err)
	}
	return n, err
}

// error makes errors of gzip errors of the input. Other errors pass unchanged.
func (u *unpacked) error(err error) error {
	r := u.r
	var corrupt flate.CorruptInputError
	switch {
	case r.ctx.Err() != nil:
		return r.stopped()
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return r.fail(&Error{Offset: u.n, Msg: "the gzip data is cut short; copy the file again", Err: io.ErrUnexpectedEOF})
	case errors.Is(err, gzip.ErrChecksum), errors.Is(err, gzip.ErrHeader), errors.As(err, &corrupt):
		return r.fail(&Error{Offset: u.n, Msg: "the gzip data is damaged (" + err.Error() + "); copy the file again", Err: err})
	}
	return err
}
