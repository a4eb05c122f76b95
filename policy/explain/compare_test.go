package explain

import (
	"bytes"
	"encoding/json"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/policy"
)

// answers are two that differ in everything.
func answers() (a, b Answer) {
	half, limit, most := 0.5, uint64(math.MaxUint64), uint64(64<<30)
	a = Answer{
		Framework: "jax", Version: "0.4.0", Allocator: "bfc", Preallocate: true, Fraction: &half, Of: "free", Limit: &limit, First: 5 << 30, Gets: 4 << 30,
		Pools:    []policy.Pool{{Name: "GPU_0_bfc", Space: "device", Limit: &limit}, {Name: "p1", Space: "collective", First: 1 << 30, Text: "at once"}},
		Settings: []policy.Setting{{Name: "A", Value: "1", Effect: "does this"}},
		Warnings: []policy.Warning{{Name: "B", Text: "does nothing"}, {Name: "B", Text: "nor that"}},
		Read:     "at the start",
	}
	b = Answer{
		Framework: "tensorflow", Version: "2.15", Allocator: "platform",
		Pools:    []policy.Pool{{Name: "none", Space: "device"}, {Name: "p2", Space: "collective", Text: "as needed"}, {Name: "host", Space: "host", Limit: &most, Text: "pinned"}},
		Settings: []policy.Setting{{Name: "C", Value: "3", Effect: "does that"}},
		Warnings: []policy.Warning{{Name: "A", Text: "is ignored"}},
		Read:     "later",
	}
	return a, b
}

func TestDifferences(t *testing.T) {
	a, b := answers()
	var fields []string
	for _, d := range Compare(a, b).Differences {
		fields = append(fields, d.Field)
	}
	want := []string{
		"framework", "allocator", "preallocate", "fraction", "of", "limit_bytes", "taken_at_first_operation_bytes", "gets_bytes",
		"pools.device", "pools.collective", "settings.A", "warnings.B", "pools.host", "settings.C", "warnings.A", "read",
	}
	if diff := cmp.Diff(want, fields); diff != "" {
		t.Error(diff)
	}
	// What one has not is null; numbers stay integers.
	data, err := json.Marshal(Compare(a, b).Differences)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`{"field":"limit_bytes","a":18446744073709551615,"b":null}`,
		`{"field":"settings.A","a":["does this"],"b":null}`,
		`{"field":"warnings.B","a":["does nothing","nor that"],"b":null}`,
	} {
		if !bytes.Contains(data, []byte(want)) {
			t.Errorf("without %s: %s", want, data)
		}
	}
	// The release alone is no difference.
	b = a
	b.Version = "9"
	if d := Compare(a, b).Differences; d == nil || len(d) > 0 {
		t.Errorf("%v", d)
	}
}
