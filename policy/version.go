// Version numbers of releases.

package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A Version is major, minor, patch, and the fourth number of a repaired release
// (0.9.0.1).
type Version [4]int

// String returns "0.9.0", with a fourth number only if it is not 0; "next" for [Next].
func (v Version) String() string {
	if v == Next {
		return nextText
	}
	s := fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2])
	if v[3] != 0 {
		s += "." + strconv.Itoa(v[3])
	}
	return s
}

// Less reports whether v comes before w.
func (v Version) Less(w Version) bool { return slices.Compare(v[:], w[:]) < 0 }

// preRelease are how the rest of a version may begin. Development builds, candidates and
// local builds (0.11.1.dev20260808+cec06d11, 2.16.0rc0) count as the release that they
// lead to.
var preRelease = []string{".dev", ".post", "a", "b", "rc", "+"}

// ParseVersion reads a version as Python packages write it: two to four numbers, and
// what may follow them; or "next", which is [Next]. The error is one line that names the framework and a version like
// the one wanted.
func ParseVersion(text, framework, like string) (Version, error) {
	if text == nextText {
		return Next, nil
	}
	numbers, rest := dotted(text)
	begins := func(pre string) bool { return strings.HasPrefix(rest, pre) }
	odd := func(r rune) bool {
		return r != '.' && r != '+' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}
	var v Version
	if len(numbers) < 2 || rest != "" && !slices.ContainsFunc(preRelease, begins) || strings.ContainsFunc(rest, odd) {
		return v, fmt.Errorf("%q is not a %s release; want one such as %s", text, framework, like)
	}
	for i, digits := range numbers {
		n, err := strconv.Atoi(digits)
		if err != nil {
			return v, fmt.Errorf("%q is not a %s release: the number %s is too large", text, framework, digits)
		}
		v[i] = n
	}
	return v, nil
}

// dotted returns the numbers that text begins with, four at most, and what follows them.
// A regular expression would do, and bring 150 KB to the pool library.
func dotted(text string) (numbers []string, rest string) {
	for next := text; len(numbers) < len(Version{}); {
		n := len(next) - len(strings.TrimLeft(next, "0123456789"))
		if n == 0 {
			break
		}
		numbers, rest = append(numbers, next[:n]), next[n:]
		var dot bool
		if next, dot = strings.CutPrefix(rest, "."); !dot {
			break
		}
	}
	return numbers, rest
}

// Newest is a version after all others: a release newer than the last row of a
// table is taken to do as that does.
var Newest = Version{1 << 30}

// Next is what a framework's documentation describes ahead of every release. It comes
// after Newest, so that no release is taken to do as it does.
var Next = Version{1<<30 + 1}

// nextText is how Next is written.
const nextText = "next"

// Change is what a release of a framework changed.
type Change struct {
	Version string `json:"version"`
	Date    string `json:"date"`
	Text    string `json:"text"` // one or two sentences
	Source  string `json:"source"`
}
