package statement

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"gpumem/doctor/internal/needle"
)

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
	find := needle.NewFinder(slices.Values(all))
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ReplaceAll(text, "\u017f", "s") // the long s, which (?i) takes for one
		may := find.In(text)
		for i, re := range all {
			if !slices.Contains(may, i) && re.MatchString(text) {
				t.Errorf("the finder leaves out %s for %q", re, text)
			}
		}
	})
}
