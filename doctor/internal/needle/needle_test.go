package needle

import (
	"regexp/syntax"
	"strings"
	"testing"
)

func TestNeedlesOf(t *testing.T) {
	for _, c := range []struct{ name, expression, want string }{
		{"a text", `Out of memory`, "out of memory"},
		{"either", `OOM|killed`, "oom|killed"},
		{"either, one of them anything", `OOM|\d+`, ""},
		{"the longer of two", `OOM \d+ killed`, " killed"},
		{"a letter that may be there", `errors?:`, "errors:|error:"},
		{"a small class", `[Ee]rror[:;]`, "error:|error;"},
		{"a class too large", `[a-z]rror`, "rror"},
		{"what may be left out", `(?:memory )*full`, "full"},
		{"what is repeated", `(?:memory ){2,}`, "memory "},
		{"between borders", `^\bNVRM\b$`, "nvrm"},
		{"nothing", `.*`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			re, err := syntax.Parse(c.expression, syntax.Perl)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(needlesOf(re).texts, "|"); got != c.want {
				t.Errorf("needles of %s: %q, want %q", c.expression, got, c.want)
			}
		})
	}
}
