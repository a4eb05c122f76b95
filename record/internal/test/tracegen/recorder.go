package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

// trace is one shipped file.
type trace struct {
	name  string // of the file, without .txt.gz
	about string // what it imitates and shows; the file's first lines
	seed  uint64
	make  func(*recorder)
}

// text is the whole trace.
func (t trace) text() []byte {
	r := &recorder{rand: rand.New(rand.NewPCG(t.seed, 0))}
	for line := range strings.SplitSeq(t.about, "\n") {
		fmt.Fprintf(&r.out, "# %s\n", line)
	}
	t.make(r)
	return r.out.Bytes()
}

// recorder writes what a program asks for, as a trace.
type recorder struct {
	out  bytes.Buffer
	rand *rand.Rand
	ids  []block // freed, to be used again: short names keep the file small
	next block
}

// block is the name of a live block. A block of 0 bytes has none: 0.
type block int

// alloc asks for bytes.
func (r *recorder) alloc(bytes uint64) block {
	if bytes == 0 {
		return 0
	}
	var b block
	if n := len(r.ids); n > 0 {
		b, r.ids = r.ids[n-1], r.ids[:n-1]
	} else {
		r.next++
		b = r.next
	}
	fmt.Fprintf(&r.out, "a %d %d\n", b, bytes)
	return b
}

// allocs asks for one block after another.
func (r *recorder) allocs(sizes []uint64) []block {
	out := make([]block, len(sizes))
	for i, n := range sizes {
		out[i] = r.alloc(n)
	}
	return out
}

// free releases blocks, in order.
func (r *recorder) free(blocks ...block) {
	for _, b := range blocks {
		if b != 0 {
			r.ids = append(r.ids, b)
			fmt.Fprintf(&r.out, "f %d\n", b)
		}
	}
}

// use is a block that is gone again at once: a workspace.
func (r *recorder) use(bytes uint64) { r.free(r.alloc(bytes)) }

// upTo is a number from 0 to n-1.
func (r *recorder) upTo(n int) int { return int(r.rand.Uint64N(uint64(n))) }

// spread is a size from lo to lo<<octaves, of 4-byte numbers. Every octave is as
// likely as the next, as sizes of tensors are: many small ones, few large.
func (r *recorder) spread(lo uint64, octaves int) uint64 {
	n := lo << r.upTo(octaves)
	return (n + r.rand.Uint64N(n)) &^ 3
}

// queue holds the last blocks of a kind: what comes in pushes the oldest out.
type queue struct {
	keep   int
	blocks []block
}

func (q *queue) push(r *recorder, blocks ...block) {
	q.blocks = append(q.blocks, blocks...)
	if over := len(q.blocks) - q.keep; over > 0 {
		r.free(q.blocks[:over]...)
		q.blocks = q.blocks[over:]
	}
}
