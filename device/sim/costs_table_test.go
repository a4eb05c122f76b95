package sim

import (
	"reflect"
	"testing"
)

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
	look("", reflect.ValueOf(defaultCosts()))
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
