// Version numbers of releases, and tables of what each release changed.

package policy

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
)

// version is major, minor, patch, and the fourth number of a repaired release
// (0.9.0.1).
type Version [4]int

func (v Version) String() string {
	s := fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2])
	if v[3] != 0 {
		s += "." + strconv.Itoa(v[3])
	}
	return s
}

func (v Version) Less(w Version) bool { return slices.Compare(v[:], w[:]) < 0 }

// versionText is a release as Python packages write it. Development builds,
// candidates and local builds (0.11.1.dev20260808+cec06d11, 2.16.0rc0) count as
// the release that they lead to.
var versionText = regexp.MustCompile(`^([0-9]+)\.([0-9]+)(?:\.([0-9]+))?(?:\.([0-9]+))?(?:(?:\.dev|\.post|a|b|rc|\+)[0-9A-Za-z.+]*)?$`)

// parseVersion reads a version; framework and like are for the error.
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

// newest is a version after all others: what is newer than the newest row is
// taken to do as that does.
var Newest = Version{1 << 30}

// A row is a release from which on something is different.
type Row[R any] struct {
	Version Version
	Date    string // of the release
	Change  string // for the documentation
	Source  string
	Apply   func(*R)
}

// at is what a framework does at a version: the changes up to it, in order.
func At[R any](rows []Row[R], v Version) R {
	var r R
	for _, row := range rows {
		if v.Less(row.Version) {
			break
		}
		row.Apply(&r)
	}
	return r
}

// changesOf are the rows for people.
func ChangesOf[R any](rows []Row[R]) []Change {
	var list []Change
	for _, r := range rows {
		list = append(list, Change{r.Version.String(), r.Date, r.Change, r.Source})
	}
	return list
}

// A Change is what a release of a framework does otherwise than those before.
type Change struct {
	Version string `json:"version"`
	Date    string `json:"date"`
	Text    string `json:"text"` // one or two sentences
	Source  string `json:"source"`
}
