package trace

// This file is for splitting a recording into lines.

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// TestLines: lines of all lengths come as bytes.Split gives them, long ones cut
// to maxLine, with the numbers of their places, however the bytes arrive.
func TestLines(t *testing.T) {
	x := func(n int) string { return strings.Repeat("x", n) }
	for name, lines := range map[string][]string{
		"nothing":              {""},
		"one":                  {"a 0 1", ""},
		"no newline":           {"a", "b"},
		"empty ones":           {"", "", "a", "", ""},
		"CR stays":             {"a\r", ""},
		"longest":              {x(maxLine), x(maxLine), x(maxLine)},
		"one over":             {"a", x(maxLine + 1), "b", x(maxLine + 1), "c"},
		"much over":            {x(9*maxLine + 7), "", x(2 * maxLine), x(3*maxLine + 1)},
		"whatever the buffer":  {x(3*maxLine - 5), x(maxLine), "b", x(4 * maxLine), x(17)},
		"over, without an end": {"a", x(5 * maxLine)},
	} {
		data := strings.Join(lines, "\n")
		for kind, in := range map[string]io.Reader{
			"":       strings.NewReader(data),
			"halves": iotest.HalfReader(strings.NewReader(data)),
			"bom":    io.MultiReader(bytes.NewReader(utf8BOM), strings.NewReader(data)),
		} {
			r := newLineReader(bufio.NewReaderSize(in, headBytes), "in")
			want := lines
			if want[len(want)-1] == "" {
				want = want[:len(want)-1]
			}
			for i, w := range want {
				line, long, err := r.next()
				if err != nil || string(line) != w[:min(len(w), maxLine)] || long != (len(w) > maxLine) || r.line != i+1 {
					t.Fatalf("%s %s: line %d: %d bytes of %d, long %v, number %d, %v", name, kind, i+1, len(line), len(w), long, r.line, err)
				}
			}
			if _, _, err := r.next(); err != io.EOF {
				t.Errorf("%s %s: at the end: %v", name, kind, err)
			}
		}
	}
	broken := errors.New("the disk is on fire")
	for _, before := range []string{"a 0 1", x(2 * maxLine)} {
		r := newLineReader(bufio.NewReader(io.MultiReader(strings.NewReader(before), iotest.ErrReader(broken))), "in")
		if _, _, err := r.next(); !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
	}
}

// TestBrokenLines: an error of reading keeps its place in the file; it is not
// one of a line.
func TestBrokenLines(t *testing.T) {
	for name, format := range map[string]string{"rmm.csv": "rmm", "memdebug.log": "memdebug", "minimalloc.csv": "minimalloc", "torch2025.pickle": "torch"} {
		z := zipped(sample(t, name))
		_, err := Read(context.Background(), bytes.NewReader(z[:len(z)-12]), "in", Options{Format: format})
		var e *Error
		if !errors.As(err, &e) || e.Line != 0 || e.Offset == 0 || !strings.Contains(e.Msg, "cut short") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
