// Tests of the documentation of settings: the file is what the tables say, and
// its links lead somewhere.

package policy

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write docs/settings.md anew")

func TestDocumentation(t *testing.T) {
	path := filepath.Join("..", "docs", "settings.md")
	got := Documentation()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (go test ./policy -update writes it)", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("other than %s, which go test ./policy -update writes anew (-file +tables):\n%s", path, diff)
	}
}

// TestDocumentationSays: every variable, release and reader is there.
func TestDocumentationSays(t *testing.T) {
	text := Documentation()
	for _, v := range Variables {
		if strings.Count(text, "### `"+v.Name+"`\n") != 1 {
			t.Errorf("%s has no heading, or several", v.Name)
		}
	}
	for _, f := range All {
		for _, c := range f.Changes {
			if !strings.Contains(text, "| "+c.Version+" | "+c.Date+" | "+c.Text+" | ") {
				t.Errorf("%s %s is not there", f.Title, c.Version)
			}
		}
		if !strings.Contains(text, "- "+f.Title+": "+f.When+".\n") {
			t.Errorf("when %s reads is not there", f.Title)
		}
	}
}

var (
	links    = regexp.MustCompile(`\]\(([^)]+)\)`)
	headings = regexp.MustCompile(`(?m)^#+ (.+)$`)
)

// TestDocumentationLinks: every link leads to a heading of the page, in the
// form that GitHub gives it, or to a file.
func TestDocumentationLinks(t *testing.T) {
	text := Documentation()
	anchors := map[string]bool{}
	for _, h := range headings.FindAllStringSubmatch(text, -1) {
		anchor := strings.ToLower(strings.NewReplacer("`", "", " ", "-", "'", "", ":", "").Replace(h[1]))
		if anchors[anchor] {
			t.Errorf("two headings %q", h[1])
		}
		anchors[anchor] = true
	}
	found := links.FindAllStringSubmatch(text, -1)
	if len(found) < 5 {
		t.Errorf("only %d links", len(found))
	}
	for _, m := range found {
		if anchor, ok := strings.CutPrefix(m[1], "#"); ok {
			if !anchors[anchor] {
				t.Errorf("no heading for %s", m[0])
			}
		} else if _, err := os.Stat(filepath.Join("..", "docs", m[1])); err != nil {
			t.Errorf("%s: %v", m[0], err)
		}
	}
}

// TestDocumentationReads: no table is too wide and no cell is broken.
func TestDocumentationReads(t *testing.T) {
	columns := 0
	for i, line := range strings.Split(Documentation(), "\n") {
		if !strings.HasPrefix(line, "|") {
			columns = 0
			if len(line) > 900 {
				t.Errorf("line %d has %d letters: %.60s...", i+1, len(line), line)
			}
			continue
		}
		n := strings.Count(line, "|")
		if columns == 0 {
			columns = n
		}
		if n != columns || n > 6 {
			t.Errorf("line %d has %d columns, the first of the table %d: %s", i+1, n-1, columns-1, line)
		}
	}
}
