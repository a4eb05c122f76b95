package doctor

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

// examples are the archives of testdata/rules: NAME/why, NAME/log, NAME/state.json, which may be
// absent, and NAME/want. They are written by hand, by what the numbers of the log say, and no flag
// rewrites them.
func examples(t testing.TB) map[string][]stored {
	t.Helper()
	files, err := filepath.Glob("testdata/rules/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("testdata/rules is not there", err)
	}
	all := map[string][]stored{}
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		room := strings.TrimSuffix(filepath.Base(file), ".txtar")
		list := all[room]
		for _, f := range archive.Files {
			name, part, _ := strings.Cut(f.Name, "/")
			if part == "why" {
				list = append(list, stored{name: name})
			}
			if len(list) == 0 || list[len(list)-1].name != name {
				t.Fatalf("%s: %s begins without a why", file, name)
			}
			c := &list[len(list)-1]
			*map[string]*string{"why": &c.why, "log": &c.log, "state.json": &c.state, "want": &c.want}[part] = string(f.Data)
		}
		all[room] = list
	}
	return all
}

// byRule is a verdict with the rules that it is from.
func byRule(d *Diagnosis) string {
	var b strings.Builder
	fmt.Fprintf(&b, "verdict: %s\n", d.Verdict)
	for _, c := range d.Causes {
		fmt.Fprintf(&b, "%s: %s\n", c.ID, c.Rule)
	}
	return b.String()
}

func TestExamplesOfRules(t *testing.T) {
	for room, cases := range examples(t) {
		for _, c := range cases {
			t.Run(room+"/"+c.name, func(t *testing.T) {
				if diff := cmp.Diff(c.want, byRule(diagnose(t, c.log, c.state))); diff != "" {
					t.Errorf("%s%s", c.why, diff)
				}
			})
		}
	}
}
