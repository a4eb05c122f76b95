package hlo_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	. "gpumem/xla/internal/hlo"
)

// The memory that a module takes beside its text is counted, and its limit ends reading.
func TestParseWithinALimit(t *testing.T) {
	var instructions, shapes strings.Builder
	for k := range 20_000 {
		fmt.Fprintf(&instructions, "a%d=f32[]add(p,p)\n", k)
		fmt.Fprintf(&shapes, "a%d=f32[%d]negate(p)\n", k, k)
	}
	for name, body := range map[string]string{
		"instructions": instructions.String(),
		"shapes":       shapes.String(),
		"operands":     "r=f32[]custom-call(" + strings.Repeat("p,", 100_000) + "p)\n" + "s=f32[]negate(p)\n",
	} {
		t.Run(name, func(t *testing.T) {
			text := "ENTRY e{\np=f32[]parameter(0)\n" + body + "}\n"
			full := errors.New("full")
			var held int64
			if _, err := ParseWithin(text, func(n int64) error { held += n; return nil }); err != nil {
				t.Fatal(err)
			}
			if held < int64(len(text)) || held > 40*int64(len(text)) {
				t.Errorf("%d bytes are held for %d", held, len(text))
			}
			calls := 0
			_, err := ParseWithin(text, func(int64) error { calls++; return full })
			if err != full || calls != 1 {
				t.Errorf("error %v after %d calls", err, calls)
			}
		})
	}
}
