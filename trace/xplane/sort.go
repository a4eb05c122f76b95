package xplane

// Putting the memory events of an xplane in the order of time.
// Each thread has its own line, so the order of the file is not that of time,
// and a file may have more events than there is room for. So they are sorted by
// the piece, the pieces lie in a spool, and reading merges them.

import (
	"cmp"
	"encoding/binary"
	"slices"

	"gpumem/internal/spool"
	"gpumem/trace"
)

const (
	// blockBytes is the size of a block in the spool.
	blockBytes = 64 << 10
	// memEventBytes is an event in the spool.
	memEventBytes = 8 + 2 + 1 + 1 + 4 + 4 + 4*8
	// memEventsPerRun is how many are sorted at once, in 7 MiB.
	memEventsPerRun = 128 << 10
	// memEventsPerBlock is how many one block of the spool has.
	memEventsPerBlock = blockBytes / memEventBytes
)

// memEvents is a list of events that gives them back in the order of time, those
// of the same time in the order of add.
type memEvents struct {
	n     uint64
	spool *spool.Spool
	run   []memEvent // not sorted yet
	runs  [][]spool.Block
}

func (l *memEvents) add(e memEvent) error {
	l.n++
	e.number = uint32(len(l.run))
	l.run = append(l.run, e)
	if len(l.run) < memEventsPerRun {
		return nil
	}
	return l.seal()
}

// seal sorts the current run and hands it to the spool.
func (l *memEvents) seal() error {
	slices.SortFunc(l.run, func(a, b memEvent) int {
		return cmp.Or(a.compare(&b), cmp.Compare(a.number, b.number))
	})
	var blocks []spool.Block
	var buf []byte
	for part := range slices.Chunk(l.run, memEventsPerBlock) {
		buf = buf[:0]
		for i := range part {
			buf = part[i].append(buf)
		}
		blk, err := l.spool.Store(buf)
		if err != nil {
			return err
		}
		blocks = append(blocks, blk)
	}
	l.run = l.run[:0]
	l.runs = append(l.runs, blocks)
	return nil
}

// each calls f with every event in the order of time. It may be called again,
// but no event added after it.
func (l *memEvents) each(f func(*memEvent) error) error {
	if len(l.run) > 0 {
		if err := l.seal(); err != nil {
			return err
		}
	}
	var runs []*runReader // by their current events
	for i, blocks := range l.runs {
		r := &runReader{spool: l.spool, number: i, blocks: blocks}
		if ok, err := r.next(); err != nil {
			return err
		} else if ok {
			runs = append(runs, r)
		}
	}
	slices.SortFunc(runs, (*runReader).compare)
	for len(runs) > 0 {
		r := runs[0]
		if err := f(&r.ev); err != nil {
			return err
		}
		ok, err := r.next()
		if err != nil {
			return err
		}
		if !ok {
			runs = runs[1:]
			continue
		}
		i, _ := slices.BinarySearchFunc(runs[1:], r, (*runReader).compare)
		copy(runs, runs[1:i+1])
		runs[i] = r
	}
	return nil
}

// runReader reads one run.
type runReader struct {
	spool  *spool.Spool
	number int
	blocks []spool.Block // not loaded yet
	data   []byte        // the rest of the current one
	buf    []byte
	ev     memEvent // the current event
}

// next reads the next event; false at the end.
func (r *runReader) next() (bool, error) {
	if len(r.data) == 0 {
		if len(r.blocks) == 0 {
			return false, nil
		}
		data, err := r.spool.Load(r.blocks[0], &r.buf)
		if err != nil {
			return false, err
		}
		r.data, r.blocks = data, r.blocks[1:]
	}
	if len(r.data) < memEventBytes {
		return false, spool.ErrDamaged
	}
	r.ev.read(r.data)
	r.data = r.data[memEventBytes:]
	return true, nil
}

// compare orders runs by their current events; of the same time, the run that was made
// first comes first.
func (r *runReader) compare(o *runReader) int {
	return cmp.Or(r.ev.compare(&o.ev), cmp.Compare(r.number, o.number))
}

func (e *memEvent) append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint64(b, e.ns)
	b = le.AppendUint16(b, e.ps)
	b = append(b, byte(e.op), e.has)
	b = le.AppendUint32(b, e.pool)
	b = le.AppendUint32(b, e.site)
	b = le.AppendUint64(b, e.addr)
	b = le.AppendUint64(b, e.requested)
	b = le.AppendUint64(b, e.allocated)
	return le.AppendUint64(b, e.held)
}

func (e *memEvent) read(b []byte) {
	le := binary.LittleEndian
	*e = memEvent{
		ns: le.Uint64(b), ps: le.Uint16(b[8:]), op: trace.Op(b[10]), has: b[11], pool: le.Uint32(b[12:]), site: le.Uint32(b[16:]),
		addr: le.Uint64(b[20:]), requested: le.Uint64(b[28:]), allocated: le.Uint64(b[36:]), held: le.Uint64(b[44:]),
	}
}
