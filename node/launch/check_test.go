package launch

import (
	"math"
	"strings"
	"testing"

	"gpumem/node/runenv"
)

// TestCheckRefusesNumbersOutOfRange: no plan starts no copy, or more than a machine has room for.
func TestCheckRefusesNumbersOutOfRange(t *testing.T) {
	one := runenv.Limits{Procs: 1}
	for _, tc := range []struct {
		name string
		plan *Plan
		want string // the beginning of the error; "" for none
	}{
		{"one copy", &Plan{Copies: 1, Limits: one}, ""},
		{"as many as can be", &Plan{Copies: 1024, Limits: runenv.Limits{Procs: 1024}}, ""},
		{"no copy", &Plan{Limits: one}, "--copies 0"},
		{"too many copies", &Plan{Copies: 1025, Limits: one}, "--copies 1025"},
		{"no process", &Plan{Copies: 1}, "--procs 0"},
		{"too many processes", &Plan{Copies: 1, Limits: runenv.Limits{Procs: 1025}}, "--procs 1025"},
		{"no such pool", &Plan{Copies: 1, Limits: one, Pool: "x"}, "--pool: "},
		{"no pool, with JAX's allocator", &Plan{Copies: 1, Limits: runenv.Limits{Procs: 1, Allocator: "bfc"}, Pool: NoPool}, ""},
		{"two allocators", &Plan{Copies: 1, Limits: runenv.Limits{Procs: 1, Allocator: "bfc"}, Pool: "elastic"}, "--pool elastic and"},
		{"pinned memory for nothing", &Plan{Copies: 1, Limits: one, LendPinned: true}, "--lend-pinned is about memory"},
		{"pinned memory of turns", &Plan{Copies: 1, Limits: one, LendPinned: true, Turns: AutoTurns}, ""},
		{"no plan for nothing", &Plan{Copies: 1, Limits: runenv.Limits{Procs: 1, Remat: "0%"}}, "--remat: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := tc.plan.Check(); (err == nil) != (tc.want == "") || err != nil && !strings.HasPrefix(err.Error(), tc.want) {
				t.Errorf("%v, want %s", err, tc.want)
			}
		})
	}
}

// TestSetRefusesWhatIsNoAmount: an amount that was given is above nothing.
func TestSetRefusesWhatIsNoAmount(t *testing.T) {
	var p Plan
	for name, err := range map[string]error{
		"no bytes": p.SetBytes(0), "no share": p.SetShare(0), "more than all": p.SetShare(1.01), "no number": p.SetShare(math.NaN()),
		"no time": p.SetWait("0s"), "no duration": p.SetWait("5"),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if p.SetBytes(1) != nil || p.SetShare(1) != nil || p.SetWait(Forever) != nil || p.Bytes != 1 || p.Share != 1 || p.Wait != -1 {
		t.Errorf("%+v", &p)
	}
}
