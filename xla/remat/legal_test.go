package remat

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"gpumem/xla/internal/cost"
	"gpumem/xla/internal/legal"
	"gpumem/xla/internal/test/remattest"
)

// TestIllegalPlansAreDropped: XLA's plan is not returned where it is wrong, and the answer says
// why.
func TestIllegalPlansAreDropped(t *testing.T) {
	m := remattest.Parsed(t, remattest.Overwritten)
	for _, algorithm := range Algorithms {
		for percent := 10.; percent < 100; percent += 20 {
			a, err := Run(context.Background(), m, Request{Algorithm: algorithm, Limit: Percent(percent), Rates: cost.Rates{Bytes: 3e12, Flops: 4e14}, Frontier: 20})
			if err != nil {
				t.Fatal(err)
			}
			if err := (legal.Options{}).Check(a.Given, a.Module); err != nil || !a.Legal {
				t.Errorf("%s, %v %%: legal %t: %v", algorithm, percent, a.Legal, err)
			}
			if text := strings.Join(a.Warnings, "\n"); algorithm == "xla" && (!strings.Contains(text, "XLA's plan was dropped: not legal: a.remat") || !strings.Contains(text, "it reads p, whose memory dus has overwritten")) {
				t.Errorf("%v %%: warnings %q", percent, a.Warnings)
			}
		}
	}
	_, err := Run(context.Background(), m, Request{Algorithm: "off", Marks: []*regexp.Regexp{regexp.MustCompile("^a$|^b$")}, Limit: Percent(50), Rates: DefaultRates})
	if err == nil || !strings.Contains(err.Error(), "not legal") {
		t.Errorf("marks of a scheduled module: %v", err)
	}
}
