package main

import (
	"regexp"
	"testing"

	"gpumem/record/advise"
	"gpumem/record/fit"
)

// The words behind a verdict are those of the doubts that limit it, each once.
func TestVerdictLimits(t *testing.T) {
	for _, tc := range []struct {
		name, want string
		doubts     []fit.Doubt
	}{
		{"none", "", nil},
		{"read", "", []fit.Doubt{{Kind: fit.Read}}},
		{"both", ", as far as it ran, with the sizes of zeros", []fit.Doubt{{Kind: fit.Ended}, {Kind: fit.Sizes}, {Kind: fit.Read}}},
		{"assumed", ", with what is assumed", []fit.Doubt{{Kind: fit.Assumed}, {Kind: fit.Assumed}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := limits(tc.doubts); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

// The limits stand where it says that the program fits, in each form of the verdict.
func TestVerdictHasLimits(t *testing.T) {
	for _, rep := range []*advise.Report{
		{FitsAsItIs: true, Source: advise.Source{Name: "jax"}},
		{Advice: &advise.Candidate{Ours: true}, Source: advise.Source{Name: "jax"}},
		{Advice: &advise.Candidate{Policy: "bfc"}},
		{Advice: &advise.Candidate{}, Source: advise.Source{Name: "jax"}},
	} {
		rep.Candidates = []*advise.Candidate{{}}
		if got := adviceVerdict(rep, ", as far as it ran"); !regexp.MustCompile(`It fits( as it is)?, as far as it ran[,:] `).MatchString(got) {
			t.Errorf("%s", got)
		}
	}
}
