package remat

import (
	"math"
	"strings"
	"testing"
	"time"

	"gpumem/xla/internal/cost"
)

// TestCheckRefusesNumbersOutOfRange: no number reaches a planner that it would divide by, or that
// its algorithm would not heed.
func TestCheckRefusesNumbersOutOfRange(t *testing.T) {
	for _, tc := range []struct {
		name string
		r    Request
		want string // the beginning of the error; "" for none
	}{
		{"as it is", Request{Algorithm: "xla", Rates: DefaultRates}, ""},
		{"all that gap does", Request{Algorithm: "gap", Rates: DefaultRates, Packed: true, Collectives: true, HostSpeed: 5e9, Search: time.Second}, ""},
		{"no algorithm", Request{Rates: DefaultRates}, `--algorithm ""`},
		{"no bandwidth", Request{Algorithm: "xla", Rates: cost.Rates{Flops: 1}}, "--bytes-per-second"},
		{"no speed", Request{Algorithm: "xla", Rates: cost.Rates{Bytes: 1, Flops: math.NaN()}}, "--bytes-per-second"},
		{"a link that takes", Request{Algorithm: "gap", Rates: DefaultRates, HostSpeed: -1}, "--host-bytes-per-second -1"},
		{"a link without end", Request{Algorithm: "gap", Rates: DefaultRates, HostSpeed: math.Inf(1)}, "--host-bytes-per-second +Inf"},
		{"a link for nothing", Request{Algorithm: "off", Rates: DefaultRates, HostSpeed: 1}, "--host-bytes-per-second: off"},
		{"packed by XLA", Request{Algorithm: "xla", Rates: DefaultRates, Packed: true}, "--packed: xla"},
		{"collectives by XLA", Request{Algorithm: "xla", Rates: DefaultRates, Collectives: true}, "--recompute-collectives: xla"},
		{"a search before it began", Request{Algorithm: "gap", Rates: DefaultRates, Search: -1}, "--time -1ns"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := tc.r.Check(); (err == nil) != (tc.want == "") || err != nil && !strings.HasPrefix(err.Error(), tc.want) {
				t.Errorf("%v, want %s", err, tc.want)
			}
		})
	}
}

// TestSetLimitReadsBytesAndParts: a part is of what the module takes, bytes are not.
func TestSetLimitReadsBytesAndParts(t *testing.T) {
	for words, want := range map[string]uint64{"60%": 600, " 100 %": 1000, "1KiB": 1024, "0%": 0, "101%": 0, "NaN%": 0, "x%": 0, "6B": 6, "6": 0, "x": 0} {
		var r Request
		err := r.SetLimit(words)
		if (err != nil) != (want == 0) || err == nil && (r.Limit(1000) != want || r.LimitFrom == "") {
			t.Errorf("%q: %v", words, err)
		}
	}
}
