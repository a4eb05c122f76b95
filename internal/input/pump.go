package input

import (
	"context"
	"io"
)

// A pump reads a reader that may block (a pipe, a terminal) in a goroutine of its
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

func newPump(ctx context.Context, from io.Reader) *pump {
	p := &pump{ctx: ctx, empty: make(chan []byte, 2), full: make(chan pumped, 2)}
	p.empty <- make([]byte, pumpBytes)
	p.empty <- make([]byte, pumpBytes)
	go func() {
		for buf := range p.empty {
			n, err := from.Read(buf)
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
