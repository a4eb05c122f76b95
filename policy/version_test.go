package policy_test

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"gpumem/policy"
)

// versions is what ParseVersion takes, as a regular expression.
var versions = regexp.MustCompile(`^([0-9]+)\.([0-9]+)(?:\.([0-9]+))?(?:\.([0-9]+))?(?:(?:\.dev|\.post|a|b|rc|\+)[0-9A-Za-z.+]*)?$`)

// TestParseVersion compares random texts of what versions are made of.
func TestParseVersion(t *testing.T) {
	parts := strings.Split("0 1 2 07 15 . . . . .dev .post a b rc + cu132 x é - 99999999999999999999", " ")
	r := rand.New(rand.NewPCG(1, 2))
	taken := 0
	for range 200_000 {
		text := ""
		for range r.IntN(9) {
			text += parts[r.IntN(len(parts))]
		}
		m := versions.FindStringSubmatch(text)
		v, err := policy.ParseVersion(text, "JAX", "0.9.0")
		tooLarge := err != nil && strings.Contains(err.Error(), "too large")
		if (m != nil) != (err == nil || tooLarge) {
			t.Fatalf("%q: %v, %v; the expression says %q", text, v, err, m)
		}
		if m == nil || tooLarge {
			continue
		}
		taken++
		for i, digits := range m[1:] {
			n := 0
			for _, d := range digits {
				n = 10*n + int(d-'0')
			}
			if v[i] != n {
				t.Fatalf("%q: %v", text, v)
			}
		}
	}
	if taken < 1000 {
		t.Errorf("only %d texts were versions", taken)
	}
}
