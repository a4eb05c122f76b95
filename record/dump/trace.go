package dump

// The recording that rebuilds a dumped pool.

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Trace writes a recording in the text format of package trace that brings an
// empty pool to the state of the dump. Every chunk is allocated in address
// order, holes as well (the last one is what remains), and then the holes are
// freed. IDs of blocks at the upper end begin with u. A text dump does not
// have the requested sizes: those blocks request the whole chunk.
//
// In a preallocated pool of d.Pool bytes every block lands where it was. A pool
// that had grown comes out as if its regions lay back to back. The error is that
// of w.
func (d *Dump) Trace(w io.Writer) error {
	out := bufio.NewWriter(w)
	name := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, d.Allocator)
	fmt.Fprintf(out, "# %s as it was dumped; replay in a preallocated pool of %d bytes\n", name, d.Pool)
	t := &tracer{w: out, rest: d.Pool}
	var upper, lower []*Chunk
	for c := range d.Chunks {
		switch c.Tag {
		case Upper:
			upper = append(upper, c)
		case Central:
		default:
			lower = append(lower, c)
		}
	}
	if len(upper) == 0 {
		for len(lower) > 0 && !lower[len(lower)-1].Live {
			lower = lower[:len(lower)-1] // the last hole
		}
	}
	for _, c := range lower {
		t.place(c, "")
	}
	for _, c := range slices.Backward(upper) {
		t.place(c, "u")
	}
	for _, id := range t.holes {
		fmt.Fprintf(out, "f %s\n", id)
	}
	return out.Flush()
}

type tracer struct {
	w     *bufio.Writer
	rest  uint64 // bytes of the pool that are not placed yet
	last  int    // IDs are numbered from 1
	holes []string
}

func (t *tracer) alloc(bytes uint64, prefix string) string {
	t.last++
	id := fmt.Sprintf("%s%d", prefix, t.last)
	fmt.Fprintf(t.w, "a %s %d\n", id, bytes)
	return id
}

// place allocates c at the front of what remains. A pool gives all of a chunk
// that is less than twice the request. So where little remains, small pieces
// first reach the place of the cut, the rest is taken as a whole, and the
// pieces make room for c.
func (t *tracer) place(c *Chunk, prefix string) {
	n := c.Size
	bytes := n
	if round256(c.Requested) == n {
		bytes = c.Requested
	}
	t.rest -= min(t.rest, n)
	if t.rest >= n || t.rest == 0 {
		t.keep(c, t.alloc(bytes, prefix))
		return
	}
	var ids []string
	for n > 0 {
		piece := min(n, (n+t.rest)/2&^(MinAllocation-1))
		if piece == 0 { // sizes that are not whole units: a damaged dump
			break
		}
		ids = append(ids, t.alloc(piece, prefix))
		n -= piece
	}
	rest := t.alloc(t.rest, prefix)
	for _, id := range ids {
		fmt.Fprintf(t.w, "f %s\n", id)
	}
	t.keep(c, t.alloc(bytes, prefix))
	fmt.Fprintf(t.w, "f %s\n", rest)
}

// keep remembers what is to be freed at the end.
func (t *tracer) keep(c *Chunk, id string) {
	if !c.Live {
		t.holes = append(t.holes, id)
	}
}

// round256 rounds up to the unit. Sizes are below 2^50 here.
func round256(n uint64) uint64 { return (n + MinAllocation - 1) &^ (MinAllocation - 1) }
