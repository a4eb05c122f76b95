// Releases that were named but not examined.

package policy

import (
	"fmt"
	"strings"
)

// ReleaseNote says in one line how the release of f is read where that is not
// certain: it is newer than the newest known one, or it is abbreviated and the
// releases that begin with it differ. It is empty for all others.
func ReleaseNote(f Framework) string {
	known, err := frameworkOf(f.Name)
	if err != nil || f.Version == "" || known.like == "" {
		return ""
	}
	v, err := known.version(f.Version)
	if err != nil {
		return ""
	}
	if known.newest.less(v) {
		return fmt.Sprintf("%s %s is not known; it is read as %s, the newest known release", known.title, f.Version, known.newest)
	}
	if strings.Count(f.Version, ".") != 1 {
		return ""
	}
	for _, c := range known.changes {
		w, _ := parseVersion(c.Version, known.title, known.like)
		if v.less(w) && w[0] == v[0] && w[1] == v[1] {
			return fmt.Sprintf("%s %s is read as %s; later releases of %[2]s differ, from %[4]s on", known.title, f.Version, v, w)
		}
	}
	return ""
}
