package view_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpumem/internal/test/machinetest"
	"gpumem/node/internal/view"
	"gpumem/node/machine"
)

func TestTurnText(t *testing.T) {
	now := machinetest.Now
	since := now.Add(-3 * time.Minute)
	next, second := new(0), new(1)
	held := []machine.TurnHolder{{PID: 11, Bytes: 3 << 30, Why: "its turn is not over"}, {Bytes: 1 << 30, Why: "it is at work"}}
	for _, tt := range []struct {
		name       string
		turn       *machine.Turn
		word, text string
	}{
		{"none", nil, "", ""},
		{"in", &machine.Turn{State: "in", Since: since, Movable: 5}, "in", ""},
		{"in, and was out", &machine.Turn{State: "in", Since: since, Swaps: 1200, Seconds: 2.5}, "in", "1,200 swaps so far, the last took 2.5 s"},
		{"in, and stays", &machine.Turn{State: "in", NotAsked: "it maps memory by itself"}, "in", "not asked to leave: it maps memory by itself"},
		{"asked to pause", &machine.Turn{State: "in", Paused: true, NotAsked: "its work did not end in time"}, "to pause",
			"asked to pause, and still on the GPU; not asked to leave: its work did not end in time"},
		{"asked to pause, and leaves", &machine.Turn{State: "in", Paused: true, Movable: 5}, "to pause", "asked to pause, and still on the GPU"},
		{"asked to pause, with nothing", &machine.Turn{State: "in", Paused: true}, "to pause", "asked to pause, with nothing on the GPU that could leave"},
		{"leaving", &machine.Turn{State: "leaving", Since: since}, "leaving", "has been leaving for 3m"},
		{"away", &machine.Turn{State: "away", Since: since, OnHost: 2 << 30, Swaps: 1, Seconds: .25}, "away",
			"away for 3m, 2 GiB on the host, and it has no work; 1 swap so far, the last took 250 ms"},
		{"paused", &machine.Turn{State: "away", Since: since, OnHost: 2 << 30, Paused: true}, "paused",
			"paused, away for 3m, 2 GiB on the host; gpumem resume 7 has it come back"},
		{"paused, and waited", &machine.Turn{State: "waiting", Since: since, OnHost: 2 << 30, Wants: 3 << 30, Paused: true}, "paused",
			"paused, away for 3m, 2 GiB on the host; gpumem resume 7 has it come back"},
		{"waiting, next", &machine.Turn{State: "waiting", Since: since, OnHost: 2 << 30, Wants: 3 << 30, Place: next}, "waits",
			"waits for 3m for 3 GiB (next), with 2 GiB on the host"},
		{"waiting behind", &machine.Turn{State: "waiting", Since: since, OnHost: 2 << 30, Wants: 3 << 30, Place: second, HeldBy: held}, "waits",
			"waits for 3m for 3 GiB (1 before it), with 2 GiB on the host: process 11 holds 3 GiB (its turn is not over), " +
				"a process that cannot be seen from here holds 1 GiB (it is at work)"},
		{"waiting in vain", &machine.Turn{State: "in", Wants: 3 << 30, Place: next, Never: true, HeldBy: append(append(held[:1:1], held...), held...)}, "waits",
			"waits for 3 GiB more (next), which turns alone do not give it: process 11 holds 3 GiB (its turn is not over), process 11 holds 3 GiB (its turn is not over), " +
				"a process that cannot be seen from here holds 1 GiB (it is at work), 2 more hold some, too"},
		{"waiting, and passed over", &machine.Turn{State: "waiting", Since: since, NotAsked: "it gives no sign of life"}, "waiting", "not asked to leave: it gives no sign of life"},
		{"returning", &machine.Turn{State: "returning", Since: since}, "returning", "has been returning for 3m"},
		{"returning since who knows when", &machine.Turn{State: "returning"}, "returning", "is returning"},
		{"damaged", &machine.Turn{State: "unknown", NotAsked: "its record in the ledger is damaged"}, "unknown", "its turn is unknown: its record in the ledger is damaged"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if word := view.TurnWord(tt.turn); word != tt.word {
				t.Errorf("%q, want %q", word, tt.word)
			}
			if diff := cmp.Diff(tt.text, view.TurnText(tt.turn, 7, now)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
