package doctor

// The page of a cause, for people without the repository.

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"gpumem/docs"
)

var pageLinks = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)

// Explain returns the section of docs/causes.md on a cause, as plain text. The error lists
// the causes.
func Explain(id string) (string, error) {
	if _, ok := titles[CauseID(id)]; !ok {
		var ids []string
		for _, c := range slices.Sorted(maps.Keys(titles)) {
			ids = append(ids, string(c))
		}
		return "", fmt.Errorf("--explain %q: unknown cause; the causes are %s", id, strings.Join(ids, ", "))
	}
	_, section, _ := strings.Cut(docs.Causes, "\n## "+id+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var b strings.Builder
	b.WriteString(id + "\n")
	code := false
	for line := range strings.Lines(section) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "```"):
			code = !code
			continue
		case code:
			line = "    " + line
		default:
			line = pageLinks.ReplaceAllString(line, "$1")
			line = strings.NewReplacer("**", "", "`", "").Replace(strings.TrimPrefix(line, "### "))
		}
		b.WriteString(line + "\n")
	}
	return strings.TrimRight(b.String(), "\n") + "\n", nil
}
