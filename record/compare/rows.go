package compare

// Tables of differences.

import (
	"bytes"
	"cmp"
	"slices"

	"gpumem/internal/report"
	"gpumem/record/internal/stacks"
	"gpumem/size"
)

// maxRows is the most rows of a table.
const maxRows = 2048

// A diffTable is what differs, the largest difference first.
type diffTable struct {
	Rows []*row `json:"rows"` // never nil
	// Rest is the sum of the rows beyond the limit of a table; nil if there are none.
	Rest *row `json:"rest"`
}

// A row is one place in both recordings: a stack, some stacks that were matched together,
// or a size.
type row struct {
	// Where is the innermost frame of the program's own files, of the second recording
	// if it has the place, or "requests of 1 MiB" without a stack.
	Where  string   `json:"where"`
	How    matching `json:"matched_by"` // "" in Rest
	Before rowPart  `json:"before"`
	After  rowPart  `json:"after"`
	// Difference is that of the bytes at the peak or at the end, or of the number of
	// allocations, whatever the table is of.
	Difference int64 `json:"difference"`

	// Places is the number of rows that are summed in Rest; 1 of a row.
	Places uint64 `json:"places"`

	// The least and the largest hash of a stack order rows of the same figures. A stack may
	// be in two rows, one for each recording.
	least, largest hash
	most           uint64 // of the two recordings, of what the table is of
	match          *match
}

// A rowPart is what one recording has at a place.
type rowPart struct {
	// Stack is the whole stack, the innermost frame first; of several that with the
	// most. It is "" without stacks, and where the recording does not have the place.
	Stack      string `json:"stack,omitempty"`
	Stacks     int    `json:"stacks"` // that are summed; 0 without stacks
	PeakBytes  uint64 `json:"peak_bytes"`
	PeakBlocks uint64 `json:"peak_blocks"`
	EndBytes   uint64 `json:"end_bytes"`
	EndBlocks  uint64 `json:"end_blocks"`
	Allocs     uint64 `json:"allocs"` // over the run
}

// matchedBytes is how much of the live memory at the peaks was matched in one way.
type matchedBytes struct {
	How    matching `json:"matched_by"`
	Before uint64   `json:"before_bytes"`
	After  uint64   `json:"after_bytes"`
}

// tables fills a pool's tables.
func (c *comparer) tables(p *poolReport, got [2]*gathered) {
	matches := c.matchPlaces(got)
	rows := make([]*row, len(matches))
	matched := map[matching]*matchedBytes{}
	for i := range matches {
		r := c.row(&matches[i], got)
		rows[i] = r
		m := matched[r.How]
		if m == nil {
			m = &matchedBytes{How: r.How}
			matched[r.How] = m
		}
		m.Before, m.After = m.Before+r.Before.PeakBytes, m.After+r.After.PeakBytes
	}
	p.Matched = []matchedBytes{}
	for _, how := range ways {
		if m := matched[how]; m != nil && m.Before+m.After > 0 {
			p.Matched = append(p.Matched, *m)
		}
	}
	p.AtPeak, p.AtEnd, p.Allocs = c.table(rows, peakOf), c.table(rows, endOf), diffTable{Rows: []*row{}}
	if p.Uncounted = got[0].uncount || got[1].uncount; !p.Uncounted {
		p.Allocs = c.table(rows, allocsOf)
	}
}

// row returns the row of a match, without its texts.
func (c *comparer) row(m *match, got [2]*gathered) *row {
	r := &row{How: m.how, Places: 1, match: m}
	for i, part := range []*rowPart{&r.Before, &r.After} {
		var a amount
		for _, p := range m.places[i] {
			a.add(*got[i].places[p])
			h := hashOf(size.Format(p.bytes))
			if p.site != 0 {
				part.Stacks++
				h = c.sides[i].keysOf(p.site).stack
			}
			if r.least == (hash{}) || bytes.Compare(h[:], r.least[:]) < 0 {
				r.least = h
			}
			if bytes.Compare(h[:], r.largest[:]) > 0 {
				r.largest = h
			}
		}
		part.PeakBytes, part.PeakBlocks, part.EndBytes, part.EndBlocks, part.Allocs = a.peak.bytes, a.peak.blocks, a.end.bytes, a.end.blocks, a.allocs
		// The one with the most comes first and gives the row its name.
		slices.SortStableFunc(m.places[i], func(a, b place) int {
			x, y := got[i].places[a], got[i].places[b]
			return cmp.Or(cmp.Compare(y.peak.bytes, x.peak.bytes), cmp.Compare(y.end.bytes, x.end.bytes), cmp.Compare(y.allocs, x.allocs))
		})
	}
	return r
}

// table returns the table of a figure: all rows in which either recording has some of it
// or blocks of it.
func (c *comparer) table(rows []*row, of figure) diffTable {
	list := []*row{}
	for _, r := range rows {
		before, blocksBefore := of(&r.Before)
		after, blocksAfter := of(&r.After)
		if before|after|blocksBefore|blocksAfter == 0 {
			continue
		}
		one := *r
		one.Difference, one.most = int64(after-before), max(before, after)
		list = append(list, &one)
	}
	slices.SortFunc(list, func(a, b *row) int {
		return cmp.Or(
			cmp.Compare(abs(b.Difference), abs(a.Difference)),
			cmp.Compare(b.most, a.most),
			bytes.Compare(a.least[:], b.least[:]),
			bytes.Compare(a.largest[:], b.largest[:]),
		)
	})
	t := diffTable{Rows: list}.cut(maxRows)
	for _, r := range t.Rows {
		c.name(r)
	}
	return t
}

// cut returns the table with n rows; the others are summed in Rest.
func (t diffTable) cut(n int) diffTable {
	if len(t.Rows) <= n {
		return t
	}
	rest := &row{}
	if t.Rest != nil {
		*rest = *t.Rest
	}
	for _, r := range t.Rows[n:] {
		rest.add(r)
	}
	rest.Where = report.Counted(rest.Places, "other place")
	return diffTable{Rows: t.Rows[:n:n], Rest: rest}
}

// differ returns the table with the rows that differ, at most n.
func (t diffTable) differ(n int) diffTable {
	for n = min(n, len(t.Rows)); n > 0 && t.Rows[n-1].Difference == 0; n-- {
	}
	return t.cut(n)
}

func (r *row) add(o *row) {
	r.Difference += o.Difference
	r.Places += o.Places
	for _, x := range []struct{ to, from *rowPart }{{&r.Before, &o.Before}, {&r.After, &o.After}} {
		x.to.Stacks += x.from.Stacks
		x.to.PeakBytes += x.from.PeakBytes
		x.to.PeakBlocks += x.from.PeakBlocks
		x.to.EndBytes += x.from.EndBytes
		x.to.EndBlocks += x.from.EndBlocks
		x.to.Allocs += x.from.Allocs
	}
}

func abs(n int64) uint64 {
	if n < 0 {
		return -uint64(n)
	}
	return uint64(n)
}

// name gives a row its texts.
func (c *comparer) name(r *row) {
	for i, part := range []*rowPart{&r.Before, &r.After} {
		if len(r.match.places[i]) == 0 {
			continue
		}
		p := r.match.places[i][0]
		if p.site == 0 {
			r.Where = "requests of " + size.Format(p.bytes)
			continue
		}
		stack := c.sides[i].trace.Site(p.site)
		r.Where, part.Stack = stacks.WithoutPaths(stacks.OwnFrame(stack)), stack
		if !c.cfg.KeepPaths {
			part.Stack = stacks.WithoutPaths(stack)
		}
	}
}
