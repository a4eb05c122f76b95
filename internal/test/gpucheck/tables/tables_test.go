package tables

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/internal/test/gpucheck/report"
)

const before = `# Costs.

MemInfo 8us
	about: asks for free and total:
		5-12 us.

MemMap 2us
	measured: 2us on an old GPU
	about: maps.

MemUnmap 3us
	about: unmaps.
`

// TestRemake: a table that was remade has the measured values with their source; remaking it again with
// the same report changes nothing, and what was not measured, or measured as 0, stays.
func TestRemake(t *testing.T) {
	figures := map[string]report.Figure{"MemInfo": {Value: 6.25}, "MemMap": {Value: 1.5}, "MemUnmap": {Value: 1e-5}, "Other": {Value: 1}}
	after, notes := Costs.Remake(before, figures, "a GPU", false)
	want := strings.NewReplacer("MemInfo 8us\n", "MemInfo 6.25us\n\tmeasured: 6.25us on a GPU\n",
		"MemMap 2us\n\tmeasured: 2us on an old GPU\n", "MemMap 1.5us\n\tmeasured: 1.5us on a GPU\n").Replace(before)
	if diff := cmp.Diff(want, after); diff != "" {
		t.Errorf("the table differs (-want +got):\n%s", diff)
	}
	wantNotes := Notes{
		Written: []string{"MemInfo 6.25us, was 8us", "MemMap 1.5us, was 2us"},
		Without: []string{"MemUnmap stays 3us: measured as 1e-05 us, too little to tell", "no entry for Other, measured as 1 us"},
	}
	if diff := cmp.Diff(wantNotes, notes); diff != "" {
		t.Errorf("the notes differ (-want +got):\n%s", diff)
	}
	if again, _ := Costs.Remake(after, figures, "a GPU", false); again != after {
		t.Errorf("remade twice it differs: %s", cmp.Diff(after, again))
	}
}

// TestRemakeLeavesDoubtfulFigures: one that is far from the table, or an estimate that becomes lower,
// is written by force only.
func TestRemakeLeavesDoubtfulFigures(t *testing.T) {
	const far, less = "more than a factor of 4 from the table", "less than the table has, which is to be enough for other programs, too"
	for _, tc := range []struct {
		name     string
		table    Table
		old      string
		value    float64
		want, is string // the entry, and why it is left
	}{
		{"4 times", Costs, "8us", 32, "32us", ""},
		{"above 4 times", Costs, "8us", 32.1, "32.1us", far},
		{"a quarter", Costs, "8us", 2, "2us", ""},
		{"below a quarter", Costs, "8us", 1.9, "1.9us", far},
		{"16 minutes", Costs, "8us", 1e9, "16m40s", far},
		{"nanoseconds", Costs, "500ns", .7504, "750ns", ""},
		{"as much", Outside, "72MiB", 64 << 20, "72MiB", ""},
		{"an eighth more, rounded up", Outside, "72MiB", 64<<20 + 1, "73MiB", ""},
		{"less", Outside, "72MiB", 63 << 20, "71MiB", less},
		{"far more", Outside, "72MiB", 257 << 20, "290MiB", far},
		{"4 times as much", Outside, "72MiB", 256 << 20, "288MiB", ""},
		{"1 MiB", Outside, "2MiB", 1 << 20, "2MiB", ""},
		{"a table that cannot be read", Outside, "much", 1 << 20, "2MiB", far},
	} {
		t.Run(tc.name, func(t *testing.T) {
			figures := map[string]report.Figure{"A": {Value: tc.value}}
			text := "A " + tc.old + "\n\tabout: x\n"
			written := "A " + tc.want + "\n\tmeasured: " + tc.want + " on a GPU\n\tabout: x\n"
			change := "A " + tc.want + ", was " + tc.old
			after, notes := tc.table.Remake(text, figures, "a GPU", false)
			want, wantNotes := written, Notes{Written: []string{change}}
			if tc.is != "" {
				want, wantNotes = text, Notes{Left: []string{change + ": " + tc.is}}
			}
			if diff := cmp.Diff(want, after) + cmp.Diff(wantNotes, notes); diff != "" {
				t.Error(diff)
			}
			if after, _ := tc.table.Remake(text, figures, "a GPU", true); after != written {
				t.Errorf("by force:\n%s", after)
			}
		})
	}
	_, notes := Outside.Remake("A 2MiB\n", map[string]report.Figure{"A": {Value: 1<<20 - 1}}, "", true)
	if want := (Notes{Without: []string{"A stays 2MiB: measured as 1.04858e+06 bytes, too little to tell"}}); !cmp.Equal(notes, want) {
		t.Errorf("less than 1 MiB: %+v", notes)
	}
}

// TestTake: figures are of checks that held, or are wrong in nothing but them.
func TestTake(t *testing.T) {
	cost := report.Figure{Name: "cost.MemInfo", Value: 6, Unit: "us"}
	for _, tc := range []struct {
		name  string
		check report.Result
		want  string
	}{
		{"held", report.Result{Outcome: report.Held}, ""},
		{"wrong by its figures", report.Result{Outcome: report.Wrong, Faults: []string{"cost.MemInfo: measured 6 us", "cost.MemMap: no row"}}, ""},
		{"wrong otherwise, too", report.Result{Outcome: report.Wrong, Faults: []string{"cost.MemInfo: measured 6 us", "TestRealCosts: lost"}}, "it is wrong otherwise: TestRealCosts: lost"},
		{"wrong by its figures, and a part failed",
			report.Result{Outcome: report.Wrong, Faults: []string{"cost.MemInfo: measured 6 us"}, Why: "failed to run: no end"},
			"it is wrong, and failed to run: no end"},
		{"crashed", report.Result{Outcome: report.Crashed, Why: "signal"}, "it is crashed: signal"},
		{"hung", report.Result{Outcome: report.Hung}, "it is hung"},
		{"not reached", report.Result{Outcome: report.NotReached, Why: "the time was up"}, "it is not reached: the time was up"},
		{"skipped", report.Result{Outcome: report.Skipped, Why: "why"}, "it is skipped: why"},
		{"an unknown end", report.Result{Outcome: "good"}, "it is good"},
		{"another unit", report.Result{Outcome: report.Held, Figures: []report.Figure{{Name: "cost.MemMap", Unit: "ms"}}}, `cost.MemMap is in "ms", want "us"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.check.Name, tc.check.Figures = "costs", append(tc.check.Figures, cost, report.Figure{Name: "tests passed"})
			got, refused := Costs.Take(&report.Report{Results: []report.Result{tc.check, {Name: "other", Outcome: report.Crashed}}})
			want, wantRefused := map[string]report.Figure{"MemInfo": cost}, []string(nil)
			if tc.want != "" {
				n := map[bool]string{true: "2", false: "1"}[len(tc.check.Figures) == 3]
				want, wantRefused = map[string]report.Figure{}, []string{n + " figures of costs are not taken: " + tc.want}
			}
			if diff := cmp.Diff(want, got) + cmp.Diff(wantRefused, refused); diff != "" {
				t.Error(diff)
			}
		})
	}
}
