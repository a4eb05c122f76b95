package dump

// The figures of a dump that are computed from its chunks, and the check that they agree
// with the printed ones. What disagrees or is missing becomes a note.

import (
	"fmt"

	"gpumem/size"
)

func (b *builder) note(format string, args ...any) {
	b.d.Notes = append(b.d.Notes, fmt.Sprintf(format, args...))
}

// finish completes the dump.
func (b *builder) finish() *Dump {
	d := &b.d
	b.split()
	d.Rows = d.rows()
	total := sumRows(d.Rows)
	text := d.Line > 0
	if listed := sumRows(b.sizes); b.sum.known && !b.sum.is(total) && b.sum.is(listed) {
		// The sums by size are whole where the chunks are not.
		d.Rows, total = b.sizes, listed
		if len(d.Regions) > 0 {
			b.note("Chunk lines are missing; what is live is taken from the sums by size.")
		}
	} else if len(d.Regions) == 0 {
		d.Rows, total = b.sizes, listed
	}
	d.InUse = total
	switch {
	case text && !b.sum.known:
		b.note("The dump is cut off before its sum: the rows may not be all.")
	case b.sum.known && !b.sum.is(total):
		b.note("The rows come to %s, but the dump's sum is %s: lines are missing or of several dumps.", size.Format(total), d.Sum)
	case !text && b.inUse.known && b.inUse.n != total:
		b.note("The live chunks come to %s, but the statistics say %s.", size.Format(total), size.Format(b.inUse.n))
	case !text && !b.inUse.known:
		b.note("The dump has no statistics; it may be cut off.")
	}
	b.checkRegions()
	if b.bad > 0 {
		b.note("Lines about chunks that could not be read: %d.", b.bad)
	}
	d.Complete = len(d.Notes) == 0 && len(d.Regions) > 0
	if len(d.Regions) == 0 {
		b.note("The dump has no chunk lines: what is free, and where, is not known.")
	}

	d.Limit = b.limit.n
	if b.limit.known && b.limit.slack > 0 && b.limit.is(d.Pool) {
		d.Limit = d.Pool // a pool that is full to the printed digits
	}
	if len(d.Regions) == 0 {
		d.LargestFree = d.Stats.LargestBlock
	}
	for c := range d.Chunks {
		if c.Live || d.Request.Tag != Unknown && c.Tag != Unknown && c.Tag != d.Request.Tag && c.Tag != Central {
			continue
		}
		d.LargestFree = max(d.LargestFree, c.Size)
	}
	return d
}

func sumRows(rows []Row) uint64 {
	var n uint64
	for _, r := range rows {
		n = size.Add(n, r.Bytes)
	}
	return n
}

// checkRegions sums the regions, and compares each with its chunks.
func (b *builder) checkRegions() {
	d := &b.d
	short, leaps := 0, 0
	for i := range d.Regions {
		r := &d.Regions[i]
		var n uint64
		for k := range r.Chunks {
			c := &r.Chunks[k]
			if k == 0 {
				r.Addr = c.Addr
			} else if before := &r.Chunks[k-1]; before.Addr+before.Size != c.Addr {
				leaps++
			}
			n = size.Add(n, c.Size)
		}
		if !b.regions {
			r.Size = n
		}
		if r.Size == 0 || n > r.Size { // the region's own line is missing
			r.Size = n
			short++
		} else if n < r.Size {
			short++
		}
		d.Pool = size.Add(d.Pool, r.Size)
	}
	if short > 0 || leaps > 0 {
		b.note("The chunks do not tile the pool (regions that are not whole: %d, leaps in address: %d): lines are missing.", short, leaps)
	}
	if len(d.Regions) == 0 {
		d.Pool = b.pool.n
	} else if b.pool.known && !b.pool.is(d.Pool) {
		b.note("The regions come to %s, but the dump says %s: lines are missing.", size.Format(d.Pool), size.Format(b.pool.n))
	}
}
