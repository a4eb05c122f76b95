package gpumem

import (
	"fmt"
	"strings"
	"time"

	"gpumem/alloc"
	"gpumem/record/trace"
)

// WithRecord writes every block that is handed out and every free to w, so that the
// run can be replayed, drawn and searched for leaks afterwards: gpumem replay, leaks and
// advise read the file. It has allocation sites if the pool keeps stacks (see
// [WithStacks]). A failed allocation is recorded once, when the pool has given up
// waiting. Several pools may have the same writer; each is a pool of the recording, by
// its name and the device's number.
//
// It costs about 0.15 microseconds a call, and twice that with stacks. The pool is locked
// meanwhile, also while a block of 64 KiB is written. A failure to write ends the
// recording, not the program: Close says so. Close also flushes w; who made the file
// closes it.
func WithRecord(w *trace.Writer) Option { return func(c *config) { c.record = w } }

// recording is guarded by its pool's lock.
type recording struct {
	w    *trace.Writer
	pool string
	err  error // the first; nothing is recorded after it
}

// newRecording returns nil if the pool is not recorded.
func newRecording(p *Pool, w *trace.Writer) *recording {
	if w == nil {
		return nil
	}
	name := p.name
	if n := p.dev.Info().Ordinal; n > 0 {
		name = fmt.Sprintf("%s on device %d", name, n)
	}
	return &recording{w: w, pool: name}
}

func (r *recording) alloc(p *Pool, b Block, of Request) {
	if r.err != nil || b.IsZero() {
		return
	}
	c := r.call(p, of)
	c.ID, c.Addr = b.Addr, b.Addr
	r.err = r.w.Alloc(c)
}

// refuse records a request that the pool refused for good.
func (r *recording) refuse(p *Pool, of Request) {
	if r == nil || r.err != nil {
		return
	}
	r.err = r.w.Refuse(r.call(p, of))
}

func (r *recording) call(p *Pool, of Request) trace.Call {
	c := trace.Call{Pool: r.pool, Bytes: of.Bytes, Stream: of.Stream, Upper: of.End == alloc.Upper, Time: uint64(time.Now().UnixNano())}
	if p.stacks != nil {
		c.Site = strings.TrimSuffix(p.stacks.text(of.Site), "\n")
	}
	return c
}

func (r *recording) free(addr uint64) {
	if r.err != nil || addr == 0 {
		return
	}
	r.err = r.w.Free(trace.Call{Pool: r.pool, ID: addr, Time: uint64(time.Now().UnixNano())})
}

// close flushes the writer, and says what went wrong since Open.
func (r *recording) close() error {
	if r == nil {
		return nil
	}
	if r.err == nil {
		r.err = r.w.Flush()
	}
	if r.err != nil {
		return fmt.Errorf("the recording of pool %s is not complete: %w", r.pool, r.err)
	}
	return nil
}
