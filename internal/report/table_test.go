package report_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"gpumem/internal/report"
)

func draw(t testing.TB, titles []string, rows [][]string) string {
	t.Helper()
	tab := report.NewTable(titles...)
	for _, row := range rows {
		tab.Row(row...)
	}
	var b strings.Builder
	n, err := tab.WriteTo(&b)
	if err != nil || n != int64(b.Len()) {
		t.Fatalf("WriteTo = %d, %v; %d bytes were written", n, err, b.Len())
	}
	return b.String()
}

func TestTable(t *testing.T) {
	for _, tc := range []struct {
		name   string
		titles []string
		rows   [][]string
		want   []string // lines
	}{
		{"no rows", []string{"name", ">bytes"}, nil, []string{"name  bytes"}},
		{"no columns", nil, [][]string{{"a"}}, []string{"", ""}},
		{
			"left and right", []string{"name", ">bytes", "note"},
			[][]string{{"a", "5", "x"}, {"longer", "1234567", ""}},
			[]string{"name      bytes  note", "a             5  x", "longer  1234567"},
		},
		{
			"the title is the widest", []string{"a long title", ">size"},
			[][]string{{"x", "1"}},
			[]string{"a long title  size", "x                1"},
		},
		{
			"two bytes, one place", []string{"µs", ">größe", "end"},
			[][]string{{"12 µs", "3 ä", "·"}, {"7 us", "12345", "x"}},
			[]string{"µs     größe  end", "12 µs    3 ä  ·", "7 us   12345  x"},
		},
		{
			"cells missing", []string{"a", ">b", "c"},
			[][]string{{}, {"1"}, {"1", "2"}, {"1", "2", "3"}},
			[]string{"a  b  c", "", "1", "1  2", "1  2  3"},
		},
		{
			"cells too many", []string{"a", "b"},
			[][]string{{"1", "2", "a very long third"}},
			[]string{"a  b", "1  2"},
		},
		{
			"empty cells between", []string{"a", "b", ">c"},
			[][]string{{"1", "", "3"}, {"", "", "33"}},
			[]string{"a  b   c", "1      3", "      33"},
		},
		{"no blanks at the end", []string{"a", "b   "}, [][]string{{"1", " "}, {"long", "2 "}}, []string{"a     b", "1", "long  2"}},
		{"> alone", []string{">", "b"}, [][]string{{"1", "2"}, {"11", "2"}}, []string{"    b", " 1  2", "11  2"}},
		{">> shows one", []string{">>5"}, [][]string{{"1"}}, []string{">5", " 1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got, want := draw(t, tc.titles, tc.rows), strings.Join(tc.want, "\n")+"\n"; got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// TestRowKeepsItsCells: a row that is changed after it was added does not
// change the table.
func TestRowKeepsItsCells(t *testing.T) {
	tab := report.NewTable("a")
	row := []string{"1"}
	tab.Row(row...)
	row[0] = "changed"
	var b strings.Builder
	if _, err := tab.WriteTo(&b); err != nil || b.String() != "a\n1\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
}

// TestTableProperties: every cell stands where its column is, whatever the
// others are.
func TestTableProperties(t *testing.T) {
	cell := rapid.StringMatching(`>?([a-zµ€]([a-zäµ€ ]{0,6}[a-z0])?)?`)
	rapid.Check(t, func(rt *rapid.T) {
		titles := rapid.SliceOfN(cell, 1, 5).Draw(rt, "titles")
		rows := rapid.SliceOfN(rapid.SliceOfN(cell, 0, 6), 0, 8).Draw(rt, "rows")
		text := draw(t, titles, rows)
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		if len(lines) != 1+len(rows) {
			rt.Fatalf("%d lines for %d rows:\n%s", len(lines), len(rows), text)
		}
		// The table as a grid of runes, read column by column.
		at := 0
		for i, title := range titles {
			name, right := strings.CutPrefix(title, ">")
			cells := []string{name}
			for _, row := range rows {
				c := ""
				if i < len(row) {
					c = row[i]
				}
				cells = append(cells, c)
			}
			width := 0
			for _, c := range cells {
				width = max(width, utf8.RuneCountInString(c))
			}
			for k, c := range cells {
				line := append([]rune(lines[k]), []rune(strings.Repeat(" ", at+width))...)
				got := string(line[at : at+width])
				trimmed := strings.TrimLeft(got, " ")
				if !right {
					trimmed = strings.TrimRight(got, " ")
				}
				if trimmed != c {
					rt.Fatalf("column %d of line %d is %q, want %q:\n%s", i, k, got, c, text)
				}
			}
			at += width + 2
		}
		for _, line := range lines {
			if strings.HasSuffix(line, " ") || utf8.RuneCountInString(line) > at-2 {
				rt.Fatalf("line %q has blanks at its end or is too long:\n%s", line, text)
			}
		}
	})
}

// full is a writer that takes some bytes and no more.
type full int

var errFull = errors.New("no space left")

func (f *full) Write(p []byte) (int, error) {
	n := min(len(p), int(*f))
	*f -= full(n)
	if n < len(p) {
		return n, errFull
	}
	return n, nil
}

func TestWriteToFails(t *testing.T) {
	tab := report.NewTable("name")
	tab.Row("x")
	for room := range len("name\nx\n") {
		w := full(room)
		if n, err := tab.WriteTo(&w); n != int64(room) || !errors.Is(err, errFull) {
			t.Errorf("room for %d bytes: WriteTo = %d, %v", room, n, err)
		}
	}
}

// TestTableFitsScreen: a table that is too wide is broken between columns, or else written
// row by row, and no word is broken.
func TestTableFitsScreen(t *testing.T) {
	const long = "a long reason with words"
	for _, c := range []struct {
		width     int
		why, want string
	}{
		{0, long, "policy    held peak  why\njax          60 GiB  a long reason with words\nplatform   9.04 GiB\n"},
		{45, long, "policy    held peak  why\njax          60 GiB  a long reason with words\nplatform   9.04 GiB\n"},
		{22, "none", "policy    held peak\njax          60 GiB\nplatform   9.04 GiB\n\npolicy    why\njax       none\nplatform\n"},
		{30, long, "jax\n  held peak 60 GiB, why a long\n    reason with words\nplatform\n  held peak 9.04 GiB\n"},
	} {
		tab := report.NewTable("policy", ">held peak", "why").Fit(c.width)
		tab.Row("jax", "60 GiB", c.why)
		tab.Row("platform", "9.04 GiB")
		var b strings.Builder
		if _, err := tab.WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		if b.String() != c.want {
			t.Errorf("width %d:\n%s\nwant\n%s", c.width, b.String(), c.want)
		}
	}
}

// TestTableTerminal: nothing in a cell is obeyed by a terminal.
func TestTableTerminal(t *testing.T) {
	var b strings.Builder
	tab := report.NewTable("file")
	tab.Row("  a\x1b[31m\u202eb\nc")
	if _, err := tab.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	if want := "file\n  a?[31m?b?c\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

// Columns that do not fit stand behind all that tell the rows apart again: of two pools of one
// policy, which row is whose.
func TestSplitTableRepeatsWhatTellsRowsApart(t *testing.T) {
	rows := [][]string{{"jax", "cuda:0", "yes", "1 GiB"}, {"jax", "cuda:1", "NO", "2 GiB"}}
	draw := func(width int, rows ...[]string) string {
		tab := report.NewTable("policy", "pool", "fits", ">held").Fit(width)
		for _, row := range rows {
			tab.Row(row...)
		}
		var b strings.Builder
		tab.WriteTo(&b)
		return b.String()
	}
	const want = `policy  pool    fits
jax     cuda:0  yes
jax     cuda:1  NO

policy  pool     held
jax     cuda:0  1 GiB
jax     cuda:1  2 GiB
`
	if got := draw(21, rows...); got != want {
		t.Errorf("%s", got)
	}
	if got := draw(15, rows...); !strings.HasPrefix(got, "jax\n  pool cuda:0,") {
		t.Errorf("no column fits behind them:\n%s", got)
	}
	if got := draw(21, rows[0], rows[0]); !strings.Contains(got, "\npolicy   held\n") {
		t.Errorf("nothing tells them apart:\n%s", got)
	}
}
