package logs

// The reader of MiniMalloc's problems: CSV with a header and one block a line
// that is live from one step to another (google/minimalloc, converter.cc of
// 2024).
//
//	id,lower,upper,size
//	b1,0,3,4
//	b2,3,9,4
//
// A block is live in [lower, upper). The columns may come in any order, and have
// other names: "buffer" or "buffer_id" for id, "begin" or "start" for lower,
// "end" for upper less 1 (so today; the first files of 2023 have upper there,
// and nothing shows which). Of the columns that may be missing, "alignment" and
// "offset" are not used; a block with "gaps", steps within its life when its
// memory is not needed, is live in them as well: it must be found where it was
// left.
//
// Lines are not in the order of time, so all are held in memory, at 36 bytes
// each, until the events are made.

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"gpumem/internal/input"
	"gpumem/record/internal/tape"
	"gpumem/size"
)

// MiniMalloc is a problem of MiniMalloc.
var MiniMalloc = tape.Format{Name: "minimalloc", What: "a problem of MiniMalloc, CSV", Looks: looksMinimalloc, Read: readMinimalloc}

// looksMinimalloc: the header of a problem.
func looksMinimalloc(head []byte) bool {
	line, _ := input.FirstLine(head)
	_, err := minimallocColumns(line)
	return err == nil
}

// columns has the positions of the numbers in a line.
type columns struct {
	lower, upper, size int
	gaps               int // -1 if there is none
	n                  int // columns in all
	inclusive          bool
}

// columnNames has the meaning of each name that a column may have.
var columnNames = map[string]string{
	"id": "id", "buffer": "id", "buffer_id": "id",
	"lower": "lower", "begin": "lower", "start": "lower",
	"upper": "upper", "end": "upper",
	"size": "size", "alignment": "alignment", "gaps": "gaps", "offset": "offset",
}

// minimallocColumns reads the header.
func minimallocColumns(line []byte) (columns, error) {
	at := map[string]int{}
	c := columns{}
	for name := range strings.SplitSeq(string(line), ",") {
		name = strings.TrimSpace(name)
		meaning, ok := columnNames[name]
		if !ok {
			return c, fmt.Errorf("no column is named %s", input.Quote(name))
		}
		if _, ok := at[meaning]; ok {
			return c, fmt.Errorf("%s is a second column for %s", input.Quote(name), meaning)
		}
		at[meaning] = c.n
		c.inclusive = c.inclusive || name == "end"
		c.n++
	}
	for _, name := range []string{"id", "lower", "upper", "size"} {
		if _, ok := at[name]; !ok {
			return c, fmt.Errorf("there is no column for %s", name)
		}
	}
	c.lower, c.upper, c.size, c.gaps = at["lower"], at["upper"], at["size"], -1
	if i, ok := at["gaps"]; ok {
		c.gaps = i
	}
	return c, nil
}

// lifetime is one line.
type lifetime struct {
	lower, upper int64
	size         uint64
}

// readMinimalloc reads a whole problem into b.
func readMinimalloc(in *input.Reader, b *tape.Builder) error {
	lines := in.Lines("a minimalloc problem")
	var cols columns
	var rows []lifetime
	var gaps, empty int
	for lines.Next() {
		line := bytes.TrimSpace(lines.Text())
		var err error
		switch {
		case len(line) == 0 || line[0] == '#':
			continue
		case cols.n == 0:
			if cols, err = minimallocColumns(line); err != nil {
				return in.Fail("%v; the first line names the columns, as in id,lower,upper,size", err)
			}
			continue
		}
		row, hasGaps, err := cols.row(line)
		if err != nil {
			return in.Fail("%v", err)
		}
		if hasGaps {
			gaps++
		}
		if row.lower == row.upper {
			empty++
			continue
		}
		if rows = append(rows, row); len(rows)%4096 == 0 {
			if err := in.Take(4096 * 64); err != nil {
				return err
			}
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if cols.inclusive {
		b.Note("the column \"end\" is taken as the last step of a block, as MiniMalloc does; where it is the step after that, name it \"upper\"")
	}
	if gaps > 0 {
		b.Note("%s with gaps; live in them as well", size.Count(gaps, "block"))
	}
	if empty > 0 {
		b.Note("%s never live (lower is upper); left out", size.Count(empty, "block"))
	}
	return playLifetimes(rows, b.Pool(""))
}

// row reads one line.
func (c *columns) row(line []byte) (row lifetime, gaps bool, err error) {
	n := 0
	for field := range bytes.SplitSeq(line, []byte{','}) {
		field = bytes.TrimSpace(field)
		switch {
		case n == c.lower:
			row.lower, err = step(field)
		case n == c.upper:
			row.upper, err = step(field)
		case n == c.size:
			if row.size, err = strconv.ParseUint(string(field), 10, 63); err != nil {
				err = fmt.Errorf("%s is not a number of bytes below 2^63", input.Quote(field))
			}
		case n == c.gaps:
			gaps = len(field) > 0
		}
		if err != nil {
			return row, false, err
		}
		n++
	}
	if n != c.n {
		return row, false, fmt.Errorf("%s has %s, and the header %d", input.Quote(line), size.Count(n, "column"), c.n)
	}
	if c.inclusive {
		if row.upper == math.MaxInt64 {
			return row, false, errors.New("the end is the last step that can be counted")
		}
		row.upper++
	}
	if row.upper < row.lower {
		return row, false, fmt.Errorf("%s ends before it begins", input.Quote(line))
	}
	return row, gaps, nil
}

func step(field []byte) (int64, error) {
	n, err := strconv.ParseInt(string(field), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s is not the number of a step", input.Quote(field))
	}
	return n, nil
}

// playLifetimes turns lifetimes into events in the order of time. At the same
// step frees come first: a block is not live at its upper, so another may take
// its place there. Several allocations at one step are in the order of the lines,
// and several frees in that of their allocations.
func playLifetimes(rows []lifetime, pool *tape.PoolBuilder) error {
	slices.SortStableFunc(rows, func(x, y lifetime) int { return cmp.Compare(x.lower, y.lower) })
	ends := make([]int, len(rows)) // the rows by their ends
	for i := range ends {
		ends[i] = i
	}
	slices.SortStableFunc(ends, func(i, k int) int { return cmp.Compare(rows[i].upper, rows[k].upper) })
	slots := make([]uint32, len(rows))
	free := func() error {
		slot := slots[ends[0]]
		ends = ends[1:]
		return pool.Free(tape.Event{Slot: slot})
	}
	for i, row := range rows {
		// A row that ends by now began before this one, so it has its slot.
		for rows[ends[0]].upper <= row.lower {
			if err := free(); err != nil {
				return err
			}
		}
		var err error
		if slots[i], err = pool.Alloc(tape.Event{Bytes: row.size}, 0); err != nil {
			return err
		}
	}
	for len(ends) > 0 {
		if err := free(); err != nil {
			return err
		}
	}
	return nil
}
