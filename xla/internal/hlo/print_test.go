package hlo_test

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	. "gpumem/xla/internal/hlo"
	"gpumem/xla/internal/test/hlotest"
)

// An attribute that came as a field is printed from it.
func TestPrintFields(t *testing.T) {
	m := parsed(t, "HloModule m, is_scheduled=true, a=1, input_output_alias={ {}: (0, {}, must-alias) }, b=2\nENTRY e { ROOT p = f32[] parameter(0) }")
	header := func() string { return strings.SplitN(m.String(), "\n", 2)[0] }
	m.Scheduled, m.Aliases = false, nil
	if got := header(); got != "HloModule m, a=1, b=2" {
		t.Error(got)
	}
	m.Scheduled, m.Aliases, m.Attributes = true, []Alias{{Output: []int{0}}}, nil
	if got := header(); got != "HloModule m, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }" {
		t.Error(got)
	}
	m = parsed(t, "HloModule m, is_scheduled=false\nENTRY e { ROOT p = f32[] parameter(0) }")
	if got := header(); got != "HloModule m, is_scheduled=false" || m.Scheduled {
		t.Error(got)
	}
}

// A computation may stand anywhere in the list; the text has it before its callers.
func TestPrintOrder(t *testing.T) {
	m := parsed(t, "a { ROOT p = f32[] parameter(0) }\nENTRY b { p = f32[] parameter(0) ROOT c = f32[] call(p), to_apply=a }")
	slices.Reverse(m.Computations)
	again := parsed(t, m.String())
	slices.Reverse(m.Computations)
	if err := hlotest.Equal(m, again); err != nil {
		t.Error(err)
	}
}

// brokenWriter takes n bytes.
type brokenWriter int

func (w *brokenWriter) Write(b []byte) (int, error) {
	if *w -= brokenWriter(len(b)); *w < 0 {
		return 0, io.ErrShortWrite
	}
	return len(b), nil
}

func TestWriteErrors(t *testing.T) {
	var lines strings.Builder
	for n := range 5000 {
		fmt.Fprintf(&lines, "p%d = f32[] parameter(%d)\n", n, n)
	}
	m := parsed(t, entry(lines.String()))
	for _, room := range []brokenWriter{0, 70000, 200000} {
		err := m.Write(&room)
		if want := room < 0; (err != nil) != want {
			t.Errorf("error %v with room %d", err, room)
		}
	}
}
