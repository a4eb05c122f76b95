// Tests of the frameworks that are known.
package frameworks_test

import (
	"fmt"
	"gpumem/policy"
	"gpumem/policy/frameworks"
	"gpumem/size"
	"slices"
	"strings"
	"testing"
)

func TestParseFramework(t *testing.T) {
	for text, want := range map[string]string{
		"jax": "", "jax@0.4.30": "", "jax@0.99": "", "tensorflow@2.15.0.post1": "", "tensorflow@2.16.0rc0": "", "gpumem": "",
		"":               `unknown framework ""; want one of jax, tensorflow`,
		"jex":            `unknown framework "jex" (did you mean "jax"?)`,
		"jax@":           "no version after @",
		"jax@new":        `"new" is not a JAX release; want one such as 0.4.30`,
		"jax@0.1.2":      "JAX 0.1.2 is not known; the oldest known release is 0.1.16",
		"tensorflow@1.1": "TensorFlow 1.1 is not known; the oldest known release is 2.2.0",
		"gpumem@1":       "gpumem has no versions; write gpumem alone",
	} {
		_, err := frameworks.ParseRelease(text)
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestChanges(t *testing.T) {
	versions := func(a, b string) (list []string) {
		fa, _ := frameworks.ParseRelease(a)
		fb, _ := frameworks.ParseRelease(b)
		for _, c := range frameworks.Changes(fa, fb) {
			if c.Text == "" || c.Source == "" || c.Date == "" {
				t.Errorf("%+v", c)
			}
			list = append(list, c.Version)
		}
		return list
	}
	for _, tc := range []struct {
		a, b string
		want []string
	}{
		{"jax@0.4.3", "jax@0.4.4", []string{"0.4.4"}},
		{"jax@0.11.0", "jax@0.10.0", []string{"0.10.1", "0.10.2", "0.11.0"}},
		{"jax@0.5.1", "jax@0.5.3", nil},
		{"jax@0.5.0", "tensorflow@2.15", nil},
		{"tensorflow@2.4", "tensorflow@2.12", []string{"2.5.0", "2.7.0", "2.12.0"}},
	} {
		if got := versions(tc.a, tc.b); !slices.Equal(got, tc.want) {
			t.Errorf("%s to %s: %v, want %v", tc.a, tc.b, got, tc.want)
		}
	}
}

func ExampleParse() {
	for _, spec := range []string{"jax", "jax@0.4.0", "elastic:limit=10GB", "bfc:fracton=.5"} {
		p, err := frameworks.Parse(spec)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(p.Spec, p.Kind, size.Format(p.LimitBytes(policy.Device{Total: 80 << 30, Free: 40 << 30})))
	}
	// Output:
	// jax bfc 60 GiB
	// jax@0.4.0 bfc 36 GiB
	// elastic:limit=10GB elastic 10 GiB
	// policy "bfc:fracton=.5": unknown key "fracton" (did you mean "fraction"?); bfc takes preallocate, fraction, of, limit, spatial, topdown, gc, coalesce, fragmentation, align
}
