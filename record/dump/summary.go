package dump

// The screen that shows what filled the pool.

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"unicode/utf8"

	"gpumem/internal/report"
	"gpumem/size"
)

// A detail is the number of lines that each part gets.
type detail struct {
	rows, names int // sizes and names; the rest of each is one row
	bins        int // groups of holes
	strips      int // lines of the map
	notes       int
}

// details are tried until the screen holds what is shown. The most of it has
// 37 lines.
var details = []detail{{9, 6, 4, 3, 3}, {6, 5, 3, 3, 2}, {5, 3, 2, 2, 2}, {4, 2, 2, 1, 1}, {3, 2, 1, 1, 1}, {3, 0, 1, 1, 0}, {2, 0, 1, 1, 0}, {2, 0, 1, 0, 0}, {1, 0, 0, 0, 0}, {}}

// Summary returns the dump on at most lines lines, of which 40 are always enough,
// each cut to width characters (40 at least): what was refused and what would
// fit, what fills the pool, by size and, if the dump names operations, by
// name, where the free chunks are, and a map. The rows of each table sum to InUse.
func (d *Dump) Summary(width, lines int) []string {
	s := &screen{d: d, width: max(width, 40)}
	for _, s.detail = range details {
		s.out = nil
		s.head()
		s.bySize()
		s.byName()
		s.holes()
		s.picture()
		s.notes()
		if len(s.out) <= lines {
			break
		}
	}
	return s.out[:min(len(s.out), max(lines, 0))]
}

type screen struct {
	d     *Dump
	width int
	detail
	out []string
}

func (s *screen) line(format string, args ...any) {
	text := strings.TrimRight(fmt.Sprintf(format, args...), " ")
	if utf8.RuneCountInString(text) > s.width {
		text = string([]rune(text)[:s.width-3]) + "..."
	}
	s.out = append(s.out, text)
}

func (s *screen) head() {
	d := s.d
	name := d.Allocator
	if name == "" {
		name = "pool"
	}
	limit := ""
	if d.Limit > d.Pool {
		limit = ", of a limit of " + size.Format(d.Limit)
	}
	if d.Pool == 0 {
		s.line("%s: %s in use", name, size.Format(d.InUse))
	} else {
		s.line("%s: %s in use (%s) of %s%s", name, size.Format(d.InUse), report.Part(d.InUse, d.Pool), size.Format(d.Pool), limit)
	}
	if q := d.Request; q.Bytes > 0 || q.Rounded > 0 {
		op := ""
		if q.Op != "" {
			op = " by " + q.Op
		}
		s.line("refused: %s%s", size.Format(max(q.Bytes, q.Rounded)), op)
	}
	if len(d.Regions) == 0 {
		return
	}
	free, holes := d.Free(), 0
	for c := range d.Chunks {
		if !c.Live {
			holes++
		}
	}
	if free == 0 {
		s.line("free: nothing")
		return
	}
	s.line("free: %s in %s, the largest %s; fragmentation %.0f %%", size.Format(free), size.Count(uint64(holes), "hole"), size.Format(d.LargestFree), 100*d.Fragmentation())
	s.line("would fit: one block of up to %s", size.Format(d.LargestFree))
	switch n := d.Request.Rounded; {
	case n == 0:
	case n <= d.LargestFree:
		s.line("  the refused one fits as well")
	case n <= free:
		s.line("  the refused one would fit if the free bytes were in one piece")
	default:
		s.line("  the refused one lacks %s, even with all free bytes in one piece", size.Format(n-free))
	}
}

// holes lists where the free bytes are, by bin, the fullest bins first. Without
// chunk lines it has the dump's own bins, as exact as they are printed.
func (s *screen) holes() {
	if s.bins == 0 {
		return
	}
	type group struct{ bin, count, bytes uint64 }
	var groups [64]group
	for c := range s.d.Chunks {
		if !c.Live {
			g := &groups[bits.Len64(c.Size)-1]
			g.bin = 1 << (bits.Len64(c.Size) - 1)
			g.count++
			g.bytes = size.Add(g.bytes, c.Size)
		}
	}
	if len(s.d.Regions) == 0 {
		for i, b := range s.d.Bins[:min(len(s.d.Bins), len(groups))] {
			groups[i] = group{b.Size, b.Chunks - min(b.Chunks, b.InUse), b.Bytes - min(b.Bytes, b.Used)}
		}
	}
	full := slices.DeleteFunc(groups[:], func(g group) bool { return g.count == 0 })
	slices.SortFunc(full, func(a, b group) int {
		return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(b.bin, a.bin))
	})
	for i, g := range full {
		if i == s.detail.bins {
			var rest group
			for _, g := range full[i:] {
				rest.count += g.count
				rest.bytes = size.Add(rest.bytes, g.bytes)
			}
			s.line("holes elsewhere: %d, %s", rest.count, size.Format(rest.bytes))
			break
		}
		s.line("holes of %s to %s: %d, %s", size.Format(g.bin), size.Format(2*g.bin), g.count, size.Format(g.bytes))
	}
}

// bySize lists the sizes that fill the pool, largest sum first.
func (s *screen) bySize() {
	if s.detail.rows == 0 {
		return
	}
	rows := slices.Clone(s.d.Rows)
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(b.Size, a.Size))
	})
	s.line("%12s  %12s  %10s  %6s", "in use", "each", "blocks", "share")
	var blocks uint64
	for i, r := range rows {
		if blocks = size.Add(blocks, r.Count); i < s.detail.rows {
			s.row(r.Bytes, size.Format(r.Size), r.Count, "")
		}
	}
	if rest := rows[min(len(rows), s.detail.rows):]; len(rest) > 0 {
		var n uint64
		for _, r := range rest {
			n = size.Add(n, r.Count)
		}
		s.row(sumRows(rest), "others", n, size.Count(uint64(len(rest)), "other size"))
	}
	s.row(s.d.InUse, "all", blocks, s.check())
}

func (s *screen) row(bytes uint64, each string, blocks uint64, what string) {
	s.prose(what, "%12s  %12s  %10d  %6s", size.Format(bytes), each, blocks, report.Part(bytes, s.d.InUse))
}

// prose is line with words behind it, which get a line below where they do not fit and
// there is room.
func (s *screen) prose(words, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if words != "" && s.rows >= 3 && utf8.RuneCountInString(text)+2+utf8.RuneCountInString(words) > s.width {
		s.line("%s", text)
		text = fmt.Sprintf("%12s", "")
	}
	s.line("%s  %s", text, words)
}

// check reports whether the sum is the dump's own.
func (s *screen) check() string {
	d := s.d
	var sum number
	if d.Sum != "" {
		sum = human([]byte(d.Sum))
	} else if d.Line == 0 && d.Stats.InUse > 0 {
		sum = number{n: d.Stats.InUse, known: true}
	}
	switch {
	case !sum.known:
		return "(no sum in the dump)"
	case sum.is(d.InUse):
		return "= the dump's sum"
	}
	return "(the dump's sum: " + size.Format(sum.n) + ")"
}

// byName lists operations and annotations, where chunks have them.
func (s *screen) byName() {
	d := s.d
	if len(d.names) < 2 || s.names == 0 {
		return
	}
	type group struct {
		Row
		name string
	}
	groups := make([]group, len(d.names))
	for c := range d.Chunks {
		if c.Live {
			groups[c.Name].Count++
			groups[c.Name].Bytes = size.Add(groups[c.Name].Bytes, c.Size)
		}
	}
	var listed uint64
	for i := range groups {
		groups[i].name = d.names[i]
		listed = size.Add(listed, groups[i].Bytes)
	}
	groups[0].name = "(no name)"
	if listed != d.InUse {
		return // chunk lines are missing
	}
	groups = slices.DeleteFunc(groups, func(g group) bool { return g.Count == 0 })
	slices.SortFunc(groups, func(a, b group) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.name, b.name))
	})
	s.line("%12s  %10s  %s", "in use", "blocks", "for")
	for _, g := range groups[:min(len(groups), s.names)] {
		s.line("%12s  %10d  %s", size.Format(g.Bytes), g.Count, g.name)
	}
	if rest := groups[min(len(groups), s.names):]; len(rest) > 0 {
		var sum Row
		for _, g := range rest {
			sum.Count += g.Count
			sum.Bytes = size.Add(sum.Bytes, g.Bytes)
		}
		s.line("%12s  %10d  %s", size.Format(sum.Bytes), sum.Count, size.Count(uint64(len(rest)), "other name"))
	}
}

func (s *screen) notes() {
	if s.detail.notes == 0 {
		return
	}
	for i, n := range s.d.Notes {
		if i == s.detail.notes {
			s.line("note: and %d more", len(s.d.Notes)-i)
			return
		}
		first, rest := "note: "+n, ""
		if utf8.RuneCountInString(first) > s.width {
			if at := strings.LastIndexByte(first[:s.width], ' '); at > len("note: ") {
				first, rest = first[:at], first[at+1:]
			}
		}
		s.line("%s", first)
		if rest != "" {
			s.line("  %s", rest)
		}
	}
}
