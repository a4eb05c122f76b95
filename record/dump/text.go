package dump

// The reader of text reports.
//
// A line is known by its words, wherever in it they begin: a log puts the time, the
// file, a rank or anything else before them.

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"

	"gpumem/internal/input"
)

// maxChunk is more than any device has. A larger number is damage, and sums of
// such numbers would wrap.
const maxChunk = 1 << 50

// phase is the part of a dump that was read last. A line of an earlier part begins the
// next dump.
type phase uint8

const (
	atHead phase = iota
	atBins
	atChunks
	atSizes
	atSum
	atStats
)

type textReader struct {
	lines *input.Lines
	cur   *builder // nil outside of a dump
	phase phase
	stats int // lines of the statistics that may still come
	best  *Dump
	dumps int
}

// result returns the dump to keep; nil if there is none.
func (t *textReader) result() *Dump {
	t.finish()
	if t.best == nil {
		return nil
	}
	if t.best.Dumps = t.dumps; t.dumps > 1 {
		t.best.Notes = append(t.best.Notes, fmt.Sprintf("The log holds %d dumps; this one begins at line %d.", t.dumps, t.best.Line))
	}
	return t.best
}

// finish ends the dump that is being read.
func (t *textReader) finish() {
	b := t.cur
	t.cur, t.stats = nil, 0
	if b == nil || len(b.sizes) == 0 && !slices.ContainsFunc(b.d.Regions, func(r Region) bool { return len(r.Chunks) > 0 }) {
		return // a refusal without a dump, or no more than its head
	}
	t.dumps++
	d := b.finish()
	if t.best == nil || d.Complete || !t.best.Complete {
		t.best = d
	}
}

// at returns the dump that a line of phase p belongs to.
func (t *textReader) at(p phase) *builder {
	if t.cur == nil || p < t.phase {
		t.finish()
		t.cur = newBuilder(t.lines.Number())
	}
	t.phase = p
	return t.cur
}

var (
	ofSize   = []byte(" of size ")
	region   = []byte("Next region of size ")
	totals   = []byte(" totalling ")
	chunksOf = []byte(" Chunks of size ")
	kinds    = []struct {
		text []byte
		live bool
	}{
		{[]byte("InUse at "), true},
		{[]byte("Free  at "), false},
		{[]byte("Chunk at "), true},
		{[]byte("Free at "), false},
	}
	binLine   = []byte("Bin (")
	sumTotal  = []byte("Sum Total of in-use chunks: ")
	refusal   = []byte("ran out of memory trying to allocate ")
	dumpFor   = []byte("BFCAllocator dump for ")
	summary   = []byte("Allocator memory summary: ")
	inPool    = []byte(" in pool: ")
	statsLine = []byte("Stats:")
	// dumpMarks are of the lines that begin a dump.
	dumpMarks = [][]byte{ofSize, refusal, dumpFor, binLine}
)

// take reads one line.
func (t *textReader) take(line []byte) {
	if i := bytes.Index(line, ofSize); i >= 0 {
		if t.takeChunk(line, i) {
			return
		}
		if rest, ok := after(line, region); ok {
			if n, _, ok := input.Digits(rest); ok && n <= maxChunk {
				t.at(atChunks).region(n)
			}
			return
		}
		if i := bytes.Index(line, chunksOf); i >= 0 && bytes.Contains(line[i:], totals) {
			t.takeSize(line, i)
			return
		}
	}
	if t.stats > 0 && t.takeStat(line) {
		return
	}
	if rest, ok := after(line, refusal); ok {
		t.takeRefusal(line, rest)
	} else if rest, ok := after(line, dumpFor); ok {
		t.at(atHead).d.Allocator = string(word(rest))
	} else if rest, ok := after(line, binLine); ok {
		t.takeBin(rest)
	} else if t.cur == nil {
		return
	} else if rest, ok := after(line, sumTotal); ok {
		b := t.at(atSum)
		b.d.Sum = string(word(rest))
		b.sum = human(word(rest))
	} else if rest, ok := after(line, summary); ok {
		b := t.at(atStats)
		b.pool, b.limit = labelled(rest, "pool size "), labelled(rest, "pool limit ")
	} else if rest, ok := after(line, inPool); ok && bytes.Contains(line, []byte("memory_limit_: ")) {
		b := t.at(atStats)
		b.pool, b.limit = human(word(rest)), labelled(rest, "memory_limit_: ")
	} else if _, ok := after(line, statsLine); ok && t.phase >= atSizes && !t.cur.stats {
		t.at(atStats)
		t.stats = 12
		t.cur.stats = true
	}
}

// after returns what follows mark in line.
func after(line, mark []byte) ([]byte, bool) {
	i := bytes.Index(line, mark)
	if i < 0 {
		return nil, false
	}
	return line[i+len(mark):], true
}

// word returns text up to a blank, without a period at its end.
func word(text []byte) []byte {
	if i := bytes.IndexAny(text, " \t\r\n,\x1b"); i >= 0 {
		text = text[:i]
	}
	return bytes.TrimRight(text, ".")
}

// takeChunk reads "InUse at ADDR [next N] of size N [tag T] [annotation] ...".
// ofSize begins at i.
func (t *textReader) takeChunk(line []byte, i int) bool {
	var text []byte
	live, found := false, false
	for _, k := range kinds {
		if at := bytes.Index(line[:i], k.text); at >= 0 {
			text, live, found = line[at+len(k.text):i], k.live, true
			break
		}
	}
	if !found {
		return false
	}
	addr, rest, ok := input.Hex(text)
	if !ok || len(rest) > 0 && !bytes.HasPrefix(rest, []byte(" next ")) {
		return false
	}
	n, tail, ok := input.Digits(line[i+len(ofSize):])
	// A line without its end may lack digits.
	ended := len(tail) > 0 || t.lines.Whole()
	b := t.at(atChunks)
	if !ok || !ended || n == 0 || n > maxChunk || addr > math.MaxUint64-n {
		b.bad++
		return true
	}
	c := Chunk{Addr: addr, Size: n, Live: live}
	if rest, ok := bytes.CutPrefix(tail, []byte(" tag ")); ok {
		name := word(rest)
		c.Tag = tagOf(name)
		tail = rest[len(name):]
	}
	if !bytes.HasPrefix(tail, []byte(" next ")) && len(tail) > 0 {
		c.Name = b.name(chunkName(tail))
	}
	b.chunk(c)
	return true
}

// chunkName returns the annotation of a chunk, or its operation (debug builds of
// TensorFlow).
func chunkName(tail []byte) []byte {
	if rest, ok := after(tail, []byte(" allocation_annotation ")); ok {
		if i := bytes.LastIndex(rest, []byte(" next ")); i >= 0 {
			rest = rest[:i]
		}
		return bytes.TrimSpace(rest)
	}
	if rest, ok := after(tail, []byte(" by op ")); ok {
		for _, end := range []string{" action_count ", " next "} {
			if i := bytes.Index(rest, []byte(end)); i >= 0 {
				return bytes.TrimSpace(rest[:i])
			}
		}
		return bytes.TrimSpace(rest)
	}
	return nil
}

func tagOf(text []byte) tag {
	for i, name := range tagNames {
		if i > 0 && string(text) == name {
			return tag(i)
		}
	}
	return Unknown
}

// takeSize reads "K Chunks of size N totalling H". " Chunks" begins at i.
func (t *textReader) takeSize(line []byte, i int) {
	k := i
	for k > 0 && line[k-1]-'0' <= 9 {
		k--
	}
	count, _, ok := input.Digits(line[k:i])
	n, _, ok2 := input.Digits(line[i+len(chunksOf):])
	if !ok || !ok2 || n > maxChunk || n > 0 && count > maxChunk/n {
		if t.cur != nil {
			t.cur.bad++
		}
		return
	}
	b := t.at(atSizes)
	b.sizes = append(b.sizes, Row{Size: n, Count: count, Bytes: n * count})
}

// takeBin reads what follows "Bin (".
func (t *textReader) takeBin(rest []byte) {
	n, rest, ok := input.Digits(rest)
	if !ok || !bytes.Contains(rest, []byte("Total Chunks: ")) {
		return
	}
	if t.cur != nil && t.phase == atBins && n == 256 && len(t.cur.d.Bins) > 0 {
		t.finish() // the head of the next dump is missing
	}
	b := t.at(atBins)
	bin := bin{
		Size:   n,
		Chunks: labelled(rest, "Total Chunks: ").n,
		InUse:  labelled(rest, "Chunks in use: ").n,
	}
	if bin.Chunks == 0 || len(b.d.Bins) >= 64 {
		return
	}
	fields := strings.Fields(string(rest))
	for i := range fields {
		if i == 0 {
			continue
		}
		n := human([]byte(fields[i-1]))
		if !n.known {
			continue
		}
		switch next := strings.Join(fields[i:min(i+3, len(fields))], " "); {
		case strings.HasPrefix(next, "allocated for chunks"):
			bin.Bytes = n.n
		case next == "in use in":
			bin.Used = n.n
		}
	}
	b.d.Bins = append(b.d.Bins, bin)
}

// takeRefusal reads the first line of a report: "Allocator (NAME) ran out of
// memory trying to allocate H (rounded to N) from the E end requested by op O".
func (t *textReader) takeRefusal(line, rest []byte) {
	rounded, whole := after(rest, []byte("(rounded to "))
	if !whole && !bytes.Contains(rest, []byte("allocation summary follows")) {
		return // the one line that is written instead of a report
	}
	t.finish()
	b := t.at(atHead)
	if name, ok := after(line, []byte("Allocator (")); ok {
		if i := bytes.IndexByte(name, ')'); i >= 0 {
			b.d.Allocator = string(name[:i])
		}
	}
	q := &b.d.Request
	q.Bytes = human(word(rest)).n
	if !whole {
		return
	}
	n, rest, ok := input.Digits(rounded)
	if !ok {
		return
	}
	q.Rounded = n
	if end, ok := after(rest, []byte(" from the ")); ok {
		q.Tag = tagOf(word(end))
	}
	if op, ok := after(rest, []byte("requested by op ")); ok {
		q.Op = string(word(op)[:min(len(word(op)), maxName)])
	}
}

// takeStat reads a line of the statistics, "Label:   value".
func (t *textReader) takeStat(line []byte) bool {
	t.stats--
	s := &t.cur.d.Stats
	for _, f := range []struct {
		label string
		to    *uint64
	}{
		{"MaxInUse:", &s.MaxInUse}, // before InUse, which it contains
		{"InUse:", &s.InUse},
		{"Limit:", &s.Limit},
		{"NumAllocs:", &s.NumAllocs},
		{"MaxAllocSize:", &s.MaxAllocSize},
		{"PeakReserved:", &s.PeakReserved},
		{"Reserved:", &s.Reserved},
		{"PeakAllocated:", &s.PeakAllocated},
		{"LargestFreeBlock:", &s.LargestBlock},
	} {
		rest, ok := after(line, []byte(f.label))
		if !ok {
			continue
		}
		n := human(word(bytes.TrimSpace(rest)))
		*f.to = n.n
		switch f.label {
		case "InUse:":
			t.cur.inUse = n
		case "Limit:":
			if !t.cur.limit.known {
				t.cur.limit = n
			}
		}
		return true
	}
	return false
}
