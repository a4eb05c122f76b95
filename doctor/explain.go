package doctor

// The page of a cause, for people without the repository.

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"gpumem/docs"
	"gpumem/internal/report"
	"gpumem/internal/spelling"
)

var pageLinks = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)

// Explain returns the section of docs/causes.md on a cause, as plain text in lines of at
// most width characters, but for what is printed by programs. The cause is named by its
// ID or in the words of an answer: "pool limit" is pool_limit. The error names the nearest
// cause, else all of them.
func Explain(name string, width int) (string, error) {
	id := strings.NewReplacer(" ", "_", "-", "_").Replace(strings.ToLower(strings.TrimSpace(name)))
	if _, ok := titles[CauseID(id)]; !ok {
		var ids []string
		for _, c := range slices.Sorted(maps.Keys(titles)) {
			ids = append(ids, string(c))
		}
		if near := spelling.DidYouMean(id, ids); near != "" {
			return "", fmt.Errorf("--explain %q: unknown cause%s", name, near)
		}
		return "", fmt.Errorf("--explain %q: unknown cause; the causes are %s", name, strings.Join(ids, ", "))
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
			line = paragraph(line, width)
		}
		b.WriteString(line + "\n")
	}
	return strings.TrimRight(b.String(), "\n") + "\n", nil
}

// paragraph is a line of the page, wrapped. Only the items of a list hang.
func paragraph(line string, width int) string {
	wrapped := report.Wrap(line, width)
	if strings.HasPrefix(strings.TrimLeft(line, " "), "- ") {
		return wrapped
	}
	return strings.ReplaceAll(wrapped, "\n  ", "\n")
}
