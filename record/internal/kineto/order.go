package kineto

// The records in the order of time, however many: sorted runs that go to a spool, and are
// merged when all are there.

import (
	"bufio"
	"cmp"
	"container/heap"
	"encoding/binary"
	"io"
	"slices"

	"gpumem/record/internal/spool"
)

// record is what is kept of one event, in 80 bytes.
type record struct {
	begin     uint64 // in nanoseconds
	end       uint64 // of a span, as the next two are
	sequence  uint64 // its number and 1; 0 if it has none
	backward  bool   // it is of the backward pass
	bytes     int64  // of a memory event, as the others are
	addr      uint64
	allocated uint64
	reserved  uint64
	thread    uint32
	of        uint32 // a span's place, or a memory event's pool
	kind      kind
	has       uint8
}

// compare puts spans around what begins with them: a memory event has no end, which is 0.
func compare(a, b *record) int {
	return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(b.end, a.end))
}

// Sizes of a run in memory, and of the pieces in which it is spooled.
const (
	runRecords = 1 << 17
	pieceBytes = 64 << 10
	// maxRecord is the most bytes of an encoded record: seven numbers of 64 bits, and two bytes.
	maxRecord = 8*binary.MaxVarintLen64 + 2
)

// sorter sorts records. Those of one time and kind stay as they were added.
type sorter struct {
	spool *spool.Spool
	most  int      // records in a run
	run   []record // that is being gathered
	runs  [][]spool.Block
	piece []byte
	err   error
}

func newSorter(s *spool.Spool) *sorter { return &sorter{spool: s, most: runRecords} }

func (s *sorter) close() { s.spool.Close() } // what it held is the recording's by now

// add adds a record.
func (s *sorter) add(r *record) {
	if s.run = append(s.run, *r); len(s.run) >= s.most {
		s.seal()
	}
}

// seal spools the run.
func (s *sorter) seal() {
	slices.SortStableFunc(s.run, func(a, b record) int { return compare(&a, &b) })
	var pieces []spool.Block
	last := uint64(0)
	store := func() {
		if len(s.piece) == 0 || s.err != nil {
			return
		}
		var piece spool.Block
		piece, s.err = s.spool.Store(s.piece)
		pieces = append(pieces, piece)
		s.piece = s.piece[:0]
	}
	for i := range s.run {
		s.piece = s.run[i].encode(s.piece, last)
		last = s.run[i].begin
		if len(s.piece) > pieceBytes-maxRecord {
			store()
		}
	}
	store()
	s.runs = append(s.runs, pieces)
	s.run = s.run[:0]
}

// encode appends a record, whose predecessor in the run began at last.
func (r *record) encode(to []byte, last uint64) []byte {
	to = append(to, byte(r.kind))
	to = binary.AppendUvarint(to, r.begin-last)
	to = binary.AppendUvarint(to, uint64(r.thread))
	to = binary.AppendUvarint(to, uint64(r.of))
	if r.kind == span {
		to = binary.AppendUvarint(to, r.end-r.begin)
		to = binary.AppendUvarint(to, r.sequence)
		if r.backward {
			return append(to, 1)
		}
		return append(to, 0)
	}
	to = append(to, r.has)
	to = binary.AppendVarint(to, r.bytes)
	to = binary.AppendUvarint(to, r.addr)
	to = binary.AppendUvarint(to, r.allocated)
	return binary.AppendUvarint(to, r.reserved)
}

// run is one sorted run while it is merged; its current record is the first that is left.
type run struct {
	record
	number int
	from   *bufio.Reader
}

// next decodes the next record; false at the end of the run.
func (r *run) next() (bool, error) {
	first, err := r.from.ReadByte()
	if err == io.EOF {
		return false, nil
	}
	last := r.begin
	r.record = record{kind: kind(first)}
	number := func() (n uint64) {
		if err == nil {
			n, err = binary.ReadUvarint(r.from)
		}
		return n
	}
	r.begin = last + number()
	r.thread, r.of = uint32(number()), uint32(number())
	if r.kind == span {
		r.end = r.begin + number()
		r.sequence = number()
		backward := byte(0)
		if err == nil {
			backward, err = r.from.ReadByte()
		}
		r.backward = backward == 1
		return true, err
	}
	if err == nil {
		r.has, err = r.from.ReadByte()
	}
	if err == nil {
		r.bytes, err = binary.ReadVarint(r.from)
	}
	r.addr, r.allocated, r.reserved = number(), number(), number()
	return true, err
}

// pieces reads the pieces of a run one after the other.
type pieces struct {
	spool *spool.Spool
	left  []spool.Block
	buf   []byte
	now   []byte
}

func (p *pieces) Read(to []byte) (int, error) {
	for len(p.now) == 0 {
		if len(p.left) == 0 {
			return 0, io.EOF
		}
		var err error
		if p.now, err = p.spool.Load(p.left[0], &p.buf); err != nil {
			return 0, err
		}
		p.left = p.left[1:]
	}
	n := copy(to, p.now)
	p.now = p.now[n:]
	return n, nil
}

// each calls f for every record in order, until it returns an error.
func (s *sorter) each(f func(r *record) error) error {
	if s.seal(); s.err != nil {
		return s.err
	}
	s.run = nil
	var runs runs
	for i, blocks := range s.runs {
		r := &run{number: i, from: bufio.NewReader(&pieces{spool: s.spool, left: blocks})}
		more, err := r.next()
		if err != nil {
			return err
		}
		if more {
			runs = append(runs, r)
		}
	}
	heap.Init(&runs)
	for len(runs) > 0 {
		r := runs[0]
		if err := f(&r.record); err != nil {
			return err
		}
		switch more, err := r.next(); {
		case err != nil:
			return err
		case more:
			heap.Fix(&runs, 0)
		default:
			heap.Pop(&runs)
		}
	}
	return nil
}

// runs is a heap; the least record is first.
type runs []*run

func (h runs) Len() int { return len(h) }
func (h runs) Less(i, k int) bool {
	return cmp.Or(compare(&h[i].record, &h[k].record), cmp.Compare(h[i].number, h[k].number)) < 0
}
func (h runs) Swap(i, k int) { h[i], h[k] = h[k], h[i] }
func (h *runs) Push(x any)   { *h = append(*h, x.(*run)) }
func (h *runs) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
