package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"gpumem/node/machine"
	"gpumem/record/formats"
	"gpumem/record/trace"
)

// An example is parts of an archive: NAME/why, NAME/log, NAME/want, and, where there are such, the
// machine's NAME/state.json and the recording NAME/beside.txt.
type example struct{ name, why, log, state, beside, want string }

// examples are those of testdata/rules, by archive. They are written by hand, by what the numbers
// of the log say, and no flag rewrites them.
func examples(t *testing.T) map[string][]*example {
	t.Helper()
	files, err := filepath.Glob("testdata/rules/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("testdata/rules is not there", err)
	}
	all := map[string][]*example{}
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var e *example
		for _, f := range archive.Files {
			name, part, _ := strings.Cut(f.Name, "/")
			if part == "why" {
				e = &example{name: name}
				all[file] = append(all[file], e)
			}
			if e == nil || e.name != name {
				t.Fatalf("%s: %s does not begin with its why", file, name)
			}
			at := map[string]*string{"why": &e.why, "log": &e.log, "state.json": &e.state, "beside.txt": &e.beside, "want": &e.want}[part]
			if at == nil || *at != "" {
				t.Fatalf("%s: %s", file, f.Name)
			}
			*at = string(f.Data)
		}
	}
	return all
}

// diagnosis is what the doctor says of an example.
func (e *example) diagnosis(t *testing.T) *Diagnosis {
	t.Helper()
	if e.beside == "" {
		return diagnose(t, e.log, e.state)
	}
	path := filepath.Join(t.TempDir(), "beside.txt")
	if err := os.WriteFile(path, []byte(e.beside), 0o600); err != nil {
		t.Fatal(err)
	}
	recording, err := formats.Open(t.Context(), path, trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer recording.Close()
	beside, err := ReadBeside(t.Context(), recording)
	if err != nil {
		t.Fatal(err)
	}
	var state *machine.Snapshot
	if e.state != "" {
		if state, err = machine.Read(strings.NewReader(e.state)); err != nil {
			t.Fatal(err)
		}
	}
	d, err := DiagnoseWith(strings.NewReader(e.log), state, beside)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// byRule is a verdict with the rules that found its causes.
func byRule(d *Diagnosis) string {
	var b strings.Builder
	fmt.Fprintf(&b, "verdict: %s\n", d.Verdict)
	for _, c := range d.Causes {
		fmt.Fprintf(&b, "%s: %s\n", c.ID, c.Rule)
	}
	return b.String()
}

func TestExamplesOfRules(t *testing.T) {
	for file, list := range examples(t) {
		for _, e := range list {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar")+"/"+e.name, func(t *testing.T) {
				if diff := cmp.Diff(e.want, byRule(e.diagnosis(t))); diff != "" {
					t.Errorf("%s%s", e.why, diff)
				}
			})
		}
	}
}

var (
	ruleInSource  = regexp.MustCompile(`\b(?:sure|fits)\((?:\d+|\d+-i|rank), "([^"]+)"`)
	ruleInExample = regexp.MustCompile(`(?m)^(\w+): (.+)$`)
)

// ruleOf names the cause of a rule behind it, in files of several causes.
var ruleOf = regexp.MustCompile(`\bof\("(\w+)"\)`)

// rulesInTests are the verdicts that tests of the doctor ask for, as text: each is "VERDICT: RULE; RULE".
func rulesInTests(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob("*_test.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	var all strings.Builder
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(source)
	}
	return all.String()
}

// TestEveryRuleHasAnExample: each rule of a cause's file, by its name, is in the verdict of an
// example in testdata/rules, or in one that a test asks for. What -update writes is neither.
func TestEveryRuleHasAnExample(t *testing.T) {
	shown := map[string]bool{}
	for _, list := range examples(t) {
		for _, e := range list {
			for _, m := range ruleInExample.FindAllStringSubmatch(e.want, -1) {
				shown[m[1]+": "+m[2]] = true
			}
		}
	}
	tests := rulesInTests(t)
	files, err := filepath.Glob("internal/cause/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	rules := 0
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		// A comment of a cause's file has its name, and may have that of another.
		var causes []string
		for id := range titles {
			if regexp.MustCompile(`(?m)^// (?:.*[ .])?` + string(id) + `: `).Match(source) {
				causes = append(causes, string(id))
			}
		}
		found := ruleInSource.FindAllSubmatchIndex(source, -1)
		for i, at := range found {
			rules++
			end := len(source)
			if i+1 < len(found) {
				end = found[i+1][0]
			}
			causes, name := causes, string(source[at[2]:at[3]])
			if of := ruleOf.FindSubmatch(source[at[0]:end]); of != nil {
				causes = []string{string(of[1])}
			}
			asked := regexp.MustCompile(`[":;] ?` + regexp.QuoteMeta(name) + `[";]`).MatchString(tests)
			if !asked && !slices.ContainsFunc(causes, func(id string) bool { return shown[id+": "+name] }) {
				t.Errorf("%s: %q of %v has no example in testdata/rules", file, name, causes)
			}
		}
	}
	if rules < 200 {
		t.Errorf("%d rules were found: the expression does not fit the source any more", rules)
	}
}
