package doctor

import (
	"encoding/json"
	"fmt"
	"gpumem/doctor/internal/statement"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpumem/internal/test/doctortest"
	"gpumem/node/machine"
)

// diagnose is the diagnosis of a log and a state; empty: none.
func diagnose(t testing.TB, log, state string) *Diagnosis {
	t.Helper()
	var s *machine.Snapshot
	if state != "" {
		var err error
		if s, err = machine.Read(strings.NewReader(state)); err != nil {
			t.Fatal(err)
		}
	}
	d, err := Diagnose(strings.NewReader(log), s)
	if err != nil {
		t.Fatal(err)
	}
	if err := sound(d, log); err != nil {
		t.Error(err)
	}
	return d
}

// sound checks what holds of every diagnosis.
func sound(d *Diagnosis, log string) error {
	lines := strings.Count(log, "\n") + 1
	for _, c := range d.Causes {
		n := 0
		for _, e := range c.Evidence {
			if e.Line < 0 || e.Line > lines || e.Text == "" || e.Reading == "" {
				return fmt.Errorf("%s: evidence %+v", c.ID, e)
			}
			if e.Line > 0 {
				n++
			}
		}
		if n == 0 && (d.Dump == nil || d.Dump.Line > 0) {
			return fmt.Errorf("%s is claimed without a line", c.ID)
		}
		if titles[c.ID] == "" || c.Title == "" || c.Rule == "" || c.Doc == "" {
			return fmt.Errorf("%s lacks its words: %+v", c.ID, c)
		}
		for _, s := range c.Settings {
			if s.Name == "" || s.Why == "" {
				return fmt.Errorf("%s: setting %+v", c.ID, s)
			}
			if s.Name == "TF_GPU_ALLOCATOR" && !strings.Contains(s.Why, "TensorFlow") {
				return fmt.Errorf("%s: TF_GPU_ALLOCATOR for others than TensorFlow", c.ID)
			}
		}
	}
	switch {
	case d.Verdict == VerdictUnknown && (len(d.Causes) > 0 || len(d.Certain) == 0):
		return fmt.Errorf("unknown with causes %v, certain %v", ids(d), d.Certain)
	case d.Verdict == VerdictAccount && (d.Account == nil || len(d.Account.Rows) == 0 || len(d.Causes) > 0):
		return fmt.Errorf("account without an account: %+v", d)
	case d.Verdict != VerdictUnknown && d.Verdict != VerdictAccount && len(d.Causes) == 0:
		return fmt.Errorf("%s without a cause", d.Verdict)
	case d.Verdict == VerdictEither && (len(d.Causes) < 2 || d.Decide == ""):
		return fmt.Errorf("either of %v, decide %q", ids(d), d.Decide)
	case d.Verdict == VerdictNeeds && (len(d.Missing) == 0 && d.Decide == ""):
		return fmt.Errorf("needs nothing: %v", ids(d))
	}
	return nil
}

func ids(d *Diagnosis) (list []string) {
	for _, c := range d.Causes {
		list = append(list, string(c.ID))
	}
	return list
}

// memorySettings are the settings that a diagnosis proposes, those left out that only
// mend a wrong variable.
func memorySettings(d *Diagnosis) (list []string) {
	for _, c := range d.Causes {
		if c.ID == BadSetting {
			continue
		}
		for _, s := range c.Settings {
			list = append(list, s.Name+"="+s.Value)
		}
	}
	return list
}

// TestCases diagnoses every generated case.
func TestCases(t *testing.T) {
	wrong := map[string]int{}
	for _, c := range doctortest.Cases() {
		d := diagnose(t, c.Log, c.State)
		if err := agrees(d, c); err != nil {
			base := strings.Join(strings.SplitN(c.Name, "/", 3)[:2], "/")
			if wrong[base]++; wrong[base] == 1 {
				t.Errorf("%s: %v\nwhy: %s\nrules: %s\n%s", c.Name, err, c.Why, rules(d), clipped(c.Log))
			}
		}
	}
	if len(wrong) > 0 {
		var n int
		for _, k := range wrong {
			n += k
		}
		t.Errorf("%d cases of %d bases are wrong", n, len(wrong))
	}
}

func rules(d *Diagnosis) string {
	var list []string
	for _, c := range d.Causes {
		list = append(list, c.Rule)
	}
	return strings.Join(list, "; ")
}

func clipped(log string) string {
	if len(log) > 1500 {
		return log[:1500] + "..."
	}
	return log
}

// agrees says how a diagnosis differs from what is expected of a case.
func agrees(d *Diagnosis, c doctortest.Case) error {
	got := fmt.Sprintf("%s %v, missing %q", d.Verdict, ids(d), d.Missing)
	if string(d.Verdict) != c.Verdict {
		return fmt.Errorf("got %s; want %s %v", got, c.Verdict, c.Causes)
	}
	switch d.Verdict {
	case VerdictCause, VerdictNonfatal, VerdictNotMemory:
		if ids(d)[0] != c.Causes[0] {
			return fmt.Errorf("got %s; want %s %v", got, c.Verdict, c.Causes)
		}
		if !slices.ContainsFunc(d.Causes[0].Evidence, func(e statement.Evidence) bool {
			return slices.ContainsFunc(c.Quotes, func(q string) bool {
				q = strings.TrimSpace(q)
				return strings.Contains(e.Text, q) || strings.Contains(q, e.Text) || len(e.Text) > 250 && strings.Contains(e.Text, q[:min(len(q), 40)])
			})
		}) {
			return fmt.Errorf("quotes %+v and none of %q", d.Causes[0].Evidence, c.Quotes)
		}
	case VerdictEither, VerdictNeeds:
		for _, id := range c.Causes {
			if !slices.Contains(ids(d), id) {
				return fmt.Errorf("got %s; want %s %v", got, c.Verdict, c.Causes)
			}
		}
	}
	for _, fact := range c.Missing {
		if !slices.ContainsFunc(d.Missing, func(m string) bool { return strings.Contains(strings.SplitN(m, ":", 2)[0], fact) }) {
			return fmt.Errorf("got %s; want missing %q", got, c.Missing)
		}
	}
	if c.NoMemorySetting && len(memorySettings(d)) > 0 {
		return fmt.Errorf("proposes %q", memorySettings(d))
	}
	return nil
}

// A settled is a log of third parties whose cause is known.
type settled struct {
	File, Group, Cause, State, Ask string
	Also                           []string // causes that are right as well
	NeedsOK                        bool     `json:"needs_ok"` // so is the cause as the first candidate of "needs"
}

// right reports whether a diagnosis names the cause.
func (s settled) right(d *Diagnosis) bool {
	if d.Verdict != VerdictCause && (!s.NeedsOK || d.Verdict != VerdictNeeds) || len(d.Causes) == 0 {
		return false
	}
	return ids(d)[0] == s.Cause || slices.Contains(s.Also, ids(d)[0])
}

// notYet has the logs, by name, on which the doctor is known to be wrong or to say
// too little. The file only shrinks: a log in it that is diagnosed well fails the
// test, too.
func notYet(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile("testdata/notyet.txt")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if name := strings.TrimSpace(line); name != "" && name[0] != '#' {
			out[name] = true
		}
	}
	return out
}

// TestSettled diagnoses logs of third parties, where there are some beside the
// checkout: see their README for the groups.
func TestSettled(t *testing.T) {
	dirs := []string{"../../shared/data/oomlogs"}
	if more := os.Getenv("GPUMEM_OOMLOGS"); more != "" {
		dirs = append(dirs, filepath.SplitList(more)...)
	}
	found := false
	wrong := notYet(t)
	for _, dir := range dirs {
		text, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
		if err != nil {
			continue
		}
		found = true
		var list []settled
		if err := json.Unmarshal(text, &list); err != nil {
			t.Fatal(err)
		}
		for _, s := range list {
			t.Run(strings.TrimSuffix(s.File, ".log"), func(t *testing.T) {
				log, err := os.ReadFile(filepath.Join(dir, s.File))
				if err != nil {
					t.Fatal(err)
				}
				var state []byte
				if s.Ask != "without_state" {
					state, _ = os.ReadFile(filepath.Join(dir, strings.TrimSuffix(s.File, ".log")+".state.json"))
				}
				found := s.check(t, string(log), string(state))
				name := strings.TrimSuffix(s.File, ".log")
				switch {
				case wrong[name] && found == "":
					t.Error("is diagnosed well: take it out of testdata/notyet.txt")
				case wrong[name]:
					t.Skip("known to be wrong: testdata/notyet.txt")
				case found != "":
					t.Error(found)
				}
			})
		}
	}
	if !found {
		t.Skip("skipped: no logs in ../shared/data/oomlogs beside the checkout")
	}
}

// check holds a log to its group, and returns what is wrong.
func (s settled) check(t *testing.T, log, state string) (found string) {
	d := diagnose(t, log, state)
	say := func(d *Diagnosis, format string, args ...any) {
		found += fmt.Sprintf("%s: %s\n%s %v (%s)\nmissing %q\ndecide %s\ncertain %q\n%s\n", s.Group, fmt.Sprintf(format, args...), d.Verdict,
			ids(d), rules(d), d.Missing, d.Decide, d.Certain, clipped(log))
	}
	switch s.Group {
	case "must_pass_from_log":
		if bare := diagnose(t, log, ""); !s.right(bare) {
			say(bare, "want cause %s without a state", s.Cause)
		}
		if !s.right(d) {
			say(d, "want cause %s", s.Cause)
		}
	case "must_pass_with_state":
		// Nothing may be asserted without it.
		if bare := diagnose(t, log, ""); bare.Verdict != VerdictNeeds && bare.Verdict != VerdictEither && bare.Verdict != VerdictUnknown {
			say(bare, "asserts something without a state")
		}
		if !s.right(d) {
			say(d, "want cause %s", s.Cause)
		}
	case "must_offer_both":
		for _, d := range []*Diagnosis{d, diagnose(t, log, "")} {
			if d.Verdict != VerdictEither && d.Verdict != VerdictNeeds || !slices.Contains(ids(d), s.Cause) && s.Cause != "not_memory" ||
				len(d.Causes) < 2 || d.Decide == "" {
				say(d, "want either, with %s", s.Cause)
			}
		}
	case "must_not_blame_memory":
		if set := memorySettings(d); len(set) > 0 {
			say(d, "proposes %q", set)
		}
		want := VerdictCause
		switch s.Cause {
		case "nonfatal_warning":
			want = VerdictNonfatal
		case "not_memory":
			want = VerdictNotMemory
		}
		// A library that fails on a free GPU is not memory, whether or not the log shows that
		// the library does not fit.
		if d.Verdict != want && !(s.Cause == "library_mismatch" && d.Verdict == VerdictNotMemory) {
			say(d, "want %s", want)
		}
	case "must_abstain":
		if d.Verdict != VerdictUnknown || len(d.Certain) == 0 {
			say(d, "want unknown")
		}
	default:
		t.Logf("%s (%s): %s %v", s.Group, s.Cause, d.Verdict, ids(d))
	}
	return found
}
