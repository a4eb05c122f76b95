package input

// Splitting a recording into lines.

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// TestLines: lines of all lengths come as bytes.Split gives them, long ones cut
// to MaxLine, with the numbers of their places, however the bytes arrive.
func TestLines(t *testing.T) {
	x := func(n int) string { return strings.Repeat("x", n) }
	for name, lines := range map[string][]string{
		"nothing":              {""},
		"one":                  {"a 0 1", ""},
		"no newline":           {"a", "b"},
		"empty ones":           {"", "", "a", "", ""},
		"CR stays":             {"a\r", ""},
		"longest":              {x(MaxLine), x(MaxLine), x(MaxLine)},
		"one over":             {"a", x(MaxLine + 1), "b", x(MaxLine + 1), "c"},
		"much over":            {x(9*MaxLine + 7), "", x(2 * MaxLine), x(3*MaxLine + 1)},
		"whatever the buffer":  {x(3*MaxLine - 5), x(MaxLine), "b", x(4 * MaxLine), x(17)},
		"over, without an end": {"a", x(5 * MaxLine)},
	} {
		data := strings.Join(lines, "\n")
		for kind, in := range map[string]io.Reader{
			"":       strings.NewReader(data),
			"halves": iotest.HalfReader(strings.NewReader(data)),
			"bom":    io.MultiReader(bytes.NewReader(utf8BOM), strings.NewReader(data)),
		} {
			r := NewLines(in)
			want := lines
			if want[len(want)-1] == "" {
				want = want[:len(want)-1]
			}
			for i, w := range want {
				if !r.Next() || string(r.Text()) != w[:min(len(w), MaxLine)] || r.cut != (len(w) > MaxLine) || r.Number() != i+1 ||
					r.Whole() != (len(w) <= MaxLine && i+1 < len(lines)) {
					t.Fatalf("%s %s: line %d: %d bytes of %d, cut %v, whole %v, number %d, %v", name, kind, i+1, len(r.Text()), len(w), r.cut, r.Whole(), r.Number(), r.Err())
				}
			}
			if r.Next() || r.Err() != nil || r.Number() != 0 {
				t.Errorf("%s %s: at the end: line %d, %v", name, kind, r.Number(), r.Err())
			}
		}
	}
	broken := errors.New("the disk is on fire")
	for _, before := range []string{"a 0 1", x(2 * MaxLine)} {
		r := NewLines(io.MultiReader(strings.NewReader(before), iotest.ErrReader(broken)))
		if r.Next() || !errors.Is(r.Err(), broken) {
			t.Errorf("got %v", r.Err())
		}
	}
}
