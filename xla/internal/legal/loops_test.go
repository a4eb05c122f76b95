package legal_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/legal"
	"gpumem/xla/internal/test/hlointerp"
	"gpumem/xla/internal/test/remattest"
)

// computation is the line that begins a computation, in the given module, the planned one, or both.
var computation = regexp.MustCompile(`^[-+]?(?:ENTRY )?(\w+) \{$`)

// editLoops returns a text of testdata/loops with the changes of a case: whole lines of one computation each.
func editLoops(t *testing.T, text, changes string) string {
	t.Helper()
	parts, names := map[string][]string{}, []string{"head"}
	for line := range strings.SplitSeq(text, "\n") {
		if m := computation.FindStringSubmatch(line); m != nil {
			names = append(names, m[1])
		}
		part := names[len(names)-1]
		parts[part] = append(parts[part], line)
	}

	part, cut, put := "", "", ""
	replace := func() {
		old := strings.Join(parts[part], "\n") + "\n"
		if strings.Count(old, cut) != 1 && cut+put != "" {
			t.Fatalf("in %s there are not once\n%s", part, cut)
		}
		parts[part] = strings.Split(strings.TrimSuffix(strings.Replace(old, cut, put, 1), "\n"), "\n")
		cut, put = "", ""
	}
	for line := range strings.Lines(changes) {
		switch {
		case strings.HasPrefix(line, "@ "):
			replace()
			part = strings.TrimSpace(line[2:])
		case strings.HasPrefix(line, "<"):
			if put != "" {
				replace()
			}
			cut += line[1:]
		case strings.HasPrefix(line, ">"):
			put += line[1:]
		}
	}
	replace()

	var edited []string
	for _, name := range names {
		edited = append(edited, parts[name]...)
	}
	return strings.Join(edited, "\n")
}

// loopModule returns the given module of a text of testdata/loops, or the planned one. Ahead of the module stand names
// of shapes.
func loopModule(t *testing.T, text string, planned bool) *hlo.Module {
	t.Helper()
	kept, cut := "-", "+"
	if planned {
		kept, cut = cut, kept
	}
	var b strings.Builder
	var shapes []string
	module := false
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, cut):
			continue
		case strings.HasPrefix(line, kept):
			line = " " + line[1:]
		}
		if module = module || strings.HasPrefix(line, "HloModule"); module {
			b.WriteString(line)
		} else if name, shape, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			shapes = append(shapes, name, shape)
		}
	}
	shape := strings.NewReplacer(shapes...)
	return remattest.Parsed(t, shape.Replace(shape.Replace(b.String()))) // some stand in others
}

// sameResults runs both modules on the same arguments.
func sameResults(t *testing.T, a, b *hlo.Module) bool {
	t.Helper()
	args, err := hlointerp.Arguments(a, 1)
	if err != nil {
		t.Fatal(err)
	}
	x, err := hlointerp.Run(a, args, hlointerp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	y, err := hlointerp.Run(b, args, hlointerp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return hlointerp.Equal(x, y)
}

// TestPlansOfLoops judges plans of loops whose state changed, in testdata/loops/cases.txt. That a wrong one computes
// something else is seen by running it.
func TestPlansOfLoops(t *testing.T) {
	for _, c := range readCases(t, "testdata/loops/cases.txt") {
		t.Run(c.name, func(t *testing.T) {
			data, err := os.ReadFile("testdata/loops/" + c.of + ".txt")
			if err != nil {
				t.Fatal(err)
			}
			text := editLoops(t, string(data), c.text)
			given, planned := loopModule(t, text, false), loopModule(t, text, true)
			if err := (legal.Options{}).Check(given, given.Clone()); err != nil {
				t.Fatal("nothing is changed: ", err)
			}
			c.judge(t, given, planned)
			if !c.unproven && sameResults(t, given, planned) != (c.want == "") {
				t.Errorf("the results are the same: %t", c.want != "")
			}
		})
	}
}
