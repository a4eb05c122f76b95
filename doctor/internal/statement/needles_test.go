package statement

import (
	"regexp"
	"regexp/syntax"
	"slices"
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

// FuzzFinder asks for every expression that matches: the finder must not have left it out.
func FuzzFinder(f *testing.F) {
	for _, seed := range []string{"torch.OutOfMemoryError: CUDA out of memory.", "oom-kill:constraint=CONSTRAINT_MEMCG", "XLA_FLAGS=--x PYTORCH_CUDA_ALLOC_CONF='a'",
		"| 30%   45C    P2    60W / 300W |  10240MiB / 24576MiB |", "Process 12 received SIGKILL, exit code 137", "K\u212a LIMIT: 12", ""} {
		f.Add(seed)
	}
	var all []*regexp.Regexp
	all = slices.AppendSeq(slices.AppendSeq(all, expressions(topics)), expressions(frameworkMarks))
	for _, p := range patterns {
		all = append(all, p.re)
	}
	find := newFinder(slices.Values(all))
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ReplaceAll(text, "\u017f", "s") // the long s, which (?i) takes for one
		may := find.in(text)
		for i, re := range all {
			if !slices.Contains(may, i) && re.MatchString(text) {
				t.Errorf("the finder leaves out %s for %q", re, text)
			}
		}
	})
}
