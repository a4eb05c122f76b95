// Releases that were named but not examined.

package frameworks

import (
	"fmt"
	"strings"

	"gpumem/policy"
)

// Note says in one line how the release is read where that is not certain: it is
// newer than the newest known one, or it is abbreviated and the releases that begin
// with it differ. It is empty for all others.
func (r Release) Note() string {
	known, v, err := r.Find()
	if err != nil || r.Version == "" || !known.Versioned() {
		return ""
	}
	if v == policy.Next {
		return ""
	}
	if known.Newest.Less(v) {
		return fmt.Sprintf("%s %s is not known; it is read as %s, the newest known release", known.Title, r.Version, known.Newest)
	}
	if strings.Count(r.Version, ".") != 1 {
		return ""
	}
	for _, c := range known.Changes() {
		w, _ := policy.ParseVersion(c.Version, known.Title, known.example)
		if v.Less(w) && w[0] == v[0] && w[1] == v[1] {
			return fmt.Sprintf("%s %s is read as %s; later releases of %[2]s differ, from %[4]s on", known.Title, r.Version, v, w)
		}
	}
	return ""
}
