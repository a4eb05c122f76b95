package report

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestGood: a report is good unless a check is wrong, crashed or hung.
func TestGood(t *testing.T) {
	for _, o := range Outcomes {
		want := o == Held || o == Skipped || o == NotReached
		r := Report{Results: []Result{{Outcome: Held}, {Outcome: o}}}
		if got := r.Good(); got != want {
			t.Errorf("%s: good is %v, want %v", o, got, want)
		}
	}
}

// TestTextSaysWhatIsWrong: each fault and reason is printed, in the page and in a check's line.
func TestTextSaysWhatIsWrong(t *testing.T) {
	r := Report{Results: []Result{
		{Name: "costs", Outcome: Wrong, Claim: "Calls cost so much", Doc: "costs.txt", Faults: []string{"cost.MemInfo is 9 us", "cost.MemMap is 3 us"}},
		{Name: "jax", Outcome: Skipped, Why: "python3 has no jax"},
		{Name: "fit-jax", Outcome: Held, Notes: []string{"outside is unknown"}},
	}}
	var page, lines strings.Builder
	r.Text(&page)
	for _, c := range r.Results {
		c.Line(&lines)
	}
	for _, text := range []string{page.String(), lines.String()} {
		for _, want := range []string{"wrong", "costs", "Calls cost so much", "cost.MemInfo is 9 us\n", "cost.MemMap is 3 us\n", "skipped",
			"python3 has no jax\n", "note: outside is unknown\n"} {
			if !strings.Contains(text, want) {
				t.Errorf("%q is not in\n%s", want, text)
			}
		}
	}
}

// TestOneLine: a sentence has what can be printed, on one line of at most 2000 bytes, cut between letters.
func TestOneLine(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"a sentence", "é is – a letter", "é is – a letter"},
		{"lines", "a\nb\n", "a | b"},
		{"color and a bar", "\x1b[31m10%\r20%\tdone\x00", "?[31m10% 20% done?"},
		{"no UTF-8", "a\xffb", "a?b"},
		{"nothing", " \n", ""},
		{"all that is left", strings.Repeat("x", 1996), strings.Repeat("x", 1996)},
		{"too long", strings.Repeat("x", 2001), strings.Repeat("x", 1996) + " ..."},
		{"cut between letters", strings.Repeat("x", 1995) + "éé", strings.Repeat("x", 1995) + " ..."},
	} {
		if got := OneLine(tc.text); got != tc.want {
			t.Errorf("%s: %d bytes %.60q, want %d bytes %.60q", tc.name, len(got), got, len(tc.want), tc.want)
		}
	}
}

// TestReadRefusesAnotherFormat: what is written is read, and nothing else.
func TestReadRefusesAnotherFormat(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.json")
	r := &Report{Format: Format, Machine: Machine{GPU: "a GPU", CC: "9.0"}, Results: []Result{{Name: "costs", Figures: []Figure{{"a", 1, "us", 2}}}}}
	if err := r.Write(path); err != nil {
		t.Fatal(err)
	}
	got, err := Read(path)
	if err != nil || got.Machine.GPU != "a GPU" || got.Machine.CC != "9.0" || got.Results[0].Figures[0] != r.Results[0].Figures[0] {
		t.Errorf("%+v, %v", got, err)
	}
	if Format != "gpu-check/1" {
		t.Errorf("the format is %q: reports of before cannot be read", Format)
	}
	for text, want := range map[string]string{
		`{"format": "gpu-check/2"}`: `: format "gpu-check/2", want "gpu-check/1"`,
		`{}`:                        `: format "", want "gpu-check/1"`,
		`[]`:                        ": not a report of gpu-check: ",
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path); err == nil || !strings.HasPrefix(err.Error(), path+want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
