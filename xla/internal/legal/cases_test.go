package legal_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/legal"
	"gpumem/xla/internal/test/remattest"
	"gpumem/xla/internal/verify"
)

// readCases returns the plans of a file of testdata. A case begins with === and its name, which
// ends with what has to become of it. Behind lines that begin with # stand
//
//	want: the problem; there is none if the plan is legal
//	options: loops, collectives
//	given: faulty
//
// as far as they are needed, and the text of both modules as in fault. Those of loops: see TestPlansOfLoops.
func readCases(t *testing.T, file string) (list []fault) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut("\n"+string(data), "\n=== ")
	for text := range strings.SplitSeq(text, "\n=== ") {
		name, rest, _ := strings.Cut(text, "\n")
		c := fault{name: name}
		for head := true; head; {
			line, after, _ := strings.Cut(rest, "\n")
			key, value, _ := strings.Cut(line, ":")
			switch value = strings.TrimSpace(value); {
			case strings.HasPrefix(line, "#"):
			case key == "want":
				c.want = value
			case key == "options":
				c.o = legal.Options{Collectives: strings.Contains(value, "collectives"), Loops: strings.Contains(value, "loops")}
			case key == "given" && value == "faulty":
				c.known = true
			case key == "of":
				c.of = value
			case key == "results" && value == "not compared":
				c.unproven = true
			default:
				head = false
				continue
			}
			rest = after
		}
		c.text = "\n" + rest + "\n"
		if (c.want == "") != strings.HasSuffix(name, " legal") {
			t.Fatalf("%s: the name of %q does not say what is wanted: %q", file, name, c.want)
		}
		list = append(list, c)
	}
	return list
}

// TestPlansAreJudgedAsTheirNamesSay checks the plans of testdata. Each wrong one passed once in a checker
// in which one condition was left out, and each legal one was refused.
func TestPlansAreJudgedAsTheirNamesSay(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		for _, c := range readCases(t, file) {
			t.Run(c.name, c.check)
		}
	}
}

// TestAliasesThatAPlanChangedAreRefused changes the aliases of a module beside its attributes, which keep the text that
// was read.
func TestAliasesThatAPlanChangedAreRefused(t *testing.T) {
	before := remattest.Parsed(t, `HloModule m, is_scheduled=true, input_output_alias={ {0}: (0, {0}, must-alias) }
ENTRY e {
  p = (f32[8]{0}, f32[8]{0}) parameter(0)
  q = (f32[8]{0}, f32[8]{0}) parameter(1)
  a = f32[8]{0} get-tuple-element(p), index=0
  s = f32[8]{0} sine(a)
  c = f32[8]{0} cosine(s)
  ROOT r = (f32[8]{0}, f32[8]{0}) tuple(s, c)
}
`)
	for name, change := range map[string]func(*hlo.Alias){
		"output":    func(a *hlo.Alias) { a.Output = []int{1} },
		"parameter": func(a *hlo.Alias) { a.Parameter = 1 },
		"part":      func(a *hlo.Alias) { a.Index = []int{1} },
		"must":      func(a *hlo.Alias) { a.Must = false },
	} {
		after := before.Clone()
		change(&after.Aliases[0])
		if err := (legal.Options{}).Check(before, after); err == nil || !strings.Contains(err.Error(), "input_output_alias differs") {
			t.Errorf("%s: %v", name, err)
		}
	}
	after := before.Clone()
	after.Aliases = nil
	if err := (legal.Options{}).Check(before, after); err == nil {
		t.Error("an alias is gone, and the plan is legal")
	}
}

// TestPlanThatIsNoModuleIsRefused: what xla/internal/verify refuses is not compared.
func TestPlanThatIsNoModuleIsRefused(t *testing.T) {
	before := remattest.Parsed(t, "HloModule m\nENTRY e {\n  p = f32[8]{0} parameter(0)\n  ROOT s = f32[8]{0} sine(p)\n}\n")
	after := before.Clone()
	after.Entry.Instructions[0].Users = nil
	var problem *verify.Error
	if err := (legal.Options{}).Check(before, after); !errors.As(err, &problem) {
		t.Errorf("%v, want an error of xla/internal/verify", err)
	}
}

// TestListWithoutScheduleIsNoOrder: in a module without schedule operands may stand behind their users.
func TestListWithoutScheduleIsNoOrder(t *testing.T) {
	before := remattest.Parsed(t, `HloModule m
ENTRY e {
  p = f32[8]{0} parameter(0)
  s = f32[8]{0} sine(p)
  c = f32[8]{0} cosine(s)
  ROOT r = f32[8]{0} add(s, c)
}
`)
	after := before.Clone()
	slices.Reverse(after.Entry.Instructions)
	if err := (legal.Options{}).Check(before, after); err != nil {
		t.Errorf("the list is reversed: %v", err)
	}
	after.Entry.Instruction("c").SetOperand(0, after.Entry.Instruction("p"))
	if err := (legal.Options{}).Check(before, after); err == nil {
		t.Error("the list is reversed, c has another operand, and the plan is legal")
	}
}

// TestResultsWithTooManyPartsAreRefused: the checker follows each part of a tuple through memory, and says so where it
// cannot.
func TestResultsWithTooManyPartsAreRefused(t *testing.T) {
	const parts = 4096
	m := remattest.Parsed(t, "HloModule m, is_scheduled=true\nENTRY e {\n  ROOT t = ("+strings.Repeat("f32[], ", parts-1)+"f32[]) parameter(0)\n}\n")
	for n := range parts {
		last := m.Entry.Root
		m.Entry.Root = m.NewInstruction(fmt.Sprint("b", n), hlo.OptBarrier, last.Shape, last)
		m.Entry.Insert(n+1, m.Entry.Root)
	}
	if err := (legal.Options{}).Check(m, m.Clone()); err == nil || !strings.Contains(err.Error(), "results have more than 2^24 parts") {
		t.Errorf("%v", err)
	}
}
