// Version numbers of releases.

package policy

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
)

// A Version is major, minor, patch, and the fourth number of a repaired release
// (0.9.0.1).
type Version [4]int

// String is "0.9.0", with a fourth number only if it is not 0.
func (v Version) String() string {
	s := fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2])
	if v[3] != 0 {
		s += "." + strconv.Itoa(v[3])
	}
	return s
}

// Less reports whether v comes before w.
func (v Version) Less(w Version) bool { return slices.Compare(v[:], w[:]) < 0 }

// versionText is a release as Python packages write it. Development builds,
// candidates and local builds (0.11.1.dev20260808+cec06d11, 2.16.0rc0) count as
// the release that they lead to.
var versionText = regexp.MustCompile(`^([0-9]+)\.([0-9]+)(?:\.([0-9]+))?(?:\.([0-9]+))?(?:(?:\.dev|\.post|a|b|rc|\+)[0-9A-Za-z.+]*)?$`)

// ParseVersion reads a version as Python packages write it. The error is one line
// that names the framework and a version like the one wanted.
func ParseVersion(text, framework, like string) (Version, error) {
	var v Version
	m := versionText.FindStringSubmatch(text)
	if m == nil {
		return v, fmt.Errorf("%q is not a %s release; want one such as %s", text, framework, like)
	}
	for i, digits := range m[1:] {
		if digits == "" { // fewer numbers
			continue
		}
		n, err := strconv.Atoi(digits)
		if err != nil {
			return v, fmt.Errorf("%q is not a %s release: the number %s is too large", text, framework, digits)
		}
		v[i] = n
	}
	return v, nil
}

// Newest is a version after all others: a release newer than the last row of a
// table is taken to do as that does.
var Newest = Version{1 << 30}
