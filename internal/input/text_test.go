package input

import (
	"strings"
	"testing"
)

func TestQuote(t *testing.T) {
	for in, want := range map[string]string{
		"short":                       `"short"`,
		strings.Repeat("x", 40):       `"` + strings.Repeat("x", 40) + `"`,
		strings.Repeat("x", 41):       `"` + strings.Repeat("x", 40) + `"...`,
		strings.Repeat("é", 30):       `"` + strings.Repeat("é", 20) + `"...`,
		"x" + strings.Repeat("é", 30): `"x` + strings.Repeat("é", 19) + `"...`,
		"\x00\n":                      `"\x00\n"`,
		strings.Repeat("\x80", 50):    `"` + strings.Repeat(`\x80`, 40) + `"...`,
	} {
		if got := Quote(in); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if got := Printable("a\nb\x7f\xff\t"); got != "a b ? " {
		t.Errorf("got %q", got)
	}
	for want, words := range map[string][]string{"": nil, "a": {"a"}, "a and b": {"a", "b"}, "a, b and c": {"a", "b", "c"}} {
		if got := And(words); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
