package sim

import (
	_ "embed" // testdata/costs.txt
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"gpumem/internal/table"
	"gpumem/internal/test/gpucheck/report"
	"gpumem/internal/test/gpucheck/tables"
)

//go:embed testdata/costs.txt
var fixedText string

// tableCosts is what defaultCosts is outside of tests.
var tableCosts = defaultCosts

// The tests of this package have modelled times written into them: their costs are fixed, so that a
// remade costs.txt changes none of them.
func init() {
	defaultCosts = sync.OnceValue(func() Costs {
		c, err := readCosts(fixedText)
		if err != nil {
			panic(err)
		}
		return c
	})
}

// TestCostsAreAllInTheTable refuses a field that costs.txt leaves out: its call would be free.
func TestCostsAreAllInTheTable(t *testing.T) {
	var look func(name string, v reflect.Value)
	look = func(name string, v reflect.Value) {
		for i := range v.NumField() {
			field := name + v.Type().Field(i).Name
			switch f := v.Field(i); {
			case f.Kind() == reflect.Struct:
				look(field+".", f)
			case f.IsZero():
				t.Errorf("%s has no entry", field)
			}
		}
	}
	look("", reflect.ValueOf(tableCosts()))
}

// TestRemadeCostsAreRead refuses a table that scripts/gpu-check --tables makes and readCosts does not
// read, or reads otherwise than it was measured.
func TestRemadeCostsAreRead(t *testing.T) {
	entries, err := table.Read("costs.txt", costsText, "about", "measured")
	if err != nil {
		t.Fatal(err)
	}
	figures := map[string]report.Figure{}
	want := map[string]time.Duration{}
	for _, e := range entries {
		name, value, _ := strings.Cut(e.Name, " ")
		d, err := time.ParseDuration(value)
		if err != nil {
			t.Fatal(err)
		}
		want[name] = d * 13 / 10
		figures[name] = report.Figure{Name: "cost." + name, Value: float64(want[name]) / 1e3, Unit: "us"}
	}
	after, notes := tables.Costs.Remake(costsText, figures, "a GPU, 2026-11-28", false)
	if len(notes.Written) != len(entries) || len(notes.Left) != 0 {
		t.Errorf("%d of %d entries are remade; left are %q", len(notes.Written), len(entries), notes.Left)
	}
	remade, err := readCosts(after)
	if err != nil {
		t.Fatal(err)
	}
	costs := reflect.ValueOf(remade)
	for name, cost := range want {
		of, field := costs, name
		if async, ok := strings.CutPrefix(name, "Async."); ok {
			of, field = costs.FieldByName("Async"), async
		}
		if got := time.Duration(of.FieldByName(field).Int()); got != cost {
			t.Errorf("%s is read as %v, want %v", name, got, cost)
		}
	}
}

func TestReadCostsOfADamagedTableNamesTheLine(t *testing.T) {
	for _, line := range []string{"MemMap", "MemMap 2", "MemMap -2us", "Mem 2us", "Async 2us", "Async.Mem 2us", "Fill 1us\nFill 1us"} {
		if _, err := readCosts("\n" + line + "\n"); err == nil {
			t.Errorf("%q is accepted", line)
		}
	}
	want := `costs.txt:2: "Mem 2us": want a field of Costs, once, and what it takes, such as 2us`
	if _, err := readCosts("# head\nMem 2us\n"); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
