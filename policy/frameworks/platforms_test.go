// Tests against JAX releases: which backend JAX_PLATFORMS and JAX_PLATFORM_NAME
// chose, asked by testdata/jax/jax.py.

package frameworks

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"gpumem/internal/test/envtest"
	"gpumem/policy"
)

// platformReleases are those asked.
var platformReleases = strings.Fields(`0.4.18 0.4.20 0.4.23 0.4.25 0.4.26 0.4.29 0.4.30 0.4.31 0.4.35 0.5.0 0.5.3
	0.6.0 0.6.2 0.7.2 0.8.3 0.9.2 0.10.1 0.10.2 0.11.2 0.12.0.1`)

// TestPlatformsLikeReleases: the backend, or the error in JAX's words.
func TestPlatformsLikeReleases(t *testing.T) {
	b, err := os.ReadFile("testdata/jax/platforms.txt")
	if err != nil {
		t.Fatal(err)
	}
	var env policy.Environment
	usual := map[string][2]string{}
	asked := 0
	for n, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		switch {
		case strings.HasPrefix(line, "#"):
			continue
		case strings.HasPrefix(line, "env"):
			env = envtest.Environ(t, strings.TrimPrefix(strings.TrimPrefix(line, "env"), " "))
			continue
		}
		words := strings.SplitN(strings.TrimSpace(line), " ", 3)
		first, last, ranged := strings.Cut(words[0], "..")
		if !ranged {
			last = first
		}
		in := false
		for _, release := range platformReleases {
			if in = in || release == first; in {
				asked++
				if problem := comparePlatform(t, env, release, words[2], usual); problem != "" {
					t.Errorf("platforms.txt:%d: %s %v: %s", n+1, release, env, problem)
				}
			}
			if release == last {
				break
			}
		}
	}
	if asked != 60*len(platformReleases) {
		t.Errorf("%d answers; want %d", asked, 60*len(platformReleases))
	}
}

// comparePlatform is how the reading differs from an answer; empty if it does not.
// usual has the platform and the clients of the empty environment by release.
func comparePlatform(t *testing.T, env policy.Environment, release, answer string, usual map[string][2]string) string {
	t.Helper()
	_, e := readAs(t, "jax", release, env, policy.Device{Total: 80 << 30, Free: 80 << 30})
	if quoted, ok := strings.CutPrefix(answer, "! RuntimeError "); ok {
		want, _ := strconv.Unquote(quoted)
		ours := strings.Replace(e.Text, noTPU, "", 1) // it was another, without a text, in place of the TPU's library
		if ours != want && !(strings.HasPrefix(ours, want+".") && strings.HasPrefix(want, "Unknown backend")) {
			return strconv.Quote(ours) + "; want " + want
		}
		return ""
	}
	got := usual[release]
	for _, word := range strings.Fields(strings.TrimPrefix(answer, "same")) {
		name, quoted, _ := strings.Cut(word, "=")
		value, _ := strconv.Unquote(quoted)
		if name == "platform" {
			got[0] = value
		} else {
			got[1] = value
		}
	}
	if len(env.Names()) == 0 {
		usual[release] = got
	}
	platform, both := "cuda", "although"
	if strings.Contains(e.Then, onCPU) {
		platform = "cpu"
	}
	switch {
	case platform != got[0] || e.Text != "" && !e.CPU:
		return "chooses " + platform + ", " + e.Text + "; want " + got[0]
	case platform == "cpu" && strings.Contains(e.Text, both) != strings.Contains(got[1], "cuda"):
		return e.Text + "; clients were made for " + got[1]
	}
	return ""
}
