package alloc

import (
	"fmt"
	"time"
)

// Call describes one allocation or free to be recorded.
type Call struct {
	// Pool names the pool of memory; "" is a good name if there is one. Longer
	// names than 200 bytes are cut.
	Pool string
	// ID names the block while it is live: its address, or any number. It is not used
	// for a request that was refused.
	ID uint64
	// Addr is the address of a block that is allocated; 0 is unknown. A replay
	// then counts the placements that are as recorded.
	Addr uint64
	// Bytes is how many bytes were requested. It is not used for a free.
	Bytes uint64
	// Stream is a number from 0 within the pool, best dense, and below 2^32-1; 0
	// is the default stream.
	Stream uint32
	// Upper requests collective memory: [Upper].
	Upper bool
	// Site is the place in the program: a line for each frame, innermost first;
	// "" is none. 64 frames are kept, and of each 1000 bytes.
	Site string
	// Time is in nanoseconds from any origin. A time before that of the last
	// event of the pool counts as that. 0 throughout is a recording without
	// times.
	Time uint64
}

// Recorder receives what a pool does. A pool calls it from one goroutine at a time, and
// after an error calls nothing but Flush.
type Recorder interface {
	Alloc(Call) error  // a block was handed out
	Free(Call) error   // the block with this ID was freed
	Refuse(Call) error // a request failed for good
	Flush() error      // the pool is closed
}

// Recording passes what one pool does to a Recorder, with the time of each call. A nil
// Recording passes nothing. Its owner locks.
type Recording struct {
	To   Recorder
	Pool string            // name of the pool
	Site func(Site) string // text of a site, as in [Call]

	err error // the first; nothing is recorded after it
}

// Alloc records a block that was handed out for a request.
func (r *Recording) Alloc(b Block, of Request) {
	if r.err != nil || b.IsZero() {
		return
	}
	c := r.call(of)
	c.ID, c.Addr = b.Addr, b.Addr
	r.err = r.To.Alloc(c)
}

// Refuse records a request that was refused for good.
func (r *Recording) Refuse(of Request) {
	if r == nil || r.err != nil {
		return
	}
	r.err = r.To.Refuse(r.call(of))
}

func (r *Recording) call(of Request) Call {
	return Call{Pool: r.Pool, Bytes: of.Bytes, Stream: of.Stream, Upper: of.End == Upper, Site: r.Site(of.Site), Time: uint64(time.Now().UnixNano())}
}

// Free records the free of the block at addr.
func (r *Recording) Free(addr uint64) {
	if r.err != nil || addr == 0 {
		return
	}
	r.err = r.To.Free(Call{Pool: r.Pool, ID: addr, Time: uint64(time.Now().UnixNano())})
}

// Close flushes the recorder, and returns the first error.
func (r *Recording) Close() error {
	if r == nil {
		return nil
	}
	if r.err == nil {
		r.err = r.To.Flush()
	}
	if r.err != nil {
		return fmt.Errorf("the recording of pool %s is not complete: %w", r.Pool, r.err)
	}
	return nil
}
