package main

import (
	"strings"
	"testing"

	"gpumem/internal/test/story"
)

func TestStory(t *testing.T) {
	out := story.Check(t, run)
	// The first row of the page: nothing before the first allocation, then
	// 75 % of the total.
	for _, want := range []string{"the pool holds 0 B", "the pool holds 18 GiB"} {
		if !strings.Contains(out, want) {
			t.Errorf("the output does not say %q", want)
		}
	}
}

func TestSteps(t *testing.T) {
	// Opening takes nothing and Close gives everything back, whatever the
	// policy; only platform gives back what is free.
	for spec, afterTrim := range map[string]string{"jax": "18 GiB", "jax:preallocate=false": "2 GiB", "platform": "0 B"} {
		got, err := steps(spec)
		if err != nil {
			t.Fatal(err)
		}
		if got[0] != "0 B" || got[4] != afterTrim || got[5] != "0 B" {
			t.Errorf("%s: after opening, Trim and Close the device has given %s, %s, %s; want 0 B, %s, 0 B", spec, got[0], got[4], got[5], afterTrim)
		}
	}
	if _, err := steps("nonsense"); err == nil {
		t.Error("an unknown policy is not an error")
	}
}
