package doctor

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "write what is diagnosed into testdata/verdicts and testdata/answers, to be read before it is believed")

// A stored case is three files of an archive: NAME/log, NAME/state.json, which
// may be absent, and NAME/want.
type stored struct{ name, log, state, want string }

func readStored(t testing.TB) map[string][]stored {
	t.Helper()
	files, err := filepath.Glob("testdata/verdicts/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("testdata/verdicts is not there", err)
	}
	all := map[string][]stored{}
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range archive.Files {
			name, part, _ := strings.Cut(f.Name, "/")
			list := all[file]
			if len(list) == 0 || list[len(list)-1].name != name {
				list = append(list, stored{name: name})
			}
			c := &list[len(list)-1]
			switch part {
			case "log":
				c.log = string(f.Data)
			case "state.json":
				c.state = string(f.Data)
			case "want":
				c.want = string(f.Data)
			default:
				t.Fatalf("%s: %s", file, f.Name)
			}
			all[file] = list
		}
	}
	return all
}

// TestVerdicts holds every rule's answer, with its settings, to what was read and
// found right.
func TestVerdicts(t *testing.T) {
	for file, cases := range readStored(t) {
		archive := &txtar.Archive{}
		for _, c := range cases {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar")+"/"+c.name, func(t *testing.T) {
				got := inWords(diagnose(t, c.log, c.state))
				if diff := cmp.Diff(c.want, got); diff != "" && !*update {
					t.Error(diff)
				}
				add := func(part, text string) {
					archive.Files = append(archive.Files, txtar.File{Name: c.name + "/" + part, Data: []byte(text)})
				}
				add("log", c.log)
				if c.state != "" {
					add("state.json", c.state)
				}
				add("want", got)
			})
		}
		if *update {
			if err := os.WriteFile(file, txtar.Format(archive), 0o666); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// inWords is a diagnosis for reading.
func inWords(d *Diagnosis) string {
	var b strings.Builder
	fmt.Fprintln(&b, "verdict:", d.Verdict)
	for _, c := range d.Causes {
		fmt.Fprintf(&b, "cause: %s, by %q\n", c.ID, c.Rule)
		for _, e := range c.Evidence {
			if e.Line == 0 {
				fmt.Fprintf(&b, "  state: %s: %s\n", e.Text, e.Reading)
				continue
			}
			fmt.Fprintf(&b, "  line %d: %s\n", e.Line, e.Reading)
		}
		for _, s := range c.Settings {
			fmt.Fprintf(&b, "  set %s=%s\n    %s\n", s.Name, s.Value, s.Why)
		}
		if c.Check != "" {
			fmt.Fprintf(&b, "  check: %s\n", c.Check)
		}
	}
	for _, m := range d.Missing {
		fmt.Fprintln(&b, "missing:", m)
	}
	if d.Decide != "" {
		fmt.Fprintln(&b, "decide:", d.Decide)
	}
	for _, c := range d.Certain {
		fmt.Fprintln(&b, "certain:", c)
	}
	return b.String()
}
